"""``surge train --record`` and ``--fixed-scale``, from the command line to the files."""

import json

import pytest

from surge.cli import main
from surge.errors import ConfigError
from surge.train.probe.recorder import read_records
from surge.train.run import RunFolder
from tests.train.small import make_trainer, small_recipe

SHORT = ("--epochs", "2", "--limit", "96", "--save-every", "1000")


def train(tmp_path, *words):
    out = tmp_path / "run"
    places = ("--out", str(out), "--results", str(tmp_path / "results"))
    return main(["train", "digits-cnn-recu-surge", *SHORT, *places, *words]), out


def test_record_option_writes_records_and_maps(tmp_path):
    code, out = train(tmp_path, "--record")
    assert code == 0
    records = read_records(RunFolder(out))
    assert [record["epoch"] for record in records] == [0, 1]
    assert "theorem" not in records[0]
    assert sorted(path.name for path in (out / "probe-maps").iterdir()) == [
        "epoch0000.npz",
        "epoch0001.npz",
    ]


def test_theorem_option_records_the_premises(tmp_path):
    code, out = train(tmp_path, "--record-theorem", "--record-every", "2")
    assert code == 0
    found = read_records(RunFolder(out))[-1]["theorem"]
    assert set(found) == {"features.conv2", "features.conv3"}
    assert found["features.conv2"]["images"] == 96


def test_run_without_the_option_records_nothing(tmp_path):
    assert train(tmp_path)[0] == 0
    assert not (tmp_path / "run" / "probe.jsonl").exists()


def test_record_every_must_be_positive(tmp_path, capsys):
    assert train(tmp_path, "--record", "--record-every", "0")[0] == 2
    assert "--record-every 0 must be at least 1" in capsys.readouterr().err


def test_fixed_scale_stays_and_is_noted(tmp_path):
    code, out = train(tmp_path, "--fixed-scale", "0.125", "--record")
    assert code == 0
    for record in read_records(RunFolder(out)):
        assert {layer["scale"] for layer in record["layers"].values()} == {0.125}
    (line,) = (tmp_path / "results" / "digits.jsonl").read_text().splitlines()
    assert json.loads(line)["overrides"]["fixed_scale"] == 0.125


def test_recording_is_refused_where_norms_wait_for_all(tmp_path):
    from surge.train.probe import recorder

    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge"), record_every=1)
    with pytest.raises(ConfigError, match="without sync_norm"):
        recorder.make_recorder(trainer, synced=True)
