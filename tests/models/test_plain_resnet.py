"""Float ResNets: torchvision's names and sizes, checked against the tests' own copy."""

import pytest
import torch

from surge.models import resnet18, resnet34
from tests.architectures import ResNet


def reference(depths, classes):
    torch.manual_seed(1)
    return ResNet(depths, classes=classes).eval()


@pytest.mark.parametrize(("build", "depths"), [(resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))])
def test_torchvision_state_dict_loads_strictly_and_computes_the_same(build, depths):
    other, model = reference(depths, 7), build(classes=7).eval()
    model.load_state_dict(other.state_dict(), strict=True)
    assert list(model.state_dict()) == list(other.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), other(x))


@pytest.mark.parametrize(("build", "count"), [(resnet18, 11_689_512), (resnet34, 21_797_672)])
def test_parameters_are_the_published_number(build, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == count
