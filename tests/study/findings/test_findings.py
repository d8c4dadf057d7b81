"""Verdicts about the paper's claims: they follow from the numbers, and causes from verdicts."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from surge.errors import ConfigError
from surge.recipes.variants import row_with
from surge.study.findings import claims, findings
from surge.study.findings.claims import CLAIMS
from surge.study.findings.cost_claims import COUNTED, THEOREM
from surge.study.findings.findings import NOT, OPEN, OPPOSITE, REPRODUCED, Finding, Stored, judged
from surge.study.results import append
from surge.study.statistics import Estimate, estimate
from surge.study.stored_runs import open_run
from tests.study.run_folders import write_glue, write_run
from tests.study.stored import common, result

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("values", "claimed", "verdict"),
    [
        ([0.5, 0.6, 0.7], 1, REPRODUCED),
        ([0.5, 0.6, 0.7], -1, OPPOSITE),
        ([-0.5, 0.6, 0.1], 1, NOT),
        ([0.5, 0.6], 1, OPEN),
    ],
)
def test_verdict_follows_from_the_interval(values, claimed, verdict):
    assert judged(estimate(values), "", claimed=claimed).verdict == verdict
    assert judged(None, "").verdict == OPEN


@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("claimed", [-1, 1])
def test_interval_that_ends_at_zero_decides_nothing(mean, claimed):
    assert judged(Estimate(3, mean, 0.2, abs(mean)), "", claimed=claimed).verdict == NOT


def test_rounding_of_a_difference_that_is_zero_is_not_shown():
    assert judged(estimate([0.3 - 0.1 - 0.2, 0.0, 0.0]), "").words.startswith("+0 [")


def test_gain_is_paired_by_seed_from_results(tmp_path):
    for seed in range(3):
        append(tmp_path, result("resnet20-recu", seed, 87.0 + seed))
        append(tmp_path, result("resnet20-recu-surge", seed, 87.6 + seed + 0.01 * seed))
    found = findings.gain("resnet20")(Stored(tmp_path, []))
    assert found.verdict == REPRODUCED
    assert found.words.startswith("+0.61 points [+0.585, +0.635], n = 3")


def test_gain_is_that_of_the_longest_training_with_pairs_enough(tmp_path):
    def store(seeds, epochs, difference):
        for seed in seeds:
            plain = replace(result("resnet18-recu", seed, 90.0), epochs=epochs)
            append(tmp_path, plain)
            gained = replace(plain, row="resnet18-recu-surge", last=90.0 + difference + 0.01 * seed)
            append(tmp_path, gained)

    def found():
        return findings.gain("resnet18")(Stored(tmp_path, []))

    store(range(1), 20, 0.3)
    store(range(1), 5, 0.9)
    assert found().words == "+0.30 points at 20 epochs (1 pair: too few)"
    store(range(3), 10, -1.0)
    store(range(1), 600, 0.5)
    assert found().words.startswith("-0.99 points at 10 epochs [")
    store(range(3), 200, 0.2)
    assert found().words.startswith("+0.21 points at 200 epochs [")
    store(range(1, 3), 600, 0.5)
    assert found().words.startswith("+0.51 points [") and found().verdict == REPRODUCED


def test_a_row_is_held_against_any_other(tmp_path):
    for seed in range(3):
        append(tmp_path, result("resnet20-recu-surge-dpgc", seed, 87.8 + 0.01 * seed))
        append(tmp_path, result("resnet20-recu-surge", seed, 88.0))
        append(tmp_path, result("resnet20-recu-surge", seed, 20.0, data="cifar10, held out"))
        append(tmp_path, result("resnet20-recu-surge", seed, 99.0, metric="top5"))
    found = findings.minus("resnet20-recu-surge", "resnet20-recu-surge-dpgc")
    assert found(Stored(tmp_path, [])).words.startswith("+0.19 points [")
    assert findings.gain("resnet20", "dpgc")(Stored(tmp_path, [])).verdict == OPEN


ABLATIONS = (
    *("DPGC without", "AGS adds", "Clipped", "Unclipped", "All gradients are better"),
    *("A fixed scale", "eta = 0.01 is best"),
)


def test_ablations_of_resnet20_are_found_whatever_their_length(tmp_path):
    variants = ("dpgc", "clipped", "unclipped", "delivered", "clipped-delivered")
    numbers = ("eta0.0001", "eta0.001", "eta0.1", "eta1", "fixed0.001", "fixed0.1", "fixed1")
    rows = ["resnet20-recu", *(row_with("resnet20-recu", v) for v in ("", *variants, *numbers))]
    for place, row in enumerate(rows):
        for seed in range(3):
            append(tmp_path, result(row, seed, 80.0 + place + 0.1 * seed * place, epochs=60))
    measured = {
        f.claim: f.measure(Stored(tmp_path, []))
        for f in claims.CLAIMS
        if f.claim.startswith(ABLATIONS)
    }
    assert len(measured) == 10 and OPEN not in {found.verdict for found in measured.values()}
    equal = measured["All gradients are better than clipped ones, at equal doses below the clamp"]
    assert equal.words.startswith("-1.1 points at 60 epochs")


def test_ablations_on_digits_are_measured_there(tmp_path):
    """A claim about ResNet-20 and the same on digits have the same rows behind their base."""
    found = [f for f in claims.CLAIMS if f.claim.startswith((*ABLATIONS, "The same (here: digits"))]
    stored = Stored(tmp_path, [])
    fields = {"table": "digits", "data": "digits, test set", "precision": "fp32", "epochs": 20}
    rows = {"": 90.0, "-surge": 91.0, "-surge-dpgc": 93.0, "-surge-clipped": 96.0}
    for row, last in rows.items():
        for seed in range(3):
            append(tmp_path, result(f"cnn-recu{row}", seed, last + seed * 0.1, **fields))
    words = [f.measure(stored).words for f in found[:6]]
    assert [text.split(" points")[0] for text in words[1::2]] == ["+3", "-2", "+6"]
    assert set(words[::2]) == {"nothing stored yet"}


def test_all_methods_together_are_one_value_for_each_seed(tmp_path):
    measure = findings.over_all_methods("common")
    assert measure(Stored(tmp_path, [])).verdict == OPEN
    for seed in range(3):
        for line in common(recu=(82.0, 82.5), bnn=(74.0, 75.5 + 0.1 * seed), seed=seed):
            append(tmp_path, line)
    found = measure(Stored(tmp_path, []))
    assert found.verdict == REPRODUCED
    assert found.words == "+1.05 points, 2 methods [+0.926, +1.17], n = 3"


def on_glue(tmp_path, row, last, seed=0, **fields):
    task = row.partition("-")[0]
    usual = {"table": "glue", "recipe": f"glue-{row}", "data": f"{task}, dev set, mini"}
    append(tmp_path, result(row, seed, last, **{**usual, "metric": "accuracy", **fields}))


def test_glue_is_paired_by_task_and_seed(tmp_path):
    stored = Stored(tmp_path, [])
    measure = findings.on_glue("bit-surge-align", "bit-surge", claimed=-1)
    assert measure(stored).verdict == OPEN
    for number, (task, seed) in enumerate((("mrpc", 0), ("mrpc", 1), ("rte", 0))):
        on_glue(tmp_path, f"{task}-bit-surge", 70.0, seed)
        on_glue(tmp_path, f"{task}-bit-surge-align", 69.0 - 0.01 * number, seed)
    for other in ({"epochs": 3}, {"metric": "f1"}, {"data": "rte, held out, mini"}):
        on_glue(tmp_path, "rte-bit-surge-align", 0.0, 1, **other)
    on_glue(tmp_path, "rte-bit-surge", 70.0, 1)
    limited, held_out = ({"data": f"rte, {d}"} for d in ("dev set, first 100", "held out, mini"))
    for other in (limited, held_out, {"epochs": 9, "overrides": {"batch": 8}}):
        for arm, last in (("bit-surge", 70.0), ("bit-surge-align", 0.0)):
            on_glue(tmp_path, f"rte-{arm}", last, **other)
    assert measure(stored).verdict == REPRODUCED
    assert measure(stored).words.startswith("-1.01 points [") and "n = 3" in measure(stored).words
    assert measure(stored).words.endswith("; Student's t over pairs")


def test_glue_within_a_fixed_time_is_paired_whatever_the_epochs(tmp_path):
    measure = findings.on_glue("bit-surge", "bit", budget=True)
    for seed in range(3):
        changed = {"overrides": {"budget": "900s"}}
        on_glue(tmp_path, "rte-bit", 60.0, seed, epochs=9, **changed)
        on_glue(tmp_path, "rte-bit-surge", 61.5 + 0.01 * seed, seed, epochs=7, **changed)
        on_glue(tmp_path, "rte-bit-surge", 10.0, seed)
    assert measure(Stored(tmp_path, [])).words.startswith("+1.51 points [")
    assert findings.on_glue("bit-surge", "bit")(Stored(tmp_path, [])).verdict == OPEN


def answered(tmp_path, row, share, seeds=(0, 1, 2), **options):
    """Runs that answer a share of 200 questions rightly, with their lines and their answers."""
    for seed in seeds:
        order = np.random.default_rng([seed, 1, *row.encode()]).permutation(200)
        answers = (order < 200 * share).astype(int)
        labels = np.ones(200, dtype=int)
        write_glue(tmp_path / "runs", row, seed, logits=answers, labels=labels, **options)
        line = {"data": f"{row.partition('-')[0]}, dev set, mini", "precision": "tf32"}
        line |= {"epochs": options.get("epochs", 20), "overrides": options}
        on_glue(tmp_path, row, 100 * share, seed, **line)


def test_glue_is_drawn_over_examples_and_seeds_where_all_answers_are_stored(tmp_path):
    measure = findings.on_glue("bit-surge", "bit")
    for task, gain in (("mrpc", 0.3), ("rte", 0.1)):
        answered(tmp_path, f"{task}-bit", 0.5)
        answered(tmp_path, f"{task}-bit-surge", 0.5 + gain)
    answered(tmp_path, "mrpc-bit", 0.5, (3, 4))
    answered(tmp_path, "mrpc-bit-surge", 0.8, (3, 4))
    found = measure(findings.read(tmp_path))
    # Tasks count alike, whatever their seeds: (30 + 10) / 2. Every seed gains the same, so that
    # Student's interval would have no width.
    assert found.words.startswith("+20 points [+1") and found.verdict == REPRODUCED
    assert found.words.endswith("n = 8; bootstrap over examples and seeds")
    fewer = findings.on_glue("bit-surge", "bit", claimed=-1)
    assert fewer(findings.read(tmp_path)).verdict == OPPOSITE
    (tmp_path / "runs" / "glue-rte-bit-seed1" / "predictions.npz").unlink()
    found = measure(findings.read(tmp_path))
    assert found.words.startswith("+22.5 points [") and found.words.endswith("t over pairs")


def test_glue_is_not_drawn_from_answers_of_other_runs_or_from_few_seeds(tmp_path):
    measure = findings.on_glue("bit-surge", "bit")
    for row, share in (("rte-bit", 0.5), ("rte-bit-surge", 0.7)):
        answered(tmp_path, row, share)
    assert measure(findings.read(tmp_path)).words.endswith("bootstrap over examples and seeds")
    on_glue(tmp_path, "rte-bit", 60.0, 1, data="rte, dev set, mini", precision="tf32", epochs=20)
    assert measure(findings.read(tmp_path)).words.endswith("Student's t over pairs")
    for row, share in (("mrpc-bit", 0.5), ("mrpc-bit-surge", 0.7)):
        answered(tmp_path / "few", row, share)
        answered(tmp_path / "few", row.replace("mrpc", "rte"), share, (0, 1))
    found = measure(findings.read(tmp_path / "few"))
    assert found.words.endswith("Student's t over pairs") and "n = 5" in found.words


def test_glue_within_a_fixed_time_is_drawn_too(tmp_path):
    answered(tmp_path, "rte-bit", 0.5, budget="900s", epochs=9)
    answered(tmp_path, "rte-bit-surge", 0.9, budget="900s", epochs=7)
    found = findings.on_glue("bit-surge", "bit", budget=True)(findings.read(tmp_path))
    assert found.words.startswith("+40 points [") and found.words.endswith("examples and seeds")
    assert findings.on_glue("bit-surge", "bit")(findings.read(tmp_path)).verdict == OPEN


def test_paired_runs_are_compared_seed_by_seed(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed, last=90.0 + seed)
        write_run(tmp_path, "digits-cnn-recu-surge", seed=seed, last=89.0 + seed - 0.01 * seed)
    runs = [open_run(path) for path in sorted(tmp_path.iterdir())]
    measure = claims.DIGITS.paired(lambda run: run.last)
    assert measure(Stored(tmp_path, runs)).verdict == OPPOSITE
    assert measure(Stored(tmp_path, [])).verdict == OPEN


def test_runs_of_other_length_are_no_pairs(tmp_path):
    for seed in range(3):
        write_run(tmp_path, seed=seed)
        write_run(tmp_path, "digits-cnn-recu-surge", seed=seed, epochs=10)
    runs = [open_run(path) for path in sorted(tmp_path.iterdir())]
    measure = claims.DIGITS.paired(lambda run: run.last)
    assert measure(Stored(tmp_path, runs)).words == "nothing stored yet"


def test_runs_with_other_arithmetic_are_no_pairs(tmp_path):
    rows = ("cifar10-resnet20-recu", "cifar10-resnet20-recu-surge")
    runs = [
        open_run(write_run(tmp_path, row, seed=seed, epochs=60)) for row in rows for seed in (0, 1)
    ]
    measure = claims.RESNET20.paired(lambda run: run.last)
    assert "2 pairs" in measure(Stored(tmp_path, runs)).words
    on_gpu = replace(runs[-1], environment={**runs[-1].environment, "device": "cuda"})
    assert "1 pair:" in measure(Stored(tmp_path, [*runs[:-1], on_gpu])).words


def recorded(tmp_path, values):
    """One run with SURGE for each value, the cosine and the best scale of its only layer."""
    runs = []
    for seed, value in enumerate(values):
        run = open_run(write_run(tmp_path, "digits-cnn-recu-surge", seed=seed))
        theorem = {"scale": 1.0, "paired": value, "paired_alignment": value}
        records = [
            {"epoch": 19, "layers": {"a": {"input_cosine": value}}, "theorem": {"a": theorem}}
        ]
        runs.append(replace(run, records=records))
    return Stored(tmp_path, runs)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.8, 0.81, 0.82], REPRODUCED),
        ([-0.8, -0.81, -0.82], OPPOSITE),
        ([-0.8, 0.8, 0.1], NOT),
        ([-0.01, 0.1, 0.2], NOT),
        ([0.8, 0.9, 1.0], NOT),
        ([0.8], OPEN),
        ([], OPEN),
    ],
)
def test_level_is_judged_by_its_interval(values, verdict, tmp_path):
    stored = recorded(tmp_path, values)
    found = claims.DIGITS.level("input_cosine", 1e-6, 1.0)(stored)
    assert found.verdict == verdict
    assert claims.DIGITS.level("paired_alignment", 1e-6, 1.0, part="theorem")(stored) == found
    # A seed counts once, a run without records not at all.
    bare = open_run(write_run(tmp_path, "digits-cnn-recu-surge", seed=9))
    twice = Stored(tmp_path, [*stored.runs, *stored.runs, bare])
    assert claims.DIGITS.level("input_cosine", 1e-6, 1.0)(twice) == found
    if len(values) == 1:
        assert found.words == "0.8 (1 run: too few)"
    if verdict == REPRODUCED:
        assert found.words == "0.81 [0.785, 0.835], n = 3 runs"


@pytest.mark.parametrize(
    ("best", "better", "positive", "verdict"),
    [(0.6, 100, 100, REPRODUCED), (0.4, 0, 100, NOT), (-1.0, 0, 0, NOT)],
)
def test_scale_is_near_its_optimum_where_it_is_better_than_none(
    best, better, positive, verdict, tmp_path
):
    found = claims.DIGITS.near_optimum(recorded(tmp_path, [best] * 3))
    assert found.verdict == verdict
    assert found.words.startswith(f"better than none in {better} % of layers and records")
    assert f"positive in {positive} %" in found.words
    one = claims.DIGITS.near_optimum(recorded(tmp_path / "one", [best]))
    assert one.verdict == OPEN and one.words.endswith("(1 run: too few)")


def test_toy_claims_count_their_answers(tmp_path):
    row = {
        "claim": "lower loss", "layer": "-", "first": "STE+SURGE", "second": "STE",
        "difference": -0.2, "low": -0.3, "high": -0.1, "n": 30, "shown_by": 22,
        "verdict": "supported",
    }  # fmt: skip
    (tmp_path / "toy-claims.json").write_text(json.dumps([row, {**row, "verdict": "opposite"}]))
    found = findings.toy("lower loss")(Stored(tmp_path, []))
    assert found.verdict == NOT and found.words.endswith("shown by 22, 22 of 30 seeds alone")
    with pytest.raises(ConfigError, match='no claim "taller"'):
        findings.toy("taller")(Stored(tmp_path, []))


def test_sweeps_need_three_seeds_each(tmp_path):
    measure = findings.best_eta("cifar10", "resnet20-recu-surge", 0.01)
    assert measure(Stored(tmp_path, [])).verdict == OPEN
    for seed in range(3):
        for eta, last in ((0.001, 87.0), (0.01, 88.0 + 0.1 * seed), (0.1, 86.0)):
            append(tmp_path, result("resnet20-recu-surge", seed, last, overrides={"eta": eta}))
        assert (measure(Stored(tmp_path, [])).verdict == OPEN) == (seed < 2)
    found = measure(Stored(tmp_path, []))
    assert found.verdict == REPRODUCED and "minus 0.001: +1.1 points" in found.words
    other = findings.best_eta("cifar10", "resnet20-recu-surge", 0.1)
    assert other(Stored(tmp_path, [])).verdict == OPPOSITE


def test_best_eta_within_the_spread_is_not_reproduced(tmp_path):
    for seed, last in enumerate((87.0, 89.0, 88.2)):
        append(tmp_path, result("resnet20-recu-surge", seed, last))
        for eta in (0.001, 0.1):
            append(tmp_path, result(f"resnet20-recu-surge-eta{eta}", seed, 88.0))
    assert (
        findings.best_eta("cifar10", "resnet20-recu-surge", 0.01)(Stored(tmp_path, [])).verdict
        == NOT
    )


def test_large_fixed_scales_are_held_against_the_adaptive_one(tmp_path):
    measure = findings.large_scale_hurts("cifar10", "resnet20-recu-surge", 0.05)
    for seed in range(3):
        append(tmp_path, result("resnet20-recu-surge", seed, 88.0))
    assert measure(Stored(tmp_path, [])).verdict == OPEN
    for seed in range(3):
        changed = {"fixed_scale": 0.5}
        append(tmp_path, result("resnet20-recu-surge", seed, 70.3 + 0.1 * seed, overrides=changed))
    found = measure(Stored(tmp_path, []))
    assert found.verdict == REPRODUCED and "0.5: -17.60" in found.words


def test_cause_is_shown_for_its_verdict_alone(tmp_path):
    for verdict, shown in ((NOT, True), (OPEN, False)):
        finding = Finding("a | b", findings.said("words", verdict), ((NOT, "because"),))
        text = findings.markdown(tmp_path, [finding])
        assert ("because" in text) == shown
        assert "a \\| b" in text


def test_page_needs_its_markers(tmp_path):
    with pytest.raises(ConfigError, match="findings.md needs one"):
        findings.renewed("no marker", tmp_path, CLAIMS)


def test_without_results_nothing_is_claimed(tmp_path):
    stored = [claim for claim in CLAIMS if claim not in (*COUNTED, *THEOREM)]
    verdicts = {claim.measure(Stored(tmp_path, [])).verdict for claim in stored}
    assert verdicts == {OPEN, findings.UNTESTABLE}
    assert asdict(CLAIMS[0].measure(Stored(tmp_path, [])))["words"] == "nothing stored yet"


def test_renewing_the_page_writes_its_table(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "findings.md"
    page.write_text(f"before\n{findings.BEGIN}old\n{findings.END}after\n")
    claims.renew(tmp_path)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert text.count("\n| ") == len(CLAIMS) + 2


@pytest.mark.parametrize(
    "figure",
    [
        *("87.8", "87.7", "87.6", "1.076 times the memory", "1.223 times the memory", r"SURGE\*"),
        *("71.2", "66.7", "4.1 times as fast", "1.7 MB", "13.4 MB", "16.61 MB", "1.63 x 10^8 OPs"),
        *("18.49 x 10^9 OPs", "closed form"),
    ],
)
def test_every_figure_of_the_paper_has_a_claim(figure):
    assert any(figure in claim.claim for claim in CLAIMS)


def test_page_is_what_is_stored_and_counted():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert findings.renewed(text, ROOT / "results", CLAIMS) == text, "run: make tables"
