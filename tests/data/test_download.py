import hashlib
import io
import tarfile

import pytest

from surge.data import DamagedDataError, download, download_cifar10
from surge.data.cifar10 import SHA256
from surge.data.download import TransferError, fetch
from surge.errors import ConfigError, DataNotFoundError

FOLDER = "cifar-10-batches-bin"
SIZE = 3073
FILES = {f"{name}.bin": bytes([i]) * SIZE for i, name in enumerate(SHA256)}


def pack(members):
    """Return a tar.gz with the given (name or TarInfo, content) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def folder_entry():
    info = tarfile.TarInfo(FOLDER)
    info.type = tarfile.DIRTYPE
    return info, b""


def good_members():
    extra = [(f"{FOLDER}/batches.meta.txt", b"airplane\n"), (f"{FOLDER}/readme.html", b"<html>")]
    return [folder_entry(), *((f"{FOLDER}/{name}", data) for name, data in FILES.items()), *extra]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Let the official files be one record each."""
    digests = {n: hashlib.sha256(FILES[f"{n}.bin"]).hexdigest() for n in SHA256}
    monkeypatch.setattr(download, "SHA256", digests)
    monkeypatch.setattr(download, "RECORDS", 1)


@pytest.fixture
def get(server, tmp_path):
    """Download from the faulty server into ``tmp_path``, checking the archive it offers."""

    def get(**options):
        good = hashlib.sha256(server.content).hexdigest()
        options = {"url": server.url, "sha256": good, "attempts": 1} | options
        return download_cifar10(tmp_path, **options)

    return get


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


COMPLETE = sorted([FOLDER, *(f"{FOLDER}/{name}" for name in FILES)])


def test_download_leaves_the_six_files_and_nothing_else(server, get, tmp_path):
    server.content = pack(good_members())
    assert get() == tmp_path / FOLDER
    assert listing(tmp_path) == COMPLETE
    assert all((tmp_path / FOLDER / name).read_bytes() == data for name, data in FILES.items())


def test_download_does_nothing_where_the_files_are_right(server, get):
    server.content = pack(good_members())
    get()
    get()
    assert len(server.requests) == 1


def test_download_replaces_a_file_that_is_wrong(server, get, tmp_path):
    server.content = pack(good_members())
    get()
    damaged = tmp_path / FOLDER / "test_batch.bin"
    damaged.write_bytes(b"wrong")
    get()
    assert damaged.read_bytes() == FILES["test_batch.bin"]


def test_download_makes_the_data_folder(server, tmp_path):
    server.content = pack(good_members())
    root = tmp_path / "some" / "where"
    download_cifar10(root, url=server.url, sha256=None)
    assert listing(root) == COMPLETE


def test_download_reports_progress_up_to_the_total(server, get):
    server.content = pack(good_members())
    seen = []
    get(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(server.content), len(server.content))
    assert seen == sorted(seen)


def test_interrupted_download_is_continued_by_the_next_call(server, get, tmp_path):
    server.content = pack(good_members())
    server.cuts = [100]
    with pytest.raises(DataNotFoundError, match="ended at 100 of"):
        get()
    assert listing(tmp_path) == ["cifar-10-binary.tar.gz.part"]
    get()
    assert server.requests == [None, "bytes=100-"]
    assert listing(tmp_path) == COMPLETE


def test_interrupted_download_is_continued_within_one_call(server, get, tmp_path):
    server.content = pack(good_members())
    server.cuts = [100, 50]
    get(attempts=3)
    assert server.requests == [None, "bytes=100-", "bytes=150-"]
    assert listing(tmp_path) == COMPLETE


def test_server_that_ignores_ranges_is_read_from_the_start(server, get, tmp_path):
    server.content = pack(good_members())
    server.ranges = False
    server.cuts = [100]
    get(attempts=2)
    assert server.requests == [None, "bytes=100-"]
    assert listing(tmp_path) == COMPLETE


def test_server_that_does_not_tell_the_length_is_accepted(server, get, tmp_path):
    server.content = pack(good_members())
    server.hide_length = True
    seen = []
    get(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(server.content), 0)
    assert listing(tmp_path) == COMPLETE


def test_part_file_that_is_already_whole_or_too_long_starts_again(server, get, tmp_path):
    server.content = pack(good_members())
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(server.content)
    get()
    assert server.requests == [f"bytes={len(server.content)}-", None]
    assert listing(tmp_path) == COMPLETE


def test_server_that_falls_silent_is_given_up_and_what_came_is_kept(server, tmp_path):
    server.content = bytes(1000)
    server.cuts, server.stalls = [100], True
    with pytest.raises(TransferError, match="timed out"):
        fetch(server.url, tmp_path / "file", timeout=0.2)
    assert listing(tmp_path) == ["file.part"]


