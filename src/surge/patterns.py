"""Choosing modules by glob patterns over their names; a pattern that matches nothing is an error."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from surge.errors import ConfigError, NoLayersMatchedError, did_you_mean

Patterns = str | Sequence[str]


def as_patterns(value: Patterns | None, argument: str) -> tuple[str, ...]:
    """Return one or several patterns as a tuple."""
    if value is None:
        return ()
    patterns = (value,) if isinstance(value, str) else tuple(value)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"{argument}={value!r} must hold non-empty name patterns.")
    return patterns


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
                f'{argument}: no layer matches "{pattern}".{did_you_mean(pattern, names)} '
                f"Layers: {shown or 'none'}."
            )
