"""Copies, files and float checkpoints, for every method and layer."""

import io
import pickle

import pytest
import torch
from torch import nn

import surge
from surge.layers import BinaryLayer
from tests.contract.subjects import (
    assert_all_equal,
    every_subject,
    observe,
    subject,
    twin,
)
from tests.nets import (
    all_methods,
    assert_same_tensors,
    binarized,
    cnn,
    every_kind,
    images,
    registered_methods,
)

ORIGINAL = {
    surge.BinaryConv1d: nn.Conv1d,
    surge.BinaryConv2d: nn.Conv2d,
    surge.BinaryLinear: nn.Linear,
    surge.BinaryEmbedding: nn.Embedding,
}


@every_subject
def test_deepcopy_behaves_alike(method, case, mode):
    layer = subject(method, case, mode)
    assert_all_equal(observe(twin(layer), case.batch()), observe(layer, case.batch()))


@every_subject
def test_deepcopy_shares_nothing(method, case, mode):
    layer = subject(method, case, mode)
    own = {p.data_ptr() for p in (*layer.parameters(), *layer.buffers())}
    copied = twin(layer)
    assert own.isdisjoint(p.data_ptr() for p in (*copied.parameters(), *copied.buffers()))


@every_subject
def test_pickle_behaves_alike(method, case, mode):
    layer = subject(method, case, mode)
    loaded = pickle.loads(pickle.dumps(layer))
    assert_all_equal(observe(loaded, case.batch()), observe(layer, case.batch()))


@every_subject
def test_state_round_trips_strictly(method, case, mode):
    layer = subject(method, case, mode)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh = case.build(method)
    if mode == "compensated":
        surge.compensate_(fresh, eta=0.1, seed=5)
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert_same_tensors(dict(fresh.state_dict()), dict(layer.state_dict()))
    assert_all_equal(observe(fresh, case.batch()), observe(layer, case.batch()))


@every_subject
def test_float_state_loads_strictly(method, case, mode):
    layer = subject(method, case, mode)
    if mode == "compensated":
        surge.strip_(layer)
    real = ORIGINAL[case.layer](*case.arguments, **case.options)
    layer.load_state_dict(real.state_dict(), strict=True)
    assert torch.equal(layer.weight, real.weight)


@registered_methods
def test_float_state_of_a_network_loads_strictly(method):
    torch.manual_seed(3)
    real = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    state = {name: tensor.clone() for name, tensor in real.state_dict().items()}
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    binarized(net, method).load_state_dict(state, strict=True)
    assert torch.equal(net[1].weight, real[1].weight)


@registered_methods
def test_state_of_another_shape_is_refused(method):
    net, other = cnn(method), cnn(method)
    other[2] = surge.BinaryConv2d(4, 5, 3, bias=False, method=method)
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(other.state_dict())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_kind
def test_attach_then_strip_is_bit_identical(method, case, training):
    plain = subject(method, case, "plain")
    layer = twin(plain)
    surge.compensate_(layer)
    observe(layer, case.batch())
    surge.strip_(layer)
    expected = observe(plain.train(training), case.batch())
    assert_all_equal(observe(layer.train(training), case.batch()), expected)


@every_subject
def test_layer_is_also_the_torch_layer(method, case, mode):
    layer = subject(method, case, mode)
    assert isinstance(layer, BinaryLayer) and isinstance(layer, ORIGINAL[case.layer])


@every_subject
def test_description_names_the_method(method, case, mode):
    assert f"method={method}" in repr(subject(method, case, mode))


@all_methods
def test_evaluation_does_not_change_the_state(method):
    net = cnn(method).eval()
    surge.compensate_(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net(images()[0]).sum().backward()
    assert_same_tensors(dict(net.state_dict()), before)