@pytest.mark.parametrize("span", ["bytes 7-20/100", "nonsense"])
def test_server_that_sends_another_range_is_refused(server, tmp_path, span):
    server.content = bytes(100)
    server.span = span
    path = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(bytes(10))
    with pytest.raises(TransferError, match="bytes from 7, not 10|nonsense"):
        fetch(server.url, path)
    assert not path.exists()


def test_archive_with_another_checksum_is_named_and_removed(server, get, tmp_path):
    server.content = pack(good_members())
    with pytest.raises(DamagedDataError, match=r"cifar-10-binary\.tar\.gz.*expected 0000"):
        get(sha256="0000")
    assert listing(tmp_path) == []


def test_official_archive_checksum_is_the_default(server, tmp_path):
    server.content = pack(good_members())
    with pytest.raises(DamagedDataError, match="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d"):
        download_cifar10(tmp_path, url=server.url)


@pytest.mark.parametrize("place", [0, 5, 60, -30])
def test_corrupted_archive_is_refused_and_removed(server, get, tmp_path, place):
    content = bytearray(pack(good_members()))
    for i in range(place, place + 12):
        content[i] ^= 0xFF
    server.content = bytes(content)
    with pytest.raises(DamagedDataError):
        get(sha256=None)
    assert listing(tmp_path) == []


def test_truncated_archive_is_refused(server, get, tmp_path):
    server.content = pack(good_members())[:-200]
    with pytest.raises(DamagedDataError):
        get()
    assert listing(tmp_path) == []


def link(kind):
    info = tarfile.TarInfo(f"{FOLDER}/data_batch_1.bin")
    info.type = kind
    info.linkname = "/etc/hostname"
    return info


@pytest.mark.parametrize(
    "member",
    [
        "../escaped.bin",
        f"{FOLDER}/../../escaped.bin",
        "/tmp/escaped.bin",
        link(tarfile.SYMTYPE),
        link(tarfile.LNKTYPE),
        link(tarfile.FIFOTYPE),
    ],
)
def test_archive_that_points_outside_is_refused_whole(server, get, tmp_path, member):
    server.content = pack([*good_members(), (member, b"")])
    with pytest.raises(DamagedDataError, match="Nothing was unpacked"):
        get()
    assert listing(tmp_path) == []
    assert not (tmp_path.parent / "escaped.bin").exists()


def test_archive_members_of_other_names_are_left_out(server, get, tmp_path):
    stray = [("evil.bin", b"x"), (f"{FOLDER}/deep/data_batch_1.bin", b"x"), ("test_batch.bin", b"")]
    server.content = pack([*stray, *good_members()])
    get()
    assert listing(tmp_path) == COMPLETE


def test_archive_without_a_file_is_named(server, get, tmp_path):
    server.content = pack(m for m in good_members() if m[0] != f"{FOLDER}/data_batch_3.bin")
    with pytest.raises(DamagedDataError, match=rf"lacks {FOLDER}/data_batch_3\.bin"):
        get()
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(bytes(SIZE), "SHA-256"), (bytes(SIZE + 1), "3,074 bytes, expected 3,073")],
)
def test_archive_with_a_wrong_file_inside_is_refused(server, get, tmp_path, content, message):
    members = [m for m in good_members() if m[0] != f"{FOLDER}/data_batch_3.bin"]
    server.content = pack([*members, (f"{FOLDER}/data_batch_3.bin", content)])
    with pytest.raises(DamagedDataError, match=message) as caught:
        get()
    assert "data_batch_3.bin" in str(caught.value)
    assert listing(tmp_path) == []


def test_archive_put_there_by_hand_is_used_without_network_and_kept(tmp_path):
    content = pack(good_members())
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    download_cifar10(tmp_path, url="http://127.0.0.1:9/none", sha256=digest)
    assert listing(tmp_path) == sorted([*COMPLETE, "cifar-10-binary.tar.gz"])


def test_damaged_archive_put_there_by_hand_is_reported_but_not_deleted(tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"not an archive")
    for digest in ("0000", None):
        with pytest.raises(DamagedDataError, match="Delete it"):
            download_cifar10(tmp_path, sha256=digest)
    assert archive.exists()


def test_without_network_the_error_says_what_to_get_and_where_to_put_it(tmp_path):
    root = tmp_path / "my sets"
    with pytest.raises(DataNotFoundError) as caught:
        download_cifar10(root, url="http://127.0.0.1:9/none", attempts=2, timeout=1)
    message = str(caught.value)
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in message
    assert f"put it at {root / 'cifar-10-binary.tar.gz'}" in message
    assert f"`surge data cifar10 --data '{root}'`" in message


def test_server_error_is_part_of_the_message(server, get):
    server.status = 404
    with pytest.raises(DataNotFoundError, match="404"):
        get()


def test_url_of_another_scheme_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="http"):
        download_cifar10(tmp_path, url="file:///etc/passwd")
