"""The variants of SURGE that can be put behind any row: ``<row>-surge-<variant>``.

A variant may end with a number for its share or its scale: ``eta0.1``, ``tied-eta0.05``,
``fixed0.02``. Such rows make the curves over eta and over fixed scales.
"""

import re
from dataclasses import fields, replace
from typing import Any

from surge.compensation.options import PathOptions
from surge.errors import ConfigError, did_you_mean

VARIANTS: dict[str, PathOptions] = {
    "": PathOptions(),
    "dpgc": PathOptions(fixed_scale="initial"),
    "clipped": PathOptions(scope="clipped"),
    "unclipped": PathOptions(scope="unclipped"),
    "delivered": PathOptions(dose="delivered"),
    "clipped-delivered": PathOptions(scope="clipped", dose="delivered"),
    "copied": PathOptions(auxiliary="copied"),
    "tied": PathOptions(auxiliary="tied", eta=0.2, decay="cosine"),
    "1x1": PathOptions(auxiliary="pointwise"),
    "lowrank": PathOptions(auxiliary="low_rank", rank=8),
    "leaky": PathOptions(auxiliary="leaky_tail", eta=0.2, decay="cosine"),
    "above": PathOptions(aux_input="above_clamp", eta=0.1),
    "abovetied": PathOptions(aux_input="above_clamp", auxiliary="tied", eta=0.2, decay="cosine"),
    "weight": PathOptions(weight_side=0.2),
    "scaled": PathOptions(reading="scaled"),
    "share": PathOptions(dose="clipped_share"),
    "noise": PathOptions(noise=True),
    "align": PathOptions(align=1.0),
    "frozen": PathOptions(objective="frozen"),
    "bias": PathOptions(objective="bias"),
    "signed": PathOptions(signed=True),
    "fourth": PathOptions(every=4),
    "half": PathOptions(share=0.5),
    "salient": PathOptions(share=0.5, chosen="saliency"),
    "fp8": PathOptions(arithmetic="fp8"),
}
"""What each suffix means; the empty one is SURGE as the paper has it."""


SWEPT = {"eta": "eta", "fixed": "fixed_scale"}
"""The settings that a name can carry a number for, by the word before it."""
_NUMBER = re.compile(rf"(?:(?P<rest>.+)-)?(?P<word>{'|'.join(SWEPT)})(?P<value>\d[\d.e-]*)")


def split_variant(variant: str) -> tuple[str, str | None, float]:
    """Return a variant without its number, the setting that has it, and the number.

    >>> split_variant("tied-eta0.05"), split_variant("tied")
    (('tied', 'eta', 0.05), ('tied', None, 0.0))
    """
    found = _NUMBER.fullmatch(variant)
    if found is None:
        return variant, None, 0.0
    try:
        return found["rest"] or "", SWEPT[found["word"]], float(found["value"])
    except ValueError:
        return variant, None, 0.0


def has_number(row: str) -> bool:
    """Return whether a row's name ends with a number of its own.

    >>> has_number("resnet20-recu-surge-eta0.1"), has_number("resnet20-recu-surge-tied")
    (True, False)
    """
    variant = row.partition("-surge")[2].removeprefix("-")
    return split_variant(variant)[1] is not None


def with_number(row: str, word: str, value: float) -> str:
    """Return a row with SURGE that has a number of its own for a setting of ``SWEPT``.

    >>> with_number("cnn-recu-surge", "eta", 1e-4), with_number("cnn-recu-surge-tied", "eta", 1)
    ('cnn-recu-surge-eta0.0001', 'cnn-recu-surge-tied-eta1')
    """
    return f"{row}-{word}{value:.12g}".replace("+", "")


def row_with(row: str, variant: str) -> str:
    """Return the row that has SURGE in a variant behind another.

    >>> row_with("cnn-recu", ""), row_with("cnn-recu", "tied")
    ('cnn-recu-surge', 'cnn-recu-surge-tied')
    """
    return "-".join(word for word in (row, "surge", variant) if word)


def varied(options: PathOptions, variant: str) -> PathOptions:
    """Return settings changed in what makes the variant; its own eta, if it has one, included."""
    changed, usual = options_of(variant), PathOptions()
    names = (f.name for f in fields(PathOptions))
    differing = {n: getattr(changed, n) for n in names if getattr(changed, n) != getattr(usual, n)}
    return replace(options, **differing)


def options_of(variant: str) -> PathOptions:
    """Return the settings of a variant."""
    name, key, value = split_variant(variant)
    if name not in VARIANTS:
        known = ", ".join(name for name in VARIANTS if name)
        raise ConfigError(
            f'SURGE has no variant "{name}".{did_you_mean(name, VARIANTS)} Known: {known}, and '
            "eta or fixed with a number (eta0.1)."
        )
    given: dict[str, Any] = {} if key is None else {key: value}
    return replace(VARIANTS[name], **given)
