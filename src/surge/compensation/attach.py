"""Attaching SURGE to a model, following its optimizer, and taking it off again."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surge.compensation.auxiliary import PATHS, AuxiliaryPath, LeakyTail, Path, Watch
from surge.compensation.dry_run import RecordingHardtanh, Seen, dry_run
from surge.compensation.options import PathOptions
from surge.compensation.scaler import summed_over_ranks, updated_scale
from surge.errors import ConfigError, NoLayersMatchedError, SurgeWarning, UnsupportedLayerError
from surge.errors import did_you_mean
from surge.layers.base import BinaryLayer
from surge.layers.hooks import binary_layers
from surge.patterns import Patterns, as_patterns, matches, require_each_matches


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

    def parameters(self) -> list[nn.Parameter]:
        """Return the auxiliary weights."""
        return [p for path in self.paths.values() for p in path.parameters()]

    def scales(self) -> dict[str, float]:
        """Return the scale of every layer now (this waits for the device)."""
        return {name: float(path.scale) for name, path in self.paths.items()}

    def follow(self, optimizer: torch.optim.Optimizer) -> "Compensation":
        """Renew the scale after every step of ``optimizer``, which must own the auxiliary weights.

        Squared norms live as gradients do: they add up until ``zero_grad`` or a step.
        """
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        strangers = [
            name
            for name, path in self.paths.items()
            if any(p.requires_grad and id(p) not in owned for p in path.parameters())
        ]
        if strangers:
            raise ConfigError(
                f'The optimizer does not hold the auxiliary weight of "{strangers[0]}" '
                f"({len(strangers)} layers in all): build the optimizer after compensate_."
            )
        optimizer.register_step_post_hook(lambda *_: self.step())
        optimizer.zero_grad = _before(optimizer.zero_grad, self.reset)  # type: ignore[method-assign]
        return self

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

    @torch.no_grad()
    def step(self) -> None:
        """Renew all scales from the collected norms; once per optimizer step, on every rank."""
        self._renew(self._adaptive, "main", "auxiliary", "scale")
        self._renew(self._weight_side, "weight", "weight_side", "weight_scale")
        self.reset()
        for path in self._dual:
            if path.watch is not None:
                path.watch.renewed = True

    def _renew(
        self, paths: dict[str, AuxiliaryPath], main: str, auxiliary: str, buffer: str
    ) -> None:
        if not paths:
            return
        held = list(paths.values())
        device = held[0].scale.device
        squares = [p.squares(main) for p in held] + [p.squares(auxiliary) for p in held]
        sums = summed_over_ranks(torch.stack([s.to(device) for s in squares]))
        current = torch.stack([getattr(p, buffer).to(device) for p in held])
        main_square, auxiliary_square = sums.chunk(2)
        if buffer == "weight_scale":
            # This probe sits behind the scale, so its norm still contains it.
            auxiliary_square = auxiliary_square / current.square().clamp(min=1e-30)
            # Filled on the device: a copy from the host would break CUDA-graph capture.
            share = torch.stack(
                [
                    torch.full_like(s, p.options.weight_side)
                    for s, p in zip(current, held, strict=True)
                ]
            )
            renewed = updated_scale(current, main_square, auxiliary_square, share)
        else:
            eta = torch.stack([p.eta * p.direction for p in held]).to(device)
            reading = held[0].options.reading
            renewed = updated_scale(current, main_square, auxiliary_square, eta, reading=reading)
        if device.type == "cpu" and not torch.isfinite(sums).all():
            _warn_not_finite(list(paths), sums)
        for path, value in zip(held, renewed.unbind(), strict=True):
            getattr(path, buffer).copy_(value)

    def __str__(self) -> str:
        """Say what is compensated, and what is not and why."""
        options = next(iter(self.paths.values())).options
        count = sum(p.numel() for p in self.parameters())
        lines = [
            f"SURGE on {len(self.paths)} layers ({options.auxiliary} auxiliary, eta "
            f"{options.eta:g}, {count:,} auxiliary weights that strip_ removes)"
        ]
        lines += [f"  {name}: not compensated, {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


def _before(original: Callable[..., None], action: Callable[[], None]) -> Callable[..., None]:
    def called(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        action()
        original(*args, **kwargs)

    return called


def _warn_not_finite(names: list[str], sums: Tensor) -> None:
    bad = (~torch.isfinite(sums)).view(2, -1).any(dim=0).nonzero().flatten().tolist()
    warnings.warn(
        f'The gradients of "{names[bad[0]]}" ({len(bad)} layers in all) were not finite in this '
        "step; their SURGE scales are kept.",
        SurgeWarning,
        stacklevel=2,
    )


def compensate_(
    model: nn.Module,
    *,
    eta: float = 0.01,
    auxiliary: str = "independent",
    scope: str = "all",
    only: Patterns | None = None,
    skip: Patterns = (),
    example_input: Any = None,  # noqa: ANN401
    **more: Any,  # noqa: ANN401
) -> Compensation:
    """Give binarised layers an auxiliary path that repairs their input gradient, in place.

    The output of the model does not change by a single bit. Build the optimizer afterwards, so
    that it holds the auxiliary weights, and let the result ``follow`` it.

    Args:
        model: A model that :func:`surge.binarize_` has converted.
        eta: Norm of the injected gradient as a share of the main one's.
        auxiliary: ``independent``, ``copied`` (start from the layer's own weight, for pretrained
            models), ``tied`` (no weight of its own), ``pointwise`` (SURGE*), ``low_rank``, or
            ``leaky_tail`` (the control without auxiliary weights; eta is its rho).
        scope: ``all``, or only where the surrogate is zero (``clipped``) or not (``unclipped``).
        only: Name patterns of the layers to compensate; all binary layers by default.
        skip: Name patterns of layers to leave alone.
        example_input: A batch for a dry run, which finds layers whose input needs no gradient
            (a frozen stem): they get no auxiliary weight. A tuple or a dict is unpacked.
        **more: The other fields of :class:`~surge.compensation.options.PathOptions`.

    Example:
        >>> from torch import nn
        >>> from surge import binarize_, compensate_
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> report = binarize_(net, "bnn")
        >>> print(compensate_(net, eta=0.01))
        SURGE on 1 layers (independent auxiliary, eta 0.01, 64 auxiliary weights that strip_ removes)
    """
    options = _options(eta=eta, auxiliary=auxiliary, scope=scope, **more)
    _refuse_wrappers(model)
    chosen, skipped = _choose(model, as_patterns(only, "only"), as_patterns(skip, "skip"))
    seen: dict[str, Seen] = {}
    if example_input is not None:
        seen = dry_run(model, chosen, example_input)
        for name in [name for name in chosen if not seen[name].needs_gradient]:
            skipped[name] = "its input needs no gradient"
            del chosen[name]
        if not chosen:
            raise NoLayersMatchedError("No binary layer has an input that needs a gradient.")
    clamps = _clamps(options, chosen, seen)
    paths = {
        name: _build(name, layer, options, number)
        for number, (name, layer) in enumerate(chosen.items())
    }
    for name, layer in chosen.items():
        path = paths[name]
        if name in clamps and isinstance(path, AuxiliaryPath):
            path.clamp = (clamps[name],)
            clamps[name].__class__ = RecordingHardtanh
        layer.auxiliary = path
    _set_watch(paths)
    return Compensation(paths, skipped)


def strip_(model: nn.Module) -> list[str]:
    """Remove all auxiliary paths, in place; return the names of the layers that had one.

    The output stays the same bit for bit, and ``state_dict`` is that of the plain model.
    """
    names = [name for name, layer in binary_layers(model) if layer.auxiliary is not None]
    if not names:
        raise ConfigError("strip_: no layer of this model is compensated; nothing to remove.")
    for _, layer in binary_layers(model):
        layer.auxiliary = None
    for module in model.modules():
        if isinstance(module, RecordingHardtanh):
            module.preactivation = None
            module.__class__ = nn.Hardtanh
    return names


def _options(**values: Any) -> PathOptions:  # noqa: ANN401
    known = [field.name for field in dataclasses.fields(PathOptions)]
    for name in values:
        if name not in known:
            raise ConfigError(
                f'compensate_ has no setting "{name}".{did_you_mean(name, known)} '
                f"Settings: {', '.join(known)}."
            )
    return PathOptions(**values)


def _refuse_wrappers(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.DataParallel):
            raise UnsupportedLayerError(
                "compensate_ does not support nn.DataParallel, whose replicas lose the scale; "
                "use DistributedDataParallel (torchrun)."
            )
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UnsupportedLayerError(
                "compensate_ got a DistributedDataParallel, which would not synchronise the new "
                "auxiliary weights; compensate model.module first, then wrap it."
            )
        if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") or any(
            base.__name__ == "FSDPModule" for base in type(module).__mro__
        ):
            raise UnsupportedLayerError(
                "compensate_ does not support FSDP, which shards the auxiliary weights; binary "
                "networks are small: use DistributedDataParallel."
            )


def _choose(
    model: nn.Module, only: tuple[str, ...], skip: tuple[str, ...]
) -> tuple[dict[str, BinaryLayer], dict[str, str]]:
    layers = {n: m for n, m in binary_layers(model) if m.geometry.kind != "embedding"}
    if not layers:
        raise NoLayersMatchedError(
            "compensate_: this model has no binary layer; call surge.binarize_(model, method) first."
        )
    for name, layer in layers.items():
        if layer.auxiliary is not None:
            raise ConfigError(f'"{name}" is compensated already; call strip_ before compensate_.')
    names = list(layers)
    require_each_matches(only, names, "only")
    require_each_matches(skip, names, "skip")
    skipped: dict[str, str] = {}
    for name, layer in layers.items():
        if (only and not matches(name, only)) or matches(name, skip):
            skipped[name] = "left out by pattern"
        elif layer.method.not_compensable:
            skipped[name] = layer.method.not_compensable
    chosen = {name: layer for name, layer in layers.items() if name not in skipped}
    if not chosen:
        reasons = "; ".join(sorted(set(skipped.values())))
        raise NoLayersMatchedError(f"compensate_ has no layer left to compensate: {reasons}.")
    return chosen, skipped


def _clamps(
    options: PathOptions, chosen: dict[str, BinaryLayer], seen: dict[str, Seen]
) -> dict[str, nn.Hardtanh]:
    if options.aux_input != "above_clamp":
        return {}
    if not seen:
        raise ConfigError('aux_input="above_clamp" needs example_input, to find the clamps.')
    found = {name: seen[name].clamp for name in chosen}
    for name, clamp in found.items():
        if clamp is None:
            raise ConfigError(
                f'aux_input="above_clamp": the input of "{name}" is not the output of a Hardtanh (not in place); '
                "leave that layer out with skip=."
            )
    return {name: clamp for name, clamp in found.items() if clamp is not None}


def _build(name: str, layer: BinaryLayer, options: PathOptions, number: int) -> Path:
    generator = torch.Generator().manual_seed(options.seed * 100_003 + number)
    try:
        if options.auxiliary == "leaky_tail":
            return LeakyTail(layer, options)
        return PATHS[options.auxiliary](layer, options, generator)
    except ConfigError as error:
        raise ConfigError(f'compensate_ on "{name}": {error}.') from error


def _set_watch(paths: dict[str, Path]) -> None:
    """Let the first layer count forwards, if there is a scale that must be renewed."""
    first = next(iter(paths.values()))
    adapts = first.options.fixed_scale is None or first.options.weight_side
    if isinstance(first, AuxiliaryPath) and adapts:
        first.watch = Watch()
