"""How far the repaired gradient is from a smooth reference, and two ways to learn from that.

The theorem behind the scale speaks of an ideal gradient g*. Here g* is the gradient of the same
network with every sign of an input replaced by ``tanh(k z)``, on the same batch. With g_b and g_a
the two parts of SURGE's gradient, the scale with the smallest error on this batch is::

    optimum = <g* - g_b, g_a> / |g_a|^2        (it can be negative; the norm ratio cannot)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn

from surge.compensation.auxiliary import AuxiliaryPath
from surge.compensation.dry_run import restored
from surge.compensation.dual_path import squared_norm
from surge.compensation.handle import Compensation
from surge.compensation.scaler import summed_over_ranks
from surge.errors import ConfigError
from surge.layers.base import BinaryLayer
from surge.layers.hooks import binary_layers
from surge.layers.product import input_gradient, transposed

Loss = Callable[[], Tensor]
"""Runs the model on a batch and returns its loss; called twice."""

SHARPNESS = 2.0


@dataclass(frozen=True)
class LayerGradients:
    """What one batch says about one layer, all at the tensor that enters sign."""

    main: Tensor
    """g_b, through the surrogate."""
    auxiliary: Tensor
    """g_a within its scope, without the scale."""
    reference: Tensor
    """g*, of the smooth network."""
    output: Tensor
    """G, at the layer's output."""
    entering: Tensor
    """z, the tensor itself."""
    weighting: Tensor | None = None
    """What g_a was multiplied by, where it is not injected evenly."""

    @property
    def optimum(self) -> Tensor:
        """The scale that brings ``g_b + scale g_a`` closest to g*."""
        missing = (self.reference - self.main).float()
        found = self.auxiliary.float()
        return (missing * found).sum() / found.square().sum().clamp(min=1e-30)


def _signs(layer: BinaryLayer, z: Tensor) -> Tensor:
    """Binarise an input; only that of a sign has tanh as its smooth form."""
    binary = layer.method.binarize(z)
    if not bool(binary.detach().nan_to_num(nan=1.0).abs().eq(1).all()):
        raise ConfigError(
            f'Method "{layer.method.name}" has other inputs than -1 and +1 here: tanh is no smooth '
            "form of it."
        )
    return binary


@contextmanager
def _recording(
    layers: list[BinaryLayer], sharpness: float | None
) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Let layers note (x, z, y) of a forward without auxiliary path; a sharpness smooths it."""
    notes: dict[BinaryLayer, tuple[Tensor, Tensor, Tensor]] = {}

    def forward(layer: BinaryLayer, x: Tensor) -> Tensor:
        z = layer.method.prepare_input(x)
        z = z if z is not x else x.view_as(x)
        binary = _signs(layer, z) if sharpness is None else torch.tanh(sharpness * z)
        y = layer.operate(binary, z)
        if layer in notes:
            raise ConfigError(
                "A layer ran twice in one forward: what its gradients are to be compared with is "
                "defined for one call."
            )
        notes[layer] = (x, z, y)
        return y if layer.bias is None else y + layer.geometry.along_output(layer.bias)

    held: list[tuple[Tensor, Tensor, Tensor]] = []
    for layer in layers:
        layer.forward = MethodType(forward, layer)  # type: ignore[method-assign]
    try:
        yield held
        held.extend(notes[layer] for layer in layers)
    finally:
        for layer in layers:
            del layer.forward


def _gradients(
    model: nn.Module, layers: list[BinaryLayer], loss: Loss, sharpness: float | None
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return (x, z, dL/dz, dL/dy) of every layer; parameters and buffers do not change."""
    with restored(model):
        with torch.enable_grad(), _recording(layers, sharpness) as held:
            value = loss()
        if not all(z.requires_grad for _, z, _ in held):
            raise ConfigError(
                "A compensated layer sees an input that needs no gradient, so that none can be "
                "compared there; give compensate_ an example_input, and it leaves the layer out."
            )
        found = torch.autograd.grad(value, [tensor for _, *pair in held for tensor in pair])
    inputs, entering = ([notes[i].detach() for notes in held] for i in (0, 1))
    return list(zip(inputs, entering, found[0::2], found[1::2], strict=True))


def measure(
    model: nn.Module,
    compensation: Compensation,
    loss: Loss,
    *,
    sharpness: float = SHARPNESS,
) -> dict[str, LayerGradients]:
    """Compare both parts of the gradient with the smooth reference, layer by layer.

    ``model`` is what ``compensate_`` got, and ``loss`` runs it and not a wrapper around it.
    """
    paths = {n: p for n, p in compensation.paths.items() if isinstance(p, AuxiliaryPath)}
    if not paths:
        raise ConfigError("measure: this compensation has no auxiliary gradient to compare.")
    layers = {name: layer for name, layer in binary_layers(model) if name in paths}
    if len(layers) < len(paths):
        raise ConfigError(
            f'measure: the model has no layer "{next(n for n in paths if n not in layers)}"; give '
            "the model that compensate_ got, not a wrapper around it."
        )
    order = list(layers.values())
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    # Both see the same dropout, and the caller's random numbers stay where they are.
    with torch.random.fork_rng(list(devices)):
        binary = _gradients(model, order, loss, None)
    with torch.random.fork_rng(list(devices)):
        smooth = _gradients(model, order, loss, sharpness)
    result = {}
    for (name, layer), (x, z, main, output), (_, _, reference, _) in zip(
        layers.items(), binary, smooth, strict=True
    ):
        weighting = paths[name].weighting(layer, x, z)
        auxiliary = _auxiliary_gradient(paths[name], layer, z, output, weighting)
        result[name] = LayerGradients(main, auxiliary, reference, output, z, weighting)
    return result


