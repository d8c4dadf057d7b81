"""``surge data``: what is there, and how to get the rest."""

import io
import sys
import urllib.error

import pytest
from rich.console import Console

from surge.cli import data as command
from surge.cli import main
from surge.data import download
from surge.data.cifar10 import BINARY, PICKLED, RECORD_BYTES, RECORDS, SHA256
from tests.data.trees import make_tree, make_voc

WHOLE = RECORDS * RECORD_BYTES


def sized(path, size):
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def offline(monkeypatch):
    """No network at all."""

    def refuse(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(download.urllib.request, "urlopen", refuse)


def test_list_of_an_empty_folder_says_how_to_get_everything(tmp_path, capsys):
    assert main(["data", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "0 of 6 files in cifar-10-batches-bin" in out
    assert "surge data cifar10 --data" in out
    assert "comes with scikit-learn" in out


def test_list_counts_what_is_there_in_both_layouts(tmp_path, capsys):
    for name, more in (("bin/test_batch.bin", 0), ("py/data_batch_1", 300_000)):
        sized(tmp_path / f"cifar-10-batches-{name}", WHOLE + more)
    main(["data", "--data", str(tmp_path)])
    out = capsys.readouterr().out
    assert "1 of 6 files in cifar-10-batches-bin  " in out
    assert "1 of 6 files in cifar-10-batches-py  " in out


def test_files_of_a_wrong_size_are_not_counted(tmp_path, capsys):
    for number, more in enumerate((0, -1, 1), 1):
        sized(tmp_path / BINARY.folder / f"data_batch_{number}.bin", WHOLE + more)
    sized(tmp_path / PICKLED.folder / "test_batch", WHOLE - 1)
    main(["data", "--data", str(tmp_path)])
    out = capsys.readouterr().out
    assert "1 of 6 files in cifar-10-batches-bin, 2 of a wrong size" in out
    assert "0 of 6 files in cifar-10-batches-py, 1 of a wrong size" in out


def test_commands_can_be_pasted_where_the_folder_has_a_space(tmp_path, capsys):
    root = tmp_path / "my sets"
    main(["data", "--data", str(root)])
    out = " ".join(capsys.readouterr().out.split())
    for name in ("cifar10", "glue"):
        assert f"surge data {name} --data '{root}'" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar10", "--tasks", "mrpc"], "--tasks are of GLUE"),
        (["--tasks", "mrpc"], "--tasks are of GLUE"),
        (["glue", "--url", "https://mirror/c.tar.gz"], "--url is a mirror of CIFAR-10"),
    ],
)
def test_options_of_another_set_are_refused(words, message, tmp_path, capsys):
    assert main(["data", *words, "--data", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_folder_comes_from_the_environment(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SURGE_DATA", str(tmp_path))
    main(["data"])
    assert f"Data sets in {tmp_path}" in capsys.readouterr().out.replace("\n", "")


def test_without_a_network_the_error_says_which_file_to_put_where(tmp_path, capsys, offline):
    assert main(["data", "cifar10", "--data", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/" in err
    assert f"put it at {tmp_path / 'cifar-10-binary.tar.gz'}" in err


def test_complete_data_needs_no_network(cifar10_dir, capsys, offline):
    assert main(["data", "cifar10", "--data", str(cifar10_dir)]) == 0
    assert f"CIFAR-10 is complete in {cifar10_dir / BINARY.folder}" in capsys.readouterr().out


def test_mirror_is_asked_and_its_archive_not_pinned(tmp_path, monkeypatch, capsys):
    asked = {}

    def fake(root, **options):
        asked.update(options, root=root)
        options["progress"](50_000_000, 100_000_000)
        options["progress"](51_000_000, 100_000_000)
        options["progress"](100_000_000, 100_000_000)
        return root / BINARY.folder

    monkeypatch.setattr("surge.data.download_cifar10", fake)
    words = ["data", "cifar10", "--data", str(tmp_path), "--url", "https://mirror/c.tar.gz"]
    assert main(words) == 0
    assert (asked["root"], asked["url"]) == (tmp_path, "https://mirror/c.tar.gz")
    assert asked["sha256"] is None
    out = capsys.readouterr().out
    assert out.count("cifar10: ") == 2  # half, and all: a line at every tenth
    assert "cifar10: 50.0 of 100.0 MB" in out
    assert "cifar10: 100.0 of 100.0 MB" in out


def test_official_archive_is_pinned(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "surge.data.download_cifar10", lambda root, **options: asked.update(options) or root
    )
    assert main(["data", "cifar10", "--data", str(tmp_path)]) == 0
    assert asked["url"] == download.URL
    assert asked["sha256"] == download.ARCHIVE_SHA256


def test_bad_mirror_is_one_line(tmp_path, capsys):
    assert main(["data", "cifar10", "--data", str(tmp_path), "--url", "ftp://x"]) == 2
    assert "must begin with http" in capsys.readouterr().err


def test_size_unknown_shows_what_has_arrived():
    console = Console(file=io.StringIO(), width=100)
    with command._bytes_shown(console) as progress:
        progress(1_000_000, 0)
        progress(40_000_000, 0)
    assert console.file.getvalue() == "cifar10: 1.0 MB\ncifar10: 40.0 MB\n"


def test_terminal_gets_a_bar():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with command._bytes_shown(console) as progress:
        progress(50_000_000, 100_000_000)
    assert "50.0/100.0 MB" in console.file.getvalue()


def test_digits_need_no_download(capsys):
    assert main(["data", "digits"]) == 0
    assert "nothing to download" in capsys.readouterr().out


def test_digits_without_sklearn_say_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["data", "digits"]) == 2
    assert "pip install 'surge-bnn[demo]'" in capsys.readouterr().err


def test_unknown_set_names_the_near_miss(capsys):
    assert main(["data", "cifar"]) == 2
    assert 'no data set "cifar". Did you mean "cifar10"?' in capsys.readouterr().err


def test_names_of_files_are_those_of_the_checksums():
    assert len(SHA256) == 6


def test_photographs_are_looked_through(tmp_path, capsys):
    make_tree(tmp_path / "imagenette96", classes=("ant", "bee"))
    assert main(["data", "--data", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "train and val in imagenette96" in listed
    assert main(["data", "imagenette", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "train: 8 images in 2 classes" in printed and "val: 4 images in 2 classes" in printed
    assert main(["data", "imagenet", "--data", str(tmp_path)]) == 2
    assert "No image tree in" in capsys.readouterr().err


def test_images_with_boxes_are_looked_through(tmp_path, capsys):
    first = [("dog", 1, 1, 20, 20), ("cat", 5, 5, 30, 30)]
    make_voc(tmp_path, [first, []])
    make_voc(tmp_path, [first], part="test")
    assert main(["data", "--data", str(tmp_path)]) == 0
    assert "VOC2007 in VOCdevkit" in capsys.readouterr().out
    assert main(["data", "voc", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "trainval: 2 images with 2 objects" in printed
    assert "test: 1 images with 2 objects" in printed
