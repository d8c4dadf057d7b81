"""A light probe: what both gradient paths do in every binary layer, on one training batch.

With G the gradient at a layer's output, z the tensor where both paths meet (what enters sign,
unless the path sits elsewhere), W_a the auxiliary weight and s the scale, a record holds

    |g_b|, |g_a|, their cosine            g_b: through the surrogate,  g_a = W_a^T G
    cosines of the weight gradients       of z * G with that at the binarised weight and, through
                                          the method's weight rule, at the latent weight
    s, the delivered dose                 (surge.train.probe.dose)
    the clipped share                     of z, where the surrogate is exactly zero
    histograms                            of log10|g| with and without SURGE, and of the weights

One forward and backward outside the step; parameters, buffers, gradients and random numbers are
as before, so a recorded run is the same run bit for bit.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.dual_path import noise_like, squared_norm
from surge.layers.base import BinaryLayer
from surge.layers.hooks import binary_layers
from surge.layers.product import transposed
from surge.train.probe.dose import DoseMeter, delivered_share, undisturbed

GRADIENT_BINS = (-12.0, 2.0, 56)
"""Range of log10|g| and number of bins; smaller and larger values count in the outermost."""
WEIGHT_BINS = (-4.0, 4.0, 64)
"""Range of w / (standard deviation of the layer's weights) and number of bins."""
NEAR_ZERO = 0.1
"""A weight is near zero below this many standard deviations of its layer."""
MAP_ROWS, MAP_COLUMNS = 32, 64
"""Most channels and positions that a heat map shows."""

Row = dict[str, Any]
Map = dict[str, Tensor]


class Probe:
    """Looks at every binary layer of a model that multiplies an input."""

    def __init__(self, model: nn.Module, meter: DoseMeter | None = None) -> None:
        """``meter`` knows which clamps feed which layers; without one no dose is recorded."""
        self.model, self.meter = model, meter
        self.layers = {
            name: layer
            for name, layer in binary_layers(model)
            if layer.geometry.kind != "embedding" and layer.method.bits[1] < 32
        }
        names = list(self.layers)
        self.mapped = names[len(names) // 2] if names else None
        """The layer whose gradient is kept as a heat map."""

    def measure(self, loss_of: Callable[[], Tensor]) -> tuple[dict[str, Row], Map]:
        """Return a record for every layer, and the heat map of one of them."""
        with undisturbed(self.model):
            self.model.train()
            seen = self._run(loss_of)
            rows, mapped = {}, {}
            for name, (x, above, point, gradient) in seen.items():
                layer = self.layers[name]
                rows[name], gradients = _look(layer, x, above, gradient)
                if self.meter is not None and point is not None:
                    dose = delivered_share(layer, self.meter.clamps[name], point, gradient)
                    rows[name]["delivered"] = _number(dose)
                if name == self.mapped:
                    mapped = _heat_map(*gradients)
        return rows, mapped

    def _run(
        self, loss_of: Callable[[], Tensor]
    ) -> dict[str, tuple[Tensor, Tensor | None, Tensor | None, Tensor]]:
        """Return (input, value above the clamp, input of the clamp, G) of layers that took part."""
        inputs: dict[str, tuple[Tensor, Tensor | None]] = {}
        points: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        handles = []
        for name, layer in self.layers.items():

            def enter(module: nn.Module, args: Any, name: str = name) -> None:
                path, above = getattr(module, "auxiliary", None), None
                if isinstance(path, AuxiliaryPath) and path.options.aux_input == "above_clamp":
                    above = path._preactivation().detach()
                inputs[name] = (args[0].detach(), above)

            def leave(_module: nn.Module, _args: Any, output: Tensor, name: str = name) -> None:
                outputs[name] = output

            handles += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
            if self.meter is not None and name in self.meter.clamps:
                source: nn.Module = self.meter.clamps[name] or layer

                def note(_module: nn.Module, args: Any, name: str = name) -> None:
                    points[name] = args[0].detach()

                handles.append(source.register_forward_pre_hook(note))
        try:
            loss = loss_of()
        finally:
            for handle in handles:
                handle.remove()
        wanted = {name: output for name, output in outputs.items() if output.requires_grad}
        if not wanted:
            return {}
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        return {
            name: (*inputs[name], points.get(name), gradient)
            for name, gradient in zip(wanted, found, strict=True)
            if gradient is not None
        }


def _look(
    layer: BinaryLayer, x: Tensor, above: Tensor | None, gradient: Tensor
) -> tuple[Row, tuple[BinaryLayer, Tensor, Tensor, Tensor]]:
    """Return the record of one layer, and (layer, z's clipped places, g_b, g_b + s g_a)."""
    path = layer.auxiliary if isinstance(layer.auxiliary, AuxiliaryPath) else None
    outside = path is not None and path.options.aux_input != "sign_input"
    wide = torch.promote_types(layer.weight.dtype, torch.float32)
    gradient = gradient.to(wide)
    with torch.enable_grad():
        entry = x.to(wide).requires_grad_()
        z = layer.method.prepare_input(entry)
        if not outside:
            entry = z = z.detach().requires_grad_()
        bits = layer.method.binarize_weight(layer.weight)
        y = layer.method.scale_output(layer.product(layer.method.binarize(z), bits), z)
        # Gradients of the weights too, where they are trained.
        wanted = [entry, *((bits, layer.weight) if layer.weight.requires_grad else ())]
        main, *of_weights = torch.autograd.grad(y, wanted, gradient, allow_unused=True)
    main = torch.zeros_like(entry) if main is None else main
    clipped = layer.method.surrogate_is_zero(z.detach())
    row: Row = {
        "main_norm": _number(squared_norm(main).sqrt()),
        "clipped": float(clipped.float().mean()),
        "gradient_main": _histogram(main),
        **_weights(layer.weight.detach()),
    }
    total = main
    if path is not None:
        value = (entry if above is None else above.to(wide)).detach()
        weighting = path.weighting(layer, x, z.detach())
        injected, of_auxiliary = _auxiliary(path, layer, value, weighting, gradient)
        total = main + path.scale * injected
        row |= {
            "auxiliary_norm": _number(squared_norm(injected).sqrt()),
            "input_cosine": cosine(main, injected),
            "scale": _number(path.scale),
            "gradient_total": _histogram(total),
        }
        names = ("weight_cosine_binary", "weight_cosine_latent")
        for name, found in zip(names, of_weights, strict=False):
            same = found is not None and found.shape == of_auxiliary.shape
            row[name] = cosine(found, of_auxiliary) if same else None
    return row, (layer, clipped, main, total)


def _auxiliary(
    path: AuxiliaryPath,
    layer: BinaryLayer,
    value: Tensor,
    weighting: Tensor | None,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return g_a as it is injected, without the scale, and value * G."""
    weight = path.effective_weight(layer).detach()
    *convolution, groups = path.arguments(layer)
    found, of_weight = transposed(
        gradient, value, weight, convolution if convolution[0] else (), groups, (True, True)
    )
    assert found is not None and of_weight is not None
    if weighting is not None:
        found = found * weighting.to(found.dtype)
    if path.source is not None:
        found = noise_like(found, weighting, path.source.draw())
    return found, of_weight


def cosine(first: Tensor, second: Tensor) -> float | None:
    """Return the cosine of two tensors as vectors; None where one of them is zero."""
    size = first.norm() * second.norm()
    return _number((first * second).sum() / size) if size > 0 else None


def _number(value: Tensor) -> float | None:
    """Return a number that JSON can hold."""
    number = float(value)
    return number if math.isfinite(number) else None


def _histogram(gradient: Tensor) -> Row:
    """Return counts over ``GRADIENT_BINS`` of log10|g|, and how many values are exactly zero."""
    size = gradient.detach().abs().flatten().float()
    zeros = int((size == 0).sum())
    low, high, bins = GRADIENT_BINS
    places = size[size > 0].log10().nan_to_num(high, high, low).clamp(low, high)
    return {"zeros": zeros, "counts": _counts(places, low, high, bins)}


def _weights(weight: Tensor) -> Row:
    """Return the histogram of the latent weights in standard deviations, and the share near 0."""
    spread = weight.float().std().clamp(min=1e-30)
    values = (weight.float() / spread).flatten().nan_to_num(0.0)
    low, high, bins = WEIGHT_BINS
    return {
        "near_zero": float((values.abs() < NEAR_ZERO).float().mean()),
        "weight_spread": _number(spread),
        "weights": _counts(values.clamp(low, high), low, high, bins),
    }


def _counts(values: Tensor, low: float, high: float, bins: int) -> list[int]:
    return [int(count) for count in torch.histc(values, bins, low, high).tolist()]


def _heat_map(layer: BinaryLayer, clipped: Tensor, main: Tensor, total: Tensor) -> Map:
    """Return one sample as [channels, positions]: clipped places, gradient without and with SURGE.

    Without SURGE means g_b alone, with it g_b + s g_a, for the same G.
    """
    if layer.geometry.kind == "linear":
        # The features are channels; tokens, or the samples where there are none, are positions.
        tables = [
            (tensor[0] if tensor.dim() > 2 else tensor).reshape(-1, tensor.shape[-1]).T
            for tensor in (clipped, main, total)
        ]
    else:
        tables = [tensor[0].flatten(1) for tensor in (clipped, main, total)]
    kept = [table[:MAP_ROWS, :MAP_COLUMNS].detach().cpu() for table in tables]
    return {"clipped": kept[0], "without": kept[1].float(), "with": kept[2].float()}
