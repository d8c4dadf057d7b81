"""The published differences on GLUE, from made-up runs."""

import shutil

import numpy as np
import pytest

from surge.errors import ConfigError
from surge.study.glue.bootstrap import Compared, draw, pooled
from surge.study.glue.glue_intervals import section
from surge.study.glue.predictions import read_predictions
from surge.study.stored_runs import open_run
from tests.study.run_folders import write_glue

SIZES = {"mrpc": 40, "rte": 30, "cola": 50, "mnli": 20}
LABELS = {task: np.random.default_rng(size).integers(0, 2, size) for task, size in SIZES.items()}


def put(root, row, seed=0, share=0.7, *, labels=None, **options):
    """A run that answers a share of its dev set rightly."""
    labels = LABELS[row.partition("-")[0]] if labels is None else labels
    generator = np.random.default_rng([seed, *row.encode()])
    right = generator.random(len(labels)) < share
    answers = np.where(right, labels, 1 - labels)
    return write_glue(root / "runs", row, seed, logits=answers, labels=labels, **options)


def pair(root, row, seeds=(0, 1, 2), share=0.8, base=None, **options):
    for seed in seeds:
        put(root, base or row.partition("-surge")[0], seed, **options)
        put(root, row, seed, share, **options)


def lines(root):
    """The cells of every line of the table."""
    text = section(root)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_nothing_stored(tmp_path):
    assert section(tmp_path) == "Nothing is stored yet.\n"
    put(tmp_path, "mrpc-bit")
    put(tmp_path, "rte-bit-surge")
    assert section(tmp_path) == "Nothing is stored yet.\n"


def test_a_pair_of_arms_has_a_line_per_task_and_one_for_all(tmp_path):
    for task, seeds in (("rte", (0, 1)), ("mrpc", (0, 1, 2)), ("cola", (4, 5))):
        pair(tmp_path, f"{task}-bit-surge", seeds)
    put(tmp_path, "rte-bit", 7)  # a seed that one arm has
    found = lines(tmp_path)
    assert [row[:6] for row in found] == [
        ["bit-surge minus bit", "cola", "dev set, mini", "50 epochs, tf32", "2", "50"],
        ["bit-surge minus bit", "mrpc", "dev set, mini", "20 epochs, tf32", "3", "40"],
        ["bit-surge minus bit", "rte", "dev set, mini", "20 epochs, tf32", "2", "30"],
        ["bit-surge minus bit", "all 3", "dev set, mini", "own epochs, tf32", "2 to 3", "120"],
    ]
    means = [float(row[6]) for row in found]
    assert means[3] == pytest.approx(np.mean(means[:3]), abs=0.01)
    text = section(tmp_path)
    assert text.endswith("\n10,000 draws of examples and seeds. Differences are in points.\n")


def test_a_line_is_the_bootstrap_of_its_runs(tmp_path):
    pair(tmp_path, "cola-bit-surge")
    arms = [
        np.stack(
            [
                read_predictions(open_run(tmp_path / "runs" / f"glue-{row}-seed{seed}")).answers
                for seed in range(3)
            ]
        )
        for row in ("cola-bit-surge", "cola-bit")
    ]
    labels = LABELS["cola"].astype(float)
    wanted = pooled([draw(Compared("cola", "matthews", labels, *arms))])
    ((*_, mean, interval),) = lines(tmp_path)
    assert mean == f"{wanted.mean:+.2f}" and wanted.mean > 1
    assert interval == "[{:+.2f}, {:+.2f}]".format(*wanted.interval)


