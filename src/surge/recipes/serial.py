"""Recipes as YAML, both ways and strictly: ``load(dump(recipe)) == recipe``."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

import yaml

from surge.errors import ConfigError, did_you_mean
from surge.recipes.recipe import Recipe

T = TypeVar("T")


def dump(recipe: Recipe) -> str:
    """Return the recipe as YAML, every field written out."""
    return yaml.safe_dump(_plain(recipe), sort_keys=False, allow_unicode=True)


def load(text: str) -> Recipe:
    """Read a recipe; an unknown key is an error that names the closest valid one."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"The recipe is not valid YAML: {error}") from error
    return _build(Recipe, content, "recipe")


def _plain(value: Any) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _build(cls: type[T], content: Any, where: str) -> T:  # noqa: ANN401
    if not isinstance(content, dict):
        raise ConfigError(f"{where} must be a mapping, not {type(content).__name__}.")
    hints = typing.get_type_hints(cls)
    for key in content:
        if key not in hints:
            raise ConfigError(f'{where} has no field "{key}".{did_you_mean(str(key), hints)}')
    values = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in content.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}.") from error


def _convert(hint: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        nested = [a for a in arguments if dataclasses.is_dataclass(a)]
        return _convert(nested[0], value, where) if nested else value
    if origin is tuple:
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ConfigError(f"{where}={value!r} must be {hint.__name__}.")
    return value
