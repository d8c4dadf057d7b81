"""The settings of the auxiliary path, and what may be combined with what."""

from dataclasses import dataclass
from typing import Literal, get_args

from surge.errors import ConfigError, did_you_mean

Kind = Literal["independent", "copied", "tied", "pointwise", "low_rank", "leaky_tail"]
Scope = Literal["all", "clipped", "unclipped"]
Entry = Literal["sign_input", "layer_input", "above_clamp"]


@dataclass(frozen=True)
class PathOptions:
    """How the auxiliary path of every layer is made; the fields of ``compensate_``."""

    eta: float = 0.01
    """Share of the main gradient's norm that is injected (the leaky tail's rho)."""
    auxiliary: Kind = "independent"
    """Where the auxiliary weight comes from."""
    scope: Scope = "all"
    """Inject everywhere, or only where the surrogate is (clipped) or is not (unclipped) zero."""
    aux_input: Entry = "sign_input"
    """The tensor that the auxiliary path sees and repairs."""
    fixed_scale: float | Literal["initial"] | None = None
    """Keep the scale at a number, or at its initial value, instead of adapting it."""
    reading: Literal["unscaled", "scaled"] = "unscaled"
    """Norm in the denominator of the scale: of g_a, or of scale * g_a (its fixed point)."""
    decay: Literal["none", "cosine"] = "none"
    """Let the dose fall to zero over training."""
    dose: Literal["uniform", "clipped_share", "delivered"] = "uniform"
    """Spread g_a evenly, or over channels in proportion to their clipped share, which is counted
    like a norm's statistics: in one forward of one process. ``delivered``: eta is the share of what
    arrives below the Hardtanh that feeds a layer; nothing is injected where that passes nothing."""
    weight_side: float = 0.0
    """Share of the weight gradient's norm added to it as z * G. Both norms are those of a whole
    step, over micro-batches and ranks; that takes two tensors of the weight's size per layer, and
    their exchange between ranks."""
    align: float = 0.0
    """Weight of the loss that pulls the auxiliary output towards the binary output."""
    noise: bool = False
    """Replace g_a by noise of the same norm: the control experiment."""
    rank: int = 4
    """Rank of the low-rank auxiliary weight."""
    objective: Literal["follow", "bias", "frozen"] = "follow"
    """Train W_a by its own gradient, or (``learn_bias_``) to predict the missing one, or never."""
    signed: bool = False
    """Give every scale the sign that a smooth network asks for, and at most its dose: whoever
    trains calls ``calibrate_`` every hundred steps or so, as ``surge train`` does."""
    every: int = 1
    """Train W_a in every so many-th step only; g_a is injected in all. DistributedDataParallel
    then needs ``find_unused_parameters=True``."""
    share: float = 1.0
    """Share of the layers that get a path."""
    chosen: Literal["random", "saliency"] = "random"
    """Which layers those are: drawn by ``seed``, or those whose inputs are clipped most."""
    arithmetic: Literal["same", "fp8"] = "same"
    """Of the auxiliary products of linear layers: as the main path, or in 8 bits."""
    seed: int = 0
    """Seed of all that is drawn: auxiliary weights, the layers of ``share``, noise."""

    def __post_init__(self) -> None:
        """Check every value."""
        _check_positive("eta", self.eta)
        for field, options in (
            ("auxiliary", get_args(Kind)),
            ("scope", get_args(Scope)),
            ("aux_input", get_args(Entry)),
            ("reading", ("unscaled", "scaled")),
            ("decay", ("none", "cosine")),
            ("dose", ("uniform", "clipped_share", "delivered")),
            ("objective", ("follow", "bias", "frozen")),
            ("chosen", ("random", "saliency")),
            ("arithmetic", ("same", "fp8")),
        ):
            value = getattr(self, field)
            if value not in options:
                raise ConfigError(
                    f"{field}={value!r} is not known.{did_you_mean(str(value), options)} "
                    f"Accepted: {', '.join(options)}."
                )
        if self.fixed_scale is not None and self.fixed_scale != "initial":
            _check_positive("fixed_scale", self.fixed_scale)
        _check_positive("share", self.share)
        if self.share > 1:
            raise ConfigError(f"share={self.share!r} must be at most 1: all layers.")
        for field in ("weight_side", "align"):
            if getattr(self, field) != 0:
                _check_positive(field, getattr(self, field))
        for field, least in (("rank", 1), ("every", 1), ("seed", 0)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{field}={value!r} must be a whole number, at least {least}.")
        _check_together(self)


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ConfigError(f"{name}={value!r} must be a positive, finite number.")


def _changed(options: PathOptions, *names: str) -> list[str]:
    """Return those of the settings that are not at their default."""
    return [name for name in names if getattr(options, name) != getattr(PathOptions, name)]


def _check_together(options: PathOptions) -> None:
    weightless = options.auxiliary in ("tied", "leaky_tail")
    if weightless and (options.align or options.objective != "follow" or options.every > 1):
        raise ConfigError(
            f'auxiliary="{options.auxiliary}" has no weight of its own, so align=, objective= and '
            "every= do not apply to it."
        )
    if options.every > 1 and (options.align or options.objective != "follow"):
        raise ConfigError(
            "every= is for a weight that learns by its own gradient, so align= and objective= do "
            "not combine with it."
        )
    if options.align and options.objective == "frozen":
        raise ConfigError('align= trains the auxiliary weight, which objective="frozen" forbids.')
    if options.auxiliary == "low_rank" and options.arithmetic == "fp8":
        raise ConfigError('auxiliary="low_rank" has products too small for arithmetic="fp8".')
    others = _changed(options, "scope", "aux_input", "dose", "noise")
    others += ['auxiliary="low_rank"'] if options.auxiliary == "low_rank" else []
    if options.objective == "bias" and others:
        raise ConfigError(
            'objective="bias" trains one weight to predict what is missing at the tensor that '
            f"enters sign; it does not combine with {', '.join(others)}."
        )
    if options.dose == "delivered" and options.aux_input == "above_clamp":
        raise ConfigError('aux_input="above_clamp" loses nothing: dose="delivered" does not apply.')
    if options.fixed_scale is not None and _changed(options, "decay", "reading", "signed"):
        raise ConfigError(
            "fixed_scale= never changes, so decay=, reading= and signed= do not apply to it."
        )
    others = _changed(options, "aux_input", "noise")
    if options.signed and options.reading != "unscaled":
        raise ConfigError("signed= takes a share of the unscaled ratio: reading= does not apply.")
    if options.signed and others:
        raise ConfigError(
            "signed= compares g_a with a smooth network at the tensor that enters sign; it does "
            f"not combine with {', '.join(others)}."
        )
    others = _changed(
        options,
        *("scope", "aux_input", "reading", "dose"),
        *("weight_side", "noise", "fixed_scale", "arithmetic", "signed"),
    )
    if options.auxiliary == "leaky_tail" and others:
        raise ConfigError(f'auxiliary="leaky_tail" does not combine with {", ".join(others)}.')
    if options.auxiliary != "low_rank" and _changed(options, "rank"):
        raise ConfigError(f'rank={options.rank} is for auxiliary="low_rank" alone.')
