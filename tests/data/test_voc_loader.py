"""Batches of images with boxes: sizes, mirroring, repeatability, unreadable files."""

import warnings

import pytest
import torch

from surge.data import voc_loader
from surge.data.integrity import DamagedDataError
from surge.data.pictures import as_tensor, read_picture
from surge.data.voc import load_voc
from surge.data.voc_loader import (
    SCALES,
    BoxView,
    DetectionLoader,
    fitted,
    in_file_pixels,
    moved,
    shaped,
)
from surge.errors import ConfigError, SurgeWarning
from tests.data.trees import make_voc, picture

SMALL = ((64, 48), (96, 72))


@pytest.fixture
def files(tmp_path):
    things = [[("dog", 1 + n, 1, 32, 24), ("person", 10, 5, 64, 48, 1)] for n in range(8)]
    make_voc(tmp_path, things)
    return load_voc(tmp_path, "trainval")


def loader(files, *, train=True, **options):
    view = BoxView(SMALL if train else SMALL[:1], train=train)
    return DetectionLoader(files, view, **{"batch_size": 4, **options})


def seen(batches):
    return [[int(t["index"]) for t in targets] for _, targets in batches]


def test_images_fit_into_both_limits_and_keep_their_ratio():
    assert fitted((500, 375), (1000, 600)) == (800, 600)
    assert fitted((500, 200), (1000, 600)) == (1000, 400)
    assert fitted((300, 212), (666, 400)) == (566, 400)
    assert fitted((212, 300), (666, 400)) == (400, 566)


def test_boxes_move_with_the_pixels():
    """A white rectangle stays inside its box, whatever happens to the image."""
    image = picture(48, 64)
    image.paste((255, 255, 255), (40, 8, 60, 28))
    box = torch.tensor([[40.0, 8.0, 60.0, 28.0]])
    for mirrored in (False, True):
        pixels = shaped(image, (128, 96), mirrored=mirrored)
        x1, y1, x2, y2 = moved(box, (64, 48), (128, 96), mirrored=mirrored)[0].int().tolist()
        assert (pixels[:, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2] == 255).all()
        assert (x1, x2) == ((80, 120) if not mirrored else (8, 48))


def test_a_test_batch_is_the_normalised_image_with_all_objects(files):
    images, targets = next(loader(files, train=False).batches(0))
    pixels = as_tensor(read_picture(files.root / files.files[0]))
    scale, shift = files.normalization.constants()
    assert torch.equal(images[0], pixels * scale + shift)
    assert torch.equal(targets[0]["boxes"], files.boxes[0])
    assert targets[0]["difficult"].tolist() == [False, True]
    assert [t["index"].item() for t in targets] == [0, 1, 2, 3]


def test_training_leaves_difficult_objects_out(files):
    _, targets = next(loader(files).batches(0))
    assert all(t["labels"].tolist() == [12] and "difficult" not in t for t in targets)
    assert all(t["boxes"].shape == (1, 4) for t in targets)


def test_an_epoch_is_the_same_again_and_others_differ(files):
    one, two = loader(files, seed=3), loader(files, seed=3)
    for (images, targets), (others, same) in zip(one.batches(2), two.batches(2), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(images, others, strict=True))
        assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(targets, same, strict=True))
    assert one.plan(2) != one.plan(3) != loader(files, seed=4).plan(3)


def test_both_sizes_and_both_sides_are_drawn(files):
    plan = loader(files, repeat=5).plan(0)
    assert {scale for _, scale, _ in plan} == {0, 1}
    assert {mirrored for _, _, mirrored in plan} == {False, True}
    assert sorted(index for index, _, _ in plan) == sorted([*range(8)] * 5)


def test_the_scale_does_not_change_order_or_sides(files):
    one = DetectionLoader(files, BoxView(SMALL[:1]), batch_size=4)
    assert [(i, m) for i, _, m in one.plan(1)] == [(i, m) for i, _, m in loader(files).plan(1)]


