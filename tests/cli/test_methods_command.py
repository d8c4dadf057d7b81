"""``surge methods``: the list, one method, and what goes wrong."""

import csv

import pytest

from surge.cli import main
from surge.method import Method, get_method, list_methods
from surge.study.about import one_line


def test_list_names_every_method_with_bits_line_and_reference(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in list_methods():
        method = get_method(name)
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert "/".join(map(str, method.bits)) in line
        assert one_line(method) in line
        assert method.reference in line


def test_list_writes_no_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["methods"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_one_line_of_a_shipped_method_is_its_files_first():
    assert one_line(get_method("recu")) == "ReCU: rectified clamp units that revive dead weights"


def test_one_line_of_a_foreign_method_is_its_own():
    class Mine(Method):
        """Do it my way.

        Weights  as ever
        """

    assert one_line(Mine) == "Do it my way"
    Mine.__doc__ = None
    assert one_line(Mine) == "-"


def test_named_method_prints_formulas_and_writes_picture_and_numbers(tmp_path, capsys):
    assert main(["methods", "bireal", "--out", str(tmp_path / "made")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bireal: 1/1 bit, Liu et al., ECCV 2018, arXiv:1808.00278\n")
    assert "Inputs    x_b = sign(x)      gradient max(0, 2 - 2 abs(x))\n" in out
    assert "Options   magnitude_aware=False" in out
    assert "``" not in out
    picture, numbers = tmp_path / "made" / "bireal.png", tmp_path / "made" / "bireal.csv"
    assert f"wrote {picture}\nwrote {numbers}\n" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    with numbers.open() as file:
        assert {row["rule"] for row in csv.DictReader(file)} == {"input", "weight"}


def test_named_method_without_options_says_none(tmp_path, capsys):
    assert main(["methods", "bnn", "--out", str(tmp_path)]) == 0
    assert "Options   none" in capsys.readouterr().out


def test_default_folder_is_figures_methods(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["methods", "bnn"]) == 0
    assert (tmp_path / "figures" / "methods" / "bnn.png").exists()


@pytest.mark.parametrize(("word", "near"), [("reccu", "recu"), ("ir-net", "irnet")])
def test_unknown_method_is_one_line_with_the_near_miss(word, near, tmp_path, capsys):
    assert main(["methods", word, "--out", str(tmp_path / "made")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f'error: Unknown method "{word}". Did you mean "{near}"?')
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "made").exists()
