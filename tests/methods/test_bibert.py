"""BiBERT against methods.md B20, in NumPy."""

import numpy as np
import pytest
import torch

from surge.layers import BinaryEmbedding
from surge.methods.bibert import BiAttention, bool_clipped, direction_mismatch, similarity
from tests.methods.reference import (
    CASES,
    check,
    check_packed,
    close,
    inside,
    per_filter_mean,
    sign,
    sign_input,
)


def weight_rule(w):
    centred = w - per_filter_mean(w)
    scale = per_filter_mean(np.abs(w))

    def back(g):
        passed = g * inside(centred)
        return passed - per_filter_mean(passed)

    return scale * sign(centred), back


@pytest.mark.parametrize("case", CASES)
def test_bibert_equals_numpy(case):
    check(case, "bibert", weight_rule=weight_rule, input_rule=sign_input(inside))


@pytest.mark.parametrize("case", ["conv", "linear"])
def test_bibert_packed_weight(case):
    check_packed(case, "bibert")


def test_bibert_embedding_rows():
    layer = BinaryEmbedding(7, 4, method="bibert").double()
    w = layer.weight.detach().numpy()
    close(layer(torch.arange(7)), weight_rule(w)[0])


def test_bi_attention_is_one_where_scores_are_positive():
    scores = torch.tensor([-2.0, -0.5, 0.0, 1e-6, 0.5, 1.0, 3.0, -10000.0], requires_grad=True)
    factors = BiAttention().weigh(scores, torch.nn.Identity())
    assert factors.tolist() == [0, 0, 0, 1, 1, 1, 1, 0]
    factors.sum().backward()
    assert scores.grad.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]


def test_bi_attention_drops_scores_before_it_decides():
    scores = torch.full((3, 4), 0.5)
    assert BiAttention().weigh(scores, lambda s: s * 0).sum() == 0


def test_bool_gives_the_dtype_of_its_input():
    assert bool_clipped(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_similarity_and_mismatch_equal_numpy():
    s, t = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    mask = torch.zeros(2, 1, 1, 4)
    mask[0, ..., 3:], mask[1, ..., 3:] = -100.0, -10000.0
    hidden = np.broadcast_to(mask.numpy() <= -100, (2, 3, 4, 4))

    def reference(x):
        x = x.double().numpy()
        scores = x @ np.swapaxes(x, -1, -2) / np.sqrt(5)
        scores[hidden] = 0
        return scores / np.sqrt((scores**2).sum())

    expected = np.sqrt(((reference(s) - reference(t)) ** 2).sum())
    found = direction_mismatch(similarity(s, mask), similarity(t, mask))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert float(direction_mismatch(s, 7 * s)) < 1e-5
    torch.testing.assert_close(similarity(s[0]), similarity(s)[0])


def test_mismatch_of_equal_tensors_has_a_finite_gradient():
    s = torch.randn(3, 4, requires_grad=True)
    direction_mismatch(s, s.detach()).backward()
    assert s.grad.isfinite().all()


def test_bibert_distillation_looks_at_the_batch_that_it_sees():
    """The norm is over all of it: parts of a batch have other gradients than the whole."""
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 4, 3, 5).unbind()
    whole = gradient_of(lambda s: direction_mismatch(s, teacher), student)
    halves = zip(student.chunk(2), teacher.chunk(2), strict=True)
    parts = [gradient_of(lambda s, t=t: direction_mismatch(s, t) / 2, s) for s, t in halves]
    assert not torch.allclose(torch.cat(parts), whole, rtol=0.01)


def gradient_of(loss, at):
    at = at.clone().requires_grad_()
    return torch.autograd.grad(loss(at), at)[0]
