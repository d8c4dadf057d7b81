"""What an installed engine brings along."""

import os
import shutil
import subprocess

import pytest

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


def test_library_is_linked_for_a_mac_as_its_compiler_accepts(tmp_path):
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("cmake is not installed: the engine cannot be built")
    words = [cmake, "-S", str(RUNTIME), "-B", str(tmp_path), "-G", "Unix Makefiles"]
    # No linker for a Mac is at hand, so CMake must not try one.
    words += ["-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64"]
    words += ["-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"]
    subprocess.run(words, check=True, capture_output=True)
    linked = (tmp_path / "CMakeFiles" / "surge_runtime.dir" / "link.txt").read_text()
    assert "-dynamiclib" in linked
    assert "-static" not in linked and "version-script" not in linked


def test_each_distribution_has_the_licence():
    assert (RUNTIME / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    for folder in (ROOT, RUNTIME):
        assert 'license-files = ["LICENSE"]' in (folder / "pyproject.toml").read_text()
