"""The handle on a compensated model: it follows the optimizer and renews the scales."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.path import Path
from surge.compensation.scaler import (
    followed_scale,
    squares_over_ranks,
    summed_over_ranks,
    updated_scale,
)
from surge.errors import ConfigError, SurgeWarning


class Compensation:
    """A handle on the auxiliary paths of a model; made by :func:`compensate_`."""

    def __init__(self, paths: dict[str, Path], skipped: dict[str, str]) -> None:
        """Hold the paths by layer name, and why other binary layers have none."""
        self.paths = paths
        self.skipped = skipped
        dual = {n: p for n, p in paths.items() if isinstance(p, AuxiliaryPath)}
        self._dual = list(dual.values())
        self._adaptive = {n: p for n, p in dual.items() if p.options.fixed_scale is None}
        self._weight_side = {n: p for n, p in dual.items() if p.options.weight_side}
        self.every = self._dual[0].options.every if self._dual else 1
        self.steps = 0
        self._followed: torch.optim.Optimizer | None = None
        self._hooks: tuple[RemovableHandle, ...] = ()
        self._stepping = False

    def __getstate__(self) -> dict[str, Any]:
        """Let copies follow nobody: torch leaves the hooks of an optimizer out of its copies."""
        return {**self.__dict__, "_followed": None, "_hooks": ()}

    def parameters(self) -> list[nn.Parameter]:
        """Return the auxiliary weights."""
        return [p for path in self.paths.values() for p in path.parameters()]

    def scales(self) -> dict[str, float]:
        """Return the scale of every layer now (this waits for the device)."""
        return {name: float(path.scale) for name, path in self.paths.items()}

    def follow(self, optimizer: torch.optim.Optimizer) -> "Compensation":
        """Renew the scale after every step of ``optimizer``, which must own the auxiliary weights.

        Squared norms live as gradients do: they add up until ``zero_grad`` or a step. To follow the
        same optimizer again changes nothing; another one, built anew, takes the place of the first.
        """
        if self._followed is optimizer:
            return self
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):
            raise ConfigError(
                f"follow got a {type(optimizer).__name__}, which takes no hooks, as wrappers do: "
                "give it the torch.optim.Optimizer inside."
            )
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        strangers = [
            name
            for name, path in self.paths.items()
            if any(
                id(p) not in owned and (p.requires_grad or path.options.objective == "bias")
                for p in path.parameters()
            )
        ]
        if strangers:
            raise ConfigError(
                f'The optimizer does not hold the auxiliary weight of "{strangers[0]}" '
                f"({len(strangers)} layers in all): build the optimizer after compensate_. Where "
                "several hold them, call compensation.step() after all have stepped."
            )
        for hook in self._hooks:
            hook.remove()
        self._followed = optimizer
        self._hooks = (
            optimizer.register_step_pre_hook(self._begin_step),
            optimizer.register_step_post_hook(self._end_step),
        )
        optimizer.zero_grad = _before(optimizer.zero_grad, self.reset)  # type: ignore[method-assign]
        return self

    def _begin_step(self, *_: Any) -> None:
        self._stepping = True

    def _end_step(self, *_: Any) -> None:
        # A step that calls its base class's has all hooks run in both: torch wraps every class.
        if self._stepping:
            self._stepping = False
            self.step()

    @property
    def injects(self) -> bool:
        """Whether there is an auxiliary gradient to inject; a leaky tail has none."""
        return bool(self._dual)

    def reset(self) -> None:
        """Forget the squared norms collected since the last step."""
        for path in self.paths.values():
            path.reset_probes()

    @torch.no_grad()
    def injected(self) -> Tensor:
        """Return the mean over layers of ``|scale g_a| / |g_b|`` in the gradients so far.

        To be asked between backward and the optimizer's step; stays on the device.
        """
        if not self._dual:
            return torch.zeros((), device=next(iter(self.paths.values())).scale.device)
        main = torch.stack([p.squares("main") for p in self._dual])
        auxiliary = torch.stack([p.squares("auxiliary") for p in self._dual])
        scale = torch.stack([p.scale for p in self._dual])
        return (scale.abs() * (auxiliary / main.clamp(min=1e-30)).sqrt()).mean()

    def at_step(self, number: int) -> None:
        """Let the auxiliary weights learn in a step, or not: with ``every=k`` each k-th one.

        Steps are counted from 0 by themselves; a loop that continues another says where it is.
        """
        self.steps = number
        for path in self._dual:
            path.learning = number % self.every == 0

    @torch.no_grad()
    def step(self) -> None:
        """Renew all scales from the collected norms; once per optimizer step, on every rank."""
        probes = (probe for path in self._adaptive.values() for probe in path.probes.values())
        heard = not self._adaptive or any(probe.grad is not None for probe in probes)
        self.at_step(self.steps + 1)
        self._renew_scales()
        self._renew_weight_scales()
        self.reset()
        for path in self._dual:
            path.forget()
            if path.watch is not None:
                path.watch.settled |= heard

    def _renew_scales(self) -> None:
        held = list(self._adaptive.values())
        if not held:
            return
        device = held[0].scale.device
        squares = [p.squares(name) for name in ("main", "auxiliary") for p in held]
        sums = summed_over_ranks(torch.stack([square.to(device) for square in squares]))
        # In few kernels: one for every layer would show in the step of a small network.
        eta, direction, current = (
            torch.stack([getattr(path, name).to(device) for path in held])
            for name in ("eta", "direction", "scale")
        )
        main, auxiliary = sums.chunk(2)
        reading = held[0].options.reading
        renewed = updated_scale(current, main, auxiliary, eta * direction, reading=reading)
        _warn_not_finite(list(self._adaptive), sums)
        torch._foreach_copy_([p.scale for p in held], list(renewed.unbind()))
        for path in held:
            if path.growth is not None:
                # The norm was that of g_a before its weight learned in this very step.
                path.scale.copy_(followed_scale(path.scale, path.growth(), reading=reading))

    def _renew_weight_scales(self) -> None:
        held = list(self._weight_side.values())
        if not held:
            return
        device = held[0].scale.device
        probes = [p.probes[name] for name in ("weight", "weight_side") for p in held]
        sums = squares_over_ranks(probes, device)
        current = torch.stack([p.weight_scale.to(device) for p in held])
        main, side = sums.chunk(2)
        # This probe sits behind the scale, so its norm still contains it.
        side = side / current.square().clamp(min=1e-30)
        renewed = updated_scale(current, main, side, held[0].options.weight_side)
        _warn_not_finite(list(self._weight_side), sums)
        torch._foreach_copy_([p.weight_scale for p in held], list(renewed.unbind()))

    def __str__(self) -> str:
        """Say what is compensated, and what is not and why."""
        options = next(iter(self.paths.values())).options
        count = sum(p.numel() for p in self.parameters())
        lines = [
            f"SURGE on {len(self.paths)} layer{'s' * (len(self.paths) > 1)} "
            f"({options.auxiliary} auxiliary, eta {options.eta:g}): "
            f"{count:,} auxiliary weights, gone after strip_"
        ]
        lines += [f"  {name}: not compensated, {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


def _before(original: Callable[..., None], action: Callable[[], None]) -> Callable[..., None]:
    def called(*args: Any, **kwargs: Any) -> None:
        action()
        original(*args, **kwargs)

    return called


def _warn_not_finite(names: list[str], sums: Tensor) -> None:
    """Say that scales were kept; not on a GPU, which would have to be waited for."""
    if sums.device.type != "cpu" or torch.isfinite(sums).all():
        return
    bad = (~torch.isfinite(sums)).view(2, -1).any(dim=0).nonzero().flatten().tolist()
    warnings.warn(
        f'The gradients of "{names[bad[0]]}" ({len(bad)} layers in all) were not finite in this '
        "step; their SURGE scales are kept.",
        SurgeWarning,
        stacklevel=2,
    )
