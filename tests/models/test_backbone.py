"""A float ResNet-18 in the binary networks: every convolution lands where it belongs."""

import pytest
import torch

import surge
from surge.errors import CheckpointMismatchError
from surge.models import bireal_resnet18, load_backbone_, reactnet_resnet18, recu_resnet18
from tests.architectures import resnet18

FORMS = [bireal_resnet18, reactnet_resnet18, recu_resnet18]


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(2)
    return resnet18(classes=10).state_dict()


@pytest.mark.parametrize("build", FORMS)
def test_all_but_the_head_is_taken(state, build):
    model = build(classes=7)
    report = load_backbone_(model, state)
    assert report.left == ("fc.weight", "fc.bias")
    assert len(report.taken) == len(state) - 2
    own = model.state_dict()
    assert torch.equal(own["stages.2.3.conv.weight"], state["layer3.1.conv2.weight"])
    assert torch.equal(own["stages.3.0.bn.running_var"], state["layer4.0.bn1.running_var"])
    place = "0" if build is recu_resnet18 else "1"
    assert torch.equal(
        own[f"stages.1.0.downsample.{place}.weight"], state["layer2.0.downsample.0.weight"]
    )


def test_a_head_of_the_same_size_is_taken_too(state):
    report = load_backbone_(bireal_resnet18(classes=10), state)
    assert not report.left and not report.kept
    assert str(report).startswith(f"taken from the backbone: {len(state)}\nleft in the file: 0\n")


def test_a_binary_network_keeps_what_only_its_method_has(state):
    model = reactnet_resnet18(classes=10)
    surge.binarize_(model, "reactnet", skip=("*downsample*",))
    report = load_backbone_(model, state)
    assert len(report.taken) == len(state)
    assert all("method." in name or ".act." in name for name in report.kept)
    assert len(report.kept) == 16 * 4


def test_something_else_is_refused_and_changes_nothing(state):
    model = bireal_resnet18(classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    foreign = {"conv1.weight": state["conv1.weight"], "encoder.0.weight": torch.zeros(2)}
    with pytest.raises(CheckpointMismatchError, match="no convolution fits.*conv1.weight, encoder"):
        load_backbone_(model, foreign)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
