"""The page about runs: none, half of one, one with NaN, fifty; and what its numbers are."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from surge.cli import main
from surge.recipes.serial import dump
from surge.recipes.voc import shortened, with_backbone
from surge.study.probe.probe_figures import Sheet
from surge.study.report import run_page, run_tables
from surge.study.report.page import Badge, Text, render
from surge.study.report.run_costs import costs_of
from surge.study.stored_runs import one_per_seed, open_run, store, without_surge
from tests.study.report.test_page import Page
from tests.study.run_folders import write_run
from tests.test_convert import tiny_bert


def page_of(paths):
    runs = [open_run(path) for path in paths]
    text = render(run_page.TITLE, run_page.make_sections(runs), lead=run_page.lead(runs))
    Page(text)
    return text


def test_page_without_runs_says_what_to_do():
    text = page_of([])
    assert "no run was given" in text
    assert "surge train digits-cnn-recu-surge" in text


def test_half_finished_run_is_shown_and_in_no_mean(tmp_path):
    paths = [write_run(tmp_path, done=7), write_run(tmp_path, seed=1)]
    text = page_of(paths)
    assert "7 of 20 epochs" in text
    assert run_tables.final_estimate([open_run(path) for path in paths]).n == 1


def test_run_without_an_epoch_is_shown(tmp_path):
    text = page_of([write_run(tmp_path, done=0)])
    assert "no epoch yet" in text


def test_run_with_nan_says_where_and_the_page_holds_none(tmp_path):
    path = write_run(tmp_path, bad=4)
    text = page_of([path])
    assert "not finite in epoch 5" in text
    assert "Not finite: digits-cnn-recu-seed0." in text
    assert "NaN" not in text.split("<script>")[0]
    assert run_tables.state(open_run(path)) == Badge("not finite in epoch 5", "bad")


def test_epochs_without_a_test_are_no_failure_and_lines_pass_over_them(tmp_path):
    path = write_run(tmp_path, done=8)
    file = path / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if (row["epoch"] + 1) % 3:
            del row["test_top1"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = open_run(path)
    assert run_tables.state(run) == Badge("8 of 20 epochs")
    assert run.last == rows[5]["test_top1"]
    (curve,) = run_page.chart([run]).curves
    values = curve.values["test_top1"]
    assert [epoch for epoch, value in enumerate(values) if value is not False] == [2, 5]
    page_of([path])


def test_networks_without_a_comparison_are_named_where_figures_leave_them_out(tmp_path):
    lengths = {"a": ("recu", 1), "b": ("recu-surge", 1), "c": ("recu-surge", 2), "d": ("recu", 5)}
    paths = [
        write_run(tmp_path / name, f"digits-cnn-{row}", epochs=epochs)
        for name, (row, epochs) in lengths.items()
    ]
    left_out = "Not in the figures over all networks"
    text = page_of(paths)
    assert f"{left_out}, as nothing is there to compare with: digits-cnn-2ep, digits-cnn-5ep." in (
        text
    )
    assert "After the last epoch: digits cnn, 1 epoch" in text
    assert left_out not in page_of(paths[:2]) and left_out not in page_of(paths[2:])


def test_panels_that_find_no_room_are_named():
    rows = [
        {"network": f"digits-cnn-{epochs}ep", "arm": arm, "seed": 0, "value": 90.0}
        for epochs in range(1, 11)
        for arm in ("digits-cnn-recu", "digits-cnn-recu-surge")
    ]
    blocks = run_page._pictures([Sheet("final-metric", "", rows)], 6)
    (said,) = [block.text for block in blocks if isinstance(block, Text)]
    assert said.endswith("FOLDER: digits cnn, 9 epochs; digits cnn, 10 epochs.")


def test_fifty_runs_stay_below_five_megabytes(tmp_path):
    rows = ("cifar10-resnet20-recu", "cifar10-resnet20-recu-surge")
    paths = [
        write_run(tmp_path, row, seed=seed, epochs=600, last=87 + 0.01 * seed)
        for row in rows
        for seed in range(25)
    ]
    text = page_of(paths)
    assert len(text) < 5e6
    assert "50 runs of 2 recipes" in text
    assert text.count("surge train cifar10-resnet20-recu") >= 50


def test_paired_interval_uses_the_seeds_that_both_have(tmp_path):
    ours = [2.0, 1.0, 3.0]
    base = [write_run(tmp_path, seed=seed, last=90.0) for seed in range(4)]
    surge = [
        write_run(tmp_path, "digits-cnn-recu-surge", seed=seed, last=90.0 + gain)
        for seed, gain in enumerate(ours)
    ]
    found = run_tables.paired([open_run(p) for p in surge], [open_run(p) for p in base])
    assert (found.n, found.mean) == (3, pytest.approx(2.0))
    assert found.half_width == pytest.approx(2.484, abs=1e-3)
    text = page_of([*base, *surge])
    assert "+2.00 [-0.48, +4.48]" in text
    assert "within noise" in text


def test_runs_of_other_length_are_not_paired(tmp_path):
    base = open_run(write_run(tmp_path, epochs=10))
    ours = open_run(write_run(tmp_path, "digits-cnn-recu-surge"))
    assert run_tables.paired([ours], [base]) is None


def test_changed_settings_make_another_arm(tmp_path):
    run = open_run(write_run(tmp_path, "digits-cnn-recu-surge", eta=0.1))
    assert run.arm == "digits-cnn-recu-surge eta=0.1"
    assert without_surge(run.arm) == "digits-cnn-recu"
    assert run_page.command(run) == "surge train digits-cnn-recu-surge --seed 0 --eta 0.1"


def test_layers_have_bars_of_bits_and_operations(tmp_path):
    text = page_of([write_run(tmp_path)])
    assert "<td>features.conv2</td><td>1/1</td>" in text
    assert '<i style="width:100.00%; background:var(--orange)"></i><span>18,432</span>' in text


def test_network_that_cannot_be_built_is_said(tmp_path):
    text = page_of([write_run(tmp_path, "glue-rte-teacher", epochs=3)])
    assert "Not counted: the BERT of this run is not at hand." in text


def test_a_bert_that_is_at_hand_is_counted_with_its_attention(tmp_path):
    tiny_bert().save_pretrained(tmp_path / "bert")
    recipe = open_run(write_run(tmp_path, "glue-mrpc-bit", epochs=3)).recipe
    model = replace(recipe.model, options={"path": str(tmp_path / "bert")})
    recipe = replace(recipe, model=model, data=replace(recipe.data, length=8))
    (cost,) = costs_of([recipe]).values()
    assert sum(row.name.endswith(".attention.self") and row.macs > 0 for row in cost.rows) == 2


def test_networks_for_photos_are_counted_at_the_size_they_see(tmp_path):
    recipe = open_run(write_run(tmp_path, "imagenette-twostage-reactnet", epochs=3)).recipe
    small = replace(recipe, data=replace(recipe.data, size=64))
    (cost,), (less,) = (list(costs_of([r]).values()) for r in (recipe, small))
    assert less.bytes == cost.bytes and less.ops < cost.ops


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("glue-mrpc-bit-surge", "--model DIR --teacher RUN"),
        ("glue-mrpc-binarybert", "--model DIR --teacher RUN --start RUN"),
        ("imagenette-twostage-reactnet", "--teacher RUN --start RUN"),
        ("voc-float", ""),
    ],
)
def test_command_to_repeat_names_what_a_run_builds_on(tmp_path, row, words):
    run = open_run(write_run(tmp_path, row))
    assert run_page.command(run) == f"surge train {row} --seed 0 {words}".rstrip()


def test_command_to_repeat_names_the_short_form_and_the_backbone(tmp_path):
    run = open_run(write_run(tmp_path, "voc-float"))
    run = replace(run, recipe=with_backbone(shortened(run.recipe), "/weights/net.pth"))
    expected = "surge train voc-float --seed 0 --short --backbone /weights/net.pth"
    assert run_page.command(run) == expected


def test_command_to_repeat_can_be_pasted_where_a_path_has_a_space(tmp_path):
    run = open_run(write_run(tmp_path, "voc-float"))
    run = replace(run, recipe=with_backbone(run.recipe, "/my weights/net.pth"))
    assert run_page.command(run).endswith(" --backbone '/my weights/net.pth'")


def test_time_of_recording_is_shown_where_it_is_known(tmp_path):
    run = open_run(write_run(tmp_path))
    assert "recording" not in run_tables.runs_table([run]).columns
    recorded = replace(run, records=[{"epoch": 0, "seconds": 0.2, "layers": {}}] * 3)
    table = run_tables.runs_table([run, recorded])
    assert [row["recording"] for row in table.rows] == [None, "2.00"]
    assert table.columns["recording"] == "recording, %"


def test_names_cannot_leave_the_data_of_a_chart(tmp_path):
    path = write_run(tmp_path, eta="</script><b>")
    text = page_of([path])
    assert "</script><b>" not in text


def test_kept_runs_are_the_runs_without_checkpoints(tmp_path):
    path = write_run(tmp_path / "runs")
    (path / "checkpoints").mkdir()
    kept = store(path, tmp_path / "kept")
    assert not (kept / "checkpoints").exists()
    assert open_run(kept).epochs == open_run(path).epochs


def test_report_command_writes_page_and_figures(tmp_path, capsys):
    path = write_run(tmp_path)
    out = tmp_path / "there" / "page.html"
    figures = tmp_path / "figures"
    kept = tmp_path / "kept"
    words = ["--out", str(out), "--figures", str(figures), "--keep", str(kept)]
    assert main(["report", str(path), *words]) == 0
    assert str(out) in capsys.readouterr().out
    assert open_run(kept / path.name).epochs == open_run(path).epochs
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert (figures / "final-metric.csv").read_text().splitlines() == [
        "network,arm,seed,value",
        "digits-cnn-20ep,digits-cnn-recu,0,96.0",
    ]
    assert (figures / "flip-rate.png").exists()


def test_report_keeps_no_run_over_another(tmp_path, capsys):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    words = ["--keep", str(tmp_path / "kept"), "--out", str(tmp_path / "page.html")]
    assert main(["report", str(first), str(second), *words]) == 2
    assert "Two runs would be kept as" in capsys.readouterr().err
    assert main(["report", str(first), "--keep", str(first.parent), *words[2:]]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists() and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("below", ["", "kept"])
def test_report_keeps_no_run_inside_itself(tmp_path, capsys, below):
    path = write_run(tmp_path)
    words = ["--keep", str(path / below), "--out", str(tmp_path / "page.html")]
    assert main(["report", str(path), *words]) == 2
    assert f"would copy {path} into itself" in capsys.readouterr().err
    assert not (path / path.name).exists() and not (path / "kept").exists()


def test_report_leaves_out_damaged_runs_of_a_folder_and_names_them(tmp_path, capsys):
    write_run(tmp_path / "runs")
    damaged = write_run(tmp_path / "runs", seed=1)
    (damaged / "config.yaml").write_text("garbage")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    assert f"left out: {damaged / 'config.yaml'}" in capsys.readouterr().out
    assert "1 run of 1 recipe" in page.read_text()
    page.unlink()
    assert main(["report", str(tmp_path / "runs"), str(damaged), "--out", str(page)]) == 2
    assert str(damaged / "config.yaml") in capsys.readouterr().err and not page.exists()


def test_report_of_a_folder_of_damaged_runs_alone_is_refused(tmp_path, capsys):
    damaged = write_run(tmp_path / "runs")
    (damaged / "env.json").write_text("{")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 2
    assert "damaged config.yaml or env.json" in capsys.readouterr().err and not page.exists()


@pytest.mark.parametrize("name", ["nope", "file.html"])
def test_report_refuses_results_that_are_no_folder(tmp_path, capsys, name):
    (tmp_path / "file.html").write_text("")
    page, where = tmp_path / "page.html", tmp_path / name
    words = ["--results", str(where), "--out", str(page)]
    assert main(["report", str(write_run(tmp_path / "runs")), *words]) == 2
    assert f"--results {where} is no folder" in capsys.readouterr().err and not page.exists()


def test_report_command_refuses_what_is_no_run(tmp_path, capsys):
    bench = tmp_path / "bench"
    bench.mkdir()
    assert main(["report", str(bench), "--out", str(tmp_path / "page.html")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("given", ["*", ""])
def test_report_takes_all_runs_of_a_folder_and_leaves_out_the_rest(tmp_path, capsys, given):
    root = tmp_path / "runs"
    for seed in (0, 1):
        write_run(root, seed=seed)
    (root / "bench").mkdir()
    page = tmp_path / "page.html"
    paths = sorted(root.glob(given)) if given else [root]
    assert main(["report", *map(str, paths), "--out", str(page)]) == 0
    assert "2 runs of 1 recipe" in page.read_text()
    assert (f"left out, as no runs are in: {root / 'bench'}" in capsys.readouterr().out) is bool(
        given
    )


def test_report_refuses_a_folder_as_its_page(tmp_path, capsys):
    assert main(["report", str(write_run(tmp_path)), "--out", str(tmp_path)]) == 2
    assert "is a folder; name a file" in capsys.readouterr().err


def test_report_refuses_a_path_that_is_not_there(tmp_path, capsys):
    paths = [str(write_run(tmp_path)), str(tmp_path / "nope")]
    assert main(["report", *paths, "--out", str(tmp_path / "page.html")]) == 2
    assert "nope is not the folder of a run: nothing is there" in capsys.readouterr().err


def test_report_without_runs_asks_for_some(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", "--out", str(page)]) == 2
    assert "Which runs?" in capsys.readouterr().err and not page.exists()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.2, "2.2 s"), (90.0, "1.5 min"), (5400.0, "1.5 h")]
)
def test_time_of_training_has_a_unit_that_fits(tmp_path, seconds, shown):
    run = replace(open_run(write_run(tmp_path)), epochs=[{"epoch": 0, "seconds": seconds}])
    (tiles,) = run_page.make_sections([run])[0].blocks
    assert tiles.tiles["of training"] == shown


def test_best_epochs_of_runs_that_are_tested_within_epochs_are_explained(tmp_path):
    note = "tested within epochs"
    assert note not in page_of([write_run(tmp_path)])
    assert note in page_of([write_run(tmp_path, "glue-rte-teacher", epochs=3)])


def test_tables_give_seconds_with_one_digit_and_none_where_none_were_taken(tmp_path):
    runs = [
        open_run(write_run(tmp_path, seed=seed, done=done)) for seed, done in enumerate((20, 0))
    ]
    assert [row["seconds"] for row in run_tables.runs_table(runs).rows] == ["30.0", None]


def test_a_float_network_is_not_called_smaller_than_itself(tmp_path):
    assert "times less than fp32" in page_of([write_run(tmp_path)])
    assert "times less than fp32" not in page_of([write_run(tmp_path, "digits-cnn-float")])


def on_part(path, **changed):
    """Write into a run's config what part of the data it was tested on; return the path."""
    run = open_run(path)
    recipe = replace(run.recipe, data=replace(run.recipe.data, **changed))
    path.joinpath("config.yaml").write_text(dump(recipe))
    return path


