"""Differences of the ends of runs: windows, pairs, what is left out."""

import json
from dataclasses import replace

import pytest

from surge.study.findings import tails
from surge.study.stored_runs import open_run
from tests.study.run_folders import write_run

ROW = "cifar10-resnet20-recu"


def write(root, row, seed, ends):
    """A run of 600 epochs whose last tests are given."""
    path = write_run(root / "runs", row, seed=seed, epochs=600)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line, value in zip(lines[-len(ends) :], ends, strict=True):
        if value is None:
            del line["test_top1"]
        else:
            line["test_top1"] = value
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return open_run(path)


def test_tail_is_the_mean_of_the_tests_in_the_window(tmp_path):
    run = write(tmp_path, ROW, 0, [80.0, None, 82.0, 90.0])
    assert tails.tail(run, 1) == 90.0
    assert tails.tail(run, 2) == 86.0
    assert tails.tail(run, 4) == 84.0
    untested = write(tmp_path, ROW, 1, [80.0, None])
    assert tails.tail(untested, 1) is None


def test_differences_are_paired_by_seed(tmp_path):
    for seed in range(3):
        write(tmp_path, ROW, seed, [80.0 + seed] * 50)
        write(tmp_path, f"{ROW}-surge", seed, [80.5 + seed] * 49 + [83.0 + seed + 0.1 * seed])
    write(tmp_path, f"{ROW}-surge", 7, [10.0] * 50)
    plain, surge = (
        [open_run(tmp_path / "runs" / f"{row}-seed{seed}") for seed in seeds]
        for row, seeds in ((ROW, range(3)), (f"{ROW}-surge", (0, 1, 2, 7)))
    )
    last, long = (tails.difference(surge, plain, n) for n in (1, 50))
    assert (last.n, last.mean) == (3, pytest.approx(3.1))
    assert tails.difference([*surge, *surge], [*plain, *plain], 1) == last  # a seed counts once
    assert long.mean == pytest.approx(0.5 + 2.6 / 50)
    (row,) = tails.section(tmp_path).splitlines()[2:]
    assert row.startswith("| resnet20-recu-surge | +3.10 [") and row.count("(3 pairs)") == 4


def test_pairs_have_the_same_arithmetic(tmp_path):
    plain, surge = write(tmp_path, ROW, 0, [80.0]), write(tmp_path, f"{ROW}-surge", 0, [81.0])
    on_gpu = replace(plain, environment={**plain.environment, "device": "cuda"})
    assert tails.difference([surge], [on_gpu], 1) is None
    assert tails.difference([surge], [plain, on_gpu], 1).mean == 1.0


def test_nothing_stored_and_no_pair(tmp_path):
    assert tails.section(tmp_path) == "Nothing is stored yet.\n"
    write(tmp_path, f"{ROW}-surge", 0, [80.0])
    write_run(tmp_path / "runs", ROW, epochs=600, done=599)  # it is not finished
    assert tails.section(tmp_path).splitlines()[2].count("| open ") == 4
