"""Decoding: squares, the store beside the tree, unreadable files."""

import os

import pytest
import torch

from surge.data import pictures
from surge.data.folders import find_tree, scan_tree
from surge.data.integrity import DamagedDataError
from surge.data.pictures import as_tensor, load_pictures, read_picture
from surge.errors import SurgeWarning
from tests.data.trees import make_tree, picture


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path)


@pytest.fixture
def stored(monkeypatch):
    """Store even small sets."""
    monkeypatch.setattr(pictures, "ALONE", 0)
    monkeypatch.setattr(pictures, "worker_count", lambda *_: 2)


def stores(tree):
    return sorted((tree / pictures.CACHE).glob("*"))


def test_images_are_kept_as_squares_of_the_shorter_side(tree):
    train, val = scan_tree(tree)
    images = load_pictures(train, 20)
    assert images.images.shape == (12, 3, 20, 20)
    assert torch.equal(images.labels, train.labels) and images.classes == train.classes
    first = read_picture(train.root / train.files[0]).resize((24, 20), 2).crop((2, 0, 22, 20))
    assert torch.equal(images.images[0], as_tensor(first))
    assert len(load_pictures(val, 40)) == 6


def test_squares_of_the_right_size_stay_as_they_are(tmp_path):
    train, _ = scan_tree(make_tree(tmp_path, size=(32, 32)))
    images = load_pictures(train, 32)
    assert torch.equal(images.images[3], as_tensor(read_picture(train.root / train.files[3])))


def test_workers_and_store_give_the_same_images(tree, stored):
    train, _ = scan_tree(tree)
    first = load_pictures(train, 20)
    (path,) = stores(tree)
    before = path.stat().st_mtime_ns
    again = load_pictures(train, 20)
    assert path.stat().st_mtime_ns == before
    pictures.ALONE = 512
    alone = load_pictures(train, 20)
    for other in (again, alone):
        assert torch.equal(first.images, other.images) and torch.equal(first.labels, other.labels)


def test_store_belongs_to_the_files(tree, stored):
    train, _ = scan_tree(tree)
    load_pictures(train, 20)
    picture(40, 48, seed=99).save(train.root / train.files[0])
    os.utime(train.root / train.files[0], ns=(1, 1))
    changed = load_pictures(scan_tree(tree)[0], 20)
    assert len(stores(tree)) == 2
    assert torch.equal(changed.images, load_pictures(train, 20).images)


def test_damaged_store_is_replaced(tree, stored):
    train, _ = scan_tree(tree)
    first = load_pictures(train, 20)
    (path,) = stores(tree)
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(load_pictures(train, 20).images, first.images)
    assert path.stat().st_size > 1000 and len(stores(tree)) == 1


def test_unreadable_images_are_named_and_left_out(tree, stored):
    train, _ = scan_tree(tree)
    (train.root / train.files[1]).write_bytes(b"not an image")
    whole = (train.root / train.files[11]).read_bytes()
    (train.root / train.files[11]).write_bytes(whole[: len(whole) // 2])
    for _ in range(2):  # decoded, then from the store
        with pytest.warns(SurgeWarning) as found:
            images = load_pictures(train, 20)
        assert [str(w.message) for w in found] == [
            f"{train.root / train.files[place]} is not a readable image: left out."
            for place in (1, 11)
        ]
        assert len(images) == 10 and images.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 3
    assert torch.equal(
        images.images[1], load_pictures(train.subset(torch.tensor([2])), 20).images[0]
    )


def test_too_many_unreadable_images_are_an_error(tree):
    train, _ = scan_tree(tree)
    for name in train.files[:6]:
        (train.root / name).write_bytes(b"")
    with pytest.raises(DamagedDataError, match="unreadable, as are 5 other images in .*train"):
        load_pictures(train, 20)


@pytest.mark.parametrize("workers", [False, True])
def test_image_below_the_resolution_is_an_error(tree, request, workers):
    if workers:
        request.getfixturevalue("stored")
    train, _ = scan_tree(tree)
    picture(30, 19).save(train.root / train.files[7])
    with pytest.raises(DamagedDataError) as found:
        load_pictures(train, 20)
    assert str(found.value) == (
        f"{train.root / train.files[7]}: 19x30 is too small: this recipe keeps squares of 20 px, "
        "so both sides need at least 20. Use the data set in a larger resolution."
    )


def test_imagenette_has_its_official_counts(imagenette_dir):
    train, val = scan_tree(find_tree(imagenette_dir, ("imagenette96",)))
    assert (len(train), len(val), len(train.classes)) == (9469, 3925, 10)
    assert train.classes[0] == "n01440764"
    few = load_pictures(val.first(20), 96)
    assert few.images.shape == (20, 3, 96, 96) and few.labels.tolist() == [*range(10)] * 2
    assert 80 < few.images.float().mean() < 150


@pytest.mark.parametrize("cores, processes, expected", [(96, 1, 96), (96, 8, 12), (2, 8, 1)])
def test_cores_are_shared_by_the_processes_of_a_machine(monkeypatch, cores, processes, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    assert pictures.worker_count(processes) == expected


def test_number_of_workers_can_be_chosen(tree, stored, monkeypatch):
    used, real = [], pictures.decoded
    monkeypatch.setattr(
        pictures, "decoded", lambda *a, workers: used.append(workers) or real(*a, workers=workers)
    )
    load_pictures(scan_tree(tree)[0], 20, 1)
    assert used == [1]
