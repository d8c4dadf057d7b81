"""Published tables about binary BERTs."""

import json
from dataclasses import asdict, replace

from surge.data.glue import TASKS
from surge.data.glue_metrics import COLUMNS
from surge.study.glue.glue_tables import (
    align_section,
    averages_section,
    metrics_section,
    overhead_section,
    packed_section,
)
from tests.study.stored import result


def store(folder, name, *lines):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_nothing_stored(tmp_path):
    for section in (overhead_section, align_section, packed_section):
        assert "Nothing" in section(tmp_path)


def test_the_newest_cost_of_a_row_counts(tmp_path):
    line = {
        "task": "rte",
        "row": "rte-bit",
        "model": "bert",
        "batch": 8,
        "length": 128,
        "precision": "bf16",
    }
    line |= {"step_ms": 2.0, "epoch_seconds": 1.5, "time_ratio": 1.0, "peak_mib": 1000.0}
    line |= {"memory_ratio": None, "hardware": "a GPU", "torch": "2"}
    store(tmp_path, "glue_overhead.jsonl", line, {**line, "step_ms": 3.0})
    text = overhead_section(tmp_path)
    assert "| rte-bit | 128 | 8 | 3.00 | 1.5 | 1.000 | 1,000 | - |" in text
    assert text.count("| rte-bit |") == 1 and text.endswith("bert, bf16, a GPU, torch 2.\n")


def test_rows_of_a_task_stand_together(tmp_path):
    line = {"model": "bert", "batch": 8, "length": 128, "precision": "bf16", "memory_ratio": 1.0}
    line |= {"step_ms": 2.0, "epoch_seconds": 1.5, "time_ratio": 1.0, "peak_mib": 1000.0}
    line |= {"hardware": "a GPU", "torch": "2"}
    rows = (("rte", "rte-bit"), ("cola", "cola-bit"), ("rte", "rte-bit-surge"))
    lines = [{**line, "task": task, "row": row} for task, row in rows]
    store(tmp_path, "glue_overhead.jsonl", *lines)
    text = overhead_section(tmp_path)
    assert text.index("| rte-bit-surge |") < text.index("| cola-bit |")


def test_weights_of_the_alignment_loss_are_those_of_the_newest_held_out_runs(tmp_path):
    row = "mrpc-bit-surge-align"
    known = {"table": "glue", "recipe": f"glue-{row}", "epochs": 3, "metric": "accuracy"}
    known |= {"overrides": {"align": 10.0}, "data": "mrpc, held out, bert"}
    run = result(row, last=70.0, **known)
    lighter = replace(run, overrides={"align": 0.1}, last=69.0)
    other = replace(run, last=0.0)
    others = replace(other, metric="f1"), replace(other, data="mrpc, dev set, bert")
    lines = replace(run, last=60.0), run, *others, replace(run, overrides={}), lighter
    store(tmp_path, "glue.jsonl", *(asdict(line) for line in lines))
    assert align_section(tmp_path).splitlines()[2:] == [
        f"| {row} | 0.1 | 0 | 3 | accuracy | 69.00 | 70.25 |",
        f"| {row} | 10 | 0 | 3 | accuracy | 70.00 | 70.25 |",
    ]


def test_agreement_of_engine_and_torch(tmp_path):
    line = {"recipe": "glue-mrpc-bit", "sentences": 408, "same_class": 99.755}
    line |= {"same_logits": 97.5, "torch_accuracy": 70.1, "engine_accuracy": 70.2, "bytes": 3000000}
    store(tmp_path, "packed_bert.jsonl", line)
    wanted = "| mrpc-bit | 408 | 99.75 % | 97.50 % | 70.10 | 70.20 | 3,000,000 |"
    assert wanted in packed_section(tmp_path).replace("99.76", "99.75")


PAPER = dict(zip(COLUMNS, (77.3, 77.5, 87.1, 86.2, 88.6, 24.1, 71.7, 80.6, 60.6), strict=True))


def columns_of(method, **changes):
    """A run for every column of GLUE, with what the paper prints."""
    for column, score in PAPER.items():
        task = column.removesuffix("-mm")
        metric = "accuracy-mm" if column == "mnli-mm" else TASKS[task].metrics[0]
        row = f"{task}-{method}"
        known = {"table": "glue", "recipe": f"glue-{row}", "data": f"{task}, dev set, bert"}
        yield replace(result(row, last=score, **known), metric=metric, best=score, **changes)


def test_averages_are_over_9_columns_and_8_tasks():
    lines = averages_section([*columns_of("bit-surge"), *columns_of("bit", seed=1)][:-1])
    (row,) = lines.splitlines()[2:]
    assert row == "| bit-surge | dev set, bert | own | 72.63 | 72.04 | 72.63 | 72.04 | 1 |"


def test_averages_are_of_runs_of_one_kind():
    runs = list(columns_of("bit"))
    assert averages_section([*runs[:-1], replace(runs[-1], overrides={"epochs": 3})]) == ""
    assert averages_section([*runs[:-1], replace(runs[-1], data="rte, dev set, other")]) == ""
    assert averages_section([*runs[:-1], replace(runs[-1], overrides={"eta": 1.0})]) == ""


def test_metrics_that_do_not_decide_have_rows_of_their_own():
    known = {"table": "glue", "epochs": 3, "data": "mrpc, dev set, bert"}
    run = replace(result("mrpc-bit", last=70.0, **known), metric="accuracy")
    f1 = [replace(run, metric="f1", seed=seed, last=last) for seed, last in ((0, 1.0), (0, 80.0))]
    f1.append(replace(f1[0], seed=1, last=82.0))
    assert metrics_section([run]) == ""
    assert metrics_section([run, *f1]).splitlines()[2:] == [
        "| mrpc-bit | f1 | mrpc, dev set, bert | 3 | 81.00 +- 1.41 | 70.25 +- 0.00 | 2 |"
    ]
