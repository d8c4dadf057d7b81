r"""The paper's toy problem: a two-layer binary network looks for the minimum of Beale's function.

    input [16] -> linear -> ReLU -> linear -> (x, y)        loss = Beale(x, y), minimum at (3, 0.5)
    linear     alpha_w alpha_a sign(W) sign(z)              z = layer input - shift

with one learnable alpha_w, alpha_a and shift per layer. All seeds of an arm are one tensor program:
the first dimension of every tensor is the seed, the scale is one number per seed and layer.

The paper leaves the set-up open. Chosen here, on the arms without SURGE alone:

input      one trainable vector: SURGE acts through a layer's input gradient, so in front of a
           constant input the first auxiliary path would do nothing (``fixed_input`` tries that)
shift      starts at the mean of the layer's input: a ReLU leaves nothing below zero, and without a
           shift sign would be +1 for every hidden unit
biases     none: an output bias would find the minimum without any binary weight
width      129, odd: the outputs are alpha times whole numbers, and only with an even width can
           their ratio be exactly 3 : 0.5; runs that hit it by luck would drown all else
start      W and W_a as ``nn.Linear`` draws them, alpha_w = mean abs(W), alpha_a = mean abs(z)
optimizer  Adam, 0.003, constant, 1000 steps (the best of 0.003, 0.01, 0.03 for STE and Bi-Real)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surge.compensation.scaler import updated_scale
from surge.errors import ConfigError
from surge.functional import sign, sign_bireal, sign_clipped

Array = NDArray[np.float64]

OPTIMUM = (3.0, 0.5)
"""Where Beale's function is zero."""
LAYERS = ("hidden", "output")
"""The two linear layers, by what they produce."""


@dataclass(frozen=True)
class Arm:
    """One way to train the network."""

    name: str
    surrogate: Callable[[Tensor], Tensor] | None
    """Sign with its backward rule for the inputs; None keeps the network in full precision."""
    injects: str = ""
    """``auxiliary`` (SURGE), ``noise`` (the control of the same norm), or nothing."""


ARMS = {
    arm.name: arm
    for arm in (
        Arm("FP", None),
        Arm("STE", sign_clipped),
        Arm("STE+SURGE", sign_clipped, "auxiliary"),
        Arm("Bi-Real", sign_bireal),
        Arm("Bi-Real+SURGE", sign_bireal, "auxiliary"),
        Arm("STE+Noise", sign_clipped, "noise"),
    )
}


