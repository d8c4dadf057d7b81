"""Choosing modules by glob patterns over names; a pattern that matches nothing is an error."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from surge.errors import ConfigError, NoLayersMatchedError, did_you_mean

Patterns = str | Sequence[str]


def as_patterns(value: Patterns | None, argument: str) -> tuple[str, ...]:
    """Return one or several patterns as a tuple."""
    if value is None:
        return ()
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) and p for p in patterns):
        raise ConfigError(f"{argument}={value!r} must hold non-empty name patterns.")
    return tuple(patterns)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches any of the patterns.

    >>> matches("layer1.0.downsample.0", ("*downsample*",))
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def require_each_matches(patterns: Iterable[str], names: Sequence[str], argument: str) -> None:
    """Raise for the first pattern that matches none of the names."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise NoLayersMatchedError(
                f'{argument}: no layer matches "{pattern}".{_near_miss(pattern, names)} '
                f"Layers: {shown or 'none'}."
            )


def _near_miss(pattern: str, names: Sequence[str]) -> str:
    """Name a close layer, or the pattern that a part of the names would need.

    >>> _near_miss("layer4", ["conv1", "layer4.0.conv1"])
    ' Did you mean "*layer4*"?'
    """
    core = pattern.strip("*.")
    parts = {part for name in names for part in name.split(".")}
    whole = did_you_mean(pattern, names)
    if whole and core not in parts:
        return whole
    close = get_close_matches(core, sorted(parts), n=1)
    if not close:
        return ""
    mended = pattern.replace(core, close[0])
    works = any(fnmatchcase(name, mended) for name in names)
    return f' Did you mean "{mended if works else f"*{close[0]}*"}"?'
