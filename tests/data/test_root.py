from pathlib import Path

from surge.data import resolve_root


def test_resolve_root_prefers_argument_then_variable_then_data():
    environ = {"SURGE_DATA": "/sets"}
    assert resolve_root("given", environ) == Path("given")
    assert resolve_root(Path("given"), environ) == Path("given")
    assert resolve_root(None, environ) == Path("/sets")
    assert resolve_root(None, {}) == Path("data")


def test_resolve_root_takes_an_empty_variable_for_unset():
    assert resolve_root(None, {"SURGE_DATA": ""}) == Path("data")


def test_resolve_root_expands_the_home_folder():
    assert resolve_root("~/sets", {}) == Path.home() / "sets"
