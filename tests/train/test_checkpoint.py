"""Checkpoints: the last good one survives whatever happens while the next is written."""

import errno
import io
import os
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from surge import files
from surge.errors import CheckpointMismatchError
from surge.files import atomic
from surge.train.checkpoint import found, load_newest, load_one, save
from surge.train.trainer_state import _load_optimizer
from tests.train.small import CPU, make_trainer, small_recipe, weights

LAYOUTS = (torch.contiguous_format, torch.channels_last)
STATE = {"recipe": "digits-cnn-recu", "values": torch.arange(5.0)}


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile(io.FileIO):
    """A file on a disk that has room for 100 bytes."""

    def write(self, data):
        super().write(bytes(data)[:100])
        full_disk()


def load(folder):
    return load_newest(folder, "digits-cnn-recu", CPU)


def test_save_then_load_gives_the_state_and_the_epoch(tmp_path):
    path = save(tmp_path, STATE, 12)
    assert path.name == "epoch-00012.pt"
    state, passed = load(tmp_path)
    assert (state["epoch"], passed) == (12, [])
    assert torch.equal(state["values"], STATE["values"])


def test_save_keeps_the_newest_two(tmp_path):
    for epoch in (1, 2, 3, 10):
        save(tmp_path, STATE, epoch)
    assert [path.name for path in found(tmp_path)] == ["epoch-00010.pt", "epoch-00003.pt"]


def test_save_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / ".epoch-00001.pt.xyz.part").write_bytes(b"half")
    save(tmp_path, STATE, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00002.pt"]


def test_files_are_readable_by_others(tmp_path):
    assert save(tmp_path, STATE, 1).stat().st_mode & 0o777 == 0o644


def fails_on_replace(monkeypatch):
    monkeypatch.setattr(files.os, "replace", full_disk)


def fails_on_write(monkeypatch):
    monkeypatch.setattr(
        files.os, "fdopen", lambda handle, mode: FullFile(handle, mode.replace("b", ""))
    )


def fails_on_sync(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full_disk)


@pytest.mark.parametrize("fails", [fails_on_replace, fails_on_write, fails_on_sync])
def test_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, fails):
    save(tmp_path, STATE, 1)
    before = (tmp_path / "epoch-00001.pt").read_bytes()
    with monkeypatch.context() as patch:
        fails(patch)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, STATE, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001.pt"]
    assert (tmp_path / "epoch-00001.pt").read_bytes() == before
    assert load(tmp_path)[0]["epoch"] == 1


def test_full_disk_leaves_a_small_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("old")
    fails_on_write(monkeypatch)
    with pytest.raises(OSError), atomic(tmp_path / "config.yaml") as file:
        file.write(b"new")
    assert (tmp_path / "config.yaml").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_full_disk_during_a_run_leaves_it_resumable(tmp_path, monkeypatch):
    recipe = small_recipe("cnn-bnn")
    whole = make_trainer(tmp_path / "whole", recipe)
    whole.run()

    def fill(row):
        if row["epoch"] == 1:
            fails_on_write(monkeypatch)

    with pytest.raises(OSError, match="No space left"):
        make_trainer(tmp_path / "run", recipe).run(fill)
    monkeypatch.undo()
    again = make_trainer(tmp_path / "run", recipe)
    again.resume()
    assert again.epoch == 1
    again.run()
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(again)[name], tensor), name


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_torn_newest_gives_way_to_the_previous_with_a_sentence(tmp_path, keep):
    save(tmp_path, STATE, 1)
    newest = save(tmp_path, STATE, 2)
    newest.write_bytes(newest.read_bytes()[:keep])
    state, (sentence,) = load(tmp_path)
    assert state["epoch"] == 1
    assert "epoch-00002.pt is damaged" in sentence
    assert "epoch-00001.pt is used instead" in sentence


def test_only_torn_files_are_an_error_that_names_them(tmp_path):
    save(tmp_path, STATE, 1).write_bytes(b"PK")
    with pytest.raises(CheckpointMismatchError, match="no readable checkpoint: epoch-00001.pt is"):
        load(tmp_path)


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(CheckpointMismatchError, match="holds no readable checkpoint."):
        load(tmp_path)


@pytest.mark.parametrize("content", [torch.zeros(3), {"model": {}}, {"format": 99}])
def test_foreign_file_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "epoch-00001.pt")
    with pytest.raises(CheckpointMismatchError, match="is not a checkpoint of this package"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["name: x\nseed: 3\n", "", "table: digits"])
def test_text_is_no_checkpoint(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(CheckpointMismatchError, match="cannot be read as a checkpoint"):
        load_one(path, None, torch.device("cpu"))


def test_other_recipe_is_an_error_that_names_both(tmp_path):
    save(tmp_path, {**STATE, "recipe": "digits-cnn-bnn"}, 1)
    with pytest.raises(CheckpointMismatchError, match='"digits-cnn-bnn", not to "digits-cnn-recu"'):
        load(tmp_path)


class Evil:
    """Runs a command when it is unpickled, if anything lets it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_loading_runs_no_foreign_code(tmp_path):
    torch.save({**STATE, "format": 1, "evil": Evil(tmp_path / "made")}, tmp_path / "epoch-00001.pt")
    (tmp_path / "epoch-00000.pt").write_bytes(pickle.dumps(Evil(tmp_path / "made"), protocol=2))
    with pytest.raises(CheckpointMismatchError, match="no readable checkpoint"):
        load(tmp_path)
    assert not (tmp_path / "made").exists()


def test_checkpoint_of_another_model_is_an_error(tmp_path):
    small = small_recipe("cnn-bnn", epochs=1)
    make_trainer(tmp_path, small).run()
    wider = small_recipe("cnn-bnn", model="cnn_digits")
    wider.model.options["width"] = 8
    with pytest.raises(CheckpointMismatchError, match="does not fit the model of digits-cnn-bnn"):
        make_trainer(tmp_path, wider).resume()


@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
@pytest.mark.parametrize(("layout", "other"), [LAYOUTS, LAYOUTS[::-1]])
def test_optimizer_of_another_device_keeps_its_flags_and_its_layout(kind, layout, other):
    """Else a fused one would read momentum through the wrong places, without a word."""
    start, gradient = torch.randn(4, 3, 3, 3), torch.randn(4, 3, 3, 3)

    def built(layout, **flags):
        parameter = nn.Parameter(start.clone(memory_format=layout))
        return parameter, kind([parameter], lr=torch.tensor(0.1), **flags)

    def steps(parameter, optimizer, count):
        for _ in range(count):
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
            optimizer.step()

    whole, alone = built(layout)
    steps(whole, alone, 4)
    first, saved = built(other, fused=True)
    steps(first, saved, 2)
    state = saved.state_dict()
    second, loaded = built(layout)
    rate = loaded.param_groups[0]["lr"]
    _load_optimizer(loaded, state)
    with torch.no_grad():
        second.copy_(first)
    assert loaded.param_groups[0]["lr"] is rate and not loaded.param_groups[0]["fused"]
    for key, value in loaded.state[second].items():
        assert key == "step" or value.stride() == second.stride()
    steps(second, loaded, 2)
    torch.testing.assert_close(second, whole)
