"""Taking the path off again; and models that a failed call must leave as they were."""

import copy
import math

import pytest
import torch
from torch import nn

import surge
from surge.errors import ConfigError, NoLayersMatchedError, SurgeError, UnsupportedLayerError
from tests.nets import (
    all_methods,
    assert_same_tensors,
    cnn,
    images,
    loss_of,
    mlp,
    train,
    variants,
)


def trained(method="bnn", **options):
    """A compensated network after two steps."""
    net = cnn(method)
    compensation = surge.compensate_(net, example_input=images()[0], **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    compensation.follow(optimizer)
    train(net, optimizer, [images(seed=seed) for seed in range(2)])
    return net


def anatomy(model):
    """Everything a failed call could have changed."""
    modules = {
        name: (type(m), m.training, len(m._forward_hooks)) for name, m in model.named_modules()
    }
    return modules, {name: tensor.clone() for name, tensor in model.state_dict().items()}


@all_methods
def test_state_after_strip_has_the_keys_of_the_plain_model(method):
    net = trained(method)
    surge.strip_(net)
    assert list(net.state_dict()) == list(cnn(method).state_dict())


@variants
def test_classes_after_strip_are_those_of_the_plain_model(options):
    net = trained(**options)
    surge.strip_(net)
    assert [type(m) for m in net.modules()] == [type(m) for m in cnn().modules()]


def test_strip_after_a_forward_leaves_nothing_of_it():
    """A tensor of its graph would keep the model from being copied."""
    net = trained(aux_input="above_clamp", skip="9")
    net(images()[0])
    surge.strip_(net)
    copy.deepcopy(net)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@all_methods
def test_output_after_strip_is_bit_identical(method, training):
    net = trained(method).train(training)
    x = images()[0]
    statistics = {n: t.clone() for n, t in net.state_dict().items() if ".auxiliary." not in n}
    before = net(x)
    surge.strip_(net)
    net.load_state_dict(statistics)
    assert torch.equal(net(x), before)


@variants
def test_output_after_strip_is_bit_identical_for_every_variant(options):
    net = trained("recu", **options).eval()
    x = images()[0]
    before = net(x)
    surge.strip_(net)
    assert torch.equal(net(x), before)


def test_gradient_after_strip_is_the_plain_one():
    net = trained()
    surge.strip_(net)
    plain = cnn()
    plain.load_state_dict(net.state_dict())
    for model in (net, plain):
        model.zero_grad()
        loss_of(model, images()).backward()
    assert_same_tensors(
        {n: p.grad for n, p in net.named_parameters()},
        {n: p.grad for n, p in plain.named_parameters()},
    )


def test_strip_names_the_layers():
    net = cnn()
    surge.compensate_(net, skip="5")
    assert surge.strip_(net) == ["2", "9"]


def test_strip_without_compensation_is_an_error():
    with pytest.raises(ConfigError, match="no layer of this model is compensated"):
        surge.strip_(cnn())


def test_strip_twice_is_an_error():
    net = trained()
    surge.strip_(net)
    with pytest.raises(ConfigError, match="nothing to remove"):
        surge.strip_(net)


def test_stripped_model_can_be_compensated_again():
    net = trained()
    surge.strip_(net)
    assert list(surge.compensate_(net).paths) == ["2", "5", "9"]


@variants
def test_training_goes_on_after_strip_with_the_followed_optimizer(options):
    net = cnn("recu")
    compensation = surge.compensate_(net, example_input=images()[0], **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    compensation.follow(optimizer)
    train(net, optimizer, [images()])
    surge.strip_(net)
    train(net, optimizer, [images()])


# ---- failed calls leave the model as it was


class FullyShardedDataParallel(nn.Module):
    """Named as torch's own, which needs a process group to exist."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class FSDPModule:
    """Likewise: ``fully_shard`` mixes a class of this name into a module's class."""


class Sharded(FSDPModule, nn.Sequential):
    pass


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """Without its process group."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module


def zero_weight():
    net = mlp()
    nn.init.zeros_(net[4].weight)
    return net


def compensated():
    net = mlp()
    surge.compensate_(net)
    return net


FAILURES = {
    "eta-zero": (mlp, {"eta": 0}, ConfigError, "eta=0"),
    "eta-negative": (mlp, {"eta": -1}, ConfigError, "eta=-1"),
    "eta-nan": (mlp, {"eta": math.nan}, ConfigError, "eta=nan"),
    "eta-infinite": (mlp, {"eta": math.inf}, ConfigError, "eta=inf"),
    "eta-text": (mlp, {"eta": "0.1"}, ConfigError, "eta='0.1'"),
    "auxiliary": (mlp, {"auxiliary": "tide"}, ConfigError, 'Did you mean "tied"'),
    "scope": (mlp, {"scope": "unclip"}, ConfigError, 'Did you mean "unclipped"'),
    "setting": (mlp, {"decays": "cosine"}, ConfigError, 'Did you mean "decay"'),
    "only-matches-nothing": (cnn, {"only": "layer*"}, NoLayersMatchedError, '"layer\\*"'),
    "skip-matches-nothing": (cnn, {"skip": ("2", "77")}, NoLayersMatchedError, '"77"'),
    "nothing-left": (cnn, {"skip": "*"}, NoLayersMatchedError, "left out by pattern"),
    "not-binarized": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
        {},
        NoLayersMatchedError,
        "call surge.binarize_",
    ),
    "compensated-already": (compensated, {}, ConfigError, '"2" is compensated already'),
    "data-parallel": (
        lambda: nn.DataParallel(mlp()),
        {},
        UnsupportedLayerError,
        "use DistributedDataParallel",
    ),
    "ddp": (
        lambda: DistributedDataParallel(mlp()),
        {},
        UnsupportedLayerError,
        "compensate model.module first",
    ),
    "fsdp": (lambda: FullyShardedDataParallel(mlp()), {}, UnsupportedLayerError, "FSDP"),
    "fsdp2": (lambda: Sharded(*mlp()), {}, UnsupportedLayerError, "FSDP"),
    "zero-weight": (zero_weight, {}, ConfigError, '"4": its weight is all zeros'),
    "pointwise-linear-and-conv": (
        lambda: nn.Sequential(cnn(), surge.BinaryConv2d(3, 3, 3)),
        {"auxiliary": "pointwise"},
        ConfigError,
        '"1": padding',
    ),
    "no-clamp": (
        mlp,
        {"aux_input": "above_clamp"},
        ConfigError,
        "needs example_input",
    ),
}


@pytest.mark.parametrize(
    ("build", "options", "error", "sentence"), FAILURES.values(), ids=FAILURES.keys()
)
def test_failed_compensation_says_why_and_changes_nothing(build, options, error, sentence):
    model = build()
    modules, state = anatomy(model)
    with pytest.raises(error, match=sentence):
        surge.compensate_(model, **options)
    after_modules, after_state = anatomy(model)
    assert after_modules == modules
    assert_same_tensors(after_state, state)


@all_methods
def test_failure_at_the_last_layer_leaves_the_first_alone(method):
    net = cnn(method)
    nn.init.zeros_(net[9].weight)
    with pytest.raises(SurgeError, match='"9"'):
        surge.compensate_(net)
    assert all(net[i].auxiliary is None for i in (2, 5, 9))


def test_failure_after_the_dry_run_leaves_the_clamps_alone():
    net = cnn()
    nn.init.zeros_(net[5].weight)
    with pytest.raises(ConfigError, match="all zeros"):
        surge.compensate_(net, aux_input="above_clamp", example_input=images()[0], skip="9")
    assert [type(m) for m in net.modules()] == [type(m) for m in cnn().modules()]


def test_compensated_model_under_data_parallel_is_refused_at_the_first_forward():
    net = mlp()
    surge.compensate_(net)
    net[2]._is_replica = True
    with pytest.raises(UnsupportedLayerError, match="DistributedDataParallel"):
        loss_of(net, (torch.ones(2, 6), torch.tensor([0, 1])))
