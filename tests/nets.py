"""Small networks, and the arithmetic of SURGE written a second time, in NumPy and float64."""

import copy
import json
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.errors import SurgeWarning
from surge.method import get_method

METHODS = surge.list_methods()
COMPENSABLE = [method for method in METHODS if not get_method(method).not_compensable]
CENTRED = [method for method in METHODS if get_method(method).centred_values]
"""Methods whose two values have a middle other than 0."""
REPRESENTATIVES = ("bnn", "recu", "reactnet")
"""Methods for which z, the tensor that enters sign, is x itself, x divided, and x shifted."""


@dataclass(frozen=True)
class Case:
    """One binary layer and the shape of a batch for it."""

    layer: type
    arguments: tuple
    shape: tuple
    options: dict = field(default_factory=dict)

    def build(self, method="bnn", **method_options):
        torch.manual_seed(1)
        return self.layer(
            *self.arguments, method=method, method_options=method_options, **self.options
        )

    def batch(self, spread=1.0, seed=2):
        generator = torch.Generator().manual_seed(seed)
        return spread * torch.randn(self.shape, generator=generator)


CASES = {
    "conv2d": Case(surge.BinaryConv2d, (4, 6, 3), (3, 4, 5, 6), {"padding": 1, "bias": False}),
    "conv2d-stride2": Case(
        surge.BinaryConv2d, (4, 6, 3), (2, 4, 7, 8), {"padding": 1, "stride": 2}
    ),
    "conv2d-groups": Case(surge.BinaryConv2d, (4, 6, 3), (2, 4, 5, 5), {"padding": 1, "groups": 2}),
    "conv2d-dilation": Case(
        surge.BinaryConv2d, (4, 6, (3, 2)), (2, 4, 8, 7), {"padding": (2, 0), "dilation": (2, 3)}
    ),
    "conv2d-same": Case(surge.BinaryConv2d, (4, 6, 3), (2, 4, 5, 5), {"padding": "same"}),
    "conv1d": Case(surge.BinaryConv1d, (4, 6, 3), (3, 4, 9), {"padding": 1, "bias": False}),
    "conv1d-stride2": Case(
        surge.BinaryConv1d, (4, 6, 5), (2, 4, 11), {"padding": 2, "stride": 2, "groups": 2}
    ),
    "linear": Case(surge.BinaryLinear, (8, 6), (5, 8), {"bias": False}),
    "linear-bias": Case(surge.BinaryLinear, (8, 6), (5, 8)),
    "linear-3d": Case(surge.BinaryLinear, (8, 6), (3, 4, 8)),
}
UNBATCHED = {
    "conv2d": Case(surge.BinaryConv2d, (4, 6, 3), (4, 5, 6), {"padding": 1}),
    "conv1d": Case(surge.BinaryConv1d, (4, 6, 3), (4, 9), {"padding": 1}),
    "linear": Case(surge.BinaryLinear, (8, 6), (8,)),
}
KINDS = ("conv2d", "conv1d", "linear-bias")
"""One case per kind of layer."""

VARIANTS = {
    "independent": {},
    "copied": {"auxiliary": "copied"},
    "tied": {"auxiliary": "tied"},
    "pointwise": {"auxiliary": "pointwise"},
    "low_rank": {"auxiliary": "low_rank", "rank": 2},
    "leaky_tail": {"auxiliary": "leaky_tail"},
    "above_clamp": {"aux_input": "above_clamp", "skip": "9"},
    "weight_side": {"weight_side": 0.3},
    "align": {"align": 1.0},
    "clipped": {"scope": "clipped", "dose": "clipped_share"},
    "delivered": {"scope": "clipped", "dose": "delivered"},
    "decay": {"decay": "cosine"},
    "noise": {"noise": True},
}
"""One set of options of ``compensate_`` per variant; all fit :func:`cnn`."""


def _subjects(cases):
    """All cases for the representatives, and one for every other method: what a layer's shape
    does to the auxiliary path does not depend on the method."""
    return pytest.mark.parametrize(
        ("method", "case"),
        [
            pytest.param(method, CASES[name], id=f"{method}-{name}")
            for method in COMPENSABLE
            for name in (cases if method in REPRESENTATIVES else cases[:1])
        ],
    )


registered_methods = pytest.mark.parametrize("method", METHODS)
all_methods = pytest.mark.parametrize("method", COMPENSABLE)
every_case = _subjects(list(CASES))
every_kind = _subjects(KINDS)
each_kind = pytest.mark.parametrize("case", [CASES[kind] for kind in KINDS], ids=KINDS)
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


@cache
def published_methods():
    """Methods with a row in the paper's tables (those of GLUE are for another BERT) or a result.

    Of these the tests know more than what a method says of itself; a new one needs no such words.
    """
    from surge.recipes import get_recipe, list_recipes

    results = Path(__file__).parents[1] / "results" / "common.jsonl"
    measured = {json.loads(line)["recipe"] for line in results.read_text().splitlines()}
    return {
        recipe.method.name
        for recipe in map(get_recipe, list_recipes())
        if recipe.method
        and (recipe.paper is not None or recipe.table == "glue" or recipe.name in measured)
    }