def test_variants_and_other_students_are_held_against_their_own_base(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    for seed in range(3):
        put(tmp_path, "rte-bit-surge-tied", seed)
    pair(tmp_path, "rte-bibert-surge")
    pair(tmp_path, "mnli-binarybert-surge", labels=LABELS["mnli"])
    for row in ("rte-teacher", "rte-bnn", "rte-ternary"):
        put(tmp_path, row)
    assert [row[0] for row in lines(tmp_path)] == [
        "bibert-surge minus bibert",
        "binarybert-surge minus binarybert",
        "bit-surge minus bit",
        "bit-surge-tied minus bit",
    ]


def test_same_answers_have_an_interval_without_width(tmp_path):
    for seed in range(2):
        for row in ("rte-bit", "rte-bit-surge"):
            labels = LABELS["rte"]
            path = tmp_path / "runs"
            write_glue(path, row, seed, logits=np.roll(labels, seed + 1), labels=labels)
    ((*_, mean, interval),) = lines(tmp_path)
    assert (mean, interval) == ("+0.00", "[+0.00, +0.00]")


def test_one_seed_is_said(tmp_path):
    pair(tmp_path, "rte-bit-surge", (0,))
    assert lines(tmp_path)[0][-1].endswith("] (one seed: over examples only)")
    pair(tmp_path, "mrpc-bit-surge")
    both = lines(tmp_path)
    assert both[0][-1].endswith("]") and both[1][-1].endswith("(one seed: over examples only)")
    assert both[2][-1].endswith("] (one seed of rte: over examples only)")


@pytest.mark.parametrize(
    "options",
    [
        {"data": {"held_out": True}, "held_out": True},
        {"data": {"limit": 30}, "limit": 30},
        {"eta": 0.1},
        {"eta": 0.1, "budget": "9m"},
    ],
    ids=["held out", "limit", "changed", "changed within a time"],
)
def test_other_runs_are_left_out(tmp_path, options):
    pair(tmp_path, "rte-bit-surge", **options)
    assert section(tmp_path) == "Nothing is stored yet.\n"


def test_unfinished_runs_and_runs_without_answers_are_left_out(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    (tmp_path / "runs" / "glue-rte-bit-seed0" / "predictions.npz").unlink()
    cut = tmp_path / "runs" / "glue-rte-bit-surge-seed1" / "metrics.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(True)[:-1]))
    assert [row[4] for row in lines(tmp_path)] == ["1"]


def test_runs_within_a_time_stand_apart(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    for task in ("rte", "mrpc"):
        for number, row in enumerate((f"{task}-bit", f"{task}-bit-surge")):
            for seed in (0, 1):
                name = f"glue-{row}-in-time-{seed}"
                put(tmp_path, row, seed, name=name, budget="9m", epochs=7 - number)
    found = [(row[1], row[3], row[4]) for row in lines(tmp_path)]
    assert found == [
        ("rte", "20 epochs, tf32", "3"),
        ("mrpc", "within 9m, tf32", "2"),
        ("rte", "within 9m, tf32", "2"),
        ("all 2", "within 9m, tf32", "2"),
    ]


def test_other_networks_lengths_and_arithmetic_stand_apart(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    put(tmp_path, "rte-bit", 7, data={"tokenizer": "/berts/other"})
    put(tmp_path, "rte-bit-surge", 7)
    put(tmp_path, "rte-bit", 8, epochs=3)
    put(tmp_path, "rte-bit-surge", 8)
    put(tmp_path, "rte-bit", 9, device="cpu")
    put(tmp_path, "rte-bit-surge", 9)
    assert [row[4] for row in lines(tmp_path)] == ["3"]
    put(tmp_path, "rte-bit-surge", 8, epochs=3, name="glue-short")
    assert [row[3:5] for row in lines(tmp_path)] == [
        ["3 epochs, tf32", "1"],
        ["20 epochs, tf32", "3"],
    ]


def test_order_and_names_of_folders_do_not_matter(tmp_path):
    pair(tmp_path / "a", "rte-bit-surge")
    pair(tmp_path / "a", "mrpc-bit-surge")
    held = sorted((tmp_path / "a" / "runs").iterdir())
    for number, path in enumerate(held):
        shutil.copytree(path, tmp_path / "b" / "runs" / f"glue-{len(held) - number:02d}")
    assert section(tmp_path / "a") == section(tmp_path / "b")


def test_a_run_that_is_stored_twice_is_refused(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    held = tmp_path / "runs"
    shutil.copytree(held / "glue-rte-bit-seed0", held / "glue-rte-bit-seed0-again")
    with pytest.raises(ConfigError, match="glue-rte-bit-seed0-again are the same run of glue-rte"):
        section(tmp_path)


def test_runs_of_different_dev_sets_are_refused(tmp_path):
    put(tmp_path, "rte-bit")
    put(tmp_path, "rte-bit-surge", labels=1 - LABELS["rte"])
    with pytest.raises(ConfigError, match="glue-rte-bit-seed0/predictions.npz are not of the same"):
        section(tmp_path)


def test_damaged_file_stops_the_page_and_is_named(tmp_path):
    pair(tmp_path, "rte-bit-surge")
    path = tmp_path / "runs" / "glue-rte-bit-seed1" / "predictions.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="glue-rte-bit-seed1/predictions.npz does not hold"):
        section(tmp_path)