def compared_rows(paths):
    (table,) = run_tables.compared([open_run(path) for path in paths])
    return table.rows


RESNET20 = "cifar10-resnet20-recu"


def test_what_runs_were_tested_on_is_said_and_kept_apart(tmp_path):
    whole = write_run(tmp_path / "a", RESNET20, epochs=60, last=82.8)
    held_out = on_part(write_run(tmp_path / "b", RESNET20, epochs=60, last=82.4), held_out=True)
    first = on_part(write_run(tmp_path / "c", RESNET20, epochs=60, last=50.0), limit=100)
    words = ["test set", "held out", "test set, first 100"]
    rows = compared_rows([whole, held_out, first])
    assert [row["data"] for row in rows] == words
    assert [row["last"] for row in rows] == ["82.80", "82.40", "50.00"]
    runs = [open_run(path) for path in (whole, held_out, first)]
    assert [row["data"] for row in run_tables.runs_table(runs).rows] == words
    text = page_of([whole, held_out, first])
    for part in words:
        assert f"{RESNET20}, {part}, 60 epochs, n = 1: best at the end" in text
        assert f"{RESNET20}, {part}, seed 0" in text


def test_runs_of_other_image_sizes_are_kept_apart(tmp_path):
    row = "imagenette-onestage-bireal"
    small = on_part(write_run(tmp_path / "a", row, last=70.0), size=128)
    large = on_part(write_run(tmp_path / "b", row, seed=1, last=80.0), size=224)
    assert [r["last"] for r in compared_rows([small, large])] == ["70.00", "80.00"]


