"""Stored losses of the first 4 steps, through the real command, with and without torch.compile.

``tests/train/losses.py`` says how they are made and how to make them anew.
"""

from functools import partial

import pytest
import torch

from surge.recipes import get_recipe
from tests.train.losses import STEPS, losses, names, stored

TOLERANCE = 1e-4
GOLDEN = stored()
DIGITS = [name for name in GOLDEN if name.startswith("digits-")]
CIFAR = [
    "cifar10-resnet20-float",
    "cifar10-resnet20-bireal",
    "cifar10-resnet20-bnn-surge",
    "cifar10-resnet20-dorefa",
    "cifar10-resnet20-irnet-surge",
    "cifar10-resnet20-reactnet-surge",
    "cifar10-resnet20-recu",
    "cifar10-resnet20-recu-surge",
    "cifar10-resnet20-xnor-surge",
]
"""Enough to pass through every kind of method and model part; the others are slow tests."""
COMPILED = ["digits-cnn-bnn-surge", "digits-cnn-recu", "digits-cnn-recu-surge"]
OTHERS = [name for name in GOLDEN if name not in (*DIGITS, *CIFAR)]


@pytest.fixture
def backend(monkeypatch):
    """Let ``surge train --compiled True`` use another compiler than Inductor."""
    real = torch.compile

    def choose(name):
        torch._dynamo.reset()
        monkeypatch.setattr(torch, "compile", partial(real, backend=name))

    yield choose
    torch._dynamo.reset()


def check(name, folder, *options):
    assert losses(name, folder, *options) == pytest.approx(GOLDEN[name], abs=TOLERANCE)


@pytest.mark.parametrize("name", DIGITS)
def test_digits_losses_are_the_stored_ones(tmp_path, name):
    check(name, tmp_path)


@pytest.mark.parametrize("name", CIFAR)
def test_cifar10_losses_are_the_stored_ones(tmp_path, cifar10_dir, name):
    check(name, tmp_path, "--data", str(cifar10_dir))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_losses_are_the_stored_ones(tmp_path, backend, name):
    backend("aot_eager")
    check(name, tmp_path, "--compiled", "True")


def test_inductor_losses_are_the_stored_ones(tmp_path):
    check("digits-cnn-recu-surge", tmp_path, "--compiled", "True")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_all_other_losses_are_the_stored_ones(tmp_path, cifar10_dir, name):
    """ResNet-18 and VGG-Small have sums that equal their mean exactly: one processor type only."""
    check(name, tmp_path, "--data", str(cifar10_dir))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CIFAR if "surge" in name])
def test_compiled_cifar10_losses_are_the_stored_ones(tmp_path, cifar10_dir, backend, name):
    backend("aot_eager")
    check(name, tmp_path, "--compiled", "True", "--data", str(cifar10_dir))


def method_of(name):
    spec = get_recipe(name).method
    return spec and spec.name


def test_every_recipe_of_the_paper_and_of_a_stored_method_has_stored_losses():
    """A method that came later has them in its own test."""
    known = {method_of(name) for name in GOLDEN}
    wanted = {n for n in names() if get_recipe(n).paper is not None or method_of(n) in known}
    assert wanted and wanted <= set(GOLDEN)


def test_stored_losses_are_those_of_known_recipes():
    for name, values in GOLDEN.items():
        assert get_recipe(name).name == name
        assert len(values) == STEPS


def test_arms_of_a_pair_start_with_the_same_loss():
    """The auxiliary path changes nothing forward."""
    pairs = [(n, n.partition("-surge")[0]) for n in GOLDEN if "-surge" in n]
    assert pairs
    for surged, plain in pairs:
        # Its own loss is added to that of the data, not to what is reported.
        assert GOLDEN[surged][0] == GOLDEN[plain][0], surged
