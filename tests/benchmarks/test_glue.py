"""The script that measures what SURGE costs on GLUE runs and stores one line per arm."""

import json
import sys

import torch

from benchmarks import glue
from tests.berts import write_task
from tests.train.glue_runs import quiet_bert


def test_costs_are_measured_and_stored(tmp_path, monkeypatch, capsys):
    bert = quiet_bert(tmp_path / "bert")
    write_task(tmp_path / "data", "rte", {"train": 33, "dev": 8})
    monkeypatch.setattr(glue, "WARM", 1)
    monkeypatch.setattr(glue, "BLOCK", 2)
    monkeypatch.setattr(glue, "ROUNDS", 1)
    words = ["glue", "--model", str(bert), "--data", str(tmp_path / "data"), "--tasks", "rte"]
    words += ["--results", str(tmp_path / "results"), "--device", "cpu", "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", words)
    glue.main()
    stored = (tmp_path / "results" / "glue_overhead.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in stored]
    assert [line["row"] for line in lines] == [f"rte-{arm}" for arm in glue.ARMS]
    plain = lines[0]
    assert plain["time_ratio"] == 1.0 and plain["commit"] == "abc"
    for line in lines:
        assert abs(line["epoch_seconds"] - 5 * line["step_ms"] / 1e3) < 0.02  # 33 sentences by 8
        assert line["torch"] == str(torch.__version__) and line["model"] == "bert"
    assert capsys.readouterr().out.count("| rte |") == len(glue.ARMS)
