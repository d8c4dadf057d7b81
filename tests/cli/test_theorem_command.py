"""``surge theorem`` from the command line to the files."""

import json
import sys

from surge.cli import main
from surge.study.theory import theorem

FILES = {
    "theorem.png",
    "theorem.csv",
    "theorem-eta.png",
    "theorem-eta.csv",
    "verdicts.csv",
    "verdicts.json",
}


def test_theorem_writes_pictures_and_tables_and_prints_both(tmp_path, capsys):
    assert main(["theorem", "--out", str(tmp_path / "out"), "--samples", "2000"]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    out = capsys.readouterr().out
    for words in ("shared-aligned", "closed form wrong", "fails: large bias", "harms"):
        assert words in out
    for name in FILES:
        assert f"wrote {tmp_path / 'out' / name}" in out
    stored = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    assert len(stored) == 9


def test_theorem_bad_setting_is_one_line_and_writes_nothing(tmp_path, capsys):
    assert main(["theorem", "--out", str(tmp_path / "out"), "--samples", "3"]) == 2
    assert capsys.readouterr().err.startswith("error: the study needs --samples >= 100")
    assert not (tmp_path / "out").exists()


def test_theorem_output_that_is_a_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert main(["theorem", "--out", str(path / "deeper")]) == 2  # before any work
    assert f"{path} is a file, not a folder" in capsys.readouterr().err.replace("\n", "")


def test_theorem_without_matplotlib_is_said_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(theorem, "run_study", None)
    assert main(["theorem", "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "pip install 'surge-bnn[demo]'" in captured.err and captured.out == ""
