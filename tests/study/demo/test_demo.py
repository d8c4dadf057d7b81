"""What the demo needs, and its page."""

import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from surge.errors import ConfigError, MissingDependencyError
from surge.study.bench.timing import Timing
from surge.study.demo import demo, demo_engine, demo_page
from surge.study.demo.demo import check_ready, digits_recipes, digits_rows, paired
from surge.study.demo.demo_engine import Served, Shipping
from surge.study.learning import BAND, Run, make_rows
from surge.study.report.page import Badge, Section, Table, Tiles, render
from surge.study.statistics import estimate, spread
from surge.study.tables import TableRow
from surge.study.theory import toy
from surge.study.theory.toy_claims import judge

Usage = namedtuple("Usage", "total used free")


def table_row(row, last, differences=()):
    by_seed = dict(enumerate(differences))
    return TableRow(row, 20, "digits", None, estimate(last), estimate(last), by_seed)


def served(name, size, micros):
    return Served(name, size, 97.5, Timing((micros / 1e6,) * 3))


SHIPPING = Shipping(
    (
        served("Float in torch", 115_368, 160.0),
        served("Float in onnxruntime", 132_998, 24.0),
        served("Binary, packed", 11_552, 12.0),
    ),
    Path("out/recu.surge"),
    97.49,
    359,
)


def findings(shipping=SHIPPING):
    options = toy.ToyOptions(seeds=2, steps=40, inputs=2, hidden=5)
    logs = toy.run_study(options)
    metrics = [{"test_top1": 90.0 + n, "train_loss": 1.0, "flips": 1.0} for n in range(3)]
    report, cost = demo.example_network()
    return demo_page.Findings(
        options=options,
        logs=logs,
        claims=judge(logs),
        table=[
            table_row("cnn-bnn", [90.0, 91.0]),
            table_row("cnn-bnn-surge", [91.5, 92.75], [1.5, 1.75]),
        ],
        runs=[Run("STE", 0, metrics), Run("STE+SURGE", 0, metrics)],
        report=report,
        cost=cost,
        environment={
            "command": "surge demo --out <here>",
            "torch": "2.13",
            "hardware": "a CPU",
            "commit": "abc",
            "dirty": True,
        },
        workers=2,
        seconds=61.4,
        shipping=shipping,
    )


@pytest.fixture(scope="module")
def sections():
    return demo_page.make_sections(findings())


def blocks(sections, title, kind):
    (found,) = [section for section in sections if section.title == title]
    assert isinstance(found, Section)
    return [block for block in found.blocks if isinstance(block, kind)]


def test_ready_where_everything_is_there(tmp_path):
    check_ready(tmp_path / "not" / "yet" / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "name"), [("matplotlib", "matplotlib"), ("sklearn.datasets", "scikit-learn")]
)
def test_missing_package_is_named_with_its_install_command(tmp_path, monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"needs {name}: pip install .*\[demo\]"):
        check_ready(tmp_path)


def test_full_disk_is_said_before_anything_is_made(tmp_path, monkeypatch):
    asked = []

    def usage(path):
        asked.append(Path(path))
        return Usage(10**9, 10**9, 42_000_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ConfigError, match="only 42 MB are free"):
        check_ready(tmp_path / "out" / "deep")
    assert asked == [tmp_path] and list(tmp_path.iterdir()) == []


def test_out_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_ready(tmp_path / "file" / "out")


def test_recipes_are_those_of_the_table_and_can_be_shortened():
    assert [recipe.row for recipe in digits_recipes(None)] == list(demo.ARMS)
    assert {recipe.train.epochs for recipe in digits_recipes(None)} == {20}
    assert {recipe.train.epochs for recipe in digits_recipes(2)} == {2}


def test_cells_say_mean_spread_and_paired_interval():
    assert spread(None) is None and paired(None) is None
    assert spread(estimate([97.0])) == "97.00"
    assert paired(estimate([0.5])) == "+0.50 (one pair)"
    assert paired(estimate([1.0, 2.0, 3.0])) == "+2.00 [-0.48, +4.48]"


