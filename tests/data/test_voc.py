"""PASCAL VOC's folders: unions of years, coordinates, and everything that can be wrong."""

import warnings

import pytest
import torch

from surge.data.integrity import DamagedDataError
from surge.data.voc import CLASSES, find_voc, load_voc
from surge.errors import DataNotFoundError, SurgeWarning
from tests.data.trees import make_voc

THINGS = [
    [("dog", 1, 1, 32, 24), ("person", 10, 5, 64, 48, 1)],
    [("car", 3, 4, 60, 40)],
    [],
]


def test_boxes_are_edges_and_labels_count_from_one(tmp_path):
    make_voc(tmp_path, THINGS)
    found = load_voc(tmp_path, "trainval")
    assert len(found) == 3 and found.files[0] == "VOC2007/JPEGImages/000001.jpg"
    assert found.boxes[0].tolist() == [[0, 0, 32, 24], [9, 4, 64, 48]]
    assert found.labels[0].tolist() == [1 + CLASSES.index("dog"), 1 + CLASSES.index("person")]
    assert found.difficult[0].tolist() == [False, True]
    assert found.sizes[0] == (64, 48)


def test_an_image_without_objects_is_kept(tmp_path):
    make_voc(tmp_path, THINGS)
    found = load_voc(tmp_path, "trainval")
    assert found.boxes[2].shape == (0, 4) and found.labels[2].dtype == torch.int64


def test_years_that_are_there_are_united_in_order(tmp_path):
    make_voc(tmp_path, THINGS)
    assert len(load_voc(tmp_path, "trainval", ("2007", "2012"))) == 3
    make_voc(tmp_path, THINGS[:2], year="2012")
    both = load_voc(tmp_path, "trainval", ("2007", "2012"))
    assert len(both) == 5 and both.files[3] == "VOC2012/JPEGImages/000001.jpg"
    assert len(load_voc(tmp_path, "trainval", ("2012",))) == 2
    part = both.subset([4, 0])
    assert part.files == (both.files[4], both.files[0])
    assert torch.equal(part.boxes[1], both.boxes[0])


def test_the_devkit_folder_itself_may_be_named(tmp_path):
    make_voc(tmp_path, THINGS)
    assert find_voc(tmp_path) == find_voc(tmp_path / "VOCdevkit") == tmp_path / "VOCdevkit"


def test_boxes_beyond_the_image_are_cut_off_and_lost_ones_named(tmp_path):
    make_voc(tmp_path, [[("dog", -5, 10, 70, 60), ("cat", 65, 10, 80, 20)], []])
    with pytest.warns(SurgeWarning, match="1 boxes lie outside their image, as in .*000001.jpg"):
        found = load_voc(tmp_path, "trainval")
    assert found.boxes[0].tolist() == [[0, 9, 64, 48]]


def test_whole_boxes_give_no_warning(tmp_path):
    make_voc(tmp_path, THINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_voc(tmp_path, "trainval")


def test_no_devkit_is_named_with_the_places(tmp_path):
    with pytest.raises(DataNotFoundError, match="neither .*VOCdevkit nor .*VOC2007 or VOC2012"):
        load_voc(tmp_path, "trainval")


def test_a_year_that_is_not_there_is_named(tmp_path):
    make_voc(tmp_path, THINGS)
    with pytest.raises(DataNotFoundError, match="none of the years.*2012.*Years there: VOC2007"):
        load_voc(tmp_path, "trainval", ("2012",))


def test_a_missing_list_is_named_with_a_near_miss(tmp_path):
    make_voc(tmp_path, THINGS)
    with pytest.raises(DataNotFoundError, match='trainvel.txt is missing.*mean "trainval"'):
        load_voc(tmp_path, "trainvel")


def test_an_empty_list_is_an_error(tmp_path):
    base = make_voc(tmp_path, THINGS)
    (base / "ImageSets/Main/trainval.txt").write_text("\n")
    with pytest.raises(DamagedDataError, match="is empty"):
        load_voc(tmp_path, "trainval")


def test_a_missing_annotation_is_named(tmp_path):
    base = make_voc(tmp_path, THINGS)
    (base / "Annotations/000002.xml").unlink()
    with pytest.raises(DataNotFoundError, match="000002.xml is missing"):
        load_voc(tmp_path, "trainval")


def test_an_unknown_class_is_named_with_a_near_miss(tmp_path):
    make_voc(tmp_path, [[("tvmonitr", 1, 1, 5, 5)]])
    with pytest.raises(
        DamagedDataError, match='000001.xml: VOC has no class "tvmonitr".*tvmonitor'
    ):
        load_voc(tmp_path, "trainval")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</annotation>", "", "is no annotation"),
        ("<xmin>3<", "<xmin>three<", "bndbox/xmin is 'three', not a number"),
        ("<xmin>3</xmin>", "", "bndbox/xmin is None, not a number"),
        ("<width>64<", "<width>0<", "said to be 0x48"),
    ],
)
def test_a_damaged_annotation_is_named(tmp_path, old, new, message):
    base = make_voc(tmp_path, THINGS)
    path = base / "Annotations/000002.xml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DamagedDataError, match=f"000002.xml.*{message}"):
        load_voc(tmp_path, "trainval")


def test_real_lists_have_the_known_numbers(voc_dir):
    train, test = load_voc(voc_dir, "trainval"), load_voc(voc_dir, "test", ("2007",))
    assert (len(train), len(test)) == (3467, 1485)
    whole = load_voc(voc_dir, "voc2007_test_all")
    objects = torch.cat(whole.labels)
    easy = ~torch.cat(whole.difficult)
    assert (len(whole), len(objects), int(easy.sum())) == (4952, 14976, 12032)
    assert int((objects == 1 + CLASSES.index("person")).sum()) == 5227
    assert not set(train.files) & set(test.files)
