"""What an installed engine brings along."""

import os
import subprocess

from tests.runtime.building import ROOT, RUNTIME


def test_library_shows_a_program_nothing_but_its_header(engine):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", os.environ["SURGE_RUNTIME_LIBRARY"]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert "surge_run" in names
    assert [name for name in names if not name.startswith("surge_")] == []


def test_each_distribution_has_the_licence():
    assert (RUNTIME / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    for folder in (ROOT, RUNTIME):
        assert 'license-files = ["LICENSE"]' in (folder / "pyproject.toml").read_text()
