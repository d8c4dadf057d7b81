"""The auxiliary path of a layer: its weight, its scale, and what it does in a forward."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from surge.compensation.dry_run import RecordingHardtanh, in_backward
from surge.compensation.dual_path import inject, tap, tap_whole
from surge.compensation.noise import Source
from surge.compensation.options import PathOptions
from surge.compensation.path import Path, Watch
from surge.compensation.scaler import initial_scale
from surge.errors import ConfigError, SurgeWarning, UnsupportedLayerError
from surge.kernels import branch, fused
from surge.layers.base import BinaryLayer
from surge.layers.conv import BinaryConv2d
from surge.layers.product import geometry_arguments, product


class Ingredients(NamedTuple):
    """What the auxiliary operator's weight is made of, in the backward and only there."""

    weight: Tensor
    gain: Tensor | None = None
    centre: Tensor | None = None
    """One each per filter: the operator's weight is ``gain * (weight - centre)``."""
    right: Tensor | None = None
    """The operator's weight is ``weight @ right``."""

    def whole(self) -> Tensor:
        """Return the operator's weight."""
        if self.right is not None:
            whole = self.weight @ self.right.flatten(1)
            return whole.view(-1, *self.right.shape[1:])
        if self.gain is not None and self.centre is not None:
            return self.gain * (self.weight - self.centre)
        return self.weight


