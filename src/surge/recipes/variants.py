"""The variants of SURGE that can be put behind any row: ``<row>-surge-<variant>``."""

from surge.compensation.options import PathOptions
from surge.errors import ConfigError, did_you_mean

VARIANTS: dict[str, PathOptions] = {
    "": PathOptions(),
    "dpgc": PathOptions(fixed_scale="initial"),
    "clipped": PathOptions(scope="clipped"),
    "unclipped": PathOptions(scope="unclipped"),
    "copied": PathOptions(auxiliary="copied"),
    "tied": PathOptions(auxiliary="tied", eta=0.2, decay="cosine"),
    "1x1": PathOptions(auxiliary="pointwise"),
    "lowrank": PathOptions(auxiliary="low_rank"),
    "leaky": PathOptions(auxiliary="leaky_tail", eta=0.2, decay="cosine"),
    "above": PathOptions(aux_input="above_clamp", eta=0.1),
    "abovetied": PathOptions(aux_input="above_clamp", auxiliary="tied", eta=0.2, decay="cosine"),
    "weight": PathOptions(weight_side=0.2),
    "scaled": PathOptions(reading="scaled"),
    "share": PathOptions(dose="clipped_share"),
    "noise": PathOptions(noise=True),
    "align": PathOptions(align=1.0),
    "frozen": PathOptions(objective="frozen"),
    "half": PathOptions(share=0.5),
    "salient": PathOptions(share=0.5, chosen="saliency"),
    "fp8": PathOptions(arithmetic="fp8"),
}
"""What each suffix means; the empty one is SURGE as the paper has it."""


def options_of(variant: str) -> PathOptions:
    """Return the settings of a variant."""
    if variant not in VARIANTS:
        known = ", ".join(name for name in VARIANTS if name)
        raise ConfigError(
            f'SURGE has no variant "{variant}".{did_you_mean(variant, VARIANTS)} Known: {known}.'
        )
    return VARIANTS[variant]
