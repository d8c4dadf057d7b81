"""``surge classify`` on real pictures and on things that are none."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from surge.cli import main
from surge.cli._classifying import read_picture
from surge.data import load_cifar10
from surge.export import pack
from surge.export.container import seal
from surge.pretrained import engine_accuracy, pretrained_path
from tests.runtime.building import import_engine


@pytest.fixture(scope="module")
def engine():
    return import_engine()


def save(path, pixels):
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)
    return path


def answers(capsys, *words):
    assert main(["classify", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_classify_recognises_test_images_as_the_data_set_says(
    engine, cifar10_dir, tmp_path, capsys
):
    images = load_cifar10(cifar10_dir, "test").subset(torch.arange(200))
    paths = [
        save(tmp_path / f"{index:03d}.png", image.permute(1, 2, 0))
        for index, image in enumerate(images.images)
    ]
    found = answers(capsys, *paths)
    assert [answer["image"] for answer in found] == list(map(str, paths))
    right = [
        answer["top"][0]["class"] == images.classes[label]
        for answer, label in zip(found, images.labels.tolist(), strict=True)
    ]
    accuracy = 100 * np.mean(right)
    assert accuracy > 85
    # PNG keeps every pixel: the command is the file on the data set, image by image.
    assert accuracy == pytest.approx(engine_accuracy(pretrained_path("vggsmall-cifar10"), images))
    for answer in found[:3]:
        chances = [entry["probability"] for entry in answer["top"]]
        assert len(chances) == 5 and chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0001


def test_classify_resizes_and_says_so(engine, tmp_path, capsys):
    big = save(tmp_path / "big.png", np.random.default_rng(0).integers(0, 256, (90, 120, 3)))
    assert main(["classify", str(big), "--top", "2"]) == 0
    first, note = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{big}: ") and first.count("%") == 2
    assert "1 of 1 images were resized to 32x32" in note


def test_classify_takes_grey_and_transparent_pictures(engine, tmp_path, capsys):
    grey = save(tmp_path / "grey.png", np.full((32, 32), 128))
    clear = save(tmp_path / "clear.png", np.full((32, 32, 4), 128))
    same = save(tmp_path / "same.png", np.full((32, 32, 3), 128))
    found = answers(capsys, grey, clear, same)
    assert found[0]["top"] == found[1]["top"] == found[2]["top"]


def test_classify_takes_16_bits_as_8_and_refuses_unknown_ranges(engine, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32))
    short = save(tmp_path / "short.png", pixels)
    deep = tmp_path / "deep.png"
    Image.fromarray((pixels * 257).astype(np.uint16)).save(deep)
    found = answers(capsys, short, deep)
    assert found[0]["top"] == found[1]["top"]
    real = tmp_path / "real.tiff"
    Image.fromarray(pixels.astype(np.float32)).save(real)
    assert main(["classify", str(real)]) == 2
    assert "of mode F, have no known range" in capsys.readouterr().err


def test_classify_with_a_file_of_ones_own(engine, tmp_path, capsys):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    path = tmp_path / "mine.surge"
    normal = {"mean": [0.5], "std": [0.5], "maximum": 16}
    pack(model, torch.zeros(1, 1, 4, 4), path, rest="fp32", preprocessing=normal)
    pixels = np.arange(0, 256, 16, dtype=np.uint8).reshape(4, 4)
    picture = save(tmp_path / "tiny.png", pixels)
    (found,) = answers(capsys, picture, "--model", path)
    x = torch.from_numpy(pixels.astype(np.float32) / 255 / 0.5 - 1)[None, None]
    wanted = model(x).softmax(1)[0].detach()
    best = found["top"][0]
    assert best["class"] == f"class {int(wanted.argmax())}"
    assert best["probability"] == pytest.approx(float(wanted.max()), abs=2e-4)


def test_classify_with_a_file_of_impossible_facts_is_one_sentence(engine, tmp_path, capsys):
    model, path = torch.nn.Flatten().eval(), tmp_path / "mine.surge"
    pack(model, torch.zeros(1, 1, 4, 4), path, classes=[""] * 16)
    path.write_bytes(seal(path.read_bytes().replace(rb"[\"\",", b"[1234,")))
    assert main(["classify", str(tmp_path / "x.png"), "--model", str(path)]) == 2
    assert "damaged header" in capsys.readouterr().err


def test_unreadable_pictures_are_one_line_each_and_exit_code_2(engine, tmp_path, capsys):
    good = save(tmp_path / "good.png", np.zeros((32, 32, 3)))
    text = tmp_path / "text.png"
    text.write_text("no picture")
    torn = tmp_path / "torn.png"
    torn.write_bytes(good.read_bytes()[:60])
    words = [good, text, torn, tmp_path / "none.png", tmp_path]
    assert main(["classify", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{good}: ") and captured.out.count("\n") == 1
    lines = captured.err.splitlines()
    assert len(lines) == 4 and all(line.startswith("error: ") for line in lines)
    assert "none.png is not there" in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x.png", "--top", "0"], "--top 0 must be at least 1"),
        ([], "no image was given"),
        (["x.png", "--model", "resnet2-cifar10"], 'Did you mean "resnet20-cifar10"'),
        (["x.png", "--model", "missing.surge"], "missing.surge"),
    ],
    ids=["top", "nothing", "name", "file"],
)
def test_mistakes_are_one_sentence(words, message, engine, capsys):
    assert main(["classify", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_network_of_vectors_is_refused(engine, tmp_path, capsys):
    path = tmp_path / "vector.surge"
    pack(torch.nn.Linear(4, 2).eval(), torch.zeros(1, 4), path)
    assert main(["classify", "x.png", "--model", str(path)]) == 2
    assert "takes inputs of (4,), not pictures" in capsys.readouterr().err


def test_a_damaged_file_is_one_sentence(engine, tmp_path, capsys):
    path = tmp_path / "torn.surge"
    path.write_bytes(pretrained_path("resnet20-cifar10").read_bytes()[:1000])
    assert main(["classify", "x.png", "--model", str(path)]) == 2
    captured = capsys.readouterr().err
    assert "torn.surge" in captured and captured.count("\n") == 1


def test_missing_pillow_is_one_sentence(engine, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["classify", "x.png"]) == 2
    assert "pip install pillow" in capsys.readouterr().err


def test_large_pictures_are_read_without_a_warning(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    path = save(tmp_path / "large.png", np.zeros((32, 32, 3)))
    assert read_picture(path, 3, (32, 32), 255.0).size == (32, 32)
    assert not recwarn.list


def test_rotated_photographs_stand_upright(tmp_path):
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:16] = 255
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    path = tmp_path / "turned.png"
    image.save(path, exif=exif)
    picture = read_picture(path, 3, (32, 32), 255.0)
    assert picture.pixels[0, 0, 0] == 0 and picture.pixels[-1, 0, 0] == 255


def test_classify_does_not_load_torch(engine, tmp_path):
    picture = save(tmp_path / "grey.png", np.full((32, 32, 3), 128))
    code = (
        "import sys; from surge.cli import main; "
        f"print(main(['classify', {str(picture)!r}]), 'torch' in sys.modules)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.stdout.splitlines()[-1] == "0 False"


def test_a_run_folder_as_model_is_told_how_to_pack_it(tmp_path, capsys):
    run = tmp_path / "a run"
    run.mkdir()
    assert main(["classify", "a.png", "--model", str(run)]) == 2
    err = capsys.readouterr().err
    assert f"`surge export '{run}'`" in err and f"'{run}/model.surge'" in err
