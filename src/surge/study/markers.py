"""A part of a page that is made from results, between two markers."""

from surge.errors import ConfigError


def replaced(text: str, begin: str, end: str, content: str, *, page: str) -> str:
    """Return a page with what stands between its markers made anew.

    Raises:
        ConfigError: the two markers are not there, once each and in order.
    """
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed or begin in rest or end in after:
        raise ConfigError(f"{page} needs one {begin.strip()} and, below it, one {end.strip()}.")
    return f"{before}{begin}{content}{end}{after}"