@pytest.mark.parametrize(
    ("changed", "data", "paper"),
    [
        ({}, {}, "87.4"),
        ({}, {"held_out": True}, None),
        ({}, {"limit": 100}, None),
        ({"lr": 0.2}, {}, None),
    ],
)
def test_papers_figure_stands_beside_runs_of_the_whole_test_set_alone(
    tmp_path, changed, data, paper
):
    path = on_part(write_run(tmp_path, RESNET20, epochs=600), **data)
    environment = json.loads((path / "env.json").read_text())
    (path / "env.json").write_text(json.dumps({**environment, "overrides": changed}))
    (row,) = compared_rows([path])
    assert row["paper"] == paper


def test_a_seed_counts_once_and_what_is_left_out_is_named(tmp_path):
    old, new = (write_run(tmp_path / name, last=last) for name, last in (("a", 90.0), ("b", 96.0)))
    cut = write_run(tmp_path / "c", done=3)
    for age, path in enumerate((new, old)):
        os.utime(path / "metrics.jsonl", (1000 - age, 1000 - age))
    runs = [open_run(path) for path in (new, old, cut)]
    assert one_per_seed(runs) == runs[:1]
    assert [(row["n"], row["last"]) for row in compared_rows([new])] == [(1, "96.00")]
    text = page_of([new, old, cut])
    assert "96.00" in text and "93.00" not in text
    assert f"Not in means and figures: {old}, {cut}. Of several runs of a seed one counts" in text
    assert "3 runs of 1 recipe" in text
    assert "Not in means" not in page_of([new])


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_a_damaged_map_counts_as_missing_and_is_named(tmp_path, capsys, content):
    path = write_run(tmp_path)
    (path / "probe-maps").mkdir()
    np.savez(path / "probe-maps" / "epoch0009.npz", a=np.zeros(3))
    damaged = path / "probe-maps" / "epoch0019.npz"
    damaged.write_bytes(content)
    run = open_run(path)
    assert list(run.maps) == [9] and run.damaged == [damaged]
    page = tmp_path / "page.html"
    assert main(["report", str(path), "--out", str(page)]) == 0
    line = f"Not read, as damaged: {damaged}."
    assert line in page.read_text() and line in capsys.readouterr().out


def test_a_map_with_a_byte_turned_counts_as_missing(tmp_path):
    path = write_run(tmp_path)
    (path / "probe-maps").mkdir()
    file = path / "probe-maps" / "epoch0009.npz"
    np.savez_compressed(file, a=np.arange(99.0))
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        run = open_run(path)
        assert run.damaged == [file] or 9 in run.maps
