"""Rules and fixtures that every test shares."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Before anything imports Triton: its kernels are then run by Python, here and in subprocesses.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Some virtual machines announce AMX and do not have it: OpenVINO's int8 kernels end the process
# there. It is read once, when OpenVINO is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

try:
    from hypothesis import settings
except ImportError:  # a GPU machine's own interpreter may lack it; property tests run on the CPU
    pass
else:
    settings.register_profile("surge", deadline=None, derandomize=True, max_examples=25)
    settings.load_profile("surge")


class SkipRule:
    """Under CI a skipped test is a failure, unless it is marked ``gpu``.

    A skip says "not tested here", which on the machine that decides must never pass for "works".
    Expected failures are not skips; a module skipped as a whole is one, whatever its marks.
    """

    def __init__(self):
        self.skipped = []

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail") and "gpu" not in report.keywords:
            self.note(report)

    def pytest_collectreport(self, report):
        if report.skipped:
            self.note(report)

    def note(self, report):
        # A skip carries (file, line, "Skipped: why").
        *_, reason = report.longrepr
        self.skipped.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if self.skipped and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.skipped:
            terminalreporter.section("skipped without the gpu mark: a failure under CI", red=True)
            for line in self.skipped:
                terminalreporter.write_line(line)


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # an xdist worker; the controller judges its skips
        torch.set_num_threads(1)
    elif os.environ.get("CI", "").lower() not in ("", "0", "false"):
        # Registered rather than written as conftest hooks, which would miss the doctests in src.
        config.pluginmanager.register(SkipRule(), "surge-skip-rule")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))


@pytest.fixture(autouse=True)
def seed():
    """Every test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def free_width(monkeypatch):
    """Parallel workers are told a terminal width; what commands print must not depend on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def data_dir():
    """The folder of real data: $SURGE_DATA, else ./data."""
    folder = Path(os.environ.get("SURGE_DATA") or "data").resolve()
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} does not exist (set SURGE_DATA)")
    return folder


def having(folder, *names):
    """The folder of real data, if these sets are in it."""
    for name in names:
        if not (folder / name).exists():
            pytest.skip(f"no real data: {folder / name} does not exist")
    return folder


@pytest.fixture(scope="session")
def cifar10_dir(data_dir):
    """The folder of real data, with CIFAR-10."""
    return having(data_dir, "cifar-10-batches-bin")


@pytest.fixture(scope="session")
def glue_dir(data_dir):
    """The folder of real data, with GLUE and a BERT."""
    return having(data_dir, "glue", "bert-minilm-l6")


@pytest.fixture(scope="session")
def imagenette_dir(data_dir):
    """The folder of real data, with small photographs."""
    return having(data_dir, "imagenette96")


@pytest.fixture(scope="session")
def voc_dir(data_dir):
    """The folder of real data, with PASCAL VOC."""
    return having(data_dir, "VOCdevkit")


@pytest.fixture(scope="session")
def torchvision():
    """The package, read from the folder that keeps it away from lightning and transformers."""
    from surge.models.vision_ops import vision

    apart = str(Path(sys.prefix) / "vision")
    installed = importlib.util.find_spec("torchvision") is not None
    if not installed and not Path(apart).is_dir():
        pytest.skip(f"no torchvision, and none in {apart} (make setup)")
    if installed:
        return vision()
    sys.path.insert(0, apart)
    try:
        return vision()
    finally:
        sys.path.remove(apart)
