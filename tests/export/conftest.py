"""The engine, built once per session."""

import pytest

from tests.runtime.building import import_engine


@pytest.fixture(scope="session")
def engine():
    return import_engine()
