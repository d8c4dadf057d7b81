"""The table of what rounding does to a test."""

import json

from surge.study.findings import rounding

LINE = {"fp32": 90.0, "bf16": 91.0, "draws": [90.0, 92.0], "other_bf16": 5.0}


def write(folder, **rows):
    lines = [
        json.dumps({**LINE, "other_draws": [3.0, 4.0], "recipe": f"cifar10-{name}", **row})
        for name, row in rows.items()
    ]
    with (folder / "rounding.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")


def test_a_run_has_a_row_and_a_pair_a_difference(tmp_path):
    write(tmp_path, recu={}, **{"recu-surge": {"fp32": 80.0}})
    write(tmp_path, **{"recu-surge": {"fp32": 90.5, "bf16": 90.75, "draws": [90.0, 90.0]}})
    head, _, plain, surge, pair = rounding.section(tmp_path).splitlines()
    assert "2 draws" in head
    assert plain == "| cifar10-recu | 90.00 | 91.00 | 91.00 +- 1.41 | 5.0 % | 3.5 % |"
    assert surge.startswith("| cifar10-recu-surge | 90.50 | 90.75 | 90.00 +- 0.00 |")
    assert pair == "| cifar10-recu-surge minus plain | +0.50 | -0.25 | -1.00 | | |"


def test_without_results_there_is_a_head_alone(tmp_path):
    assert len(rounding.section(tmp_path).splitlines()) == 2
