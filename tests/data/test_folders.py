import pytest

from surge.data.folders import find_tree, scan_tree
from surge.data.integrity import DamagedDataError
from surge.errors import DataNotFoundError
from tests.data.trees import make_tree


def test_tree_is_read_in_sorted_order(tmp_path):
    make_tree(tmp_path, classes=("bee", "ant"))
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    train, val = scan_tree(tmp_path)
    assert train.classes == val.classes == ("ant", "bee")
    assert train.files[:2] == ("ant/000.png", "ant/001.png")
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    assert len(val) == 4


def test_first_takes_every_class_in_turn(tmp_path):
    train, _ = scan_tree(make_tree(tmp_path))
    assert train.first(4).files == ("ant/000.png", "bee/000.png", "cat/000.png", "ant/001.png")
    assert train.first(4).labels.tolist() == [0, 1, 2, 0]
    assert len(train.first(99)) == 12


@pytest.mark.parametrize("below", ["", "photos", "other"])
def test_tree_is_found_below_the_root_or_is_the_root(tmp_path, below):
    make_tree(tmp_path / below)
    assert find_tree(tmp_path, ("photos", "other")) == tmp_path / below


def test_no_tree_is_said_with_all_places(tmp_path):
    with pytest.raises(
        DataNotFoundError, match=r"none of .*photos.* has the folders train and val"
    ):
        find_tree(tmp_path, ("photos",))


def test_no_classes(tmp_path):
    make_tree(tmp_path, classes=())
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
    with pytest.raises(DataNotFoundError, match="train has no class folders"):
        scan_tree(tmp_path)


@pytest.mark.parametrize("part, other", [("val", "train"), ("train", "val")])
def test_class_folder_missing_in_one_part(tmp_path, part, other):
    make_tree(tmp_path)
    (tmp_path / part / "bee").rename(tmp_path / "elsewhere")
    with pytest.raises(
        DamagedDataError, match=f'{part} lacks the class folder "bee" that .*{other}'
    ):
        scan_tree(tmp_path)


def test_empty_class(tmp_path):
    make_tree(tmp_path)
    (tmp_path / "val" / "dog").mkdir()
    with pytest.raises(DamagedDataError, match="val/dog holds no images"):
        scan_tree(tmp_path)
