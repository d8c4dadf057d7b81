"""torch.compile gives the gradients of eager mode, for every method and layer.

A backward that the compiler drops leaves the forward intact: only gradients can show it.
"""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surge
from tests.contract.flags import FLAGS, NUMBERS, named
from tests.contract.subjects import (
    PAIRS,
    SUBJECTS,
    assert_all_close,
    leaf,
    observe,
    subject,
    twin,
)
from tests.methods.test_quirks import DEFAULTS
from tests.nets import CASES, COMPENSABLE, VARIANTS, all_methods

PROBES = ("main", "auxiliary")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """The compiler counts recompilations per function; every test starts at none."""
    torch._dynamo.reset()


def assert_alive(seen):
    """Nothing was optimised away: input and weights have gradients that are not all zero."""
    dead = [n for n, t in seen.items() if n.endswith(("input", "weight")) and not t.any()]
    assert dead == []


@pytest.mark.parametrize(("method", "case", "mode"), PAIRS)
def test_compiled_gradients_equal_eager_ones(method, case, mode):
    layer = subject(method, case, mode)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = case.batch()
    actual = observe(layer, x, compiled)
    assert_all_close(actual, observe(layer, x), rtol=1e-5, atol=1e-6)
    assert_alive(actual)


def test_flags_of_the_documentation_are_all_compiled():
    documented = {(method, flag) for method, known in DEFAULTS.items() for flag in known}
    assert documented <= {(method, flag) for method, options in FLAGS for flag in options}


@pytest.mark.parametrize("kind", ["conv2d", "linear", "embedding"])
@pytest.mark.parametrize(("method", "options"), named([*FLAGS, *NUMBERS]))
def test_compiled_gradients_equal_eager_ones_with_every_flag(method, options, kind):
    case = SUBJECTS[kind]
    compensable = kind == "conv2d" and method in COMPENSABLE and options != {"input_bits": 32}
    build = partial(case.build, **options)
    mode = "compensated" if compensable else "plain"
    layer = subject(method, SimpleNamespace(build=build), mode)
    with torch.no_grad():
        for learnt in layer.method.parameters():
            learnt.add_(0.05)  # where a rule starts it can be simpler than later
    seen = []
    for call in (torch.compile(layer, backend="aot_eager", fullgraph=True), None):
        torch.manual_seed(0)  # some draw their weights
        seen.append(observe(layer, case.batch(), call))
    assert_all_close(*seen, rtol=1e-5, atol=1e-6)
    assert_alive(seen[0])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name)
        for name, options in VARIANTS.items()
        if name not in ("independent", "decay")
    ],
)
def test_every_variant_compiles_in_one_graph(options):
    case = CASES["conv2d"]
    net = nn.Sequential(nn.Hardtanh(), case.build("recu"))
    options = {name: value for name, value in options.items() if name != "skip"}
    compensation = surge.compensate_(net, example_input=leaf(case.batch()), **options)
    path = compensation.paths["1"]
    results, before = [], copy.deepcopy(net.state_dict())
    for model in (torch.compile(net, backend="aot_eager", fullgraph=True), net):
        net.load_state_dict(before)
        seen = observe(net, case.batch(spread=2.0), model)
        results.append(seen | {"probe": path.squares("main").clone()})
        path.reset_probes()
    assert_all_close(*results, rtol=1e-4, atol=1e-5)


def test_scale_can_change_without_recompiling():
    case = CASES["linear"]
    layer = subject("bnn", case)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    observe(layer, case.batch(), compiled)
    layer.auxiliary.scale.fill_(0.7)
    with torch.compiler.set_stance("fail_on_recompile"):
        actual = observe(layer, case.batch(), compiled)
    assert_all_close(actual, observe(layer, case.batch()), rtol=1e-5, atol=1e-6)


def test_schedule_can_move_without_recompiling():
    case = CASES["linear"]
    for method in ("recu", "irnet", "rbnn"):
        layer = subject(method, case)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        observe(layer, case.batch(), compiled)
        surge.on_epoch(layer, 7, 10)
        with torch.compiler.set_stance("fail_on_recompile"):
            actual = observe(layer, case.batch(), compiled)
        assert_all_close(actual, observe(layer, case.batch()), rtol=1e-5, atol=1e-6)


def test_double_backward_is_refused_when_compiled_too():
    case = CASES["linear"]
    compiled = torch.compile(subject("bnn", case), backend="aot_eager", fullgraph=True)
    x = leaf(case.batch())
    with pytest.raises(RuntimeError, match="double backward|differentiated twice"):
        (grad,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        grad.sum().backward()


class Both(nn.Module):
    """A binary convolution and a binary linear layer."""

    def __init__(self, method):
        super().__init__()
        torch.manual_seed(1)
        self.conv = surge.BinaryConv2d(4, 4, 3, padding=1, method=method)
        self.linear = surge.BinaryLinear(16, 5, method=method)

    def forward(self, x):
        return self.linear(self.conv(x).flatten(2))


@pytest.mark.gpu
@all_methods
def test_inductor_gradients_equal_eager_ones_on_a_gpu(method):
    net = Both(method).cuda()
    surge.on_epoch(net, 3, 10)
    surge.compensate_(net, eta=0.1)
    other = twin(net)
    compiled = torch.compile(other, fullgraph=True)
    x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(2)).cuda()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected, actual = observe(net, x), observe(other, x, compiled)
    expected |= squares(net)
    actual |= squares(other)
    assert_all_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert_alive(actual)


class Side(nn.Module):
    """A compensated linear layer of every method, side by side."""

    def __init__(self, methods):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleDict({m: surge.BinaryLinear(8, 6, method=m) for m in methods})
        surge.on_epoch(self, 3, 10)
        surge.compensate_(self, eta=0.1)

    def forward(self, inputs):
        """One input per method, so that every one has its own gradient."""
        pairs = zip(self.layers.values(), inputs, strict=True)
        return torch.stack([layer(x) for layer, x in pairs])


def test_inductor_gradients_equal_eager_ones_for_every_method():
    """In one graph, since a compiler starts slowly; outputs and inputs have a row per method."""
    net = Side(COMPENSABLE)
    other = twin(net)
    x = torch.randn(len(COMPENSABLE), 4, 8, generator=torch.Generator().manual_seed(2))
    found = []
    for model, call in ((net, None), (other, torch.compile(other, fullgraph=True))):
        seen = observe(model, x, call)
        for name, layer in model.layers.items():
            seen |= {f"layers.{name}.{p}": layer.auxiliary.squares(p) for p in PROBES}
        found.append(seen)
    expected, actual = found
    parts = ("weight", "auxiliary.weight", *PROBES)
    assert {f"layers.{m}.{part}" for m in COMPENSABLE for part in parts} <= set(actual)
    assert_all_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert_alive(actual)
    assert all(row.any() for row in actual["input"])


def squares(net):
    """What the probes of both layers collected."""
    return {
        f"{layer} {probe}": getattr(net, layer).auxiliary.squares(probe)
        for layer in ("conv", "linear")
        for probe in PROBES
    }
