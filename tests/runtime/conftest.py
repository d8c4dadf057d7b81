"""The engine, built once per session."""

import pytest

from tests.runtime.building import BUILD, build, import_engine

collect_ignore = ["damage.py"]  # a script for a process of its own


@pytest.fixture(scope="session")
def engine():
    return import_engine()


@pytest.fixture(scope="session")
def classify(engine):
    """The C example."""
    return BUILD / "runtime" / "classify"


@pytest.fixture(scope="session")
def sanitized():
    """The C example, built with AddressSanitizer and UBSan."""
    return build("runtime-sanitized", "-DSURGE_SANITIZE=ON", "-DSURGE_FUZZ=ON") / "classify"
