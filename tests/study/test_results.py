"""The stored results: what a line says, and that no line is lost or written twice."""

import errno
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from surge.errors import ConfigError
from surge.recipes import get_recipe, overridden
from surge.study.published.pages import stored_table
from surge.study.results import append, data_name, make_result, read, select
from surge.train.loop import Outcome
from tests.study.stored import result

OUTCOME = Outcome(True, 3, 87.123456, 87.6, 2, 12.345, "eager")
ENVIRONMENT = {"cuda": "13.0", "device": "cuda", "hardware": "H200", "torch": "2.11", "commit": "c"}


def test_append_then_read_gives_the_same_results_in_order(tmp_path):
    stored = [result(seed=seed) for seed in (2, 0, 1)]
    for one in stored:
        path = append(tmp_path / "results", one)
    assert path == tmp_path / "results" / "cifar10.jsonl"
    assert read(tmp_path / "results", "cifar10") == stored


def test_append_writes_a_concluded_run_once(tmp_path):
    for _ in range(2):
        append(tmp_path, result())
    append(tmp_path, result(last=87.01))
    assert len(read(tmp_path, "cifar10")) == 2


def test_append_on_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    append(tmp_path, result(seed=0))
    before = (tmp_path / "cifar10.jsonl").read_bytes()
    real = Path.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def write(self, data):
            self.file.write(data[:40])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full(self, *args, **kwargs):
        file = real(self, *args, **kwargs)
        return Full(file) if args[:1] == ("ab",) else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space left"):
            append(tmp_path, result(seed=1))
    assert (tmp_path / "cifar10.jsonl").read_bytes() == before
    append(tmp_path, result(seed=1))
    assert [r.seed for r in read(tmp_path, "cifar10")] == [0, 1]


def add(folder, writer):
    for number in range(5):
        append(folder, result(seed=1000 * writer + number))
        append(folder, result("resnet20-bnn", seed=number))


