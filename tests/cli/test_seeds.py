"""Seeds as numbers and ranges."""

import pytest

from surge.cli import main
from surge.cli._seeds import read_seeds


def test_numbers_and_ranges_mix_and_keep_their_order():
    assert read_seeds(["7", "0-2", "12-12"]) == (7, 0, 1, 2, 12)


@pytest.mark.parametrize("word", ["x", "5-2", "-1", "1-", "0..3", "1.5", ""])
def test_other_words_are_an_error_of_one_line(word, capsys):
    with pytest.raises(ValueError, match="neither a seed nor a range"):
        read_seeds(["0", word])
    assert main(["reproduce", "digits", "--seeds", word or "''"]) == 2
    assert "such as 0-11" in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_no_seed_is_an_error_of_one_line(capsys):
    assert main(["reproduce", "digits", "--rows", "cnn-bnn", "--seeds"]) == 2
    assert "Name at least one seed" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_reproduce_runs_every_seed_of_a_range(tmp_path, capsys):
    where = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    words = ["reproduce", "digits", "--rows", "cnn-bnn", "--epochs", "1", "--seeds", "3-4", *where]
    assert main(words) == 0
    assert {path.name[-5:] for path in (tmp_path / "runs").iterdir()} == {"seed3", "seed4"}
