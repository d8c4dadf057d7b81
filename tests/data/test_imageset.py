import pytest
import torch

from surge.data import HALF, IMAGENET, ImageSet
from surge.errors import ConfigError


def test_imageset_subset_picks_in_order():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1)
    whole = ImageSet(images, torch.arange(5), ("a",) * 5, HALF)
    part = whole.subset(torch.tensor([3, 1]))
    assert len(part) == 2
    assert part.images.flatten().tolist() == part.labels.tolist() == [3, 1]
    assert part.classes == whole.classes
    assert part.normalization is HALF


@pytest.mark.parametrize(
    ("images", "labels", "normalization", "message"),
    [
        (torch.zeros(2, 1, 3, 3), torch.zeros(2).long(), HALF, "uint8"),
        (torch.zeros(2, 3, 3).byte(), torch.zeros(2).long(), HALF, r"\[2, 3, 3\]"),
        (torch.zeros(2, 1, 3, 3).byte(), torch.zeros(3).long(), HALF, r"int64 \[2\]"),
        (torch.zeros(2, 1, 3, 3).byte(), torch.zeros(2), HALF, "float32"),
        (torch.zeros(2, 1, 3, 3).byte(), torch.zeros(2).long(), IMAGENET, "3 channels"),
    ],
)
def test_imageset_refuses_tensors_that_do_not_fit(images, labels, normalization, message):
    with pytest.raises(ConfigError, match=message):
        ImageSet(images, labels, ("a",), normalization)
