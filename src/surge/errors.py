"""Every error a user can meet, and the one helper that names a near miss."""

from collections.abc import Iterable
from difflib import get_close_matches


class SurgeError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(SurgeError, ValueError):
    """A setting has a value that is not accepted."""


class NoLayersMatchedError(SurgeError, ValueError):
    """A pattern, or a whole request, selects no layer."""


class UnsupportedLayerError(SurgeError, TypeError):
    """A layer or a wrapper that cannot be handled was asked for explicitly."""


class CheckpointMismatchError(SurgeError, ValueError):
    """A stored state does not belong to this model, recipe or format."""


class ExportError(SurgeError, ValueError):
    """A model cannot be lowered to the requested format."""


class DataNotFoundError(SurgeError, FileNotFoundError):
    """A data set is not where it was looked for."""


class MissingDependencyError(SurgeError, ImportError):
    """An optional package is needed; the message holds the install command."""


class SurgeWarning(UserWarning):
    """A known pitfall of binary networks: cause and remedy in one sentence."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `` Did you mean "x"?`` for the closest option, or an empty string.

    >>> did_you_mean("recuu", ["recu", "xnor"])
    ' Did you mean "recu"?'
    """
    close = get_close_matches(word, list(options), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
