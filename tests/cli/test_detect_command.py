"""``surge detect`` with a small detector, on pictures and on things that are none."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from surge.cli import main
from surge.cli._detecting import colour_of, draw, free_place
from surge.data.voc import CLASSES
from surge.train import checkpoint
from surge.train.detection.predict import Found
from tests.data.trees import make_voc
from tests.train.voc_runs import small_detectors, train

pytestmark = pytest.mark.usefixtures("torchvision")
THINGS = [[("dog", 5, 5, 50, 40)], [("car", 3, 4, 60, 40)]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, torchvision):
    folder = tmp_path_factory.mktemp("detector")
    make_voc(folder, THINGS)
    make_voc(folder, THINGS, part="test")
    assert train("voc-float", data=folder, out=folder) == 0
    # Sure of what it sees, so that something is drawn after a single step.
    path = folder / "run" / "checkpoints" / "epoch-00001.pt"
    state = torch.load(path, weights_only=True)
    state["model"]["roi_heads.box_predictor.cls_score.bias"][1 + CLASSES.index("dog")] = 5.0
    torch.save(state, path)
    return folder / "run"


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def detect(*words):
    with small_detectors():
        return main(["detect", *map(str, words), "--device", "cpu"])


def test_boxes_are_listed_in_pixels_of_the_picture_and_drawn_beside_it(trained, photo, capsys):
    assert detect(photo, "--model", trained, "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["found"] and {one["label"] for one in answer["found"]} == {"dog"}
    scores = [one["score"] for one in answer["found"]]
    assert scores == sorted(scores, reverse=True) and min(scores) >= 0.5
    for one in answer["found"]:
        x1, y1, x2, y2 = one["box"]
        assert 0 <= x1 < x2 <= 90.01 and 0 <= y1 < y2 <= 60.01
    drawn = photo.with_name("photo.detected.png")
    assert answer["drawn"] == str(drawn)
    with Image.open(drawn) as picture, Image.open(photo) as before:
        assert picture.size == before.size
        assert colour_of("dog") in set(picture.get_flattened_data())


def test_table_names_classes_and_a_checkpoint_will_do_as_model(trained, photo, tmp_path, capsys):
    file = checkpoint.found(trained / "checkpoints")[0]
    assert detect(photo, "--model", file, "--out", tmp_path / "one.png") == 0
    printed = capsys.readouterr().out
    assert "voc-float" in printed and "dog" in printed and "%" in printed
    assert (tmp_path / "one.png").exists() and "drawn in" in printed


def test_least_score_decides_what_is_drawn(trained, photo, capsys):
    assert detect(photo, "--model", trained, "--score", 1.0) == 0
    assert "0 objects" in capsys.readouterr().out
    with Image.open(photo.with_name("photo.detected.png")) as drawn, Image.open(photo) as before:
        assert drawn.tobytes() == before.tobytes()


def test_unreadable_pictures_do_not_stop_the_others(trained, photo, tmp_path, capsys):
    (tmp_path / "text.jpg").write_text("no picture")
    words = [tmp_path / "gone.jpg", tmp_path / "text.jpg", photo, "--model", trained]
    assert detect(*words, "--out", tmp_path / "drawn") == 2
    found = capsys.readouterr()
    assert "gone.jpg is not there" in found.err
    assert "text.jpg is not an image that can be read" in found.err
    assert (tmp_path / "drawn" / "photo.detected.png").exists() and "photo.png:" in found.out


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--score", "2"], "--score 2.0 is no score"),
        (["--model", "nowhere"], "nowhere is not there: name the folder of a run"),
        (["--out", "x.png", "other.png"], "--out x.png is one file for 2 pictures"),
    ],
)
def test_mistakes_are_told_in_a_sentence(trained, photo, capsys, words, sentence):
    model = [] if "--model" in words else ["--model", trained]
    options, pictures = words[:2], words[2:]
    assert detect(photo, *pictures, *options, *model) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_outside_of_a_run_is_named(photo, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.surge").write_bytes(b"packed")
    assert detect(photo, "--model", "model.surge") == 2
    assert "model.surge is no checkpoint in the folder of a run" in capsys.readouterr().err


def test_a_run_that_is_no_detector_is_refused(photo, tmp_path, capsys):
    words = ["train", "digits-cnn-bnn", "--epochs", "1", "--limit", "32", "--device", "cpu"]
    places = ["--out", str(tmp_path / "run"), "--results", str(tmp_path / "results")]
    assert main([*words, *places]) == 0
    assert detect(photo, "--model", tmp_path / "run") == 2
    assert "holds digits-cnn-bnn, which is no detector" in capsys.readouterr().err


def test_two_pictures_of_one_name_are_not_drawn_over_each_other(trained, photo, tmp_path, capsys):
    other = tmp_path / "deeper" / "photo.png"
    other.parent.mkdir()
    other.write_bytes(photo.read_bytes())
    assert detect(photo, other, "--model", trained, "--out", tmp_path / "drawn") == 2
    assert "Two pictures would be drawn to" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["photo.png", "link.png", "./deeper/../photo.png"])
def test_a_picture_is_not_drawn_over_itself(photo, capsys, monkeypatch, out):
    monkeypatch.chdir(photo.parent)
    before = photo.read_bytes()
    Path("deeper").mkdir()
    Path("link.png").symlink_to(photo)
    assert detect(photo, "--model", "nowhere", "--out", out) == 2
    assert "is a picture to look at, and would be drawn over" in capsys.readouterr().err
    assert photo.read_bytes() == before


def test_a_picture_is_not_drawn_over_another_one_that_is_given(photo, capsys):
    other = photo.with_name("photo.detected.png")
    assert detect(photo, other, "--model", "nowhere") == 2
    assert f"{other} is a picture to look at" in capsys.readouterr().err


def test_drawing_stays_within_the_picture_and_leaves_the_original():
    picture = Image.new("RGB", (80, 60), "white")
    found = [Found(name, 0.9, (0.0, 0.0, 79.0, 59.0)) for name in CLASSES]
    drawn = draw(picture, found)
    assert drawn.size == (80, 60) and set(picture.get_flattened_data()) == {(255, 255, 255)}
    assert len({colour_of(name) for name in CLASSES}) == 20


def test_labels_of_nested_boxes_are_apart():
    boxes = [(30.0, 40.0, 160.0, 150.0), (32.0, 42.0, 158.0, 148.0), (28.0, 38.0, 180.0, 170.0)]
    taken = []
    for box in boxes:
        taken.append(free_place(box, (60, 14), (200, 200), taken))
    for index, (left, top, right, bottom) in enumerate(taken):
        assert 0 <= left < right <= 200 and 0 <= top < bottom <= 200
        for other in taken[:index]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
