"""``surge demo`` from the command line to the page."""

import json
import os
import shutil
import signal
import sys
from collections import namedtuple
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console

from surge.cli import _demonstrating as demonstrating
from surge.cli import main
from surge.errors import SurgeError
from surge.study.demo.demo import ARMS
from surge.study.theory import toy_figures
from tests.runtime.building import import_engine

Usage = namedtuple("Usage", "total used free")


def demo(out, *more):
    return main(["demo", "--out", str(out), "--quick", *more])


def stored(out):
    return {line["row"]: line["last"] for line in map(json.loads, lines(out))}


def lines(out):
    return (out / "results" / "digits.jsonl").read_text().splitlines()


@pytest.fixture
def one_picture(monkeypatch):
    """Draw one of the five toy figures; all of them are drawn by the test of the toy study."""
    name, what = next(iter(toy_figures.PICTURES.items()))
    monkeypatch.setattr(toy_figures, "PICTURES", {name: what})


def test_demo_makes_one_page_with_the_numbers(tmp_path, capsys, one_picture):
    engine = import_engine()
    out = tmp_path / "out"
    threads = torch.get_num_threads()
    assert demo(out, "--workers", "1") == 0
    assert torch.get_num_threads() == threads
    found, page = stored(out), out / "report.html"
    assert sorted(found) == sorted(ARMS)
    text, printed = page.read_text(), capsys.readouterr().out
    assert f"The page: {page}" in printed and "digits 5/5" in printed
    assert page.stat().st_size < 5_000_000
    HTMLParser().feed(text)
    assert "http://" not in text and "https://" not in text
    for accuracy in found.values():
        assert f"{accuracy:.2f}" in text and f"{accuracy:.2f}" in printed
    for claim in json.loads((out / "toy" / "claims.json").read_text()):
        assert f"{claim['difference']:+.4f} [{claim['low']:+.4f}, {claim['high']:+.4f}]" in text
    assert not (tmp_path / "results").exists()
    packed = out / "digits" / "recu.surge"
    assert engine.load(packed).metadata("method") == "recu"
    size = f"{packed.stat().st_size:,}"
    assert f"takes {size} bytes" in printed and f"takes {size} bytes" in text
    assert f"it scores {found['cnn-recu']:.2f} %" in text

    # Again, two at a time: the old runs are replaced, and the numbers are the same. Somebody's own
    # result beside the demo's stays, and is not in its table.
    own = json.dumps({**json.loads(lines(out)[0]), "seed": 7, "last": 1.0})
    (out / "results" / "digits.jsonl").write_text("\n".join([own, *lines(out)]) + "\n")
    recipes = demonstrating.demo.digits_recipes(2)[:2]
    table, runs = demonstrating.digits_study(recipes, (0,), out, 2, Console(quiet=True))
    assert {row.row: row.last.mean for row in table}.items() <= found.items() and len(runs) == 2
    assert stored(out) == found and lines(out)[0] == own


def test_demo_keeps_what_it_did_not_write(tmp_path):
    plans = [demonstrating.Plan(recipe) for recipe in demonstrating.demo.digits_recipes(2)]
    jobs = demonstrating.missing(plans, (0,), [], tmp_path / "runs")
    mine = jobs[0].folder / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("not a run")
    jobs[0].folder.joinpath("figures").mkdir()
    demonstrating._clear(jobs)
    assert mine.exists()


@pytest.mark.parametrize(
    "name", ["report.html", "results/digits.jsonl", "runs/own/config.yaml", "toy/log.npz"]
)
def test_demo_refuses_a_folder_that_holds_what_no_demo_made(tmp_path, capsys, monkeypatch, name):
    own = tmp_path / name
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert demo(".") == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.out == ""
    assert f"--out . holds {own.relative_to(tmp_path).parts[0]}, and no .surge-demo" in said.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]


def test_demo_may_replace_what_an_earlier_one_made(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    demonstrating.claim(tmp_path)
    (tmp_path / "report.html").write_text("of an earlier demo")
    demonstrating.claim(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_demo_says_at_once_that_nothing_can_be_written(tmp_path, capsys, read_only):
    read_only(tmp_path)
    assert demo(tmp_path / "out") == 2
    said = capsys.readouterr()
    assert f"nothing can be written in {tmp_path}" in said.err and said.out == ""


@pytest.mark.parametrize("module", ["matplotlib", "sklearn.datasets"])
def test_demo_missing_package_is_one_sentence(tmp_path, capsys, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert demo(tmp_path / "out") == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "pip install 'surge-bnn[demo]'" in captured.err
    assert captured.out == "" and not (tmp_path / "out").exists()


def test_demo_full_disk_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 5_000_000))
    assert demo(tmp_path / "out") == 2
    assert "only 5 MB are free" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_demo_refuses_no_workers(tmp_path, capsys):
    assert demo(tmp_path / "out", "--workers", "0") == 2
    assert "--workers 0 must be at least 1" in capsys.readouterr().err


def test_demo_says_when_a_process_was_killed(monkeypatch):
    class Pool:
        def __init__(self, *args, **kwargs):
            kwargs["initializer"]()

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

        def submit(self, function, job):
            future = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

        def shutdown(self, **how):
            assert how["cancel_futures"]

    kept = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(demonstrating, "ProcessPoolExecutor", Pool)
    try:
        with pytest.raises(SurgeError, match="--workers 1"):
            list(demonstrating._trained([None, None], 2))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, kept)


def test_workers_are_the_cores_of_this_process_up_to_four(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert demonstrating.usable_cores() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert demonstrating.usable_cores() == 1
