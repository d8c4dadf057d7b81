"""Tables of training steps."""

import json
from dataclasses import asdict, replace

from surge.study import speed_table
from surge.study.training_speed import Row

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
