"""The table of runs that were given a time: pairs, machines, what is left out."""

import pytest

from surge.study.glue import fixed_time
from surge.study.results import append
from tests.study.stored import result


def timed(row, seed=0, last=70.0, given="60s", **fields):
    """One run of a fixed time."""
    task = row.partition("-")[0]
    usual = {"table": "glue", "recipe": f"glue-{row}", "data": f"{task}, dev set, mini"}
    usual |= {"metric": "accuracy", "overrides": {"budget": given}, "steps": 900, "epochs": 2}
    return result(row, seed, last, **{**usual, **fields})


def rows_of(*runs):
    return [line[2:-2].split(" | ") for line in fixed_time.table(runs).splitlines()[2:]]


def test_arms_are_paired_by_seed_whatever_their_steps():
    runs = [timed("mrpc-bit", seed, 70.0 + seed, steps=900 + seed) for seed in range(3)]
    runs += [
        timed("mrpc-bit-surge", seed, 71.0 + seed, steps=700, epochs=1) for seed in (0, 1, 2, 3)
    ]
    plain, surged = rows_of(*reversed(runs))
    where = "mrpc, dev set, mini"
    assert plain[:4] == ["mrpc-bit", where, "60s", "900 to 902"]
    assert plain[4:] == ["71.00 +- 1.00", "71.25 +- 1.00", "3", "-"]
    assert surged[3:4] + surged[6:] == ["700", "4", "+1.00 [+1.00, +1.00] (3 pairs)"]


def test_rows_are_in_the_order_of_tasks_then_machines_below_a_head_of_their_width():
    runs = [
        timed("mrpc-bit"),
        timed("sst2-bit", hardware="B"),
        timed("sst2-bit-surge", hardware="A"),
    ]
    assert [row[0] for row in rows_of(*runs)] == ["sst2-bit-surge", "sst2-bit", "mrpc-bit"]
    assert {line.count("|") for line in fixed_time.table(runs).splitlines()} == {9}


@pytest.mark.parametrize(
    "other",
    [{"given": "61s"}, {"hardware": "slower"}, {"data": "mrpc, dev set, base"}, {"seed": 1}],
)
def test_what_was_not_given_the_same_is_no_pair(other):
    for mine, theirs in (({}, other), (other, {})):
        rows = rows_of(timed("mrpc-bit", **theirs), timed("mrpc-bit-surge", **mine))
        (surged,) = (row for row in rows if row[0] == "mrpc-bit-surge")
        assert surged[-1] == "open"


@pytest.mark.parametrize(
    "fields",
    [
        {"overrides": {}},
        {"overrides": {"epochs": 3}},
        {"overrides": {"budget": "60s", "align": 0.1}},
        {"metric": "f1"},
        {"recipe": "glue-gone"},
    ],
)
def test_other_runs_are_left_out(fields):
    assert fixed_time.table([timed("mrpc-bit", **fields)]) == ""


def test_newest_run_of_a_seed_counts_and_one_test_in_many_epochs_changes_nothing():
    changed = {"overrides": {"budget": "60s", "test_epochs": 5}}
    ((*_, last, _, n, _),) = rows_of(timed("mrpc-bit"), timed("mrpc-bit", last=60.0, **changed))
    assert (last, n) == ("60.00", "1")


def test_tasks_and_times_have_an_order():
    runs = [timed(row, given=t) for t in ("900s", "60s") for row in ("rte-bit-surge", "rte-bit")]
    shown = [(row[0], row[2]) for row in rows_of(*runs, timed("mrpc-bit"))]
    assert shown == [
        ("mrpc-bit", "60s"),
        *(("rte-bit", "60s"), ("rte-bit-surge", "60s")),
        *(("rte-bit", "900s"), ("rte-bit-surge", "900s")),
    ]


def test_published_are_runs_on_whole_dev_sets(tmp_path):
    assert fixed_time.section(tmp_path) == "Nothing is stored yet.\n"
    for data in ("mrpc, held out, mini", "mrpc, dev set, mini, first 40"):
        append(tmp_path, timed("mrpc-bit", data=data))
    assert fixed_time.section(tmp_path) == "Nothing is stored yet.\n"
    append(tmp_path, timed("mrpc-bit"))
    text = fixed_time.section(tmp_path)
    assert text.count("| mrpc-bit |") == 1
    assert text.endswith("\n1 stored run on H200, torch 2.11.0, bf16.\n")
