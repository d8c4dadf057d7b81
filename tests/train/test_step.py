"""Compiling steps of many runs in one process."""

import pytest
import torch
from torch import nn

from surge.train import step


class Small(nn.Module):
    """Something with a forward, as a training step has."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x):
        return self.layer(x).sum()


@pytest.fixture(autouse=True)
def light_compiler(monkeypatch):
    """Not Inductor, whose options others would refuse."""
    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: real(f, fullgraph=True, backend="aot_eager")
    )
    yield
    torch._dynamo.reset()


def compile_many(compiled):
    x = torch.randn(2, 3)
    for width in range(1, 12):
        small = Small(width)
        torch.testing.assert_close(compiled(small)(x), small(x))


def test_many_runs_compile_in_one_process():
    compile_many(lambda small: step.compiled_step(small.forward, small))


def test_plain_compiling_gives_up_after_some_runs():
    """The reason why every step gets a code object of its own."""
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        compile_many(lambda small: torch.compile(small.forward))


def test_functions_are_compiled_as_they_are():
    x = torch.randn(3)
    assert torch.equal(step.compiled_step(lambda t: t + 1, nn.Module())(x), x + 1)


@pytest.mark.parametrize(("width", "together"), [(4, True), (2**15, False)])
def test_only_small_weights_are_worked_on_together(width, together, monkeypatch):
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.update(options))
    model = Small(width)
    step.compiled_step(model.forward, model)
    assert asked["options"] == (step.TOGETHER if together else None)


@pytest.mark.parametrize(("more", "together"), [(0, True), (1, False)])
def test_a_weight_of_the_limit_is_still_small(more, together, monkeypatch):
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.update(options))
    model = nn.ParameterList([torch.zeros(step.SMALL + more)])
    step.compiled_step(lambda x: x, model)
    assert (asked["options"] is not None) == together


def test_step_is_compiled_as_one_graph(monkeypatch):
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.update(options))
    step.compiled_step(lambda x: x, nn.Module())
    assert asked["fullgraph"] is True


class Doubled(Small):
    """One whose forward has a default and, for ``super``, a closure."""

    def forward(self, x, factor=2.0):
        return factor * super().forward(x)


def test_compiled_method_keeps_its_defaults_and_its_closure():
    model, x = Doubled(2), torch.randn(2, 3)
    assert torch.equal(step.compiled_step(model.forward, model)(x), model(x))


@pytest.mark.parametrize(
    ("count", "accumulate", "parts"), [(11, 4, [3, 3, 3, 2]), (8, 4, [2] * 4), (3, 4, [1] * 3)]
)
def test_parts_of_a_batch_have_as_many_images_as_it_has(count, accumulate, parts):
    assert step.parts_of(count, accumulate) == parts
