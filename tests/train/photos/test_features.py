"""A method's loss on the features before the last layer, in the training loop."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.errors import ConfigError
from surge.layers import BinaryConv2d
from surge.models import cnn_digits
from surge.recipes.recipe import MethodSpec
from surge.train import checkpoint
from surge.train.photos.features import feature_objective
from tests.nets import assert_same_tensors
from tests.train.small import CPU, make_trainer, small_recipe, weights


def bonn(**options):
    torch.manual_seed(0)
    model = cnn_digits()
    surge.binarize_(model, "bonn", **options)
    return model.train()


def recipe(**options):
    return replace(small_recipe("cnn-recu"), method=MethodSpec("bonn", options))


def before_last(model, x):
    """The input of the last layer, seen by the test's own hook."""
    seen = []
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    handle = last.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    logits = model(x)
    handle.remove()
    return logits, seen[0]


def test_loss_is_cross_entropy_plus_the_feature_loss():
    model = bonn(feature_strength=0.5)
    objective = feature_objective(model, 0.1, CPU)
    nn.init.normal_(objective.learned.centre)
    x, labels = torch.randn(6, 1, 8, 8), torch.arange(6)
    logits, features = before_last(model, x)
    outputs = objective.outputs(model, x)
    away = (features - objective.learned.centre[labels]).square()
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1) + 0.5 / 2 * (
        2 * away.sum(dim=1).mean()
    )
    torch.testing.assert_close(objective.loss(outputs, labels, x), expected)
    assert objective.hits(outputs, logits.argmax(dim=1)) == 6
    assert objective.watch.seen is None


def test_other_methods_and_strength_zero_have_no_such_objective():
    assert feature_objective(bonn(feature_strength=0.0), 0.0, CPU) is None
    model = cnn_digits()
    assert feature_objective(model, 0.0, CPU) is None
    surge.binarize_(model, "recu")
    assert feature_objective(model, 0.0, CPU) is None


def test_model_without_a_linear_layer_is_refused():
    model = nn.Sequential(BinaryConv2d(3, 4, 3, method="bonn"), nn.Flatten())
    with pytest.raises(ConfigError, match="no linear layer.*feature_strength=0"):
        feature_objective(model, 0.0, CPU)


def test_negative_strength_is_refused():
    with pytest.raises(ConfigError, match="feature_strength=-1"):
        bonn(feature_strength=-1.0)


def test_centres_are_trained_kept_and_no_part_of_the_model(tmp_path):
    trainer = make_trainer(tmp_path / "a", recipe())
    trainer.run()
    centre = trainer.train_step.learned.centre.detach().clone()
    assert centre.any() and not any("centre" in name for name in weights(trainer))
    folder = trainer.folder.checkpoints
    state = checkpoint.load_newest(folder, trainer.recipe.name, CPU)[0]
    assert torch.equal(state["learned"]["centre"], centre)
    (folder / "epoch-00003.pt").unlink()
    again = make_trainer(tmp_path / "a", recipe())
    again.resume()
    again.run()
    assert_same_tensors(weights(again), weights(trainer))
    assert torch.equal(again.train_step.learned.centre, centre)


def test_feature_loss_changes_the_weights(tmp_path):
    ends = []
    for name, strength in (("with", 1e-3), ("without", 0.0)):
        trainer = make_trainer(tmp_path / name, recipe(feature_strength=strength))
        trainer.run()
        ends.append(weights(trainer)["fc.weight"])
    assert not torch.equal(*ends)


def test_warm_up_of_a_graph_gives_centres_back(tmp_path):
    trainer = make_trainer(tmp_path, recipe())
    held = {id(tensor) for tensor in trainer.train_step.state()}
    assert all(id(parameter) in held for parameter in trainer.train_step.learned.parameters())


def test_compiled_step_gives_the_eager_losses(tmp_path, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    rows = {True: [], False: []}
    for compiled, found in rows.items():
        make_trainer(tmp_path / str(compiled), recipe(), compiled=compiled).run(found.append)
    torch._dynamo.reset()
    eager, compiled = ([row["train_loss"] for row in rows[kind]] for kind in (False, True))
    assert compiled == pytest.approx(eager, rel=1e-5)


def test_copy_of_the_model_still_runs():
    model = bonn()
    objective = feature_objective(model, 0.0, CPU)
    twin = copy.deepcopy(model)
    assert twin(torch.randn(2, 1, 8, 8)).shape == (2, 10)
    assert objective.outputs(model, torch.randn(2, 1, 8, 8))[1].shape[0] == 2