class AuxiliaryPath(Path):
    """The dual path of SURGE, with an auxiliary weight of some kind."""

    weight: nn.Parameter | None
    direction: Tensor
    weight_scale: Tensor

    def __init__(
        self, layer: BinaryLayer, options: PathOptions, generator: torch.Generator
    ) -> None:
        """Draw or copy the auxiliary weight and set the first scale."""
        super().__init__(layer, options)
        self.watch: Watch | None = None
        self.forwards = 0
        """Training forwards so far; compiled ones are not counted."""
        self.learning = True
        self.clamp: tuple[RecordingHardtanh, ...] = ()
        self.bounds: tuple[float, float] | None = None
        """Of the clamp that feeds the layer, where only what that passes is to be injected."""
        self.alignment: Tensor | None = None
        self.growth: Callable[[], Tensor] | None = None
        """After a step: the factor by which what the weight learned changed the norm of g_a."""
        self._create_weight(layer, generator)
        device = layer.weight.device
        self.source = Source(generator, device) if options.noise else None
        shaped = self.effective_weight(layer).detach()
        if not shaped.any():
            raise ConfigError("its weight is all zeros, so the auxiliary gradient would be zero")
        first = options.fixed_scale
        initial = initial_scale(shaped) if first in (None, "initial") else float(cast(float, first))
        self.scale.fill_(initial)
        self.register_buffer("direction", torch.ones_like(self.scale))
        if options.weight_side:
            self.register_buffer(
                "weight_scale", torch.full_like(self.scale, initial_scale(layer.weight))
            )
            for name in ("weight", "weight_side"):
                self.probes[name] = torch.zeros_like(layer.weight, requires_grad=True)

    def _create_weight(self, layer: BinaryLayer, generator: torch.Generator) -> None:
        """Register this kind's parameters."""
        source = layer.weight.detach()
        if self.options.auxiliary == "copied":
            drawn = source.clone()
        else:
            drawn = redraw(source, self._weight_shape(layer), generator)
        self.weight = nn.Parameter(drawn)

    def _weight_shape(self, layer: BinaryLayer) -> torch.Size:
        return layer.weight.shape

    def effective_weight(self, layer: BinaryLayer) -> Tensor:
        """Return the weight of the auxiliary operator."""
        assert self.weight is not None
        return self.weight

    def ingredients(self, layer: BinaryLayer) -> Ingredients:
        """Return what makes the effective weight; without gradient where it is not to learn."""
        return Ingredients(self._learning(self.effective_weight(layer)))

    def _learning(self, weight: Tensor) -> Tensor:
        still = self.options.objective == "bias" or not self.learning
        return weight.detach() if still else weight

    def arguments(self, layer: BinaryLayer) -> tuple[list[int], list[int], list[int], int]:
        """Return stride, padding, dilation and groups of the auxiliary operator."""
        return geometry_arguments(layer.geometry)

    def forward(self, layer: BinaryLayer, x: Tensor) -> Tensor:
        """Run the main path between the tap and the injection."""
        self._check(layer)
        outside = self.options.aux_input != "sign_input"
        entry = self._tapped(x, x) if outside else x
        z = layer.method.prepare_input(entry)
        meets = False
        if outside:
            route = x if self.options.aux_input == "layer_input" else self._preactivation()
            tapped, value = z, (entry if route is x else route).detach()
            y = self._main(layer, tapped)
        elif self._plain() and self._fuses(layer, z):
            weight = self.ingredients(layer).whole()
            return fused.respond_dual(cast(BinaryConv2d, layer), z, weight, self.scale, self.probes)
        elif meets := self._plain() and branch.fits(layer, z):
            binary, route = branch.branch(layer, z, self.scale, self.probes)
            tapped = value = z.detach()
            y = layer.operate(binary, value)
        else:
            route, tapped = z, self._tapped(z, x)
            value = tapped.detach()
            y = self._main(layer, tapped)
        if self.options.align:
            effective = self.effective_weight(layer).to(value.dtype)
            *convolution, groups = self.arguments(layer)
            convolution = convolution if convolution[0] else []
            missing = product(value, effective, convolution, groups) - y.detach()
            self.alignment = missing.float().square().mean()
        made = self.ingredients(layer)
        return inject(
            y,
            route,
            value,
            made.weight,
            self.scale,
            self.probes["auxiliary"],
            self.weighting(layer, x.detach(), tapped.detach()),
            None if self.source is None else self.source.draw(),
            *self.arguments(layer),
            made.gain,
            made.centre,
            made.right,
            self.options.arithmetic == "fp8",
            meets,
        )

    def _plain(self) -> bool:
        """Return whether nothing but a scale comes between g_a and z."""
        o = self.options
        masked = o.scope != "all" or self.bounds is not None
        return not (masked or o.dose == "clipped_share") and not (
            o.noise or o.align or o.weight_side
        )

    def _fuses(self, layer: BinaryLayer, z: Tensor) -> bool:
        return (
            isinstance(layer, BinaryConv2d)
            and self.arguments(layer) == geometry_arguments(layer.geometry)
            and fused.fits(layer, z)
        )

    def extra_loss(self) -> Tensor | None:
        """Return the alignment loss of the last forward, which only W_a can lower."""
        if not (self.options.align and self.training):
            return None
        if self.alignment is None:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                warnings.warn(
                    "A layer has no alignment loss: it did not run, or ran without gradients, as "
                    "reentrant checkpointing runs it (use_reentrant=False helps).",
                    SurgeWarning,
                    stacklevel=2,
                )
            return None
        return self.options.align * self.alignment

    def keep_settings(self) -> None:
        """Keep a scale that was given as a number."""
        super().keep_settings()
        if isinstance(self.options.fixed_scale, int | float):
            self.scale.fill_(self.options.fixed_scale)

    def forget(self) -> None:
        """Let go of the last forward's tensors.

        They keep its graph alive, whose nodes add up gradients on the stream that they were made
        on: no other stream could capture a step.
        """
        self.alignment = self.growth = None
        for clamp in self.clamp:
            clamp.preactivation = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies what belongs to one forward's graph."""
        return {**self.__dict__, "alignment": None, "growth": None}

    def _main(self, layer: BinaryLayer, z: Tensor) -> Tensor:
        if not self.options.weight_side:
            return layer.respond(z)
        weight = layer.method.binarize_weight(layer.weight)
        y = layer.product(layer.method.binarize(z), tap_whole(weight, self.probes["weight"]))
        y = inject(
            y,
            z.detach(),
            z.detach(),
            tap_whole(weight, self.probes["weight_side"]),
            self.weight_scale,
            self.probes["auxiliary"],
            None,
            None,
            *geometry_arguments(layer.geometry),
        )
        return layer.method.scale_output(y, z)

    def weighting(self, layer: BinaryLayer, x: Tensor, z: Tensor) -> Tensor | None:
        """Return what multiplies g_a: masks, and the dose of every channel; None for 1.

        ``x`` is the input of the layer, ``z`` the tensor that enters sign.
        """
        options, kept = self.options, self._passed(x)
        if options.scope == "all" and options.dose != "clipped_share":
            return kept
        clipped = layer.method.surrogate_is_zero(z)
        if options.scope != "all":
            inside = clipped if options.scope == "clipped" else ~clipped
            kept = inside if kept is None else inside & kept
        if options.dose != "clipped_share":
            return kept
        channels = layer.geometry.feature_dim(clipped)
        others = [d for d in range(clipped.dim()) if d != channels]
        share = clipped.float().mean(dim=others, keepdim=True)
        return share * (torch.ones_like(clipped) if kept is None else kept)

    def _tapped(self, z: Tensor, x: Tensor) -> Tensor:
        """Return ``z``; the norm of its gradient is noted, as far as that passes the clamp."""
        tapped, passed = tap(z, self.probes["main"]), self._passed(x.detach())
        return tapped if passed is None else torch.where(passed, tapped, z)

    def _passed(self, x: Tensor) -> Tensor | None:
        """Return where the clamp whose output is x passes gradients; None for everywhere."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        return (x > low) & (x < high)  # as its backward has it: not at the bounds

    def _preactivation(self) -> Tensor:
        (clamp,) = self.clamp
        if in_backward() and not clamp.repeated:
            raise UnsupportedLayerError(
                'aux_input="above_clamp" needs the input of the clamp before the layer, which '
                "activation checkpointing has not computed again; checkpoint both together."
            )
        return cast(Tensor, clamp.preactivation)

    def _check(self, layer: BinaryLayer) -> None:
        if getattr(layer, "_is_replica", False):
            raise UnsupportedLayerError(
                "A compensated model runs under nn.DataParallel, whose replicas lose the scale; "
                "use DistributedDataParallel."
            )
        if torch.compiler.is_compiling():
            return
        self.forwards += 1
        if self.watch is not None:
            self.watch.heed(self.forwards)
        known = layer.weight.requires_grad and layer.weight.is_leaf
        if known and layer.weight.grad is None and not in_backward():
            self.reset_probes()  # gradients were thrown away, by whatever means: so are their norms


def redraw(source: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw a tensor from the empirical distribution of ``source``, independent of its order.

    The same shape gives a random permutation, so any initialiser is matched exactly, and is laid
    out in memory alike: gradients of both weights then need no copy.
    """
    values = source.flatten().cpu()
    wanted = shape.numel()
    if wanted == values.numel():
        chosen = torch.randperm(wanted, generator=generator, device="cpu")
    else:
        chosen = torch.randint(values.numel(), (wanted,), generator=generator, device="cpu")
    drawn = values[chosen].view(shape)
    return torch.empty_like(source).copy_(drawn) if shape == source.shape else drawn.to(source)
