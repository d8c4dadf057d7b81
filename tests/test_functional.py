"""Forward values to the bit, backward rules against NumPy, eager against compiled."""

import logging
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surge import functional
from surge.errors import ConfigError

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
GRID = [-2.5, -1.5, -1.0, -0.75, -0.25, -0.0, 0.0, 0.125, 0.5, 1.0, 1.25, 3.0]
INF = math.inf
K, T, BETA, SCALE = 2.0, 0.5, 5.0, 0.25


def np_sign(x):
    return np.where(np.isnan(x), np.nan, np.where(x >= 0, 1.0, -1.0))


def np_swish_slope(x):
    # The paper's form; cosh overflows to inf for large x, which rightly gives 0.
    with np.errstate(over="ignore", invalid="ignore"):
        u = BETA * x
        slope = BETA * (2 - u * np.tanh(u / 2)) / (1 + np.cosh(u))
    return np.where(np.isinf(x), 0.0, slope)


@dataclass
class Rule:
    """A function, its extra arguments, and what NumPy says about it."""

    function: Any
    value: Any
    """NumPy: x -> forward value."""
    slope: Any
    """NumPy: x -> factor of the gradient."""
    primitive: Any
    """Torch: the differentiable function whose derivative the slope is; None where kinked."""
    extra: tuple[float, ...] = ()

    def __call__(self, x):
        return self.function(x, *(torch.tensor(v, device=x.device) for v in self.extra))


def swish(x):
    s = torch.sigmoid(BETA * x)
    return 2 * s * (1 + BETA * x * (1 - s)) - 1


def bireal_primitive(x):
    inside = torch.where(x < 0, 2 * x + x.square(), 2 * x - x.square())
    return torch.where(x.abs() < 1, inside, torch.sign(x))


def clipped(x):
    return (np.abs(x) <= 1).astype(float)


RULES = {
    "sign_identity": Rule(functional.sign_identity, np_sign, np.ones_like, lambda x: 1.0 * x),
    "sign_clipped": Rule(functional.sign_clipped, np_sign, clipped, lambda x: x.clamp(-1, 1)),
    "sign_bireal": Rule(
        functional.sign_bireal,
        np_sign,
        lambda x: np.maximum(0, 2 - 2 * np.abs(x)),
        bireal_primitive,
    ),
    "sign_ede": Rule(
        functional.sign_ede,
        np_sign,
        lambda x: K * T * (1 - np.tanh(T * x) ** 2),
        lambda x: K * torch.tanh(T * x),
        extra=(K, T),
    ),
    "sign_swish": Rule(functional.sign_swish, np_sign, np_swish_slope, swish, extra=(BETA,)),
    "scaled_sign_identity": Rule(
        functional.scaled_sign_identity,
        lambda x: SCALE * np_sign(x),
        np.ones_like,
        lambda x: 1.0 * x,
        extra=(SCALE,),
    ),
    "scaled_sign_clipped": Rule(
        functional.scaled_sign_clipped,
        lambda x: SCALE * np_sign(x),
        clipped,
        lambda x: x.clamp(-1, 1),
        extra=(SCALE,),
    ),
}

QUANTISERS = {
    "round_levels": Rule(
        lambda x: functional.round_levels(x, 3),
        lambda x: np.round(x * 3) / 3,
        np.ones_like,
        None,
    ),
    "quantize": Rule(
        lambda x: functional.quantize(x, 4),
        lambda x: np.round(x * 15) / 15,
        np.ones_like,
        None,
    ),
    "quantize_unit": Rule(
        lambda x: functional.quantize_unit(x, 2),
        lambda x: np.round(np.clip(x, 0, 1) * 3) / 3,
        lambda x: ((x >= 0) & (x <= 1)).astype(float),
        None,
    ),
}

ALL = RULES | QUANTISERS
signs = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
every = pytest.mark.parametrize("rule", ALL.values(), ids=ALL.keys())
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def numpy64(x):
    return x.detach().double().numpy()


def backward(function, x, grad=None):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    if grad is None:
        grad = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    y.backward(grad)
    return y.detach(), x.grad, grad


def tolerance(dtype):
    return {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}


@dtypes
def test_sign_values_are_exact(dtype):
    x = torch.tensor([-INF, -1, -1e-7, -0.0, 0.0, 1e-7, 1, INF], dtype=dtype)
    assert functional.sign(x).tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    assert functional.sign(x).dtype == dtype