def test_many_writers_lose_nothing_and_write_nothing_twice(tmp_path, monkeypatch):
    context = multiprocessing.get_context("fork")
    real = Path.read_bytes

    def slow(self):
        content = real(self)
        time.sleep(0.005)  # the others come in between, unless they must wait
        return content

    monkeypatch.setattr(Path, "read_bytes", slow)
    writers = [context.Process(target=add, args=(tmp_path, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = [(r.row, r.seed) for r in read(tmp_path, "cifar10")]
    assert len(found) == len(set(found)) == 8 * 5 + 5


def test_append_begins_a_new_line_behind_a_torn_one(tmp_path):
    path = append(tmp_path, result(seed=0))
    path.write_bytes(path.read_bytes().rstrip())
    append(tmp_path, result(seed=1))
    assert [r.seed for r in read(tmp_path, "cifar10")] == [0, 1]


@pytest.mark.parametrize("number", [True, False])
def test_a_line_that_is_no_result_is_named_and_does_not_keep_others_out(tmp_path, number):
    path = append(tmp_path, result(seed=0))
    content = path.read_bytes()
    path.write_bytes(content + (content.replace(b"87.0", b'"a"') if number else b"\xff\xfe\n"))
    with pytest.raises(ConfigError, match="line 2 is not a result"):
        read(tmp_path, "cifar10")
    append(tmp_path, result(seed=1))
    assert len(path.read_bytes().splitlines()) == 3


def test_lines_without_the_newer_field_are_of_runs_alone(tmp_path):
    append(tmp_path, result())
    path = tmp_path / "cifar10.jsonl"
    assert ', "side_by_side": 1' in path.read_text()
    path.write_text(path.read_text().replace(', "side_by_side": 1', ""))
    assert read(tmp_path, "cifar10") == [result()]


def test_result_says_how_many_runs_shared_the_machine():
    recipe = get_recipe("cifar10-resnet20-recu")
    shared = {**ENVIRONMENT, "side_by_side": 4}
    assert make_result(recipe, {}, 0, OUTCOME, shared).side_by_side == 4
    assert make_result(recipe, {}, 0, OUTCOME, ENVIRONMENT).side_by_side == 1


def test_hours_of_runs_side_by_side_are_those_of_the_machine(tmp_path):
    for seed in range(4):
        append(tmp_path, result("resnet20-bnn", seed, seconds=7200.0, side_by_side=4))
    append(tmp_path, result("resnet20-bnn", 4, seconds=3600.0))
    assert "5 stored runs, 3.0 hours on H200" in stored_table("cifar10", tmp_path)


def test_read_of_nothing_is_empty(tmp_path):
    assert read(tmp_path, "cifar10") == []


@pytest.mark.parametrize("line", ["{", "{}", "[1]", '"text"'])
def test_read_names_the_line_that_is_no_result(tmp_path, line):
    append(tmp_path, result())
    with (tmp_path / "cifar10.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match=r"cifar10.jsonl, line 2 is not a result"):
        read(tmp_path, "cifar10")


def test_unknown_fields_of_a_later_version_are_passed_over(tmp_path):
    append(tmp_path, result())
    path = tmp_path / "cifar10.jsonl"
    path.write_text(path.read_text().replace('"seed"', '"new": 1, "seed"'))
    assert read(tmp_path, "cifar10") == [result()]


def test_make_result_describes_the_run():
    overrides = {"epochs": 3, "held_out": True}
    recipe = overridden(get_recipe("cifar10-resnet20-recu-surge"), overrides)
    found = make_result(recipe, overrides, 5, OUTCOME, ENVIRONMENT, delivered=0.01)
    assert (found.table, found.row) == ("cifar10", "resnet20-recu-surge")
    assert (found.recipe, found.seed, found.epochs) == ("cifar10-resnet20-recu-surge", 5, 3)
    assert (found.last, found.best, found.seconds) == (87.1235, 87.6, 12.3)
    assert (found.data, found.precision) == ("cifar10, held out", "bf16")
    assert (found.setting, found.delivered) == ("", 0.01)


@pytest.mark.parametrize(
    "environment, precision",
    [
        ({"cuda": "13.0", "device": "cpu"}, "fp32"),
        ({"cuda": None, "device": "cpu"}, "fp32"),
        ({"cuda": "13.0", "device": "cuda"}, "bf16"),
        ({"cuda": "13.0"}, "bf16"),
        ({"cuda": None}, "fp32"),
    ],
)
def test_precision_is_that_of_the_device_used(environment, precision):
    recipe = get_recipe("cifar10-resnet20-recu")
    whole = {"hardware": "h", "torch": "t", "commit": None, **environment}
    assert make_result(recipe, {}, 0, OUTCOME, whole).precision == precision


def test_a_run_that_moved_names_both_places():
    moved = {"epoch": 44, "hardware": "i", "torch": "t", "commit": "def", "cuda": None}
    first = {"hardware": "h", "torch": "t", "commit": "abc", "cuda": "13.0"}
    whole = {**first, "later": [moved, {**moved, "epoch": 50, "commit": "fed"}]}
    found = make_result(get_recipe("cifar10-resnet20-recu"), {}, 0, OUTCOME, whole)
    assert (found.hardware, found.torch) == ("h, from epoch 45 on i", "t")
    assert found.precision == "bf16, from epoch 45 on fp32"
    assert found.commit == "abc, from epoch 45 on def, from epoch 51 on fed"


def test_result_says_how_many_steps_fitted_a_time():
    recipe = get_recipe("glue-mrpc-bit")
    assert make_result(recipe, {}, 0, OUTCOME, ENVIRONMENT).steps is None
    fitted = replace(recipe, train=replace(recipe.train, steps=7))
    assert make_result(fitted, {"budget": "60s"}, 0, OUTCOME, ENVIRONMENT).steps == 7


def test_rows_with_a_number_stay_out_of_published_tables(tmp_path):
    """They make the curves over eta and over fixed scales."""
    for row in ("resnet20-recu-surge", "resnet20-recu-surge-eta0.1", "resnet20-recu-surge-tied"):
        append(tmp_path, result(row))
    text = stored_table("cifar10", tmp_path)
    assert "| resnet20-recu-surge | 600" in text and "| resnet20-recu-surge-tied |" in text
    assert "eta0.1" not in text


def test_setting_names_what_changes_the_recipe_itself():
    overrides = {"epochs": 10, "limit": 5, "precision": "fp32", "eta": 0.1, "accumulate": 2}
    assert result(overrides=overrides).setting == "accumulate=2, eta=0.1"


def test_data_name_says_which_images():
    recipe = get_recipe("digits-cnn-recu")
    assert data_name(recipe) == "digits, test set"
    changed = overridden(recipe, {"held_out": True, "limit": 64})
    assert data_name(changed) == "digits, held out, first 64"
    small = overridden(get_recipe("imagenette-onestage-bireal"), {"size": 64})
    assert data_name(small) == "imagenette, test set, 64 px"


def test_data_name_says_whose_words_sentences_have():
    recipe = get_recipe("glue-rte-bit")
    recipe = replace(recipe, data=replace(recipe.data, tokenizer="/berts/mini"))
    assert data_name(recipe) == "rte, dev set, mini"


def test_select_compares_every_field():
    stored = [result(seed=0), result(seed=1), result(row="resnet20-bnn", seed=1)]
    assert select(stored, seed=1, row="resnet20-recu") == [stored[1]]
    assert select(stored, setting="") == stored
