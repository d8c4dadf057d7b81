"""BinaryBERT against methods.md B19, in NumPy."""

import numpy as np
import pytest
import torch

from surge.layers import BinaryEmbedding, BinaryLinear
from surge.methods.binarybert import split_weight, ternary_parts
from tests.methods.reference import CASES, check, close, sign

LEVEL = 1.0  # where a level starts


def input_rule(x):
    return LEVEL * sign(x), lambda g: g * (np.abs(x) <= LEVEL)


def unsigned_rule(x):
    return np.clip(np.rint(x), 0, 1), lambda g: g * ((x >= 0) & (x <= 1))


def binary_rule(w):
    return np.abs(w).mean() * sign(w), lambda g: g


def ternary(w):
    kept = np.abs(w) > 0.7 * np.abs(w).mean()
    return np.where(kept, sign(w), 0.0), np.abs(w)[kept].mean()


def ternary_rule(w):
    values, scale = ternary(w)
    return scale * values, lambda g: g


@pytest.mark.parametrize("case", CASES)
def test_binary_stage_equals_numpy(case):
    check(case, "binarybert", weight_rule=binary_rule, input_rule=input_rule)


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_ternary_stage_equals_numpy(case):
    options = {"ternary": True}
    check(case, "binarybert", options, weight_rule=ternary_rule, input_rule=input_rule)


def test_unsigned_inputs_equal_numpy():
    options = {"unsigned": True}
    check("linear", "binarybert", options, weight_rule=binary_rule, input_rule=unsigned_rule)


@pytest.mark.parametrize("stage", [False, True], ids=["binary", "ternary"])
def test_embedding_rows_have_their_own_scale(stage):
    layer = BinaryEmbedding(6, 9, method="binarybert", method_options={"ternary": stage}).double()
    rule = ternary_rule if stage else binary_rule
    expected = np.stack([rule(row)[0] for row in layer.weight.detach().numpy()])
    close(layer(torch.arange(6)), expected)


def test_split_equals_numpy():
    w = torch.randn(8, 12).double()
    first, second = split_weight(w)
    x = w.numpy()
    values, scale = ternary(x)
    zero, size = values == 0, np.abs(x)
    b = (scale * x.size - size.sum()) / (2 * zero.sum())
    one = np.where(x > 0, x + b, b)
    two = np.where(x > 0, -b, x - b)
    kept = size[~zero].sum()
    a = (kept + np.abs(two)[zero].sum() - np.abs(one)[zero].sum()) / (2 * kept)
    close(first, np.where(zero, one, a * x))
    close(second, np.where(zero, two, (1 - a) * x))


@pytest.mark.parametrize("rows", [False, True], ids=["layer", "rows"])
def test_split_halves_add_up_to_the_ternary_weight(rows):
    w = torch.randn(8, 12).double()
    first, second = split_weight(w, rows=rows)
    close(first + second, w.numpy())
    values, scale = ternary_parts(w, rows=rows)

    def binary(half):
        magnitude = half.abs().mean(dim=1, keepdim=True) if rows else half.abs().mean()
        return magnitude * torch.where(half >= 0, 1.0, -1.0).double()

    close(binary(first) + binary(second), (values * scale).numpy())


def test_split_of_a_weight_without_zeros_halves_it():
    w = torch.ones(3, 4).double()
    first, second = split_weight(w)
    close(first, np.full((3, 4), 0.5))
    close(second, np.full((3, 4), 0.5))


def test_ternary_packs_to_three_values():
    layer = BinaryLinear(12, 8, method="binarybert", method_options={"ternary": True})
    values, scale = layer.packed_weight()
    assert layer.method.bits == (2, 1) and set(values.unique().tolist()) == {-1.0, 0.0, 1.0}
    torch.testing.assert_close(
        values * scale[:, None], layer.method.binarize_weight(layer.weight).detach()
    )
