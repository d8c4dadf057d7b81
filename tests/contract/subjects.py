"""Every method x layer x {plain, compensated}: what the contract is about."""

import copy

import pytest
import torch

import surge
from tests.nets import CASES, COMPENSABLE, METHODS, Case, output_gradient


class EmbeddingCase(Case):
    """An embedding takes indices, which have no gradient."""

    def batch(self, spread=1.0, seed=2):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.arguments[0], self.shape, generator=generator)


SUBJECTS = {
    "conv1d": CASES["conv1d-stride2"],
    "conv2d": CASES["conv2d-stride2"],
    "linear": CASES["linear-3d"],
    "embedding": EmbeddingCase(surge.BinaryEmbedding, (7, 6), (3, 4)),
}
PAIRS = [
    pytest.param(method, SUBJECTS[kind], mode, id=f"{method}-{kind}-{mode}")
    for method in METHODS
    for kind in SUBJECTS
    for mode in ("plain", "compensated")
    if mode == "plain" or (method in COMPENSABLE and kind != "embedding")
]
every_subject = pytest.mark.parametrize(("method", "case", "mode"), PAIRS)
every_float_input = pytest.mark.parametrize(
    ("method", "case", "mode"), [p for p in PAIRS if "embedding" not in p.id]
)

modes = pytest.mark.parametrize("mode", ["plain", "compensated"])


def subject(method, case, mode="compensated"):
    """Build one layer of the matrix, with its schedule state and scale away from the defaults."""
    layer = case.build(method)
    surge.on_epoch(layer, 3, 10)
    if mode == "compensated":
        surge.compensate_(layer, eta=0.1)
    return layer


def leaf(x):
    """A copy that takes a gradient, if it can."""
    x = x.detach().clone(memory_format=torch.preserve_format)
    return x.requires_grad_() if x.is_floating_point() else x


def observe(layer, x, call=None, gradient=None):
    """Run forward and backward; return the output and every gradient, probes included.

    A parameter without gradient is reported as None.
    """
    x = leaf(x)
    layer.zero_grad()
    y = (layer if call is None else call)(x)
    y.backward(output_gradient(y) if gradient is None else gradient)
    seen = {"output": y.detach()}
    if x.grad is not None:
        seen["input"] = x.grad
    seen |= {name: p.grad for name, p in layer.named_parameters()}
    path = getattr(layer, "auxiliary", None)
    if path is not None:
        seen |= {f"probe {n}": path.squares(n).clone() for n in ("main", "auxiliary")}
        path.reset_probes()
    return seen


def assert_all_close(actual, expected, **tolerance):
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        if tensor is None:
            assert actual[name] is None, f"{name} got a gradient"
            continue
        assert actual[name] is not None, f"{name} got no gradient"
        torch.testing.assert_close(
            actual[name], tensor, **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_all_equal(actual, expected):
    assert_all_close(actual, expected, rtol=0, atol=0)


def twin(layer):
    return copy.deepcopy(layer)
