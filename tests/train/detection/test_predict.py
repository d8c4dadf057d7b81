"""What a detector is trained and tested on, and what a command says of it."""

import re

import pytest

from surge.cli import main
from surge.recipes.recipe import DataSpec
from surge.train.detection.task import load_detection_sets
from tests.data.trees import THINGS, make_voc


@pytest.fixture
def tree(tmp_path):
    make_voc(tmp_path, THINGS)
    make_voc(tmp_path, THINGS[:2], part="test")
    return tmp_path


def test_held_out_images_come_from_the_training_set(tmp_path):
    make_voc(tmp_path, THINGS * 5)  # and no test set at all
    spec = DataSpec("voc", size=96, held_out=True)
    train, test = load_detection_sets(spec, tmp_path)
    assert (len(train), len(test)) == (18, 2)
    assert not set(train.files.files) & set(test.files.files)


def spoil_class(base):
    note = base / "Annotations" / "000001.xml"
    note.write_text(note.read_text().replace("dog", "dgo"))


MISTAKES = {
    "class": (spoil_class, r'VOC has no class "dgo". Did you mean "dog"'),
    "annotation": (
        lambda base: (base / "Annotations" / "000002.xml").unlink(),
        "000002.xml is mis",
    ),
    "list": (lambda base: (base / "ImageSets/Main/test.txt").unlink(), "test.txt is missing"),
    "years": (lambda base: base.rename(base.parent / "other"), "No PASCAL VOC in"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_command_says_what_is_wrong_with_the_data(tree, capsys, kind):
    spoil, sentence = MISTAKES[kind]
    spoil(tree / "VOCdevkit" / "VOC2007")
    words = ["train", "voc-float", "--short", "--device", "cpu", "--data", str(tree)]
    assert main([*words, "--out", str(tree / "run")]) == 2
    found = capsys.readouterr().err
    assert found.startswith("error:") and re.search(sentence, found)
    assert not (tree / "run").exists()