def test_sign_has_no_gradient():
    assert not functional.sign(torch.randn(3, requires_grad=True)).requires_grad


@signs
@dtypes
def test_forward_is_exact_at_the_edges(rule, dtype):
    x = torch.tensor([-INF, *GRID, INF, math.nan], dtype=dtype)
    y = rule(x)
    assert y.dtype == dtype
    expected = torch.from_numpy(rule.value(numpy64(x))).to(dtype)
    assert torch.equal(y[:-1], expected[:-1])
    assert y[-1].isnan()


@signs
@dtypes
def test_forward_is_exact_just_beside_zero(rule, dtype):
    tiny = torch.finfo(dtype).tiny
    y = rule(torch.tensor([-tiny, tiny], dtype=dtype))
    assert torch.equal(y, rule(torch.tensor([-1.0, 1.0], dtype=dtype)))


@every
@dtypes
def test_backward_equals_the_formula(rule, dtype):
    x = torch.tensor(GRID, dtype=dtype)
    _, result, grad = backward(rule, x)
    assert result.dtype == dtype
    expected = torch.from_numpy(rule.slope(numpy64(x)) * numpy64(grad)).to(dtype)
    # The bells lose digits to cancellation (1 - tanh^2, 2 - u tanh) in half precision.
    bell = {"rtol": 0.05, "atol": 0.02} if dtype.itemsize == 2 else tolerance(dtype)
    torch.testing.assert_close(result, expected, **bell)


@pytest.mark.parametrize("name", ["sign_identity", "sign_clipped", "sign_bireal"])
@dtypes
def test_backward_of_exact_rules_is_exact(name, dtype):
    x = torch.tensor(GRID, dtype=dtype)
    _, result, _ = backward(RULES[name], x, grad=torch.full_like(x, 0.5))
    assert torch.equal(result.double(), torch.from_numpy(0.5 * RULES[name].slope(numpy64(x))))


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"sign_identity", "scaled_sign_identity"}))
@dtypes
def test_backward_is_zero_at_infinity(name, dtype):
    _, result, _ = backward(RULES[name], torch.tensor([-INF, INF], dtype=dtype))
    assert result.tolist() == [0, 0]


@signs
def test_backward_equals_autograd_of_the_primitive(rule):
    x = torch.randn(200, dtype=torch.float64) * 1.5
    x = x[(x.abs() - 1).abs() > 1e-3]
    _, surrogate, grad = backward(rule, x)
    _, true, _ = backward(rule.primitive, x, grad)
    torch.testing.assert_close(surrogate, true, rtol=1e-10, atol=1e-10)


@signs
def test_primitive_passes_gradcheck(rule):
    x = torch.linspace(-2.3, 2.3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rule.primitive, (x,))


def test_swish_slope_changes_sign_at_its_root():
    below, above = torch.tensor(2.39 / BETA), torch.tensor(2.41 / BETA)
    rule = RULES["sign_swish"]
    assert backward(rule, below, torch.ones(()))[1] > 0
    assert backward(rule, above, torch.ones(()))[1] < 0


def test_ede_gradient_does_not_reach_its_schedule():
    x, k, t = (torch.tensor(v, requires_grad=True) for v in (0.3, K, T))
    functional.sign_ede(x, k, t).backward()
    assert x.grad is not None and k.grad is None and t.grad is None


def test_scaled_sign_broadcasts_one_scale_per_filter():
    x, scale = torch.randn(3, 2, 2), torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1)
    y, result, grad = backward(lambda v: functional.scaled_sign_clipped(v, scale), x)
    assert torch.equal(y, scale * functional.sign(x))
    assert torch.equal(result, grad * (x.abs() <= 1))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 16])
