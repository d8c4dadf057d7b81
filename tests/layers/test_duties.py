"""A training loop that leaves out a call is told so, once."""

import warnings

import pytest
import torch
from torch import nn

import surge
from surge.errors import SurgeWarning
from surge.layers import duties
from tests.nets import mlp, rows

CALLS = {
    "on_epoch": lambda net: surge.on_epoch(net, 0, 2),
    "on_step": surge.on_step,
    "extra_loss": surge.extra_loss,
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(duties, "PATIENCE", 5)


def said(net, forwards=8, without=(), mode=True):
    """Run forwards with all calls but some, and return what was said."""
    if "initialize_" not in without:
        surge.initialize_(net, rows()[0])
    net.train(mode)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(forwards):
            net(rows()[0])
            for name, call in CALLS.items():
                if name not in without:
                    call(net)
    return [str(w.message) for w in caught if issubclass(w.category, SurgeWarning)]


@pytest.mark.parametrize(
    ("method", "call"),
    [("recu", "on_epoch"), ("bnn", "on_step"), ("rad", "extra_loss"), ("lws", "on_epoch")],
)
def test_a_missing_call_is_named_once_for_all_layers(method, call):
    (sentence,) = said(mlp(method), without=[call])
    assert f"{method} needs" in sentence and f"surge.{call}(model" in sentence
    assert not any(f"surge.{other}(" in sentence for other in CALLS if other != call)


def test_levels_that_no_data_has_set_are_told():
    (sentence,) = said(mlp("bit"), without=["initialize_"])
    assert "bit needs" in sentence and "surge.initialize_(model, ...)" in sentence


def test_levels_of_a_checkpoint_are_set():
    trained, net = mlp("bit"), mlp("bit")
    surge.initialize_(trained, rows()[0])
    net.load_state_dict(trained.state_dict())
    assert said(net, without=["initialize_"]) == []


def test_all_missing_calls_are_in_one_sentence():
    (sentence,) = said(mlp("rad"), without=CALLS)
    assert all(f"surge.{call}(" in sentence for call in CALLS)


@pytest.mark.parametrize("method", surge.list_methods())
def test_a_loop_with_all_three_calls_hears_nothing(method):
    assert said(mlp(method)) == []


def test_a_method_that_wants_no_call_says_nothing():
    assert said(mlp("bireal"), without=CALLS) == []


def test_tests_are_no_training():
    assert said(mlp("recu"), without=CALLS, mode=False) == []


@torch.no_grad()
def test_forwards_without_gradients_are_no_training():
    """Averaged copies (``swa_utils.update_bn``) and teachers run in training mode, too."""
    assert said(mlp("recu"), without=CALLS) == []


def test_few_forwards_say_nothing():
    assert said(mlp("recu"), forwards=4, without=CALLS) == []


def test_the_loop_of_the_documentation_trains_rad_as_rad():
    """The three calls of docs/your-model.md: without the loss this would be BNN."""
    weights = {}
    for method in ("rad", "bnn"):
        net = mlp(method)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        surge.on_epoch(net, 0, 1)
        x, labels = rows()
        optimizer.zero_grad()
        (nn.functional.cross_entropy(net(x), labels) + surge.extra_loss(net)).backward()
        optimizer.step()
        surge.on_step(net)
        weights[method] = net[0].weight
    assert not torch.equal(weights["rad"], weights["bnn"])


def test_compiled_forwards_neither_count_nor_break():
    net = mlp("rad").train()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for _ in range(8):
        compiled(rows()[0])
    assert net[2].duties.forwards == 0 and net[2].duties.missed
