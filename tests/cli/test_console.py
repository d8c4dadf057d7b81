"""Console, progress and tables, on a terminal and in a pipe."""

import io

import pytest
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


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_table_breaks_no_name_and_loses_no_column(width):
    console = Console(file=io.StringIO(), width=width)
    row = {"recipe": "cifar10-resnet20-recu-surge", "model": "resnet20_with_a_name", "epochs": 600}
    print_table(console, [row])
    assert console.file.getvalue().splitlines()[-2].split() == list(map(str, row.values()))


def test_a_narrow_table_breaks_words_apart():
    console = Console(file=io.StringIO(), width=40)
    print_table(console, [{"name": "cifar10-resnet20-recu", "why": "a few words to be folded"}])
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40 and "cifar10-resnet20-recu" in lines[3]


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


PLAIN = {"epoch": 0, "seconds": 1.0, "lr": 0.1, "train_loss": 2.0, "flips": 0.5}


def shown(width, *rows):
    out = io.StringIO()
    show = epoch_lines(Console(file=out, width=width), 1)
    for row in rows:
        show({**PLAIN, **row})
    return out.getvalue().splitlines()


def test_headings_are_those_of_columns_that_a_run_fills():
    header, line = shown(80, {"train_top1": 97.5, "test_top1": 100.0})
    assert header.split() == ["epoch", "time", "left", "lr", "loss", "train", "test", "flips%"]
    assert len(header) == len(line)


def test_lines_of_a_run_with_surge_fit_a_usual_terminal():
    measured = {"scale": 0.0123, "injected": 0.99, "delivered": 1.0}
    header, line = shown(80, {"train_top1": 97.5, "test_top1": 100.0, **measured})
    assert header.split()[-3:] == ["scale", "dose%", "arrives%"]
    assert len(line) == len(header) <= 80


def test_headings_come_again_with_a_column_that_was_not_there():
    first, _, again, _ = shown(80, {"scale": 0.1}, {"scale": 0.1, "delivered": 0.01})
    assert first.split()[-1] == "scale" and again.split()[-1] == "arrives%"


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
