"""``Conv1D`` of transformers, a linear layer whose weight is [in, out], as GPT-2 has it."""

import copy
import pickle
import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import surge
from surge.errors import ConfigError, SurgeWarning
from surge.layers import BinaryTransposedLinear
from tests.nets import METHODS, assert_same_tensors, run

pytest.importorskip("transformers")  # a GPU machine's own interpreter may lack it

from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D


def quietly(model, method="bireal", **options):
    torch.manual_seed(5)  # some methods draw their scales
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        return surge.binarize_(model, method, **options)


def assert_close(actual, expected):
    # A transposed matrix is multiplied in another order.
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def net(*inner):
    torch.manual_seed(0)
    inner = inner or (Conv1D(9, 6),)
    return nn.Sequential(nn.Linear(4, 6), *inner, nn.BatchNorm1d(9), nn.Linear(9, 2))


def twin():
    """The same network with a linear layer of torch."""
    model = net(nn.Linear(6, 9))
    same = net()
    with torch.no_grad():
        for own, other in zip(model.parameters(), same.parameters(), strict=True):
            own.copy_(other.T if own.shape != other.shape else other)
    return model


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20, "n_positions": 12}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


WORDS = torch.arange(10).view(2, 5)


def test_layers_of_gpt2_become_binary():
    model = gpt2()
    report = quietly(model)
    verdicts = {row.name.rpartition(".")[2]: row.verdict for row in report.rows}
    assert all(verdicts[name] == "binary" for name in ("c_attn", "c_proj", "c_fc"))
    assert len(report.binary) == 8
    layer = model.transformer.h[0].mlp.c_fc
    assert type(layer) is BinaryTransposedLinear
    assert (layer.in_features, layer.out_features, *layer.weight.shape) == (16, 64, 64, 16)
    model(WORDS, labels=WORDS).loss.backward()
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("method", METHODS)
def test_it_computes_what_a_linear_layer_does(method):
    model, other = net(), twin()
    quietly(model, method)
    quietly(other, method)
    x = torch.randn(5, 4)
    ours, theirs = run(model, x), run(other, x)
    for field in ("output", "input", "parameters"):
        assert_close(getattr(ours, field), getattr(theirs, field))
    costs = [surge.summary(m, x) for m in (model, other)]
    assert (costs[0].bytes, costs[0].ops) == (costs[1].bytes, costs[1].ops)


def test_it_can_be_compensated_and_packed_as_one(tmp_path):
    model, other = net(), twin()
    x = torch.randn(5, 4)
    for m in (model, other):
        quietly(m, "recu")
        surge.compensate_(m)
    assert_close(run(model, x).parameters, run(other, x).parameters)
    files = []
    for m in (model, other):
        surge.strip_(m.eval())
        surge.pack(m, x, tmp_path / "m.surge")
        files.append(load_file(tmp_path / "m.surge"))
    assert_close(*files)


def test_float_state_dict_loads_and_comes_back_unchanged():
    # Of c_proj in attention nobody could tell from the sizes which way round it is.
    model, state = gpt2(), gpt2().state_dict()
    quietly(model)
    assert_same_tensors(dict(model.state_dict()), dict(state))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.load_state_dict(state, strict=True)
    assert_same_tensors(dict(model.state_dict()), dict(state))
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    back = gpt2()
    back.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(back(WORDS).logits, gpt2()(WORDS).logits)
    part = {"1.bias": torch.ones(9)}
    small = net()
    quietly(small)
    assert "1.weight" in small.load_state_dict(part, strict=False).missing_keys


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_compute_the_same(copied):
    model = gpt2()
    quietly(model)
    assert torch.equal(copied(model)(WORDS).logits, model(WORDS).logits)


def test_parameters_stay_the_same_objects_and_tied():
    model = net(Conv1D(6, 6), Conv1D(6, 6), Conv1D(9, 6))
    model[2].weight = model[1].weight
    weight, value = model[1].weight, model[1].weight.detach().clone()
    quietly(model)
    assert model[1].weight is model[2].weight is weight
    assert torch.equal(weight, value.T)


def test_a_failed_conversion_turns_the_weights_back():
    # RBNN and others refuse filters of one weight: the last layer has them.
    model = net(Conv1D(6, 6), Conv1D(9, 6), nn.Linear(9, 1), Conv1D(9, 1))
    before = [(type(m), set(vars(m)), set(m._modules)) for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError, match='"4"'):
        quietly(model, "rbnn")
    assert [(type(m), set(vars(m)), set(m._modules)) for m in model.modules()] == before
    assert_same_tensors(dict(model.state_dict()), state)


def test_a_subclass_stays_float_with_its_reason():
    class Own(Conv1D):
        pass

    report = quietly(net(Conv1D(6, 6), Own(9, 6)))
    assert report.rows[2].verdict == "unsupported: a subclass of Conv1D"
