"""The networks in the box: small, checked, and as accurate as they say."""

import numpy as np
import pytest

import surge
from surge.data import load_cifar10
from surge.errors import ConfigError
from surge.export.container import metadata_of
from surge.pretrained import add_facts, engine_accuracy, list_pretrained, pretrained_path
from tests.runtime.building import import_engine


@pytest.fixture(scope="module")
def engine():
    return import_engine()


def metadata(path):
    return metadata_of(path.read_bytes())


def test_all_shipped_files_are_small_together():
    sizes = [pretrained_path(name).stat().st_size for name in list_pretrained()]
    assert 0 < sum(sizes) <= 5_000_000


@pytest.mark.parametrize("name", list_pretrained())
def test_shipped_file_says_what_it_is(name, engine):
    facts = metadata(pretrained_path(name))
    assert len(facts["checksum"]) == 64 and facts["recipe"] and facts["tested_on"]
    assert abs(float(facts["accuracy"]) - float(facts["accuracy_torch"])) <= 0.05
    model = surge.load_pretrained(name, threads=1)
    assert len(model.classes) == model.output_shape[-1]
    assert set(model.preprocessing) == {"mean", "std", "maximum"}


@pytest.mark.parametrize("name", [name for name in list_pretrained() if "cifar10" in name])
def test_shipped_cifar10_file_recognises_real_images(name, engine, cifar10_dir):
    images = load_cifar10(cifar10_dir, "test")
    some = images.subset(np.arange(0, 10_000, 10))
    path = pretrained_path(name)
    claimed = float(metadata(path)["accuracy"])
    assert claimed > (87.0 if "resnet20" in name else 91.0)
    # A thousand images: three standard deviations are 3.2 points.
    assert engine_accuracy(path, some) == pytest.approx(claimed, abs=3.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_pretrained() if "cifar10" in name])
def test_shipped_accuracy_is_that_of_all_test_images(name, engine, cifar10_dir):
    path = pretrained_path(name)
    found = engine_accuracy(path, load_cifar10(cifar10_dir, "test"))
    assert f"{found:.2f}" == metadata(path)["accuracy"]


def test_unknown_name_lists_what_is_shipped():
    with pytest.raises(ConfigError, match=r'no pretrained "resnet20".*"resnet20-cifar10".*Shipped'):
        surge.load_pretrained("resnet20")


def test_added_facts_are_covered_by_the_checksum(engine, tmp_path):
    path = tmp_path / "model.surge"
    path.write_bytes(pretrained_path("resnet20-cifar10").read_bytes())
    before = engine.load(path).run(np.ones((1, 3, 32, 32)))
    add_facts(path, {"note": "a fact", "accuracy": "12.5"})
    model = engine.load(path)
    assert model.metadata("note") == "a fact" and model.metadata("accuracy") == "12.5"
    np.testing.assert_array_equal(model.run(np.ones((1, 3, 32, 32))), before)
    content = bytearray(path.read_bytes())
    content[content.index(b"a fact")] ^= 1
    with pytest.raises(engine.PackedFileError, match="checksum"):
        engine.load(bytes(content))
