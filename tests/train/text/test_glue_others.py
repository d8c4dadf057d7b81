"""The runs that a student on GLUE builds on: which are refused, and when they are not needed."""

import shutil
from dataclasses import replace

import pytest

from surge.cli import main
from surge.cli.export import load_run
from surge.recipes import serial
from surge.train.run import CONFIG, RunFolder
from tests.berts import write_task
from tests.train.glue_runs import command, quiet_bert

SHORT = ("--epochs", 1, "--limit", 16)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A BERT, sentences, and teachers that saw all of them, or all but what is held out."""
    folder = tmp_path_factory.mktemp("others")
    quiet_bert(folder / "bert")
    write_task(folder / "data", "mrpc")
    for name, options in (("teacher", ()), ("held", ("--held-out",))):
        trained(folder, "glue-mrpc-teacher", folder / name, *options)
    return folder


def trained(here, name, out, *options):
    return command(name, here / "bert", here / "data", out, *SHORT, *options)


def refused(here, capsys, name, *options):
    """Return the one line that answers a command."""
    places = ["--model", here / "bert", "--data", here / "data", "--out", here / "refused"]
    capsys.readouterr()
    words = ["train", name, *places, "--device", "cpu", *SHORT, *options]
    assert main([str(word) for word in words]) == 2
    assert not (here / "refused").exists()
    return " ".join(capsys.readouterr().err.split())


def test_held_out_student_refuses_a_teacher_that_saw_all(here, capsys):
    line = refused(here, capsys, "glue-mrpc-bit", "--teacher", here / "teacher", "--held-out")
    where = f"The teacher in {here / 'teacher'} was trained on what glue-mrpc-bit holds out"
    assert f"{where}: train it with --held-out too." in line


def test_held_out_student_refuses_a_start_that_saw_all(here, tmp_path, capsys):
    trained(here, "glue-mrpc-ternary", tmp_path / "first", "--teacher", here / "teacher")
    others = ("--teacher", here / "held", "--start", tmp_path / "first")
    line = refused(here, capsys, "glue-mrpc-binarybert", *others, "--held-out")
    assert f"The first stage in {tmp_path / 'first'} was trained on what" in line


def test_teacher_that_did_not_see_all_is_good_for_both(here, tmp_path):
    given = ("--teacher", here / "held")
    assert trained(here, "glue-mrpc-bit", tmp_path / "held", *given, "--held-out")
    assert trained(here, "glue-mrpc-bit", tmp_path / "plain", *given)


def test_unfinished_teacher_is_refused(here, tmp_path, capsys):
    half = tmp_path / "half"
    shutil.copytree(here / "teacher", half)
    folder, recipe, _ = RunFolder.open(half)
    longer = replace(recipe, train=replace(recipe.train, epochs=5))
    folder.write(CONFIG, serial.dump(longer))
    line = refused(here, capsys, "glue-mrpc-bit", "--teacher", half)
    assert f"The teacher in {half} stopped after epoch 1 of 5. Finish it with:" in line


@pytest.mark.parametrize("kind", ["bit-surge", "binarybert-surge"])
def test_trained_student_needs_no_other_run(here, tmp_path, capsys, kind):
    out, gone = tmp_path / "run", tmp_path / "gone"
    shutil.copytree(here / "teacher", gone / "teacher")
    others = ["--teacher", gone / "teacher"]
    if kind == "binarybert-surge":
        trained(here, "glue-mrpc-ternary", gone / "first", *others)
        others += ["--start", gone / "first"]
    (row,) = trained(here, f"glue-mrpc-{kind}", out, *others)
    shutil.rmtree(gone)
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(here / "data"), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    for name in ("accuracy", "f1"):
        assert f"{row[f'test_{name}']:.2f}" in said
    recipe, model, *_ = load_run(out)
    assert recipe.name == f"glue-mrpc-{kind}"
    assert not any(".auxiliary." in name for name in model.state_dict())
