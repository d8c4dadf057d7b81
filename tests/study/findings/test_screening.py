"""Variants against plain training and the control: pairs, the choice, the picture."""

import csv
from dataclasses import replace

import pytest

from surge.recipes import get_recipe
from surge.recipes.variants import row_with
from surge.study import results
from surge.study.findings import screening
from surge.study.results import Result

ONE = Result(
    table="cifar10",
    row=screening.PLAIN,
    recipe=f"cifar10-{screening.PLAIN}",
    overrides={"epochs": 60, "held_out": True},
    seed=0,
    epochs=60,
    data=screening.HELD_OUT,
    precision="bf16",
    metric="top1",
    last=80.0,
    best=80.5,
    seconds=90.0,
    hardware="a GPU",
    torch="2",
    commit=None,
)


def store(folder, gains, seeds=range(screening.PAIRS)):
    """Store plain runs and variants that differ from them by a gain and by a little per seed."""
    for seed in seeds:
        plain = replace(ONE, seed=seed, last=80.0 + 0.3 * seed)
        results.append(folder, plain)
        for variant, gain in gains.items():
            wobble = 0.1 * ((seed * 7 + len(variant)) % 3 - 1)
            row, last = row_with(screening.PLAIN, variant), plain.last + gain + wobble
            results.append(folder, replace(plain, row=row, last=last, delivered=0.01))


def found(folder):
    return {c.variant: c for c in screening.candidates(folder)}


def test_every_variant_is_paired_with_plain_training_and_with_the_control(tmp_path):
    store(tmp_path, {"": 0.0, "leaky": 0.5, "tied": 0.8})
    tied, leaky = found(tmp_path)["tied"], found(tmp_path)["leaky"]
    assert tied.over_plain.n == 6 and tied.over_plain.mean == pytest.approx(0.8, abs=0.1)
    assert tied.over_control.mean == pytest.approx(0.3, abs=0.1)
    assert leaky.over_control is None and tied.delivered == 0.01
    assert found(tmp_path)["bias"].over_plain is None


def test_other_runs_do_not_count(tmp_path):
    store(tmp_path, {"tied": 0.8})
    row = row_with(screening.PLAIN, "tied")
    for other in (
        replace(ONE, row=row, data="cifar10, test set", last=0.0),
        replace(ONE, row=row, epochs=600, last=0.0),
        replace(ONE, row=row, overrides={"eta": 0.5}, last=0.0),
    ):
        results.append(tmp_path, other)
    assert found(tmp_path)["tied"].over_plain.n == 6
    assert found(tmp_path)["tied"].last.mean > 80


def test_nothing_is_chosen_before_all_have_their_seeds(tmp_path):
    every = dict.fromkeys(screening.VARIANTS, 0.1) | {"tied": 0.9, "noise": 2.0, "": 2.0}
    store(tmp_path, every, seeds=range(5))
    assert screening.best(screening.candidates(tmp_path)) is None
    store(tmp_path, every, seeds=[5])
    assert screening.best(screening.candidates(tmp_path)).variant == "tied"
    assert "training: **tied**." in screening.section(tmp_path)


def test_what_cannot_be_chosen_does_not_hold_up_the_choice(tmp_path):
    store(tmp_path, dict.fromkeys(set(screening.VARIANTS) - {"noise"}, 0.1) | {"tied": 0.9})
    assert screening.best(screening.candidates(tmp_path)).variant == "tied"
    assert "**tied**. Pairs still missing: noise 6." in screening.section(tmp_path)


def test_what_was_chosen_is_shown_with_its_runs_on_the_test_set(tmp_path):
    assert "Nothing is chosen" in screening.confirmed(tmp_path)
    store(tmp_path, dict.fromkeys(screening.VARIANTS, 0.1) | {"tied": 0.9})
    tested = replace(ONE, overrides={}, epochs=600, data="cifar10, test set")
    for seed in range(3):
        results.append(tmp_path, replace(tested, seed=seed, last=87.0 + seed))
        row = row_with(screening.PLAIN, "tied")
        results.append(tmp_path, replace(tested, row=row, seed=seed, last=87.5 + seed))
    plain, paper, tied = screening.confirmed(tmp_path).splitlines()[2:]
    assert plain.startswith(f"| {screening.PLAIN} | 600 |") and "| 88.00 +- 1.00 |" in plain
    assert paper.endswith("| open | open | 0 | open |") and "+0.50 [+0.50, +0.50]" in tied


def test_the_control_may_be_the_best(tmp_path):
    store(tmp_path, dict.fromkeys(screening.VARIANTS, -0.5) | {"leaky": 0.4})
    assert screening.best(screening.candidates(tmp_path)).variant == screening.CONTROL


def test_table_shows_open_cells_and_single_pairs(tmp_path):
    *lines, _, why = screening.section(tmp_path).splitlines()
    assert len(lines) == 2 + len(screening.VARIANTS) and lines[2].count("open") == 4
    assert why.startswith("Nothing is chosen before all have 6 pairs; missing: surge 6, leaky 6, ")
    store(tmp_path, {"tied": 0.8}, seeds=[0])
    (tied,) = (line for line in screening.section(tmp_path).splitlines() if "| tied |" in line)
    assert "(1 pair)" in tied and tied.endswith("| open |") and "| 1.00 |" in tied


def test_picture_has_its_numbers_beside_it(tmp_path):
    picture = tmp_path / screening.PICTURE
    assert screening.renew(tmp_path, tmp_path) == [] and not picture.exists()
    store(tmp_path, {"": 0.0, "leaky": 0.5, "tied": 0.8})
    screening.renew(tmp_path, tmp_path)
    assert picture.stat().st_size > 10_000 and str(screening.PICTURE) in screening.section(tmp_path)
    with picture.with_suffix(".csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert rows["tied"]["pairs_control"] == "6" and rows["leaky"]["minus_control"] == ""
    results_file = tmp_path / "cifar10.jsonl"
    results_file.unlink()
    screening.renew(tmp_path, tmp_path)
    assert not picture.exists()


def test_picture_needs_two_variants_of_two_pairs(tmp_path):
    for number, (variants, seeds) in enumerate(((1, 2), (2, 1), (2, 2))):
        gains = dict.fromkeys(("leaky", "tied")[:variants], 0.5)
        store(tmp_path / str(number), gains, seeds=range(seeds))
        drawn = screening.drawn(screening.candidates(tmp_path / str(number)))
        assert drawn == (variants == seeds == 2)


def test_what_lies_beyond_the_picture_is_written_in_it(tmp_path):
    store(tmp_path, {"leaky": 0.5, "bias": -14.0})
    left, right = screening.draw(screening.candidates(tmp_path)).axes
    assert left.get_xlim() == (-screening.SHOWN, screening.SHOWN)
    (words,) = (text.get_text() for text in left.texts if "[" in text.get_text())
    assert words == "-14.0 [-14.1, -13.9]"
    assert sum("[" in text.get_text() for text in right.texts) == 1


def test_every_variant_is_a_row_that_can_be_trained():
    for variant in screening.VARIANTS:
        row = row_with(screening.PLAIN, variant)
        assert get_recipe(f"cifar10-{row}").row == row
