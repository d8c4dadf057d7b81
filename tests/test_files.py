"""Files that are written whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from surge.errors import ConfigError
from surge.files import atomic, check_folder, write_whole


def test_content_appears_in_one_step(tmp_path):
    path = tmp_path / "new" / "file"
    with atomic(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_error_leaves_what_was_there(tmp_path):
    path = write_whole(tmp_path / "file", b"old")
    with pytest.raises(RuntimeError, match="torn"), atomic(path) as file:
        file.write(b"new")
        raise RuntimeError("torn")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, atomic(tmp_path / "folder"):
        pass
    assert caught.value.filename == str(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_place_that_takes_no_file_is_named_by_what_was_asked_for(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied", ".page.html.x.part")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(PermissionError) as caught:
        write_whole(tmp_path / "page.html", b"")
    assert caught.value.filename == str(tmp_path / "page.html")


def test_a_folder_is_tried_before_anything_is_made(tmp_path):
    assert check_folder(tmp_path / "not" / "yet") == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files_is_refused(tmp_path, monkeypatch):
    asked = []

    def refuse(dir):
        asked.append(dir)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    said = (
        rf"^--results new: nothing can be written in {tmp_path} \(Read-only file system\); choose"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        check_folder(Path("new"), "--results")
    assert asked == [tmp_path]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")
def test_a_folder_in_which_even_root_makes_no_files_is_refused():
    with pytest.raises(ConfigError, match="nothing can be written in /proc "):
        check_folder(Path("/proc/out"))
