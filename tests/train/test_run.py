"""The folder of a run: what is in it, and what is refused."""

import json

import pytest
import torch

from surge.errors import CheckpointMismatchError, ConfigError
from surge.train import run
from surge.train.checkpoint import save
from surge.train.run import RunFolder, default_path, describe_environment, git_state, hardware
from tests.train.small import CPU, small_recipe

RECIPE = small_recipe()
ENVIRONMENT = {"seed": 3}


def created(path, **options):
    return RunFolder.create(path, RECIPE, ENVIRONMENT, **options)


def checkpointed(path):
    folder = created(path)
    save(folder.checkpoints, {"recipe": RECIPE.name}, 1)
    return folder


def test_create_then_open_gives_recipe_and_environment(tmp_path):
    created(tmp_path / "run")
    folder, recipe, environment = RunFolder.open(tmp_path / "run")
    assert (recipe, environment) == (RECIPE, ENVIRONMENT)
    assert not folder.begun
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.yaml", "env.json", "metrics.jsonl", "figures"}


def test_create_refuses_an_unfinished_run_and_names_resume(tmp_path):
    checkpointed(tmp_path)
    for options in ({}, {"anew": True}):
        with pytest.raises(ConfigError, match=f"Continue it with --resume {tmp_path}, or choose"):
            created(tmp_path, **options)


def test_create_refuses_a_finished_run(tmp_path):
    checkpointed(tmp_path).write("summary.txt", "done")
    with pytest.raises(ConfigError, match="It is finished; choose another folder with --out"):
        created(tmp_path)


def test_create_anew_takes_over_a_run_without_checkpoint(tmp_path):
    created(tmp_path).append_metrics({"epoch": 0})
    with pytest.raises(ConfigError, match="--resume"):
        created(tmp_path)
    folder = created(tmp_path, anew=True)
    assert folder.metrics() == []


def test_create_refuses_checkpoints_without_a_config(tmp_path):
    save(tmp_path / "checkpoints", {"recipe": RECIPE.name}, 1)
    with pytest.raises(ConfigError, match="holds a run already"):
        created(tmp_path)


def test_killed_while_creating_can_be_created_again(tmp_path, monkeypatch):
    real = RunFolder.write

    def killed(self, name, text):
        if name == "config.yaml":
            raise KeyboardInterrupt
        real(self, name, text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "write", killed)
        created(tmp_path)
    created(tmp_path)


@pytest.mark.parametrize("missing", ["config.yaml", "env.json"])
def test_open_names_the_missing_file(tmp_path, missing):
    created(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointMismatchError, match=f"not the folder of a run: {missing}"):
        RunFolder.open(tmp_path)


def test_open_of_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointMismatchError, match="not the folder of a run"):
        RunFolder.open(tmp_path / "file")


@pytest.mark.parametrize("name, text", [("env.json", "{"), ("env.json", "[]"), ("env.json", "{}")])
def test_open_of_a_damaged_environment_is_an_error(tmp_path, name, text):
    created(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointMismatchError, match="damaged config.yaml or env.json"):
        RunFolder.open(tmp_path)


def test_open_of_a_damaged_recipe_names_file_and_key(tmp_path):
    created(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("epochs:", "epoch:"))
    with pytest.raises(CheckpointMismatchError, match='config.yaml: .* Did you mean "epochs"'):
        RunFolder.open(tmp_path)


def test_metrics_leave_out_a_torn_line(tmp_path):
    folder = created(tmp_path)
    folder.append_metrics({"epoch": 0, "loss": 1.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1, "lo')
    assert folder.metrics() == [{"epoch": 0, "loss": 1.5}]


@pytest.mark.parametrize("line", [b"\xff\xff", b'{"a": 1}', b"[1]", b'{"epoch": "x"}'])
def test_metrics_leave_out_what_is_no_epoch(tmp_path, line):
    folder = created(tmp_path)
    folder.append_metrics({"epoch": 0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert folder.metrics() == [{"epoch": 0}]


def test_keep_metrics_forgets_later_epochs_and_mends_the_file(tmp_path):
    folder = created(tmp_path)
    for epoch in range(4):
        folder.append_metrics({"epoch": epoch})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epo')
    folder.keep_metrics(2)
    folder.append_metrics({"epoch": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]


def test_environment_says_where_a_run_happened():
    found = describe_environment(CPU, 7, commit="abc", command="surge train x")
    assert (found["seed"], found["commit"], found["command"]) == (7, "abc", "surge train x")
    assert (found["device"], found["torch"]) == ("cpu", str(torch.__version__))
    assert json.loads(json.dumps(found)) == found


def test_a_run_that_goes_on_elsewhere_says_from_which_epoch(tmp_path):
    first = describe_environment(CPU, 3, commit="abc", command="surge train x")
    folder = RunFolder.create(tmp_path, RECIPE, first)
    save(folder.checkpoints, {"recipe": RECIPE.name}, 1)
    assert folder.went_on(RECIPE, first, first) == first
    for commit in ("def", "fed"):  # of two that begin at the same epoch the second counts
        known = folder.went_on(RECIPE, RunFolder.open(tmp_path)[2], {**first, "commit": commit})
    (place,) = known["later"]
    assert (place["epoch"], place["commit"], place["torch"]) == (1, "fed", first["torch"])
    assert RunFolder.open(tmp_path)[2] == known
    assert folder.went_on(RECIPE, known, first) == {**first, "later": []}


def test_a_run_that_has_all_its_epochs_goes_on_nowhere(tmp_path):
    first = describe_environment(CPU, 3, commit="abc", command="surge train x")
    folder = RunFolder.create(tmp_path, RECIPE, first)
    save(folder.checkpoints, {"recipe": RECIPE.name}, RECIPE.train.epochs)
    assert folder.went_on(RECIPE, first, {**first, "commit": "def"}) == first


def test_hardware_names_processor_and_threads():
    assert hardware(CPU).endswith(f"{torch.get_num_threads()} threads")


def test_git_state_outside_a_repository_is_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "__file__", str(tmp_path / "run.py"))
    assert git_state() == (None, False)


def test_default_path_holds_recipe_and_seed(tmp_path):
    assert default_path(RECIPE, 4, tmp_path) == tmp_path / "digits-cnn-recu-surge-seed4"