def test_verdict_needs_the_whole_interval_on_one_side():
    pairs = {"better": [1.0, 1.1, 1.2], "worse": [-1.0, -1.1, -1.2], "no difference shown": [1, -1]}
    rows = digits_rows([table_row("cnn-bnn-surge", [90.0], values) for values in pairs.values()])
    assert [row["verdict"] for row in rows] == list(pairs)
    assert digits_rows([table_row("cnn-bnn", [90.0])])[0]["verdict"] is None
    assert digits_rows([table_row("cnn-bnn-surge", [90.0], [5.0])])[0]["verdict"] == (
        "no difference shown"
    )


def test_page_has_the_numbers_of_the_digits(sections):
    (table,) = blocks(sections, "Real digits", Table)
    assert table.rows[1]["last"] == "92.12 ± 0.88"
    assert table.rows[1]["difference"] == "+1.62 [+0.04, +3.21]"
    assert table.rows[1]["verdict"] == Badge("better", "good")
    (tiles,) = blocks(sections, "At a glance", Tiles)
    assert tiles.tiles["STE+SURGE, test accuracy"] == "92.1 %"
    assert tiles.tiles["of the weights are one bit"] == "96.8 %"


def test_one_seed_is_said_to_have_no_interval():
    one = replace(findings(), table=[table_row("cnn-bnn-surge", [90.0], [5.0])])
    (table,) = [block for block in demo_page._digits(one) if isinstance(block, Table)]
    assert "One seed is one pair: it has no interval" in table.caption
    assert "95 %" not in table.caption and "±" not in table.caption


def test_accuracy_below_the_axis_is_mentioned():
    def note(*values):
        epochs = [{"test_top1": value, "train_loss": 1.0, "flips": 1.0} for value in values]
        return demo_page._learning_picture(make_rows([Run("STE", 0, epochs)]), "accuracy").note

    assert note(30.0, 94.0, 95.0, 96.0, 96.0) == f"{BAND}; what is below 90.0 % is not shown"
    assert note(95.0, 95.0, 96.0, 96.0) == BAND


def test_page_answers_every_claim(sections):
    (table,) = blocks(sections, "Toy problem", Table)
    assert len(table.rows) == 26
    assert all(isinstance(row["verdict"], Badge) for row in table.rows)


def test_page_shows_what_became_binary_and_what_it_costs(sections):
    made, cost = blocks(sections, "The network", Table)
    assert {"layer": "features.conv2", "kind": "Conv2d", "weights": 9216, "verdict": "binary"} in (
        made.rows
    )
    report, summary = demo.example_network()
    assert cost.rows[-1]["bytes"] == summary.bytes and made.caption in str(report)


def test_page_names_its_command_and_environment(sections):
    text = render("t", sections)
    for words in ("surge demo --out &lt;here&gt;", "abc with changes", "a CPU", "61 s in all"):
        assert words in text
    assert "2 runs at a time" in text and not [w for w in ("http:", "https:") if w in text]


def test_page_shows_the_packed_network_beside_float(sections):
    (tiles,) = blocks(sections, "At a glance", Tiles)
    assert tiles.tiles["smaller as a file than float"] == "10.0 ×"  # than the smaller file
    assert tiles.tiles["as fast as the faster float"] == "2.0 ×"
    (table,) = blocks(sections, "As one file", Table)
    assert [row["bytes"] for row in table.rows] == ["115,368", "132,998", "11,552"]
    said = render("title", [section for section in sections if section.title == "As one file"])
    assert "2.0 times as fast as the faster of the float ones" in said
    assert "97.50 % against 97.49 % in torch" in said
    assert "surge bench infer out/recu.surge" in said


def test_page_says_when_the_packed_network_is_slower_or_was_not_run():
    slow = replace(SHIPPING, served=(*SHIPPING.served[:2], served("Binary, packed", 11_552, 48.0)))
    assert "2.0 times slower than the faster of the float ones" in demo_engine.sentence(slow)
    none = Shipping(path=Path("x.surge"), missing="load_packed needs the engine: pip install ...")
    assert "was written but not run: load_packed needs the engine" in demo_engine.sentence(none)
    blocks_without = demo_page._shipping(none)
    assert not [block for block in blocks_without if isinstance(block, Table)]
