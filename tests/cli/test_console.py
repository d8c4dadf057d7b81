"""Console, progress and tables, on a terminal and in a pipe."""

import io

from rich.console import Console

from surge.cli import _progress
from surge.cli._progress import epoch_lines, step_lines
from surge.cli.console import make_console, print_error, print_table, progress


def plain():
    return Console(file=io.StringIO(), width=100)


def terminal():
    return Console(file=io.StringIO(), width=100, force_terminal=True)


def test_progress_is_one_plain_line_per_step_in_a_pipe():
    console = plain()
    with progress(console, "seeds", total=2) as advance:
        advance("loss 0.1")
        advance("")
    assert console.file.getvalue() == "seeds 1/2 loss 0.1\nseeds 2/2\n"


def test_progress_is_a_bar_on_a_terminal():
    console = terminal()
    with progress(console, "seeds", total=2) as advance:
        advance("loss 0.1")
        advance("loss 0.2")
    text = console.file.getvalue()
    assert "2/2" in text and "━" in text and "loss 0.2" in text


def test_table_chooses_columns_and_aligns_numbers():
    console = plain()
    rows = [{"name": "a", "value": 0.123456, "more": 1}, {"name": "b", "value": None, "more": 2}]
    print_table(console, rows, title="Table", columns={"name": "arm", "value": "loss"})
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[0] == "Table"
    assert any(line.endswith("0.1235") for line in lines)
    assert any(line.endswith("     -") for line in lines)
    assert not any("more" in line for line in lines)


def test_a_title_is_not_folded_at_the_width_of_a_narrow_table():
    console = plain()
    print_table(console, [{"a": 1}], title="digits-cnn-recu-surge, seed 0")
    assert console.file.getvalue().startswith("digits-cnn-recu-surge, seed 0\n")


def test_names_in_a_narrow_table_are_folded_not_cut():
    console = Console(file=io.StringIO(), width=40)
    row = {"recipe": "cifar10-resnet20-recu-surge", "model": "resnet20_with_a_name", "epochs": 600}
    print_table(console, [row])
    lines = console.file.getvalue().splitlines()
    assert "…" not in console.file.getvalue()
    column = next(line for line in lines if "recipe" in line).index("model")
    assert "".join(line[:column].strip() for line in lines[3:]) == row["recipe"]


def test_table_shows_every_key_by_default_and_takes_brackets_literally():
    console = plain()
    print_table(console, [{"first": "[red]", "second": True}])
    text = console.file.getvalue()
    assert "first" in text and "second" in text and "[red]" in text and "yes" in text
    print_table(console, [])


def test_error_is_one_line_even_with_markup_and_newlines(capsys):
    print_error("bad [bold]value\n  in " + "x" * 300)
    err = capsys.readouterr().err
    assert err == "error: bad [bold]value in " + "x" * 300 + "\n"


def test_only_rank_0_prints(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    make_console().print("hello")
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    make_console().print("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_pipe_is_wide_unless_told(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert make_console().width == 132
    monkeypatch.setenv("COLUMNS", "70")
    assert make_console().width == 70


def test_an_epoch_without_a_test_has_a_dash_in_its_place():
    console = Console(file=io.StringIO(), width=120)
    show = epoch_lines(console, 2, "map")
    row = {"epoch": 0, "seconds": 1.0, "lr": 0.1, "train_loss": 2.0, "flips": 0.5}
    assert show(row).split()[-2:] == ["-", "0.500"]
    assert show({**row, "epoch": 1, "test_map": 41.25}).split()[-2:] == ["41.25", "0.500"]


def test_long_epochs_say_how_far_they_are(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    show = step_lines(Console(file=out, width=80), "seed 1")
    for epoch_seconds in (10, 100):  # the first is over before there is anything to say
        for done in range(1, 11):
            now[0] += epoch_seconds / 10
            show(done, 10)
    assert out.getvalue().splitlines() == [
        f"      step {done} of 10, {10 * (10 - done)}s left in this epoch  seed 1"
        for done in (3, 5, 7, 9)
    ]