@contextmanager
def no_pitfalls():
    """Silence the warnings about architecture: these networks are small on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        yield


def binarized(model, method="bnn", **options):
    """Binarise without the pitfall warnings and return the model."""
    with no_pitfalls():
        surge.binarize_(model, method, **options)
    return model


def mlp(method="bnn", *, width=8, depth=2, seed=0):
    """Float linear, ``depth`` binary ones behind Hardtanh, float linear; no normalisation."""
    torch.manual_seed(seed)
    layers = [nn.Linear(6, width)]
    for _ in range(depth):
        layers += [nn.Hardtanh(), nn.Linear(width, width)]
    return binarized(nn.Sequential(*layers, nn.Hardtanh(), nn.Linear(width, 3)), method)


def cnn(method="bnn", *, norm=True, seed=0):
    """Float conv, binary convs (2-d), a binary linear, float linear, for inputs (N, 2, 6, 6)."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.Hardtanh()]
    for stride in (1, 2):
        # Sums of +-1 are often exactly 0, where rounding decides the next sign: the norm, or else
        # the bias, moves them away.
        layers.append(nn.Conv2d(4, 4, 3, padding=1, stride=stride, bias=not norm))
        layers += [nn.BatchNorm2d(4)] if norm else []
        layers.append(nn.Hardtanh())
    layers += [nn.Flatten(), nn.Linear(36, 8), nn.Hardtanh(), nn.Linear(8, 3)]
    return binarized(nn.Sequential(*layers), method)


def images(count=4, seed=3):
    """A batch for :func:`cnn` and its labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 6, 6, generator=generator)
    return x, torch.randint(3, (count,), generator=generator)


def rows(count=4, seed=3):
    """A batch for :func:`mlp` and its labels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(
        3, (count,), generator=generator
    )


def loss_of(model, batch):
    """Cross-entropy, plus whatever the methods and the auxiliary paths add."""
    x, labels = batch
    return nn.functional.cross_entropy(model(x), labels) + surge.extra_loss(model)


def train(model, optimizer, batches):
    """Some steps of the plainest training loop."""
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        surge.on_step(model)


def output_gradient(y, seed=4):
    """A fixed gradient for an output, so that no loss stands between test and formula."""
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y)


@dataclass
class Run:
    """What one forward and backward of a layer produced."""

    output: torch.Tensor
    gradient: torch.Tensor
    """At the output: G."""
    input: torch.Tensor
    """dL/dx."""
    parameters: dict


def run(layer, x, gradient=None):
    """Run a layer forward and backward from a given gradient at its output."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    gradient = output_gradient(y) if gradient is None else gradient
    y.backward(gradient)
    grads = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
    return Run(y.detach(), gradient, x.grad, grads)


def pair(case, method="bnn", **options):
    """Return a plain layer, the same layer compensated, and the compensation."""
    plain = case.build(method)
    compensated = copy.deepcopy(plain)
    return plain, compensated, surge.compensate_(compensated, **options)


def injected(plain, compensated, x):
    """Return (g_b, s g_a, G): the injection is what compensation adds to the input gradient."""
    main, both = run(plain, x), run(compensated, x)
    return main.input, both.input - main.input, main.gradient


def through_preparation(layer, x, at_sign):
    """Pull a gradient at the tensor that enters sign back to the layer's input."""
    x = x.detach().clone().requires_grad_()
    z = layer.method.prepare_input(x)
    return torch.autograd.grad(z, x, at_sign.to(z))[0]


def entering_sign(layer, x):
    """Return the tensor that enters sign."""
    return layer.method.prepare_input(x).detach()


def to_numpy(tensor):
    return tensor.detach().cpu().double().numpy()


def auxiliary_gradients(layer, weight, x, gradient):
    """Return (W^T G, x * G) in float64 NumPy; ``weight`` replaces the layer's own.

    Written tap by tap over the kernel, on purpose unlike any library routine.
    """
    weight, x, gradient = to_numpy(weight), to_numpy(x), to_numpy(gradient)
    if isinstance(layer, nn.Linear):
        flat_g, flat_x = gradient.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
        return torch.from_numpy(gradient @ weight), torch.from_numpy(flat_g.T @ flat_x)
    spatial = weight.ndim - 2
    batched = x.ndim == spatial + 2
    if not batched:
        x, gradient = x[None], gradient[None]
    shape = layer.geometry
    groups, stride, dilation = shape.groups, shape.stride, shape.dilation
    padding = shape.padding if weight.shape[2:] == shape.kernel_size else (0,) * spatial
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    padded = padded.reshape(len(x), groups, -1, *padded.shape[2:])
    g = gradient.reshape(len(x), groups, -1, *gradient.shape[2:])
    w = weight.reshape(groups, -1, *weight.shape[1:])
    to_input, to_weight = np.zeros_like(padded), np.zeros_like(w)
    for tap in np.ndindex(*weight.shape[2:]):
        window = (
            ...,
            *(
                slice(t * d, t * d + s * (size - 1) + 1, s)
                for t, d, s, size in zip(tap, dilation, stride, gradient.shape[2:], strict=True)
            ),
        )
        kernel = (slice(None), slice(None), slice(None), *tap)
        to_input[window] += np.einsum("ngo...,goc->ngc...", g, w[kernel])
        to_weight[kernel] = np.einsum(
            "ngop,ngcp->goc",
            g.reshape(*g.shape[:3], -1),
            padded[window].reshape(*padded.shape[:3], -1),
        )
    inner = tuple(slice(p, p + size) for p, size in zip(padding, x.shape[2:], strict=True))
    to_input = to_input.reshape(len(x), -1, *to_input.shape[3:])[(..., *inner)]
    result = to_input if batched else to_input[0]
    return torch.from_numpy(result), torch.from_numpy(to_weight.reshape(weight.shape))


def assert_near(actual, expected, rtol=1e-5):
    """Compare with a tolerance relative to the largest expected value."""
    actual, expected = actual.detach(), expected.detach().double()
    bound = rtol * max(float(expected.abs().max()), 1e-30) if expected.numel() else 0.0
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


def assert_same_tensors(actual, expected):
    """Two dicts hold the same names and, bit for bit, the same tensors."""
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
