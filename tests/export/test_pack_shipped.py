"""The files in the package, rebuilt in torch: every image gets the same class."""

import pytest
import torch

from surge.data import load_cifar10
from surge.pretrained import list_pretrained, pretrained_path
from surge.study.bench.unpacking import workload_of
from tests.export.packing import expected


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list_pretrained())
def test_shipped_file_has_torchs_class_for_every_image(engine, cifar10_dir, name, count):
    path = pretrained_path(name)
    loaded, network = engine.load(path), workload_of(path).binary
    images = load_cifar10(cifar10_dir, "test").images[:count]
    assert len(images) == count
    for pixels in images.split(100):
        x = loaded.preprocess(pixels.permute(0, 2, 3, 1).numpy())
        wanted = expected(network, torch.from_numpy(x))
        assert loaded(x).argmax(1).tolist() == wanted.argmax(1).tolist()
