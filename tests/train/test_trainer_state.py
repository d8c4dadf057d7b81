"""What a run that goes on knows of its past, and which checkpoints it refuses."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from surge.errors import CheckpointMismatchError
from surge.train import checkpoint, trainer_state
from tests.train.small import make_trainer, small_recipe

RECIPE = small_recipe("cnn-bnn")


def judged(path, values=(30.0, 50.0, 40.0)):
    """A run of three epochs whose tests find these values, and half of them by another metric."""
    trainer, left = make_trainer(path, RECIPE), iter(values)

    def evaluate():
        value = next(left)
        trainer.scores = {"other": value / 2}
        return value, 1.0

    trainer.evaluate = evaluate
    return trainer


def newest(trainer):
    """The newest checkpoint, and what it holds."""
    path = checkpoint.found(trainer.folder.checkpoints)[0]
    return path, torch.load(path, weights_only=True)


def begun(path):
    """A trainer that has written a checkpoint of no epoch."""
    trainer = make_trainer(path, RECIPE)
    trainer.save()
    return trainer


def test_finished_run_that_is_resumed_has_the_outcome_it_had(tmp_path):
    outcome = judged(tmp_path).run()
    assert outcome.others == {"other": (20.0, 25.0)}
    again = make_trainer(tmp_path, RECIPE)
    again.resume()
    assert again.run() == outcome


@pytest.mark.parametrize("field", ["scores", "midway"])
def test_checkpoint_without_a_newer_field_is_taken(tmp_path, field):
    trainer = begun(tmp_path)
    path, state = newest(trainer)
    del state[field]
    torch.save(state, path)
    trainer.load()
    assert (trainer.scores, trainer.best_scores, trainer.noted) == ({}, {}, None)


def without_optimizer(state):
    del state["optimizer"]


def with_another_group(state):
    groups = state["optimizer"]["param_groups"]
    groups.append({**groups[0], "params": []})


@pytest.mark.parametrize("damage", [without_optimizer, with_another_group])
def test_checkpoint_with_another_optimizer_is_refused(tmp_path, damage):
    trainer = begun(tmp_path)
    path, state = newest(trainer)
    damage(state)
    torch.save(state, path)
    with pytest.raises(CheckpointMismatchError, match="does not fit the model of digits-cnn-bnn"):
        trainer.load()


def test_sentence_about_a_damaged_checkpoint_reaches_the_caller(tmp_path):
    trainer = begun(tmp_path)
    (trainer.folder.checkpoints / "epoch-00007.pt").write_bytes(b"torn")
    (sentence,) = trainer.resume()
    assert "epoch-00007.pt is damaged" in sentence


def beside(trainer, found, sentences=()):
    """Let a second process say that it found another checkpoint, or the same one."""
    trainer.world = SimpleNamespace(told=lambda words: [words, (found or words[0], [*sentences])])
    return trainer


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((2, 0, 0.0), r"rank 0 that after epoch 0 \(0.00 s\), rank 1 that after epoch 2 \(0.00 s"),
        ((0, 4, 0.0), r"rank 1 that after epoch 0 and 4 steps \(0.00 s\)\. All"),
        ((0, 0, 1.234), r"rank 1 that after epoch 0 \(1.23 s\)\. All"),
        ((None, 0, None), r"rank 1 none\. All must see the same files"),
    ],
)
def test_processes_with_different_checkpoints_are_told_all_of_them(tmp_path, found, said):
    with pytest.raises(CheckpointMismatchError, match=said):
        trainer_state._newest(beside(begun(tmp_path), found))


def test_sentence_that_several_processes_say_is_heard_once(tmp_path):
    trainer = beside(begun(tmp_path), None, ["one", "two", "one"])
    assert trainer_state._newest(trainer)[1] == ["one", "two"]


def test_process_tells_epoch_steps_and_time_of_what_it_found(tmp_path):
    trainer, told = make_trainer(tmp_path, RECIPE), []
    trainer.epoch, trainer.seconds = 2, 1.5
    trainer.save({"steps": 4})
    trainer.world = SimpleNamespace(told=lambda words: [told.append(words) or words])
    trainer_state._newest(trainer)
    assert told == [((2, 4, 1.5), [])]


def test_process_without_a_checkpoint_tells_the_others_before_it_fails(tmp_path):
    trainer, told = make_trainer(tmp_path, RECIPE), []
    trainer.world = SimpleNamespace(told=lambda words: [told.append(words) or words])
    with pytest.raises(CheckpointMismatchError, match="holds no readable checkpoint"):
        trainer_state._newest(trainer)
    assert told == [((None, 0, None), [])]


@pytest.mark.parametrize("flag", ["foreach", "capturable"])
def test_optimizer_keeps_the_flags_of_its_device(flag):
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2))])
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0][flag] = True
    trainer_state._load_optimizer(optimizer, state)
    assert not optimizer.param_groups[0][flag]


def test_error_about_different_checkpoints_repeats_what_is_damaged(tmp_path):
    trainer = beside(begun(tmp_path), (2, 0, 0.0), ["It is torn."])
    with pytest.raises(CheckpointMismatchError, match=r"\(0.00 s\)\. It is torn\. All must see"):
        trainer_state._newest(trainer)
