"""``surge train`` on data that is missing, cut short or altered."""

import pytest

from surge.cli import main
from surge.data.cifar10 import BINARY, SHA256


@pytest.fixture
def damaged(tmp_path, cifar10_dir):
    """Real CIFAR-10 with one file replaced by what a function makes of its bytes."""
    folder = tmp_path / "sets" / BINARY.folder
    folder.mkdir(parents=True)

    def make(change):
        for name in SHA256:
            (folder / f"{name}.bin").symlink_to(cifar10_dir / BINARY.folder / f"{name}.bin")
        spoiled = folder / "data_batch_3.bin"
        content = bytearray(spoiled.read_bytes())
        spoiled.unlink()
        changed = change(content)
        if changed is not None:
            spoiled.write_bytes(changed)
        return folder.parent

    return make


def mislabelled(content):
    content[3073] = 200
    return content


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda content: None, "data_batch_3.bin is missing. Run `surge data cifar10"),
        (lambda content: content[:-5], "data_batch_3.bin holds 30,729,995 bytes"),
        (mislabelled, "data_batch_3.bin is not the official file"),
        (lambda content: b"", "data_batch_3.bin holds 0 bytes"),
    ],
    ids=["missing", "truncated", "mislabelled", "empty"],
)
def test_damaged_data_is_one_line_and_leaves_no_run(
    damaged, tmp_path, monkeypatch, capsys, change, expected
):
    monkeypatch.chdir(tmp_path)
    words = ["train", "cifar10-resnet20-recu", "--limit", "8", "--data", str(damaged(change))]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert not (tmp_path / "runs").exists()
