"""Images with boxes in memory: sizes, mirrored boxes, what cannot be read."""

import pytest
import torch

from surge.data import voc_loader
from surge.data.integrity import DamagedDataError
from surge.data.voc import load_voc
from surge.data.voc_loader import BoxLoader, decode, fitted, scale_of
from surge.errors import ConfigError, SurgeWarning
from tests.data.trees import THINGS, make_voc


@pytest.fixture
def tree(tmp_path):
    make_voc(tmp_path, THINGS)
    make_voc(tmp_path, THINGS[:2], part="test")
    return tmp_path


def test_images_fit_into_both_limits_and_keep_their_ratio():
    assert fitted((500, 375), (1000, 600)) == (800, 600)
    assert fitted((500, 200), (1000, 600)) == (1000, 400)
    assert fitted((300, 212), (666, 400)) == (566, 400)
    assert fitted((212, 300), (666, 400)) == (400, 566)


def loader_of(tree, **options):
    settings = {"batch_size": 4, "device": "cpu", **options}
    return BoxLoader(decode(load_voc(tree, "trainval")), [(128, 96)], **settings)


def batch(loader, epoch=0, index=0):
    return loader.fetch(loader.part(loader.plan(epoch), index))


def test_images_and_boxes_grow_together_and_difficult_objects_are_not_learned(tree):
    (images, targets), places = batch(loader_of(tree))
    assert places.tolist() == [0, 1, 2, 3]
    assert all(image.shape == (3, 96, 128) for image in images)  # from 64x48
    assert targets[0]["boxes"].tolist() == [[0, 0, 64, 48]] and len(targets[0]["labels"]) == 1
    assert targets[2]["boxes"].shape == (0, 4)


def test_mirrored_images_have_mirrored_boxes(tree):
    plain, mirrored = loader_of(tree), loader_of(tree, mirror=True)
    flips = mirrored.plan(1).flips.tolist()
    assert True in flips and False in flips and not plain.plan(1).flips.any()
    (images, targets), _ = batch(plain)
    (others, flipped), _ = batch(mirrored, epoch=1)
    for index, flip in enumerate(flips):
        expected = images[index].flip(2) if flip else images[index]
        torch.testing.assert_close(others[index], expected)
        boxes = targets[index]["boxes"]
        if flip:
            boxes = torch.stack(
                [128 - boxes[:, 2], boxes[:, 1], 128 - boxes[:, 0], boxes[:, 3]], dim=1
            )
        torch.testing.assert_close(flipped[index]["boxes"], boxes)


def test_epochs_are_drawn_from_seed_and_epoch_alone_and_pass_several_times(tree):
    dataset = decode(load_voc(tree, "trainval"))
    scales = [scale_of(size) for size in (80, 120, 160)]

    def plan(seed, epoch):
        made = BoxLoader(
            dataset, scales, batch_size=2, device="cpu", seed=seed, train=True, repeat=3
        )
        assert len(made) == 6
        found = made.plan(epoch)
        return found.permutation.tolist(), found.offsets[:, 0].tolist()

    assert plan(1, 2) == plan(1, 2) != plan(1, 3)
    order, sizes = plan(1, 2)
    assert sorted(order) == sorted([0, 1, 2, 3] * 3) and set(sizes) == {0, 1, 2}


def test_unreadable_image_is_named_and_left_out(tree):
    broken = tree / "VOCdevkit" / "VOC2007" / "JPEGImages" / "000002.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.warns(SurgeWarning, match=r"000002.jpg is not a readable image"):
        found = decode(load_voc(tree, "trainval"))
    assert len(found) == len(found.pixels) == 3 and "000002" not in " ".join(found.files.files)
    assert found.empty == 1


def test_image_of_another_size_than_its_annotation_is_an_error(tree):
    base = tree / "VOCdevkit" / "VOC2007"
    note = base / "Annotations" / "000002.xml"
    note.write_text(note.read_text().replace("<width>64<", "<width>640<"))
    with pytest.raises(DamagedDataError, match="64x48 pixels, its annotation says 640x48"):
        decode(load_voc(tree, "trainval"))


def test_too_small_images_are_refused(tree):
    with pytest.raises(ConfigError, match=r"within 40x24 are too small \(--size\)"):
        BoxLoader(decode(load_voc(tree, "trainval")), [scale_of(40)], batch_size=1, device="cpu")


def test_a_white_rectangle_stays_inside_its_box(tree):
    files = load_voc(tree, "trainval")
    dataset = decode(files)
    x1, y1, x2, y2 = files.boxes[1][0].int().tolist()
    dataset.pixels[1].zero_()
    dataset.pixels[1][:, y1:y2, x1:x2] = 255
    for mirror in (False, True):
        made = BoxLoader(dataset, [(128, 96)], batch_size=4, device="cpu", mirror=mirror)
        for epoch in range(4):
            (images, targets), _ = batch(made, epoch)
            left, top, right, bottom = targets[1]["boxes"][0].int().tolist()
            red = images[1][0]
            assert (red[top + 2 : bottom - 2, left + 2 : right - 2] == red.max()).all()
            assert red[: top - 2].max() < red.max() and red[:, right + 2 :].max() < red.max()


def test_many_pixels_stay_where_they_are_and_give_the_same_batches(tree, monkeypatch):
    (images, _), _ = batch(loader_of(tree))
    monkeypatch.setattr(voc_loader, "ON_DEVICE", 1)
    (others, _), _ = batch(loader_of(tree))
    assert all(torch.equal(a, b) for a, b in zip(images, others, strict=True))


def test_layout_of_a_batch_is_the_one_asked_for(tree):
    (images, _), _ = batch(loader_of(tree, memory_format=torch.channels_last))
    assert images.tensors.is_contiguous(memory_format=torch.channels_last)
    (plain, _), _ = batch(loader_of(tree))
    assert plain.tensors.is_contiguous() and torch.equal(plain.tensors, images.tensors)


def test_small_images_are_padded_with_zeros_of_the_network(tree):
    """The input of the network is zero there, not the colour black."""
    dataset = decode(load_voc(tree, "trainval"))
    loader = BoxLoader(dataset, [(100, 75)], batch_size=4, device="cpu")
    (images, _), _ = batch(loader)
    assert images.image_sizes == [(75, 100)] * 4 and images.tensors.shape == (4, 3, 96, 128)
    assert not images.tensors[:, :, 75:].any() and not images.tensors[:, :, :, 100:].any()
    assert images.tensors[:, :, :75, :100].all(dim=0).any()
