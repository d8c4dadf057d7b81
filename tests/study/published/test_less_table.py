"""Doing less: times over the plain step beside accuracies, open where nothing is stored."""

import json
from dataclasses import asdict, replace

from surge.study.published import less_table
from surge.study.results import append
from tests.study.bench.test_speed_table import PLAIN, SURGE
from tests.study.stored import result


def test_times_stand_beside_accuracies(tmp_path):
    rows = (PLAIN, SURGE, replace(SURGE, variant="tied", step_ms=2.2))
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    (tmp_path / "training.jsonl").write_text(text)
    fields = {"table": "digits", "epochs": 20, "data": "digits, test set"}
    for row, last in (("cnn-recu", 96.0), ("cnn-recu-surge-tied", 96.5)):
        append(tmp_path, result(row, 0, last, recipe=f"digits-{row}", **fields))
    lines = less_table.section(tmp_path).splitlines()
    assert "| surge | 1.250 | - | - | open |" in lines
    assert "| tied | 1.100 | - | - | +0.50 (1 pair) |" in lines
    assert len(lines) == 2 + len(less_table.VARIANTS)
