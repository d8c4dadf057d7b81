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
