"""Tables of training steps."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from surge.study import figures
from surge.study.bench import speed_figures, speed_sweeps, speed_table
from surge.study.bench.training_speed import Row

ROOT = Path(__file__).parents[3]
PLAIN = Row("resnet20", "plain", "captured", 256, 2.0, 128_000, 100, 50, 10**9, 0.4, "X", "2", None)
SURGE = replace(PLAIN, variant="surge", step_ms=2.5, images_per_s=102_400, peak_bytes=110)
LITERAL = replace(PLAIN, variant="literal", mode="eager", step_ms=40.0, images_per_s=6_400)


def test_line_compares_with_plain_of_its_mode_and_with_the_paper_form():
    cells = speed_table.line(SURGE, [PLAIN, SURGE, LITERAL])
    assert cells["time / plain"] == "1.250" and cells["memory / plain"] == "1.100"
    assert cells["literal / this"] == "16.00" and cells["images/s"] == "102,400"
    assert speed_table.line(LITERAL, [PLAIN, SURGE, LITERAL])["time / plain"] == "-"


def test_line_alone_compares_with_nothing():
    cells = speed_table.line(replace(SURGE, peak_bytes=None, floor_ms=None), [SURGE])
    assert {cells[name] for name in ("time / plain", "literal / this", "peak MB")} == {"-"}
    assert cells["floor ms"] == "-"


def test_line_compares_with_its_own_width():
    wide = replace(PLAIN, width=2, step_ms=5.0)
    rows = [PLAIN, wide, SURGE, replace(SURGE, width=2, step_ms=5.5)]
    assert [speed_table.line(row, rows)["time / plain"] for row in rows[2:]] == ["1.250", "1.100"]


@pytest.mark.parametrize("other", [{"commit": "b"}, {"hardware": "Y"}, {"torch": "3"}])
def test_steps_of_other_code_or_another_machine_are_not_compared(other):
    rows = [PLAIN, replace(PLAIN, step_ms=1.0, **other), SURGE]
    assert speed_table.line(SURGE, rows)["time / plain"] == "1.250"
    assert speed_table.line(SURGE, rows[1:])["time / plain"] == "-"
    assert speed_table.over_plain(rows[1:], "resnet20") == {}


def test_rows_of_before_widths_still_read(tmp_path):
    old = {name: value for name, value in asdict(PLAIN).items() if name != "width"}
    rows = [old, asdict(replace(PLAIN, width=2)), asdict(replace(PLAIN, width=2, step_ms=7.0))]
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(r.width, r.step_ms) for r in speed_table.read(tmp_path)] == [(1, 2.0), (2, 7.0)]


def store(folder, rows):
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    (folder / "training.jsonl").write_text(text)


def swept():
    """Plain and SURGE at three batches and two widths, and one eager step."""
    rows = []
    for batch, width in ((64, 1), (256, 1), (512, 1), (256, 2)):
        for row, factor in ((PLAIN, 1.0), (SURGE, 1.2)):
            ms = factor * batch * width / 100
            rows.append(replace(row, batch=batch, width=width, step_ms=ms))
    return [*rows, LITERAL]


def test_section_shows_the_own_batch_and_width_alone(tmp_path):
    store(tmp_path, swept())
    section = speed_table.section(tmp_path)
    assert section.count("**resnet20, batch 256**") == section.count("**") / 2 == 1
    assert section.count("| surge |") == 1 and "| 3.07 |" in section and "6.14" not in section
    assert speed_table.over_plain(speed_table.everything(tmp_path), "resnet20") == {
        ("surge", "captured"): pytest.approx(1.2)
    }


def test_steps_are_compared_with_those_of_their_own_code(tmp_path):
    newer = replace(PLAIN, step_ms=1.0, commit="b")
    store(tmp_path, [replace(PLAIN, step_ms=9.0), PLAIN, SURGE, newer])
    stored = speed_table.everything(tmp_path)
    assert speed_table.read(tmp_path) == [newer, SURGE]
    assert speed_table.line(SURGE, stored)["time / plain"] == "1.250"
    assert speed_table.over_plain(stored, "resnet20") == {("surge", "captured"): 1.25}
    assert "| 1.250 |" in speed_table.section(tmp_path)


def test_sweeps_have_a_table_each_and_a_picture(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    store(results, swept())
    section = speed_table.sweeps_section(results)
    by_batch, by_width = section.split("**resnet20 against the width, captured, batch 256**")
    assert "**resnet20 against the batch, captured, width 1**" in by_batch
    assert "| batch | plain, ms | surge, ms | surge / plain |" in by_batch
    assert "| 64 | 0.64 | 0.77 | 1.200 |" in by_batch and "literal" not in section
    assert "| 2 | 5.12 | 6.14 | 1.200 |" in by_width and "| 64 |" not in by_width
    picture, numbers = speed_figures.renew(results, docs)
    assert picture == docs / "images" / "step-cost.png" and 5_000 < picture.stat().st_size < 150_000
    assert f"](images/{picture.name})" in section
    lines = numbers.read_text().splitlines()
    assert lines[0].startswith("against,network,variant,mode,batch,width,step_ms")
    assert sum(line.startswith("batch,resnet20") for line in lines) == 6
    assert sum(line.startswith("width,resnet20") for line in lines) == 4


def test_without_a_sweep_there_is_no_picture(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    store(results, swept())
    speed_figures.renew(results, docs)
    store(results, [PLAIN, SURGE, LITERAL])
    assert speed_figures.renew(results, docs) == []
    assert not list((docs / "images").iterdir())
    assert speed_table.sweeps_section(results) == "Nothing is stored yet.\n"


def test_a_sweep_with_a_hole_says_so():
    rows = [row for row in swept() if (row.variant, row.batch) != ("plain", 64)]
    by_batch, _ = speed_sweeps.compared(rows)
    assert "| 64 | - | 0.77 | - |" in speed_sweeps.table(by_batch)


def test_a_sweep_is_of_one_version_of_the_code():
    newer = [replace(row, commit="newer", step_ms=9.0) for row in swept() if row.batch == 256]
    by_batch, by_width = speed_sweeps.compared([*swept(), *newer])
    assert 9.0 not in {row.step_ms for row in by_batch.rows}
    assert {row.step_ms for row in by_width.rows} == {9.0}  # the newer one has all of these


def test_pictures_of_sweeps_begin_at_zero():
    figure = speed_figures.draw_sweeps(speed_sweeps.compared(swept()))
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert (axes.get_xlim()[0], axes.get_ylim()[0]) == (0, 0)
        assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")


def test_section_shows_the_newest_of_each_kind(tmp_path):
    assert speed_table.section(tmp_path) == "Nothing is stored yet.\n"
    lines = [PLAIN, replace(SURGE, step_ms=9.0), SURGE]
    text = "".join(json.dumps(asdict(row)) + "\n" for row in lines)
    (tmp_path / "training.jsonl").write_text(text)
    section = speed_table.section(tmp_path)
    assert section.count("| surge |") == 1 and "| 9.00 |" not in section
    assert "**resnet20, batch 256**" in section and section.endswith(
        "One X, torch 2, bf16 autocast.\n"
    )


def test_published_numbers_are_what_is_stored(tmp_path):
    published = ROOT / "docs" / speed_table.PICTURE
    found = speed_sweeps.compared(speed_table.everything(ROOT / "results"))
    assert published.exists() == published.with_suffix(".csv").exists() == bool(found)
    if found:
        made = figures.write_csv(speed_figures.numbers(found), tmp_path / "made.csv")
        shown = published.with_suffix(".csv").read_text()
        assert made.read_text() == shown, "run: make tables"
