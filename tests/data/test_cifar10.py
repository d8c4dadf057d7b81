import hashlib
import shutil

import numpy as np
import pytest
import torch

from surge.data import DamagedDataError, cifar10, hold_out, load_cifar10
from surge.data.cifar10 import CLASSES, SHA256, parse_records
from surge.errors import ConfigError, DataNotFoundError
from tests.data.pickles import batch_pickle

COUNT = 3


def batch(number):
    """Return (labels, pixels) of a small batch of its own."""
    return [number, 9, 0], bytes((number + i) % 256 for i in range(COUNT * 3072))


def records(number):
    labels, pixels = batch(number)
    rows = (pixels[i * 3072 : (i + 1) * 3072] for i in range(COUNT))
    return b"".join(bytes([label]) + row for label, row in zip(labels, rows, strict=True))


@pytest.fixture
def small(monkeypatch):
    """Shrink the official files to three images each, with checksums to match."""
    digests = {name: hashlib.sha256(records(i)).hexdigest() for i, name in enumerate(SHA256)}
    monkeypatch.setattr(cifar10, "SHA256", digests)
    monkeypatch.setattr(cifar10, "RECORDS", COUNT)
    monkeypatch.setitem(parse_records.__kwdefaults__, "count", COUNT)


@pytest.fixture
def binary(tmp_path, small):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate(SHA256):
        (folder / f"{name}.bin").write_bytes(records(i))
    return folder


@pytest.fixture
def pickled(tmp_path, small):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate(SHA256):
        (folder / name).write_bytes(batch_pickle(*batch(i)))
    return folder


def test_load_cifar10_reads_train_batches_in_order(binary):
    train = load_cifar10(binary.parent, "train")
    assert train.images.shape == (15, 3, 32, 32)
    assert train.labels.tolist() == [0, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0]
    assert train.classes == CLASSES
    expected = torch.tensor(list(batch(1)[1]), dtype=torch.uint8).view(3, 3, 32, 32)
    assert torch.equal(train.images[3:6], expected)


def test_load_cifar10_reads_the_test_batch(binary):
    assert load_cifar10(str(binary.parent), "test").labels.tolist() == [5, 9, 0]


def test_load_cifar10_images_are_their_own_and_writable(binary):
    test = load_cifar10(binary.parent, "test")
    test.images.zero_()
    assert load_cifar10(binary.parent, "test").images.any()


def test_load_cifar10_pickled_equals_binary(binary, pickled):
    expected = load_cifar10(binary.parent, "train")
    shutil.rmtree(binary)
    found = load_cifar10(pickled.parent, "train")
    assert torch.equal(found.images, expected.images)
    assert torch.equal(found.labels, expected.labels)


def test_load_cifar10_uses_the_complete_layout_of_two(binary, pickled):
    (binary / "data_batch_2.bin").unlink()
    assert len(load_cifar10(binary.parent, "train")) == 15


def test_load_cifar10_without_anything_names_file_place_and_command(tmp_path):
    root = tmp_path / "my sets"
    with pytest.raises(DataNotFoundError) as caught:
        load_cifar10(root, "train")
    message = str(caught.value)
    assert str(root / "cifar-10-batches-bin" / "data_batch_1.bin") in message
    assert "and 4 more" in message
    assert f"`surge data cifar10 --data '{root}'`" in message
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in message


def test_load_cifar10_names_the_one_file_that_is_missing(binary):
    (binary / "data_batch_4.bin").unlink()
    with pytest.raises(DataNotFoundError, match=r"data_batch_4\.bin is missing\. Run"):
        load_cifar10(binary.parent, "train")


def test_load_cifar10_names_a_missing_pickle_where_pickles_were_begun(pickled):
    (pickled / "test_batch").unlink()
    with pytest.raises(DataNotFoundError, match=r"batches-py.test_batch is missing"):
        load_cifar10(pickled.parent, "test")


@pytest.mark.parametrize("layout", ["binary", "pickled"])
def test_load_cifar10_with_an_altered_pixel_names_both_checksums(layout, request):
    folder = request.getfixturevalue(layout)
    path = folder / ("test_batch.bin" if layout == "binary" else "test_batch")
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedDataError) as caught:
        load_cifar10(folder.parent, "test")
    assert str(path) in str(caught.value)
    assert cifar10.SHA256["test_batch"] in str(caught.value)
    assert len(load_cifar10(folder.parent, "test", verify=False)) == COUNT


def test_load_cifar10_truncated_file_is_named_with_both_sizes(binary):
    path = binary / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DamagedDataError, match=r"test_batch\.bin holds 9,209 bytes.*9,219"):
        load_cifar10(binary.parent, "test")


def test_load_cifar10_impossible_label_is_named_with_its_record(binary):
    path = binary / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[2 * 3073] = 10
    path.write_bytes(content)
    with pytest.raises(DamagedDataError, match=r"test_batch\.bin: record 2 has label 10"):
        load_cifar10(binary.parent, "test", verify=False)


def test_load_cifar10_refuses_an_unknown_split(tmp_path):
    with pytest.raises(ConfigError, match="split='validation'"):
        load_cifar10(tmp_path, "validation")


@pytest.fixture(scope="module")
def real_train(cifar10_dir):
    return load_cifar10(cifar10_dir, "train")


def test_real_cifar10_train_has_5000_images_of_each_class(real_train):
    assert torch.bincount(real_train.labels).tolist() == [5000] * 10


def test_real_cifar10_train_has_the_published_mean_and_deviation(real_train):
    pixels = real_train.images.transpose(0, 1).flatten(1)
    for channel, mean, std in zip(
        pixels,
        (0.49139968, 0.48215841, 0.44653091),
        (0.24703223, 0.24348513, 0.26158784),
        strict=True,
    ):
        counts = torch.bincount(channel, minlength=256).double() / channel.numel()
        values = torch.arange(256, dtype=torch.float64) / 255
        found = (counts * values).sum()
        assert found.item() == pytest.approx(mean, abs=1e-7)
        spread = (counts * (values - found) ** 2).sum().sqrt()
        assert spread.item() == pytest.approx(std, abs=1e-7)


def test_real_cifar10_test_has_1000_images_of_each_class(cifar10_dir):
    test = load_cifar10(cifar10_dir, "test")
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    assert [CLASSES[label] for label in test.labels[:4].tolist()] == [
        "cat",
        "ship",
        "ship",
        "airplane",
    ]


def test_real_cifar10_holds_out_500_images_of_each_class(real_train):
    train, validation = hold_out(real_train)
    assert torch.bincount(train.labels).tolist() == [4500] * 10
    assert torch.bincount(validation.labels).tolist() == [500] * 10


def test_real_cifar10_as_pickle_passes_the_same_checksum(cifar10_dir, tmp_path):
    path = cifar10_dir / "cifar-10-batches-bin" / "test_batch.bin"
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, 3073)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    content = batch_pickle(rows[:, 0].tolist(), rows[:, 1:].tobytes())
    (folder / "test_batch").write_bytes(content)
    test = load_cifar10(tmp_path, "test")
    assert torch.equal(test.images, load_cifar10(cifar10_dir, "test").images)