@dtypes
def test_quantize_hits_the_nearest_level(bits, dtype):
    # Half precision is computed in single, so that 65535 levels neither overflow nor blur.
    wide = np.float64 if dtype == torch.float64 else np.float32
    x, levels = torch.rand(500).to(dtype), wide(2**bits - 1)
    expected = np.round(numpy64(x).astype(wide) * levels) / levels
    assert torch.equal(functional.quantize(x, bits), torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("bits", [1, 4, 16])
@dtypes
def test_quantize_keeps_both_ends(bits, dtype):
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert functional.quantize(ends, bits).tolist() == [0, 1]
    assert functional.quantize_unit(torch.tensor([-INF, INF], dtype=dtype), bits).tolist() == [0, 1]


def test_quantize_one_bit_has_threshold_one_half():
    assert functional.quantize(torch.tensor([0.0, 0.49, 0.51, 1.0]), 1).tolist() == [0, 0, 1, 1]


def test_quantize_unit_keeps_nan():
    assert functional.quantize_unit(torch.tensor(math.nan), 4).isnan()


@pytest.mark.parametrize("bits", [0, -1, 17, 2.0, "4", None])
def test_quantize_rejects_bits(bits):
    with pytest.raises(ConfigError, match="whole number from 1 to 16"):
        functional.quantize(torch.zeros(1), bits)


@every
def test_second_use_in_one_graph_adds_up(rule):
    x = torch.randn(40)
    _, once, grad = backward(rule, x)
    _, twice, _ = backward(lambda v: rule(v) + 2 * rule(v), x, grad)
    torch.testing.assert_close(twice, 3 * once)


@every
def test_second_use_in_a_row_multiplies(rule):
    x = torch.randn(40, dtype=torch.float64)
    y, _, grad = backward(rule, x)
    _, chained, _ = backward(lambda v: rule(rule(v)), x, grad)
    expected = numpy64(grad) * rule.slope(numpy64(y)) * rule.slope(numpy64(x))
    torch.testing.assert_close(chained, torch.from_numpy(expected))


@every
def test_compiled_gradient_equals_eager(rule):
    torch.compiler.reset()
    compiled = torch.compile(lambda v: rule(2 * v) * v, backend="aot_eager", fullgraph=True)
    x = torch.tensor([*GRID, *torch.randn(20).tolist()])
    y, result, grad = backward(lambda v: rule(2 * v) * v, x)
    compiled_y, compiled_result, _ = backward(compiled, x, grad)
    assert torch.equal(compiled_y, y)
    assert torch.equal(compiled_result, result)
    assert result.abs().sum() > 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_inductor_gradient_equals_eager(device):
    def network(x):
        return torch.stack([rule((1 + i / 8) * x) for i, rule in enumerate(ALL.values())])

    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True)
    x = torch.randn(3, 50, device=device)
    y, result, grad = backward(network, x)
    compiled_y, compiled_result, _ = backward(compiled, x, grad)
    torch.testing.assert_close(compiled_y, y)
    torch.testing.assert_close(compiled_result, result)


@pytest.mark.parametrize("name", RULES)
def test_operator_passes_opcheck(name):
    rule = RULES[name]
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(rule.function, (x, *(torch.tensor(v) for v in rule.extra)))


def test_round_levels_passes_opcheck():
    torch.library.opcheck(functional.round_levels, (torch.rand(6, requires_grad=True), 7))


def test_graphs_that_the_compiler_keeps_belong_to_one_version_of_the_code(tmp_path):
    """It would find those of another version, too, and run their backward."""
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "rule.py"
    file.write_text("factor = 1\n")
    before = functional.version_of(tmp_path)
    assert functional.version_of(tmp_path) == before
    file.write_text("factor = 2\n")
    assert functional.version_of(tmp_path) != before
    here = functional.version_of(Path(functional.__file__).parent)
    assert here in torch.compiler.config.cache_key_tag


PROBE = """
import torch
from surge.functional import sign_clipped

x = torch.tensor([0.5], requires_grad=True)
torch.compile(lambda x: 3 * sign_clipped(x))(x).backward()
print(float(x.grad))
"""


@pytest.mark.slow
def test_a_rewritten_backward_is_not_taken_from_the_compilers_cache(tmp_path):
    package = tmp_path / "surge"
    shutil.copytree(Path(functional.__file__).parent, package)
    places = {"PYTHONPATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def slope():
        words = [sys.executable, "-c", PROBE]
        return float(subprocess.check_output(words, env={**os.environ, **places}, text=True))

    assert slope() == 3.0
    file = package / "functional.py"
    rule = "return grad * (x.abs() <= 1)"
    assert file.read_text().count(rule) == 1
    file.write_text(file.read_text().replace(rule, "return 7 * grad"))
    assert slope() == 21.0


def test_operator_is_registered_without_a_word_where_triton_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", None)
    log, said = logging.getLogger("torch._library.triton"), []
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "handle", said.append)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    functional.operator("test_quiet", backward=lambda ctx, grad: 2 * grad)(doubled)
    del functional.BODIES["test_quiet"]
    assert said == [] and not log.disabled
