"""The rule that nothing is skipped silently under CI, tried on tiny test files."""

from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]

SKIPPED = "import pytest\n@pytest.mark.skip(reason='no such thing')\ndef test_it(): pass\n"
SKIPPED_FILE = "import pytest\npytest.skip('no such package', allow_module_level=True)\n"
SKIPPED_DOCTEST = "'''\n>>> 1 + 1  # doctest: +SKIP\n3\n'''\n"
NEEDS_GPU = "import pytest\n@pytest.mark.gpu\ndef test_it(): assert False\n"
NEEDS_DATA = "def test_it(data_dir): assert data_dir.is_dir()\n"
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n"

HEADING = "*skipped without the gpu mark*"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tiny files under our conftest, on a machine without GPU and data."""
    pytester.makeini("[pytest]\nmarkers =\n    gpu\ntestpaths =\n    tests\n    src\n")
    pytester.mkdir("src")
    conftest = pytester.mkdir("tests") / "conftest.py"
    conftest.write_text(Path(__file__).with_name("conftest.py").read_text())
    monkeypatch.delenv("SURGE_DATA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(files, *options, ci="true"):
        monkeypatch.setenv("CI", ci)
        for name, text in files.items():
            (pytester.path / name).write_text(text)
        # Options that start workers need a process of their own.
        start = pytester.runpytest_subprocess if "-n" in options else pytester.runpytest_inprocess
        return start(*options)

    return run


def test_skip_fails_under_ci_and_is_named(run):
    result = run({"tests/test_a.py": SKIPPED})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([HEADING, "tests/test_a.py::test_it: no such thing"])


def test_skipped_file_fails_under_ci(run):
    result = run({"tests/test_a.py": SKIPPED_FILE})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([HEADING, "tests/test_a.py: no such package"])


def test_skipped_doctest_in_src_fails_under_ci(run):
    result = run({"src/a.py": SKIPPED_DOCTEST}, "--doctest-modules")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([HEADING, "src/a.py::a: *"])


def test_missing_data_fails_under_ci(run):
    result = run({"tests/test_a.py": NEEDS_DATA})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([HEADING, "*test_it: no real data: *"])


def test_workers_report_their_skips(run):
    files = {"test_a.py": SKIPPED, "test_b.py": SKIPPED_FILE, "test_c.py": NEEDS_GPU}
    result = run({f"tests/{name}": text for name, text in files.items()}, "-n", "1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(["*test_a.py::test_it: no such*", "*test_b.py: no such*"])
    result.stdout.no_fnmatch_line("*test_c.py*: no CUDA GPU")


def test_gpu_skip_passes_under_ci(run):
    result = run({"tests/test_a.py": NEEDS_GPU}, "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED*no CUDA GPU"])


def test_expected_failure_is_no_skip(run):
    result = run({"tests/test_a.py": EXPECTED_FAILURE})
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(xfailed=1)


@pytest.mark.parametrize("ci", ["", "0", "false"])
def test_skip_passes_elsewhere(run, ci):
    assert run({"tests/test_a.py": SKIPPED}, ci=ci).ret == pytest.ExitCode.OK


def test_data_dir_follows_the_variable(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SURGE_DATA", str(tmp_path))
    assert run({"tests/test_a.py": NEEDS_DATA}).ret == pytest.ExitCode.OK
