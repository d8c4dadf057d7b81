"""benchmarks/packed_bert.py on a tiny BERT that was trained with the command."""

import json
import sys

from benchmarks import packed_bert
from tests.berts import write_task
from tests.runtime.building import import_engine
from tests.train.glue_runs import command, quiet_bert


def test_engine_and_torch_are_compared_on_the_dev_set(tmp_path, monkeypatch):
    import_engine()
    bert, data = quiet_bert(tmp_path / "bert"), tmp_path / "data"
    write_task(data, "rte", {"train": 16, "dev": 8})
    command("glue-rte-teacher", bert, data, tmp_path / "teacher", "--epochs", 1)
    run = tmp_path / "student"
    command("glue-rte-bit", bert, data, run, "--epochs", 1, "--teacher", tmp_path / "teacher")
    words = ["packed_bert", str(run), "--data", str(data), "--results", str(tmp_path / "r")]
    monkeypatch.setattr(sys, "argv", [*words, "--commit", "abc"])
    packed_bert.main()
    (line,) = map(json.loads, (tmp_path / "r" / "packed_bert.jsonl").read_text().splitlines())
    assert line["recipe"] == "glue-rte-bit" and line["sentences"] == 8 and line["commit"] == "abc"
    assert line["same_class"] >= 75 and line["bytes"] > 1000
    assert abs(line["torch_accuracy"] - line["engine_accuracy"]) <= 25
