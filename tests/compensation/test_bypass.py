"""Where the auxiliary path must not act, and where it must act once."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import surge
from surge.errors import NoLayersMatchedError
from tests.nets import (
    CASES,
    COMPENSABLE,
    METHODS,
    all_methods,
    assert_same_tensors,
    binarized,
    cnn,
    every_kind,
    images,
    loss_of,
    mlp,
    pair,
    rows,
    run,
)


def state_after(action, *, training=True):
    """The scales before and after something was done to a compensated network."""
    net = cnn()
    compensation = surge.compensate_(net)
    loss_of(net, images()).backward()
    compensation.step()
    before = compensation.scales()
    net.train(training)
    action(net, images(seed=8)[0])
    compensation.step()
    return before, compensation.scales()


def test_evaluation_forward_does_not_touch_the_scale():
    before, after = state_after(lambda net, x: net(x).sum().backward(), training=False)
    assert after == before


def test_no_grad_forward_in_training_mode_does_not_touch_the_scale():
    before, after = state_after(lambda net, x: torch.no_grad()(net)(x))
    assert after == before


def test_no_grad_forward_does_not_enter_the_path_even_for_a_leaf():
    _, compensated, _ = pair(CASES["linear"], align=1.0)
    with torch.no_grad():
        compensated(CASES["linear"].batch().requires_grad_())
        assert surge.extra_loss(compensated) == 0


def test_inference_mode_does_not_touch_the_scale():
    before, after = state_after(lambda net, x: torch.inference_mode()(net)(x))
    assert after == before


@all_methods
def test_evaluation_gradient_is_the_plain_one(method):
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, method)
    x = case.batch()
    expected = run(plain.eval(), x)
    assert torch.equal(run(compensated.eval(), x).input, expected.input)


@every_kind
def test_input_without_gradient_bypasses_the_path(method, case):
    plain, compensated, _ = pair(case, method)
    y = compensated(case.batch())
    assert torch.equal(y, plain(case.batch()))
    y.sum().backward()
    assert compensated.auxiliary.weight.grad is None


@every_kind
def test_frozen_weight_keeps_its_auxiliary(method, case):
    _, free, _ = pair(case, method, fixed_scale=0.5)
    _, frozen, _ = pair(case, method, fixed_scale=0.5)
    frozen.weight.requires_grad_(False)
    x = case.batch()
    assert torch.equal(run(frozen, x).input, run(free, x).input)


def frozen_stem(method="bnn"):
    """The first binary layer sees the float stem, which is frozen; the second sees the first."""
    net = mlp(method)
    net[0].requires_grad_(False)
    return net


def test_dry_run_gives_no_auxiliary_to_a_frozen_input():
    net = frozen_stem()
    compensation = surge.compensate_(net, example_input=rows()[0])
    assert list(compensation.paths) == ["4"]
    assert compensation.skipped == {"2": "its input needs no gradient"}
    assert net[2].auxiliary is None


def test_dry_run_keeps_every_layer_that_needs_it():
    assert list(surge.compensate_(mlp(), example_input=rows()[0]).paths) == ["2", "4"]


def test_dry_run_skips_a_layer_that_does_not_run():
    net = mlp()
    net.spare = surge.BinaryLinear(4, 4)
    net.forward = lambda x: nn.Sequential(*list(net)[:-1])(x)
    assert list(surge.compensate_(net, example_input=rows()[0]).paths) == ["2", "4"]


def test_dry_run_that_finds_nothing_is_an_error():
    net = mlp().requires_grad_(False)
    with pytest.raises(NoLayersMatchedError, match="needs a gradient"):
        surge.compensate_(net, example_input=rows()[0])


class Keyword(nn.Module):
    """Calls its binary layer by keyword and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer = nn.Linear(6, 8), surge.BinaryLinear(8, 8)

    def forward(self, x, *, shift=0.0):
        return self.layer(input=self.stem(x) + shift + torch.randn(8))


@pytest.mark.parametrize(
    "example",
    [torch.ones(2, 6), (torch.ones(2, 6),), {"x": torch.ones(2, 6), "shift": torch.ones(8)}],
    ids=["tensor", "arguments", "keywords"],
)
def test_dry_run_takes_any_form_of_example(example):
    assert list(surge.compensate_(Keyword(), example_input=example).paths) == ["layer"]


def test_dry_run_leaves_the_random_state():
    net = Keyword()
    before = torch.get_rng_state()
    surge.compensate_(net, example_input=torch.ones(2, 6))
    assert torch.equal(torch.get_rng_state(), before)


def test_dry_run_leaves_the_statistics_of_batch_norm():
    net = cnn("recu")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    surge.compensate_(net, example_input=images()[0])
    after = {n: t for n, t in net.state_dict().items() if ".auxiliary." not in n}
    assert_same_tensors(after, before)


def test_dry_run_leaves_the_modes():
    net = cnn()
    net[3].eval()
    modes = {name: module.training for name, module in net.named_modules()}
    surge.compensate_(net, example_input=images()[0])
    assert {name: net.get_submodule(name).training for name in modes} == modes


def test_dry_run_leaves_no_hook():
    net = cnn()
    surge.compensate_(net, example_input=images()[0])
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())


def test_dry_run_that_fails_leaves_no_hook_and_no_path():
    net = cnn()
    net[3].eval()
    with pytest.raises(RuntimeError):
        surge.compensate_(net, example_input=torch.ones(1, 5))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
    assert net[2].auxiliary is None and net[2].training and not net[3].training


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@all_methods
def test_activation_checkpointing_counts_once(method, reentrant):
    results = []
    for recompute in (False, True):
        net = mlp(method, depth=3)
        compensation = surge.compensate_(net)
        hidden, labels = rows()
        stem, body, head = net[:1], net[1:-1], net[-1:]
        hidden = stem(hidden)
        hidden = checkpoint(body, hidden, use_reentrant=reentrant) if recompute else body(hidden)
        nn.functional.cross_entropy(head(hidden), labels).backward()
        squares = [float(p.squares("main")) for p in compensation.paths.values()]
        compensation.step()
        results.append((squares, compensation.scales()))
    assert results[1] == results[0]


def test_embedding_is_never_compensated():
    net = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    binarized(net, embeddings=True, keep_first=False)
    assert list(surge.compensate_(net).paths) == ["1", "2"]


@pytest.mark.parametrize(
    ("method", "options"),
    [("dorefa", {"input_bits": 32}), *((m, {}) for m in METHODS if m not in COMPENSABLE)],
)
def test_method_with_nothing_to_repair_is_refused(method, options):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    binarized(net, method, **options)
    with pytest.raises(NoLayersMatchedError, match="gradient is exact"):
        surge.compensate_(net)