def test_starting_later_continues_the_same_epoch(files):
    whole, rest = list(loader(files).batches(1)), list(loader(files).batches(1, start=1))
    assert seen(whole)[1:] == seen(rest)
    assert torch.equal(whole[1][0][0], rest[0][0][0])


def test_ranks_divide_every_batch(files):
    parts = [seen(loader(files, rank=r, world=2).batches(0)) for r in range(2)]
    assert [a + b for a, b in zip(*parts, strict=True)] == seen(loader(files).batches(0))


def test_workers_give_the_same_batches(files):
    alone, workers = loader(files), loader(files, workers=2)
    for (images, _), (others, _) in zip(alone.batches(0), workers.batches(0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(images, others, strict=True))


def test_training_drops_the_partial_batch_and_a_test_keeps_it(files):
    assert len(loader(files, batch_size=3)) == 2
    assert len(loader(files, batch_size=3, train=False)) == 3
    assert [len(b) for b in seen(loader(files, batch_size=3, train=False).batches(0))] == [3, 3, 2]


def test_detections_go_back_to_the_pixels_of_the_file(files):
    view = BoxView(SMALL[1:], train=False)
    _, targets = next(DetectionLoader(files, view, batch_size=1).batches(0))
    back = in_file_pixels({"boxes": targets[0]["boxes"]}, targets[0])
    assert torch.allclose(back["boxes"], files.boxes[0], atol=1e-4)


def broken(files, count):
    for file in files.files[:count]:
        (files.root / file).write_bytes(b"no image")


def test_an_unreadable_file_is_replaced_in_training_and_left_out_of_a_test(files):
    broken(files, 1)
    with pytest.warns(SurgeWarning, match="000001.jpg is not a readable image"):
        batches = seen(loader(files).batches(0))
    assert all(0 not in batch for batch in batches) and [len(b) for b in batches] == [4, 4]
    with pytest.warns(SurgeWarning, match="000001.jpg"):
        assert seen(loader(files, train=False).batches(0)) == [[1, 2, 3], [4, 5, 6, 7]]


def test_too_many_unreadable_files_are_an_error(files):
    broken(files, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DamagedDataError, match="more than the 5 that are passed over"):
            list(loader(files, train=False).batches(0))


def test_no_readable_file_at_all_is_an_error(files):
    broken(files, 8)
    with pytest.raises(DamagedDataError, match="No image in"):
        list(loader(files).batches(0))


def test_a_missing_image_counts_as_unreadable(files):
    (files.root / files.files[2]).unlink()
    with pytest.warns(SurgeWarning, match="000003.jpg"):
        assert all(2 not in batch for batch in seen(loader(files).batches(0)))


def test_an_image_of_another_size_than_its_annotation_is_an_error(files):
    picture(20, 30).save(files.root / files.files[0])
    with pytest.raises(DamagedDataError, match="has 30x20 pixels, its annotation says 64x48"):
        list(loader(files, train=False).batches(0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda f: BoxView(()), "at least 32"),
        (lambda f: BoxView(((20, 40),)), "at least 32"),
        (lambda f: BoxView(SCALES, train=False), "A test has one scale"),
        (lambda f: loader(f, batch_size=0), "batch_size=0"),
        (lambda f: loader(f, repeat=0), "repeat=0"),
        (lambda f: loader(f, rank=2, world=2), "rank=2"),
        (lambda f: loader(f, batch_size=3, world=2), "does not divide"),
        (lambda f: list(loader(f).batches(0, start=9)), "start=9"),
    ],
)
def test_wrong_options_are_refused(files, build, message):
    with pytest.raises(ConfigError, match=message):
        build(files)


def test_small_sets_are_decoded_here(files, monkeypatch):
    assert loader(files).workers == 0
    monkeypatch.setattr(voc_loader, "ALONE", 2)
    assert loader(files).workers > 0