def _auxiliary_gradient(
    path: AuxiliaryPath, layer: BinaryLayer, z: Tensor, output: Tensor, weighting: Tensor | None
) -> Tensor:
    weight = path.effective_weight(layer).detach()
    *convolution, groups = path.arguments(layer)
    found = input_gradient(output, z.shape, weight, convolution if convolution[0] else (), groups)
    return found if weighting is None else found * weighting.to(found.dtype)


def _growth(
    path: AuxiliaryPath,
    layer: BinaryLayer,
    z: Tensor,
    output: Tensor,
    weighting: Tensor | None,
    before: Tensor,
) -> Tensor:
    """Return the norm of g_a with the weight of now over the one before, for the same z and G."""
    now = squared_norm(_auxiliary_gradient(path, layer, z, output, weighting))
    new, old = summed_over_ranks(torch.stack([now, before])).unbind()
    return (new / old).sqrt()


def calibrate_(
    model: nn.Module, compensation: Compensation, loss: Loss, *, sharpness: float = SHARPNESS
) -> dict[str, float]:
    """Give every scale a sign and a size within the dose, from the measured optimum.

    The scale becomes ``c * eta |g_b| / |g_a|`` with c = optimum / that ratio, limited to
    [-1, 1]. To be called every hundred steps or so, by all ranks together, each with the loss of
    its part of a batch; returns c by layer.
    """
    for path in compensation.paths.values():
        if path.options.aux_input != "sign_input" or path.options.noise:
            raise ConfigError(
                "calibrate_ compares g_a with the reference at the tensor that enters sign: it "
                "works neither with another aux_input nor with noise."
            )
    factors = {}
    for name, found in measure(model, compensation, loss, sharpness=sharpness).items():
        path = compensation.paths[name]
        assert isinstance(path, AuxiliaryPath)
        main, auxiliary = found.main.float(), found.auxiliary.float()
        toward = ((found.reference - found.main).float() * auxiliary).sum()
        local = torch.stack([toward, main.square().sum(), auxiliary.square().sum()])
        toward, main_square, auxiliary_square = summed_over_ranks(local).unbind()
        dose = path.eta * (main_square * auxiliary_square).sqrt()
        factor = (toward / dose.clamp(min=1e-30)).clamp(-1, 1)
        path.direction.copy_(factor)
        factors[name] = float(factor)
    return factors


def learn_bias_(
    model: nn.Module, compensation: Compensation, loss: Loss, *, sharpness: float = SHARPNESS
) -> float:
    """Add to the auxiliary weights' gradients those of their relative error as predictors.

    With ``objective="bias"`` W_a is trained by ``|W_a^T G - (g* - g_b)|^2 / (2 |g* - g_b|^2)``
    alone. To be called between backward and the optimizer's step (with fp16 after ``unscale_``), by
    all ranks together, each with the loss of its part of the batch; returns the mean of that error
    over layers. An adaptive scale follows what that step does to the norm of g_a.
    """
    for name, path in compensation.paths.items():
        if not isinstance(path, AuxiliaryPath) or path.weight is None:
            raise ConfigError(f'learn_bias_: "{name}" has no auxiliary weight to train.')
    measured = measure(model, compensation, loss, sharpness=sharpness)
    layers = dict(binary_layers(model))
    total = 0.0
    for name, found in measured.items():
        path = compensation.paths[name]
        assert isinstance(path, AuxiliaryPath) and path.weight is not None
        target = found.reference - found.main
        residual = found.auxiliary - target
        *convolution, groups = path.arguments(layers[name])
        _, gradient = transposed(
            found.output,
            residual,
            path.weight.detach(),
            convolution if convolution[0] else (),
            groups,
            (False, True),
        )
        assert gradient is not None
        squares = torch.stack([residual.float().square().sum(), target.float().square().sum()])
        # The error is one of the whole batch: sums over all ranks come before the quotient.
        sums = summed_over_ranks(torch.cat([gradient.float().flatten(), squares]))
        error, size = sums[-2], sums[-1].clamp(min=1e-30)
        # In the weight's layout: fused optimizers refuse others.
        gradient = torch.empty_like(path.weight).copy_((sums[:-2] / size).view_as(gradient))
        path.weight.grad = gradient if path.weight.grad is None else path.weight.grad + gradient
        before = squared_norm(found.auxiliary)
        held = (found.entering, found.output, found.weighting, before)
        path.growth = partial(_growth, path, layers[name], *held)
        total += float(error / size) / 2
    return total / len(measured)
