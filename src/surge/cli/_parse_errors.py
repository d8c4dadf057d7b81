"""What tyro says about a wrong command line, in one line instead of a box."""

import re

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RULE = re.compile(r"[─-]+")
_INDENT = 4
"""Of the options that a box names; what explains them is indented further."""


def one_line(box: str, command: str) -> str:
    """Return what was wrong, what was expected and near misses; then where the help is."""
    parts: list[list[str]] = [[]]
    for line in _COLOUR.sub("", box).splitlines()[1:]:
        text = line[2:].rstrip("│╯ ")
        if _RULE.fullmatch(text):
            parts.append([])
        elif text and len(text) - len(text.lstrip()) <= _INDENT:
            parts[-1].append(text.strip())
    said = [_said(*part) for part in parts if part and not part[0].startswith("For full help")]
    return " ".join([*said, f"Run `{command} --help` for the options."])


def _said(heading: str, *rest: str) -> str:
    if heading == "Argument helptext:":
        heading, rest = "Expected:", rest[:1]
    options = " ".join(rest).replace(" --", ", --")
    return f"{heading.removeprefix('Error parsing ')} {options}".rstrip(" .") + "."
