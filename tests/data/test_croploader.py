"""Crops from squares on the device and from files: deterministic, restartable, shared by ranks."""

import multiprocessing

import pytest
import torch

from surge.data.croploader import CropLoader, CropSettings, StreamLoader
from surge.data.folders import scan_tree
from surge.data.integrity import DamagedDataError
from surge.data.pictures import as_tensor, central, load_pictures, read_picture
from surge.errors import ConfigError, SurgeWarning
from tests.data.trees import make_tree

TRAIN = CropSettings(32, train=True)
TEST = CropSettings(32, train=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"), train=8, size=(40, 48))


@pytest.fixture(scope="module")
def files(tree):
    return scan_tree(tree)[0]


def resident(files, crop=TRAIN, **options):
    return CropLoader(load_pictures(files, 40), crop, **options)


def loaders(files, **options):
    yield resident(files, **options)
    yield StreamLoader(files, TRAIN, workers=0, **options)
    yield StreamLoader(files, TRAIN, workers=2, **options)


def collected(batches):
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def test_batches_are_the_same_for_seed_and_epoch(files):
    for loader in loaders(files, batch_size=7, seed=3, shuffle=True):
        images, labels = collected(loader.batches(1))
        assert images.shape == (24, 3, 32, 32) and images.dtype == torch.float32
        again, same = collected(loader.batches(1))
        assert torch.equal(images, again) and torch.equal(labels, same)
        other, _ = collected(loader.batches(2))
        assert not torch.equal(images, other)


def test_an_epoch_can_be_taken_up_at_any_batch(files):
    for loader in loaders(files, batch_size=7, seed=3, shuffle=True):
        whole = list(loader.batches(1))
        rest = list(loader.batches(1, start=2))
        assert len(whole) == 4 and len(rest) == 2
        for (a, b), (c, d) in zip(whole[2:], rest, strict=True):
            assert torch.equal(a, c) and torch.equal(b, d)


def test_ranks_share_every_batch(files):
    for kind in (resident, lambda f, **o: StreamLoader(f, TRAIN, workers=0, **o)):
        options = {"batch_size": 8, "seed": 3, "shuffle": True}
        whole = list(kind(files, **options).batches(0))
        parts = [list(kind(files, rank=r, world=2, **options).batches(0)) for r in range(2)]
        for (images, labels), first, second in zip(whole, *parts, strict=True):
            torch.testing.assert_close(torch.cat([first[0], second[0]]), images)
            assert torch.equal(torch.cat([first[1], second[1]]), labels)


def test_files_and_squares_of_their_own_size_give_the_same_crops(tmp_path):
    """From square files both draw the same boxes; Pillow rounds to whole grey levels."""
    files, _ = scan_tree(make_tree(tmp_path, size=(40, 40)))
    options = {"batch_size": 12, "seed": 3, "shuffle": True}
    (a, labels), (b, same) = (
        next(iter(loader.batches(0)))
        for loader in (resident(files, **options), StreamLoader(files, TRAIN, **options))
    )
    assert torch.equal(labels, same)
    assert (a - b).abs().max() < 1.1 / (255 * 0.224)


def test_test_batches_are_the_middle_in_stored_order(files):
    stream = StreamLoader(files, TEST, batch_size=5)
    images, labels = collected(stream)
    assert torch.equal(labels, files.labels)
    wanted = as_tensor(central(read_picture(files.root / files.files[7]), 37, 32)).float() / 255
    scale, shift = files.normalization.constants()
    torch.testing.assert_close(images[7], 255 * wanted * scale + shift)
    assert resident(files, TEST, batch_size=5).plan(0).flips.sum() == 0


def test_lighting_changes_images_only_where_it_is_on(files):
    options = {"batch_size": 24, "seed": 3, "shuffle": True}
    plain, lit = (
        next(iter(resident(files, CropSettings(32, train=True, lighting=on), **options).batches(0)))
        for on in (False, True)
    )
    difference = ((plain[0] - lit[0]) * 255 * 0.225).abs()
    assert 0 < difference.max() < 1.7 and torch.equal(plain[1], lit[1])


def test_unreadable_file_is_named_and_the_next_one_takes_its_place(tmp_path):
    files, _ = scan_tree(make_tree(tmp_path))
    (files.root / files.files[3]).write_bytes(b"torn")
    loader = StreamLoader(files, TEST, batch_size=12)
    with pytest.warns(SurgeWarning, match="ant/003.png is not a readable image"):
        images, labels = next(iter(loader))
    assert labels.tolist() == [0, 0, 0, 1, *[1] * 4, *[2] * 4]
    assert torch.equal(images[3], images[4])


def test_too_many_unreadable_files_end_the_epoch(tmp_path):
    files, _ = scan_tree(make_tree(tmp_path))
    for name in files.files[:6]:
        (files.root / name).write_bytes(b"torn")
    with pytest.warns(SurgeWarning), pytest.raises(DamagedDataError, match="as are 5 other"):
        next(iter(StreamLoader(files, TEST, batch_size=12)))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"size": 16}, "size=16 .*--size"),
        ({"size": 100}, "a multiple of 32"),
        ({"size": 64, "scale": (0.5, 0.1)}, "scale="),
    ],
)
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        CropSettings(train=True, **settings)


def test_workers_do_not_touch_the_random_numbers_of_the_steps(files):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loader = StreamLoader(files, TRAIN, workers=1, batch_size=24, shuffle=True)
    next(iter(loader.batches(0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_jitter_changes_images_only_where_it_is_on(files):
    options = {"batch_size": 4, "seed": 0, "shuffle": True}
    plain, again, changed = (
        next(iter(resident(files, CropSettings(32, train=True, jitter=on), **options).batches(0)))
        for on in ((), (), (0.2, 0.2, 0.2, 0.1))
    )
    assert torch.equal(plain[0], again[0]) and torch.equal(plain[1], changed[1])
    assert not torch.allclose(plain[0], changed[0], atol=0.01)


def test_closed_loader_has_no_workers_and_begins_anew(files):
    loader = StreamLoader(files, TRAIN, workers=1, batch_size=7)
    plan = loader.plan(0)
    first = loader.fetch(loader.part(plan, 0))[0].clone()
    before = len(multiprocessing.active_children())
    loader.close()
    assert len(multiprocessing.active_children()) == before - 1
    assert torch.equal(loader.fetch(loader.part(plan, 0))[0], first)
    loader.close()
