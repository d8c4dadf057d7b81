"""Saving, resuming, copying, casting; and that compensation leaves the main weights alone."""

import copy
import io
import pickle

import pytest
import torch

import surge
from surge.compensation import Compensation
from tests.nets import (
    all_methods,
    assert_same_tensors,
    binarized,
    cnn,
    images,
    loss_of,
    mlp,
    train,
    variants,
)

BATCHES = [images(seed=seed) for seed in range(6)]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def started(method="recu", optimizer="sgd", **options):
    net = cnn(method)
    surge.on_epoch(net, 1, 10)
    compensation = surge.compensate_(net, example_input=images()[0], **options)
    chosen = OPTIMIZERS[optimizer](net.parameters())
    compensation.follow(chosen)
    return net, chosen, compensation


def resumed_state(method, optimizer, **options):
    """Train 3 steps, save to a file, build everything anew, load, train 3 more steps."""
    net, opt, _ = started(method, optimizer, **options)
    train(net, opt, BATCHES[:3])
    file = io.BytesIO()
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    torch.manual_seed(99)
    net, opt, _ = started(method, optimizer, **options)
    saved = torch.load(file, weights_only=True)
    net.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    train(net, opt, BATCHES[3:])
    return net.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@all_methods
def test_stop_and_resume_is_bit_exact(method, optimizer):
    net, opt, _ = started(method, optimizer)
    train(net, opt, BATCHES)
    assert_same_tensors(resumed_state(method, optimizer), net.state_dict())


@variants
def test_stop_and_resume_is_bit_exact_for_every_variant(options):
    net, opt, _ = started("recu", "sgd", **options)
    train(net, opt, BATCHES)
    assert_same_tensors(resumed_state("recu", "sgd", **options), net.state_dict())


def test_scale_is_in_the_state():
    net, opt, compensation = started()
    train(net, opt, BATCHES[:1])
    assert float(net.state_dict()["2.auxiliary.scale"]) == compensation.scales()["2"]


def test_probes_are_not_in_the_state():
    net, opt, _ = started()
    train(net, opt, BATCHES[:1])
    assert not any("probe" in key for key in net.state_dict())


def gradients(net):
    net.zero_grad()
    loss_of(net, images(seed=9)).backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def pickled(net):
    return pickle.loads(pickle.dumps(net))


def saved_whole(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


copying = pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved_whole])


@copying
@variants
def test_copy_in_mid_training_has_the_same_gradients(options, copied):
    net, opt, _ = started(**options)
    train(net, opt, BATCHES[:2])
    loss_of(net, images()).backward()
    twin = copied(net)
    assert_same_tensors(gradients(twin), gradients(net))


@copying
def test_copy_has_its_own_probes(copied):
    net, opt, compensation = started()
    train(net, opt, BATCHES[:1])
    loss_of(copied(net), images()).backward()
    assert float(compensation.paths["2"].squares("main")) == 0.0


def test_copy_of_the_compensation_goes_on_alike():
    net, opt, compensation = started()
    train(net, opt, BATCHES[:2])
    twin, other = copy.deepcopy((net, compensation))
    for model, handle in ((net, compensation), (twin, other)):
        loss_of(model, images()).backward()
        Compensation.step(handle)
    assert other.scales() == compensation.scales()


CASTS = {
    "half": lambda net: net.half(),
    "bfloat16": lambda net: net.to(torch.bfloat16),
    "double": lambda net: net.double(),
    "dtype-and-device": lambda net: net.to("cpu", torch.float16),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_cast_keeps_the_scale_in_float32_to_the_last_bit(cast):
    net, opt, _ = started()
    train(net, opt, BATCHES[:2])
    before = net[2].auxiliary.scale.clone()
    cast(net)
    after = net[2].auxiliary.scale
    assert after.dtype == torch.float32 and torch.equal(after, before)


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_cast_moves_the_auxiliary_weight_along(cast):
    net, _, _ = started()
    cast(net)
    assert net[2].auxiliary.weight.dtype == net[2].weight.dtype


def test_compensation_leaves_the_global_random_state():
    net = cnn()
    before = torch.get_rng_state()
    surge.compensate_(net)
    assert torch.equal(torch.get_rng_state(), before)


@all_methods
def test_main_weights_start_the_same_with_and_without(method):
    plain, compensated = cnn(method), cnn(method)
    surge.compensate_(compensated)
    after = {n: t for n, t in compensated.state_dict().items() if ".auxiliary." not in n}
    assert_same_tensors(after, dict(plain.state_dict()))


def test_layers_built_later_start_the_same_with_and_without():
    torch.manual_seed(5)
    expected = binarized(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))))
    tail = torch.nn.Linear(4, 4).weight
    torch.manual_seed(5)
    net = binarized(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))))
    surge.compensate_(net)
    assert torch.equal(torch.nn.Linear(4, 4).weight, tail)
    assert torch.equal(net[1].weight, expected[1].weight)


def test_plain_checkpoint_does_not_pass_for_a_compensated_one():
    plain, compensated = mlp(), mlp()
    surge.compensate_(compensated)
    with pytest.raises(RuntimeError, match=r"Missing key.*2\.auxiliary\.weight"):
        compensated.load_state_dict(plain.state_dict())


def test_probes_move_with_the_model():
    net, _, compensation = started()
    net.to("meta")
    path = compensation.paths["2"]
    assert {probe.device.type for probe in path.probes.values()} == {"meta"}
    assert all(probe.is_leaf and probe.requires_grad for probe in path.probes.values())
