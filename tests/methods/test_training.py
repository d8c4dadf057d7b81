"""What methods ask of the training loop, and whether they get it, through the loop itself."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import surge
from surge.layers.hooks import binary_layers
from surge.method import get_method
from surge.recipes.recipe import MethodSpec
from surge.train.build import make_optimizer, set_learning_rate
from surge.train.norms import wants_recalibration
from surge.train.watch import BitWatch
from tests.nets import METHODS, assert_same_tensors, cnn, published_methods
from tests.train.small import CPU, make_trainer, small_recipe, small_sets, trained, weights


def recipe_of(method, *, compensated=False, **train):
    """The digits recipe with another method."""
    recipe = small_recipe("cnn-bnn-surge" if compensated else "cnn-bnn", **train)
    return replace(recipe, method=MethodSpec(method))


def group_of(optimizer, parameter):
    """The group of a parameter, which must be in exactly one."""
    (found,) = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_declared_parameters_exist_and_every_parameter_has_one_group(method):
    net = cnn(method)
    spec = small_recipe().train
    optimizer = make_optimizer(net, spec, CPU)
    cls = get_method(method)
    for name, parameter in net.named_parameters():
        group = group_of(optimizer, parameter)
        own = name.rpartition("method.")[2] if "method." in name else ""
        assert group["lr_factor"] == cls.lr_factors.get(own, 1.0), name
        assert group["weight_decay"] == (0 if own in cls.undecayed else spec.weight_decay), name
    named = {name for name, _ in net[2].method.named_parameters()}
    assert {*cls.lr_factors, *cls.undecayed} <= named


def test_schedule_multiplies_the_factor_of_every_group_in_place():
    net = cnn("rbonn")
    optimizer = make_optimizer(net, small_recipe().train, CPU)
    rates = [torch.tensor(0.0) for _ in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    set_learning_rate(optimizer, 0.4)
    assert [float(rate) for rate in rates] == pytest.approx([0.4, 0.04])
    assert group_of(optimizer, net[2].method.recurrence)["lr"] is rates[1]
    assert group_of(optimizer, net[2].method.scale)["lr"] is rates[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rbonn_recurrence_learns_slowly_and_does_not_decay(tmp_path, optimizer):
    recipe = recipe_of("rbonn", optimizer=optimizer, weight_decay=0.5, warmup=0)
    trainer = make_trainer(tmp_path, recipe)
    method = trainer.parts.model.features.conv2.method
    rate = trainer.begin_epoch()
    batches = trainer.batches()
    trainer.step(*next(batches))
    assert method.recurrence.eq(0.2).all()  # no last gradient yet, and no decay
    before, scale = method.recurrence.detach().clone(), method.scale.detach().clone()
    trainer.step(*next(batches))
    change = method.recurrence.detach() - before
    if optimizer == "sgd":
        torch.testing.assert_close(change, -0.1 * rate * method.recurrence.grad)
    moved = change[method.chosen(scale.abs()).bool()]
    assert moved.any() and moved.abs().max() < 0.11 * rate * max(
        1, method.recurrence.grad.abs().max()
    )


@pytest.mark.parametrize("method", ["rbonn", "slb"])
def test_stop_and_resume_equals_an_uninterrupted_run(tmp_path, method):
    recipe = recipe_of(method, compensated=True, epochs=3)
    expected, rows = trained(tmp_path / "whole", recipe)
    first = make_trainer(tmp_path / "parts", recipe, deadline=0.0)
    first.run()
    second, seen = make_trainer(tmp_path / "parts", recipe), []
    second.resume()
    assert second.epoch == 1
    second.run(seen.append)
    assert_same_tensors(weights(second), expected)
    assert seen[-1]["test_loss"] == rows[-1]["test_loss"]


def cumulative(model, batches, *, training):
    """Statistics of all norms as torch's own cumulative mean has them."""
    model = copy.deepcopy(model).train(training)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for images, _ in batches:
            model(images)
    return {name: t for name, t in model.state_dict().items() if "running" in name}


def test_slb_is_tested_with_norms_of_the_discrete_weights(tmp_path):
    trainer, rows = make_trainer(tmp_path, recipe_of("slb", epochs=1)), []
    trainer.run(rows.append)
    loader = trainer.train_loader
    found = {name: t for name, t in weights(trainer).items() if "running" in name}
    discrete, soft = (
        cumulative(trainer.parts.model, loader.batches(0), training=training)
        for training in (False, True)
    )
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, discrete[name])
    assert not torch.allclose(
        found["features.bn2.running_var"], soft["features.bn2.running_var"], rtol=0.5
    )
    momenta = {m.momentum for m in trainer.parts.model.modules() if isinstance(m, nn.BatchNorm2d)}
    assert momenta == {0.1}
    again = make_trainer(tmp_path, recipe_of("slb", epochs=1))
    again.load()
    assert again.evaluate() == pytest.approx((rows[0]["test_top1"], rows[0]["test_loss"]))


def test_partial_batches_are_left_out_of_the_norms(tmp_path):
    recipe = recipe_of("slb", epochs=1)
    trainer = make_trainer(tmp_path, recipe, small_sets(train=65, test=8))
    trainer.run()
    full = list(trainer.train_loader.batches(0))[:2]
    expected = cumulative(trainer.parts.model, full, training=False)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights(trainer)[name], tensor)


def test_other_methods_keep_the_norms_of_training(tmp_path, monkeypatch):
    monkeypatch.setattr("surge.train.loop.recalibrate_norms", lambda *_: pytest.fail("called"))
    trained(tmp_path, recipe_of("bnn", epochs=1))
    asking = [m for m in METHODS if wants_recalibration(cnn(m))]
    assert asking == [m for m in METHODS if get_method(m).recalibrates_norms]
    assert published_methods().intersection(asking) == {"slb"}


@pytest.mark.parametrize("method", METHODS)
def test_flips_are_counted_on_the_bits_that_go_to_disk(method):
    """Not on those of training, which may be disturbed or drawn at random."""
    net = cnn(method).train()
    surge.on_epoch(net, 0, 10)
    (layer, *_) = (layer for _, layer in binary_layers(net))
    watch = BitWatch(net)
    drawn = torch.get_rng_state()
    with torch.no_grad():
        if method == "rbonn":
            layer.method.last_gradient.normal_(std=100)
            torch.set_rng_state(drawn)
    assert watch.flipped() == 0
    before = layer.method.stored_values(layer.weight)
    with torch.no_grad():
        layer.weight[0, 0] *= -1
        layer.weight[1] += 0.01
    after = layer.method.stored_values(layer.weight)
    bits = sum(layer.weight.numel() for _, layer in binary_layers(net))
    assert watch.flipped() == pytest.approx(100 * int((before != after).sum()) / bits)
    assert (before != after).any() and set(after.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(torch.get_rng_state(), drawn)


def test_flips_of_more_bits_are_changed_values_and_real_weights_have_none():
    layer = surge.BinaryLinear(8, 4, method="dorefa", method_options={"weight_bits": 4})
    watch = BitWatch(layer)
    before = layer.packed_weight()[0]
    with torch.no_grad():
        layer.weight[0] *= 0.5
    changed = int((layer.packed_weight()[0] != before).sum())
    assert changed > 0 and watch.flipped() == pytest.approx(100 * changed / 32)
    real = surge.BinaryLinear(8, 4, method="dorefa", method_options={"weight_bits": 32})
    assert BitWatch(real).flipped() == 0.0
