"""What finished runs keep of their last test: the answers behind the stored score."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from surge.data.glue import get_task
from surge.data.glue_metrics import score
from surge.recipes import get_recipe
from surge.recipes.placing import placed
from surge.recipes.recipe import TrainSpec
from surge.train.build import load_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import PREDICTIONS, RunFolder
from surge.train.scoring import TextTest
from surge.train.text.build import joined_parts
from tests.berts import save_tiny, write_tasks
from tests.train.glue_runs import command, rows

CPU = torch.device("cpu")
SHORT = {"epochs": 3, "batch": 16, "lr": 2e-3, "test_every": 3}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("data"), "cola", "mrpc", "stsb")


def recipe_of(task, bert, **train):
    recipe = placed(get_recipe(f"glue-{task}-teacher"), model=str(bert), teacher=None)
    data = replace(recipe.data, length=24)
    return replace(recipe, data=data, train=replace(recipe.train, **{**SHORT, **train}))


def trainer_of(path, recipe, root, **options):
    path.mkdir(parents=True, exist_ok=True)
    return Trainer(
        recipe,
        load_sets(recipe.data, root),
        seed=0,
        device=CPU,
        folder=RunFolder(path),
        options=LoopOptions(save_every=0.0, **options),
    )


def kept(path):
    with np.load(path / PREDICTIONS, allow_pickle=False) as held:
        return dict(held)


def scored(metric, held):
    return score(metric, held["logits"].astype(float), held["labels"].astype(float))


@pytest.mark.parametrize(
    "task, outputs, kind", [("cola", 2, "int64"), ("mrpc", 2, "int64"), ("stsb", 1, "float32")]
)
def test_finished_run_keeps_the_answers_behind_its_last_score(
    tmp_path, bert, root, task, outputs, kind
):
    recipe = recipe_of(task, bert)
    trainer = trainer_of(tmp_path, recipe, root)
    seen = []
    real = trainer.evaluate
    trainer.evaluate = lambda: (real(), seen.append(trainer.test_step.logits.clone()))[0]
    outcome = trainer.run()
    held = kept(tmp_path)
    assert held["logits"].dtype == np.float32 and held["logits"].shape == (16, outputs)
    assert held["labels"].dtype == np.dtype(kind)
    assert np.array_equal(held["labels"], trainer.sets[1].labels.numpy())
    assert held["section"].tolist() == [0] * 16
    assert np.array_equal(held["logits"], seen[-1].numpy())
    assert not any(np.array_equal(held["logits"], other.numpy()) for other in seen[:-1])
    assert scored(recipe.metric, held) == pytest.approx(outcome.last, abs=1e-9)


def test_command_stores_the_score_of_the_answers_it_keeps(tmp_path, bert, root):
    out = tmp_path / "run"
    options = ("--epochs", 2, "--limit", 12, "--lr", 2e-3)
    last = command("glue-mrpc-teacher", bert, root, out, *options)[-1]
    held = kept(out)
    assert len(held["labels"]) == 12
    for metric in ("accuracy", "f1"):
        assert scored(metric, held) == pytest.approx(last[f"test_{metric}"], abs=1e-9)
    assert not list(out.glob(".*"))  # nothing half written


def test_resumed_run_keeps_what_an_uninterrupted_one_does(tmp_path, bert, root):
    recipe = recipe_of("mrpc", bert)
    trainer_of(tmp_path / "whole", recipe, root).run()
    first = trainer_of(tmp_path / "parts", recipe, root, deadline=time.monotonic())
    assert not first.run().finished
    assert not (tmp_path / "parts" / PREDICTIONS).exists()
    second = trainer_of(tmp_path / "parts", recipe, root)
    second.resume()
    outcome = second.run()
    held = kept(tmp_path / "parts")
    for name, array in kept(tmp_path / "whole").items():
        assert np.array_equal(array, held[name]), name
    assert scored("accuracy", held) == pytest.approx(outcome.last, abs=1e-9)


def test_run_that_is_resumed_when_finished_keeps_its_answers(tmp_path, bert, root):
    recipe = recipe_of("mrpc", bert, epochs=1)
    trainer_of(tmp_path, recipe, root).run()
    before = (tmp_path / PREDICTIONS).read_bytes()
    again = trainer_of(tmp_path, recipe, root)
    again.resume()
    assert again.run().finished
    assert (tmp_path / PREDICTIONS).read_bytes() == before


def test_answers_are_there_before_the_last_checkpoint(tmp_path, bert, root, monkeypatch):
    """A run that ends right between the two does its last epoch again, and writes them again."""
    recipe = recipe_of("mrpc", bert, epochs=2)
    trainer = trainer_of(tmp_path, recipe, root)
    real = trainer.save

    def save(*noted):
        if trainer.epoch == 2:
            raise KeyboardInterrupt
        real(*noted)

    monkeypatch.setattr(trainer, "save", save)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    lost = kept(tmp_path)
    second = trainer_of(tmp_path, recipe, root, deadline=time.monotonic())
    second.resume()
    assert second.epoch == 1
    taken = []
    second.run(on_step=lambda done, total: taken.append((tmp_path / PREDICTIONS).exists()))
    assert taken and not any(taken)  # a run that is trained on has none
    assert np.array_equal(kept(tmp_path)["logits"], lost["logits"])


def test_images_keep_nothing(tmp_path):
    recipe = get_recipe("digits-cnn-bnn")
    recipe = replace(recipe, train=replace(recipe.train, epochs=1))
    recipe = replace(recipe, data=replace(recipe.data, limit=100))
    trainer = trainer_of(tmp_path, recipe, tmp_path)
    assert trainer.run().finished
    assert trainer.test_step.predictions() == {}
    assert not (tmp_path / PREDICTIONS).exists()
    assert len(rows(tmp_path)) == 1


def test_parts_of_a_dev_set_can_be_told_apart(bert, root):
    _, dev = load_sets(recipe_of("mrpc", bert).data, root)
    both = joined_parts([dev, dev.subset(torch.arange(4))], ("dev_matched", "dev_mismatched"))
    task = replace(get_task("mnli"), labels=("0", "1"))
    loader = type("Loader", (), {"device": CPU})()
    test = TextTest(torch.nn.Identity(), loader, TrainSpec(precision="fp32"), task, both)
    assert test.predictions() == {}  # not tested yet
    test.logits.copy_(torch.nn.functional.one_hot(both.labels, 2))
    test.logits[18:] = test.logits[18:].flip(1)
    scores = test.scores()
    held = test.predictions()
    assert held["section"].tolist() == [0] * 16 + [1] * 4
    for part, name in enumerate(("accuracy", "accuracy-mm")):
        own = {key: array[held["section"] == part] for key, array in held.items()}
        assert scored("accuracy", own) == scores[name]
    test.logits.zero_()  # a later test has begun
    assert np.array_equal(test.predictions()["logits"], held["logits"]) and held["logits"].any()
