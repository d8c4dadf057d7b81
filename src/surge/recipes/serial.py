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


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _build(cls: type[T], content: Any, where: str) -> T:
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


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` as the annotated type of a field, or say what is accepted there."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            names = ", ".join(map(str, arguments))
            hint_text = did_you_mean(str(value), [str(a) for a in arguments])
            raise ConfigError(f"{where}={value!r} is not known.{hint_text} Accepted: {names}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}={value!r} must be a list.")
        return tuple(_convert(arguments[0], item, where) for item in value)
    if hint is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-4, without a point, as text
        except (TypeError, ValueError):
            raise ConfigError(f"{where}={value!r} must be a number.") from None
    kind = origin or hint
    if isinstance(kind, type) and (
        not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    ):
        raise ConfigError(f"{where}={value!r} must be {kind.__name__}.")
    return value


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    """Take the first alternative that accepts the value; None stands for itself."""
    if value is None and type(None) in options:
        return None
    problems = []
    for option in options:
        if option is not type(None):
            try:
                return _convert(option, value, where)
            except ConfigError as error:
                problems.append(error)
    raise problems[0]