@dataclass(frozen=True)
class ToyOptions:
    """What the study is run with."""

    seeds: int = 30
    steps: int = 1000
    eta: float = 0.01
    lr: float = 0.003
    inputs: int = 16
    hidden: int = 129
    fixed_input: bool = False
    """Keep the input as drawn; SURGE then acts through the output layer alone."""

    def __post_init__(self) -> None:
        """Check every number."""
        for name, least in (("seeds", 2), ("steps", 40), ("inputs", 1), ("hidden", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} {getattr(self, name)} must be at least {least}.")
        for name in ("eta", "lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"--{name} {getattr(self, name)} must be positive and finite.")


@dataclass(frozen=True, eq=False)
class Log:
    """What one arm did, step by step; NaN where an arm has no such thing.

    Arrays are [steps, seeds], those of a layer [steps, seeds, 2] in the order of ``LAYERS``.
    """

    x: Array
    y: Array
    loss: Array
    distance: Array
    scale: Array
    norm_main: Array
    norm_auxiliary: Array
    alpha_w: Array
    alpha_a: Array


def beale(points: Tensor) -> Tensor:
    """Return Beale's function of points ``[..., 2]``.

    >>> beale(torch.tensor([[3.0, 0.5], [0.0, 0.0]])).tolist()
    [0.0, 14.203125]
    """
    x, y = points.unbind(-1)
    terms = zip((1.5, 2.25, 2.625), (y, y**2, y**3), strict=True)
    return sum(((c - x + x * power).square() for c, power in terms), torch.zeros_like(x))


@dataclass(eq=False)
class Layer:
    """One linear layer of all seeds; the scalars have shape [seeds, 1, 1]."""

    weight: Tensor
    auxiliary: Tensor
    alpha_w: Tensor
    alpha_a: Tensor
    shift: Tensor
    scale: Tensor
    seen: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    """Sign input of the main path and output of the last forward, where SURGE acts."""

    def forward(self, x: Tensor, arm: Arm, noise: Tensor | None) -> Tensor:
        """Multiply; the auxiliary product has the value zero and only a gradient."""
        if arm.surrogate is None:
            return torch.bmm(x, self.weight.mT)
        z = x - self.shift
        main = z.view_as(z)
        product = torch.bmm(arm.surrogate(main), sign_clipped(self.weight).mT)
        y = self.alpha_w * self.alpha_a * product
        if not arm.injects:
            return y
        branch = z.view_as(z)
        if noise is not None:
            drawn = noise / _norm(noise)
            branch.register_hook(lambda gradient: drawn * _norm(gradient))  # type: ignore[no-untyped-call]
        ghost = self.scale * torch.bmm(branch, self.auxiliary.mT)
        y = y + (ghost - ghost.detach())
        main.retain_grad()
        y.retain_grad()
        self.seen = main, y
        return y

    def renew_scale(self, eta: float) -> None:
        """Set every seed's scale from the norms of g_b and g_a in the last backward."""
        if self.seen is None:
            return
        main, output = (tensor.grad for tensor in self.seen)
        assert main is not None and output is not None
        auxiliary = torch.bmm(output, self.auxiliary.detach())
        self.scale = updated_scale(self.scale, _norm(main).square(), _norm(auxiliary).square(), eta)


def _norm(x: Tensor) -> Tensor:
    """Return the norm of every seed's tensor, shaped to broadcast over it."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    return norm


def start(options: ToyOptions) -> tuple[Tensor, tuple[Layer, Layer]]:
    """Return the input and both layers; seed k starts the same in every arm and every study."""
    shapes = ((options.hidden, options.inputs), (2, options.hidden))
    inputs: list[Tensor] = []
    drawn: list[list[Tensor]] = []
    for seed in range(options.seeds):
        rng = torch.Generator().manual_seed(seed)
        inputs.append(torch.randn(1, options.inputs, generator=rng))
        drawn.append([_draw(shape, rng) for shape in (*shapes, *shapes)])
    *weights, hidden, output = (torch.stack(column) for column in zip(*drawn, strict=True))
    x = torch.stack(inputs)
    layers, level = [], x
    for weight, auxiliary in zip(weights, (hidden, output), strict=True):
        shift = level.mean(dim=(1, 2), keepdim=True)
        z = level - shift
        alpha_w, alpha_a = (t.abs().mean(dim=(1, 2), keepdim=True) for t in (weight, z))
        scale = torch.full_like(shift, 1 / math.sqrt(weight[0].numel()))
        layers.append(Layer(weight, auxiliary, alpha_w, alpha_a, shift, scale))
        level = torch.relu(alpha_w * alpha_a * torch.bmm(sign(z), sign(weight).mT))
    return x, (layers[0], layers[1])


def _draw(shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)


def _noises(options: ToyOptions) -> tuple[Tensor, Tensor]:
    """Draw all noise of the control, [steps, seeds, 1, features], each seed from its own source."""
    parts = []
    for seed in range(options.seeds):
        rng = torch.Generator().manual_seed(1_000_003 + seed)
        size = options.inputs + options.hidden
        parts.append(torch.randn(options.steps, 1, size, generator=rng))
    both = torch.stack(parts, dim=1)
    return both[..., : options.inputs], both[..., options.inputs :]


def run_arm(arm: Arm, options: ToyOptions) -> Log:
    """Train all seeds of an arm at once and log every step."""
    x, layers = start(options)
    trained = [layer.weight for layer in layers]
    trained += [] if options.fixed_input else [x]
    if arm.surrogate is not None:
        trained += [t for layer in layers for t in (layer.alpha_w, layer.alpha_a, layer.shift)]
    if arm.injects:
        trained += [layer.auxiliary for layer in layers]
    for tensor in {id(t): t for t in (x, *trained)}.values():
        tensor.requires_grad_()
    optimizer = torch.optim.Adam(trained, lr=options.lr, fused=True)
    noises = _noises(options) if arm.injects == "noise" else None
    recorder = _Recorder(arm, options)
    for step in range(options.steps):
        level = x
        for number, layer in enumerate(layers):
            noise = None if noises is None else noises[number][step]
            level = layer.forward(level if not number else torch.relu(level), arm, noise)
        points = level[:, 0]
        loss = beale(points)
        recorder.note(step, points, loss, layers)
        optimizer.zero_grad()
        # Seeds share nothing: each gets the gradient of its own loss.
        torch.autograd.backward(loss.sum())
        for layer in layers:
            layer.renew_scale(options.eta)
        optimizer.step()
    return recorder.log()


class _Recorder:
    """Collects one row per step in tensors made beforehand."""

    def __init__(self, arm: Arm, options: ToyOptions) -> None:
        shape = (options.steps, options.seeds)
        wide = {"x", "y", "loss", "distance"}
        self.rows = {
            item.name: torch.full(shape if item.name in wide else (*shape, 2), math.nan)
            for item in fields(Log)
        }
        self.arm = arm

    def note(self, step: int, points: Tensor, loss: Tensor, layers: tuple[Layer, Layer]) -> None:
        with torch.no_grad():
            rows = {name: tensor[step] for name, tensor in self.rows.items()}
            rows["x"][:], rows["y"][:] = points.unbind(-1)
            rows["loss"][:] = loss
            rows["distance"][:] = torch.linalg.vector_norm(points - torch.tensor(OPTIMUM), dim=-1)
            for number, layer in enumerate(layers):
                rows["norm_main"][:, number] = _norm(layer.weight).flatten()
                if self.arm.surrogate is not None:
                    rows["alpha_w"][:, number] = layer.alpha_w.flatten()
                    rows["alpha_a"][:, number] = layer.alpha_a.flatten()
                if self.arm.injects:
                    rows["scale"][:, number] = layer.scale.flatten()
                    rows["norm_auxiliary"][:, number] = _norm(layer.auxiliary).flatten()

    def log(self) -> Log:
        return Log(**{name: tensor.double().numpy() for name, tensor in self.rows.items()})


def run_study(
    options: ToyOptions, on_arm: Callable[[str, Log], None] | None = None
) -> dict[str, Log]:
    """Run all six arms from the same starts; ``on_arm`` hears of each as it ends."""
    logs: dict[str, Log] = {}
    with _one_thread():
        for arm in ARMS.values():
            logs[arm.name] = run_arm(arm, options)
            if on_arm is not None:
                on_arm(arm.name, logs[arm.name])
    return logs


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep such small tensors on one core: beside a busy neighbour a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
