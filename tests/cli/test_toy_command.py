"""``surge toy`` from the command line to the files."""

import json
import sys

from surge.cli import main
from surge.study.theory import toy_figures

SMALL = ["--seeds", "3", "--steps", "40", "--inputs", "4", "--hidden", "17"]


def test_toy_writes_figures_and_prints_every_answer(tmp_path, capsys, monkeypatch):
    name = "toy-five-convergence"
    monkeypatch.setattr(toy_figures, "PICTURES", {name: toy_figures.PICTURES[name]})
    assert main(["toy", "--out", str(tmp_path / "out"), *SMALL]) == 0
    out = capsys.readouterr().out
    for words in ("toy problem 6/6 STE+Noise", "higher alpha_w", "Bi-Real+SURGE", "supported"):
        assert words in out
    stored = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert len(stored) == 26 and all(line["n"] == 3 for line in stored)
    assert f"{stored[0]['difference']:+.4f} [{stored[0]['low']:+.4f}" in out
    assert f"wrote {tmp_path / 'out' / 'toy-five-convergence.png'}" in out


def test_toy_bad_setting_is_one_line_and_writes_nothing(tmp_path, capsys):
    assert main(["toy", "--out", str(tmp_path / "out"), "--seeds", "1"]) == 2
    assert capsys.readouterr().err == "error: --seeds 1 must be at least 2.\n"
    assert not (tmp_path / "out").exists()


def test_toy_without_matplotlib_is_said_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["toy", "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "pip install 'surge-bnn[demo]'" in captured.err and captured.out == ""


def test_toy_says_at_once_that_nothing_can_be_written(tmp_path, capsys, read_only):
    read_only(tmp_path)
    assert main(["toy", "--out", str(tmp_path / "out"), *SMALL]) == 2
    said = capsys.readouterr()
    assert f"nothing can be written in {tmp_path}" in said.err and said.out == ""
