"""What the measured rows say, and the table that is published from them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from surge.errors import ConfigError
from surge.study.bench import latency, latency_figures, latency_table
from surge.study.bench.latency import NEEDED, Row, Step

ROOT = Path(__file__).parents[3]


def row(engine, median, network="net", **more):
    facts = {"hardware": "a CPU", "commit": "abc", "size": 224, **more}
    return Row(network, engine, 1, median, 1.2 * median, 1000, **facts)


ROWS = [
    row("surge", 4.0),
    row("surge int8", 3.0),
    row("onnxruntime fp32", 24.0),
    row("onnxruntime int8", 3.5),
    row("openvino binary", 5.0),
]
STEPS = [
    Step("stem", "conv2d", 30.0),
    Step("a", "binary_conv2d", 50.0),
    Step("b", "binary_conv2d", 10.0),
    Step("pool", "max_pool", 10.0),
]


def test_rows_have_what_everybody_needs():
    assert set(NEEDED) <= set(asdict(ROWS[0]))


def test_shown_compares_with_onnxruntime():
    ratios = {line["engine"]: line["ratio"] for line in latency.shown(ROWS)}
    assert ratios["surge"] == "6.00" and ratios["onnxruntime fp32"] == "1.00"
    assert latency.shown(ROWS[:2])[0]["ratio"] is None


def test_remarks_say_where_binary_loses_and_why():
    said = latency.remarks(ROWS, STEPS, [16, 64, 64])
    assert "6.00x as fast as onnxruntime fp32, 1.25x as fast as openvino binary" in said[0]
    assert said[1] == "Binary loses: onnxruntime int8 is 1.14x as fast as the packed network."
    assert "40 % of its time is spent outside the binary layers, most in stem (conv2d)" in said[2]
    assert "1 of 3 binary layers have fewer than 64 input channels (16 at least)" in said[3]
    assert len(said) == 4


def test_remarks_are_short_where_binary_wins():
    wins = [one for one in ROWS if one.engine != "onnxruntime int8"]
    assert len(latency.remarks(wins, STEPS, [16])) == 1
    assert latency.remarks(ROWS[:1]) == []


def test_remarks_warn_of_a_busy_machine():
    times = {"surge": 2.0, "onnxruntime fp32": 8.0, "openvino binary": 3.0}
    rows = [
        replace(one, load=5.0, processor_ms=times[one.engine])
        for one in ROWS
        if one.engine in times
    ]
    said = latency.remarks(rows)[1]
    assert "busy (load 5.0)" in said
    assert "it is 4.00x onnxruntime fp32 and 1.50x of openvino binary" in said
    calm = [replace(one, load=1.2) for one in rows]
    assert len(latency.remarks(calm)) == 1


def test_remarks_warn_of_a_wrong_answer():
    wrong = [replace(ROWS[0], difference=0.5), *ROWS[2:3]]
    assert "Beware: surge differs from torch by 50 %" in latency.remarks(wrong)[-1]


def test_by_kind_adds_up_and_sorts():
    assert latency.by_kind(STEPS) == {"binary_conv2d": 60.0, "conv2d": 30.0, "max_pool": 10.0}


def test_stored_rows_come_back_and_newer_ones_replace_older(tmp_path):
    latency.append(tmp_path, ROWS)
    assert latency.read(tmp_path) == ROWS
    other = row("surge", 9.0, network="other")
    latency.append(tmp_path, [replace(ROWS[0], median_ms=2.0), other])
    found = latency.read(tmp_path)
    assert len(found) == len(ROWS) + 1
    assert {r.median_ms for r in found if r.engine == "surge"} == {2.0, 9.0}


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "inference.jsonl").write_text('{"network": "x"}\n')
    with pytest.raises(ConfigError, match="line 1 is not a result"):
        latency.read(tmp_path)


def test_section_has_a_row_per_setting_and_an_open_one_for_arm(tmp_path):
    latency.append(tmp_path, [*ROWS, row("surge", 1.5, network="one", layers=8)])
    lines = latency_table.section(tmp_path).splitlines()
    assert "| *a CPU* |" in lines[2]
    assert lines[3] == (
        "| net | 1 | 4.000 | 3.000 | 24.000 | 3.500 | - | - | 5.000 | 6.00 | 1.25 |"
    )
    assert lines[4] == "| one | 1 | 1.500 | - | - | - | - | - | - | - | - |"
    assert "an ARM board" in lines[5] and lines[6].count("open") == 9
    assert lines[-1].startswith("Files: net 0.00 MB in fp32")


def test_section_shows_processor_times_where_the_machine_was_busy(tmp_path):
    calm = [
        replace(ROWS[0], processor_ms=4.0, load=1.25),
        replace(ROWS[2], processor_ms=20.0, load=1.25),
    ]
    latency.append(tmp_path, calm)
    busy = [replace(one, network="busy", load=6.0) for one in calm]
    latency.append(tmp_path, busy)
    section = latency_table.section(tmp_path)
    assert "| net | 1 | 4.000 | - | 24.000 | - | - | - | - | 6.00 | - |" in section
    assert "| busy | 1 | 4.000 p | - | 20.000 p | - | - | - | - | 5.00 | - |" in section
    assert "Load of the machine: 1.2 to 6.0." in section


def test_json_holds_the_profile_of_the_packed_network():
    rows = latency.as_json(ROWS, {"net": STEPS})
    assert [("profile" in one) for one in rows] == [True, False, False, False, False]
    assert json.loads(json.dumps(rows))[0]["profile"][0]["micros"] == 30.0


def test_figures_show_every_engine_and_every_step():
    figure = latency_figures.draw(ROWS, STEPS, "net")
    engines, steps = figure.axes
    assert [label.get_text() for label in engines.get_yticklabels()] == [r.engine for r in ROWS]
    assert len(steps.patches) == len(STEPS)
    assert len(latency_figures.draw(ROWS, [], "net").axes) == 1


def test_many_steps_are_summed_up():
    many = [Step(f"s{n}", "conv2d", float(n)) for n in range(60)]
    _, axes = latency_figures.draw(ROWS, many, "net").axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == latency_figures.MOST_STEPS and labels[-1] == "37 others (other)"
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(sum(range(60)))


def test_growth_is_said_for_pixels_and_batch():
    rows = [
        replace(row("surge", 2.0), size=112),
        replace(row("surge", 8.4), size=224),
        replace(row("surge", 33.0), size=224, batch=4),
    ]
    assert latency.growth(rows) == [
        "4.0 times the pixels take 4.2 times as long.",
        "4.0 times the batch take 3.9 times as long.",
    ]
    assert latency.growth([replace(one, size=None, batch=1) for one in rows]) == []
    busy = [replace(one, load=5.0, processor_ms=float(one.batch)) for one in rows]
    assert latency.growth(busy)[1] == "4.0 times the batch take 4.0 times as long."


def test_sweep_figure_draws_sizes_and_batches():
    rows = [
        replace(row(engine, 1.0 + size / 100), size=size, batch=batch)
        for engine in ("surge", "onnxruntime fp32")
        for size, batch in ((96, 1), (224, 1), (224, 4))
    ]
    assert len(latency_figures.draw_sweep(rows, "net").axes) == 2
    fixed = [replace(one, size=None) for one in rows]
    assert len(latency_figures.draw_sweep(fixed, "net").axes) == 1
