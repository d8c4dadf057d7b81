"""The table of costs, and that of the loaders, from stored lines."""

import json
from dataclasses import asdict, replace

import pytest

from surge.recipes import get_recipe, overridden
from surge.study.bench import cost_table
from surge.study.bench.training_networks import NETWORKS
from surge.study.bench.training_speed import Row
from surge.study.published import loader_table, pages
from surge.study.results import Result, data_name

STEP = Row(
    "reactnet-224",
    "plain",
    "captured",
    256,
    20.0,
    12_800,
    4 * 10**9,
    1,
    1,
    None,
    "GPU X",
    "2",
    None,
)
RUN = Result(
    *("imagenette", "onestage-reactnet-surge", "imagenette-onestage-reactnet-surge"),
    *(dict(cost_table.CHANGES), 0, 10, cost_table.DATA, "bf16", "top1"),
    *(55.0, 60.0, 9.0, "GPU X", "2", None),
)


def store(folder, name, *lines):
    with (folder / f"{name}.jsonl").open("a") as file:
        file.writelines(
            json.dumps(line if isinstance(line, dict) else asdict(line)) + "\n" for line in lines
        )


def cells(text, row):
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_rows_are_those_of_known_networks_and_recipes():
    for row in cost_table.ROWS:
        recipe = overridden(get_recipe(f"imagenette-{row.row}"), dict(cost_table.CHANGES))
        assert data_name(recipe) == cost_table.DATA and recipe.train.batch == cost_table.BATCH
        network = NETWORKS[row.network]
        assert (network.method, network.batch) == (recipe.method.name, cost_table.BATCH)
        assert (recipe.surge is not None) == (row.variant != "plain")


def test_everything_is_open_without_lines(tmp_path):
    text = cost_table.section(tmp_path)
    assert cells(text, "ReActNet") == ["open"] * 9
    assert cells(text, "SURGE, literal") == ["-", "-", "open", "open"] * 2 + ["open"]
    assert "No step is stored yet" in text


def test_cells_are_the_stored_steps_beside_reactnets(tmp_path):
    store(
        tmp_path,
        "training",
        STEP,
        replace(STEP, batch=512, step_ms=40.0),
        replace(STEP, width=2, step_ms=70.0),
        replace(STEP, variant="surge", step_ms=25.0, peak_bytes=5 * 10**9),
        replace(STEP, network="rbonn-224", step_ms=22.0, peak_bytes=None),
        replace(STEP, variant="literal", mode="eager", step_ms=60.0),
    )
    text = cost_table.section(tmp_path)
    assert cells(text, "ReActNet")[:2] == ["20.00", "1.00"]
    surge = ["25.00", "1.25", "open", "open", "5,000", "1.25", "open", "open", "open"]
    assert cells(text, "SURGE") == surge
    assert cells(text, "RBONN")[4:6] == ["open", "open"]
    assert cells(text, "SURGE, literal")[2:4] == ["60.00", "-"]
    assert "in times that of: time 1.25 ReActNet, 1.14 RBONN; memory 1.25 ReActNet." in text
    assert "One GPU X" in text


def test_steps_of_two_versions_are_not_compared(tmp_path):
    old, new = replace(STEP, commit="old"), replace(STEP, commit="new", step_ms=10.0)
    pointwise = replace(old, variant="1x1", step_ms=30.0)
    ours = [replace(step, variant="surge", step_ms=25.0) for step in (old, new)]
    bireal = replace(new, network="resnet18-224", step_ms=8.0)
    newest = replace(bireal, commit="newest", step_ms=7.0)
    rbonn = replace(old, network="rbonn-224", step_ms=22.0)
    store(tmp_path, "training", old, new, pointwise, *ours, bireal, newest, rbonn)
    text = cost_table.section(tmp_path)
    assert cells(text, "SURGE")[:2] == ["25.00", "2.50"]
    assert cells(text, "SURGE* (1x1)")[:2] == ["30.00", "1.50"]
    assert cells(text, "Bi-Real")[:2] == ["8.00", "0.80"]  # the newest that can be compared
    assert "time 3.12 Bi-Real, 2.50 ReActNet; memory" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": {"epochs": 10, "size": 224}},
        {"overrides": {**cost_table.CHANGES, "lr": 1.0}},
        {"data": "imagenette, test set, 128 px"},
        {"data": f"{cost_table.DATA}, first 10"},
        {"metric": "top5"},
    ],
)
def test_other_runs_have_no_place_in_it(tmp_path, changes):
    store(tmp_path, "imagenette", replace(RUN, **changes))
    assert cells(cost_table.section(tmp_path), "SURGE")[-1] == "open"


def test_literal_run_has_a_cell_of_its_own(tmp_path):
    literal = replace(RUN, overrides={**RUN.overrides, "form": "literal"}, last=54.0)
    store(tmp_path, "imagenette", RUN, replace(RUN, seed=1, last=57.0), literal)
    text = cost_table.section(tmp_path)
    assert cells(text, "SURGE")[-1] == "56.00" and cells(text, "SURGE, literal")[-1] == "54.00"


def test_runs_at_224_pixels_are_never_mixed_with_those_at_128(tmp_path):
    own = replace(RUN, overrides={"epochs": 10}, data="imagenette, test set, 128 px", last=40.0)
    store(tmp_path, "imagenette", own, RUN)
    assert "224" not in pages.stored_table("imagenette", tmp_path)
    store(tmp_path, "imagenette", replace(RUN, overrides={"epochs": 10, "size": 224}, last=50.0))
    text = pages.stored_table("imagenette", tmp_path)
    for size, last in ((128, "40.00"), (224, "50.00")):
        row = f"| onestage-reactnet-surge | imagenette, test set, {size} px | 10 | - | {last} |"
        assert row in text


def test_loaders_stand_beside_what_the_steps_eat(tmp_path):
    assert "open" in loader_table.section(tmp_path)
    line = {"what": "files", "table": "imagenette", "size": 224, "batch": 256, "workers": 8}
    line |= {"images_per_s": 3200.0, "hardware": "GPU X", "torch": "2", "commit": None}
    squares = {**line, "what": "squares on the device", "workers": 0, "images_per_s": 64_000.0}
    store(tmp_path, "loader", {**line, "images_per_s": 1.0}, line, squares)
    assert cells(loader_table.section(tmp_path), "files") == ["8", "3,200", "open", "open"]
    store(tmp_path, "training", STEP, replace(STEP, batch=512, images_per_s=1.0))
    text = loader_table.section(tmp_path)
    assert cells(text, "files") == ["8", "3,200", "0.25", "open"]
    assert cells(text, "squares on the device") == ["-", "64,000", "5.00", "open"]
    assert "ReActNet eats 12,800 images a second" in text
