import pytest
import torch

from surge.data import HALF, ImageSet, hold_out, stratified_split
from surge.errors import ConfigError


def test_stratified_split_is_a_partition_with_the_same_share_of_each_class():
    labels = torch.arange(10).repeat(100)[torch.randperm(1000)]
    kept, held = stratified_split(labels, 0.1)
    assert sorted(kept.tolist() + held.tolist()) == list(range(1000))
    assert torch.bincount(labels[held]).tolist() == [10] * 10
    assert kept.tolist() == sorted(kept.tolist())


def test_stratified_split_does_not_depend_on_the_run():
    labels = torch.arange(10).repeat(50)
    torch.manual_seed(1)
    first = stratified_split(labels, 0.2)[1]
    torch.manual_seed(2)
    assert torch.equal(first, stratified_split(labels, 0.2)[1])
    assert not torch.equal(first, stratified_split(labels, 0.2, seed=1)[1])


def test_hold_out_keeps_images_and_labels_together():
    values = torch.arange(200)
    images = values.to(torch.uint8).view(200, 1, 1, 1)
    train, validation = hold_out(ImageSet(images, values % 10, tuple("0123456789"), HALF))
    assert (len(train), len(validation)) == (180, 20)
    for part in (train, validation):
        assert torch.equal(part.images.flatten().long() % 10, part.labels)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_stratified_split_refuses_an_empty_part(fraction):
    with pytest.raises(ConfigError, match="fraction"):
        stratified_split(torch.arange(10), fraction)
