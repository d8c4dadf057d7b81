"""Losses of BiT and BiBERT against NumPy, and the oddity of tasks with one output."""

import numpy as np
import pytest
import torch

from surge import binarize_
from surge.models.bert import BertClassifier, Observed
from surge.recipes.recipe import DistillSpec
from surge.train.text.distill import (
    TextObjective,
    hidden_loss,
    label_loss,
    logit_loss,
    projection_loss,
    score_loss,
    soft_cross_entropy,
)
from tests.berts import LENGTH, tiny_bert

BATCH, HEADS, SIZE = 3, 2, 4


def observed(seed, outputs=2):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    mask = torch.zeros(BATCH, 1, 1, 5)
    mask[0, ..., 3:] = -10000.0
    projections = tuple(tuple(draw(BATCH, HEADS, 5, SIZE) for _ in range(3)) for _ in range(2))
    hidden = tuple(draw(BATCH, 5, 8) for _ in range(3))
    return Observed(draw(BATCH, outputs), hidden, projections, mask)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def array(x):
    return x.detach().double().numpy()


STUDENT, TEACHER = observed(1), observed(2)


def test_soft_cross_entropy_is_a_mean_over_batch_and_classes():
    s, t = array(STUDENT.logits), array(TEACHER.logits)
    expected = (-softmax(t) * np.log(softmax(s))).mean()
    found = soft_cross_entropy(STUDENT.logits, TEACHER.logits)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_hidden_loss_sums_mean_squares():
    expected = sum(
        ((array(s) - array(t)) ** 2).mean()
        for s, t in zip(STUDENT.hidden, TEACHER.hidden, strict=True)
    )
    assert float(hidden_loss(STUDENT, TEACHER, DistillSpec())) == pytest.approx(expected, rel=1e-5)


def unit(x):
    return x / np.sqrt((x**2).sum())


def test_direction_of_hidden_states():
    expected = sum(
        np.sqrt(((unit(array(s)) - unit(array(t))) ** 2).sum())
        for s, t in zip(STUDENT.hidden, TEACHER.hidden, strict=True)
    )
    spec = DistillSpec(hidden_form="direction")
    assert float(hidden_loss(STUDENT, TEACHER, spec)) == pytest.approx(expected, rel=1e-5)


def test_projection_loss_compares_similarities():
    hidden = np.broadcast_to(array(STUDENT.mask) <= -100, (BATCH, HEADS, 5, 5))
    expected = 0.0
    for ours, theirs in zip(STUDENT.projections, TEACHER.projections, strict=True):
        for s, t in zip(ours, theirs, strict=True):
            sides = []
            for x in (array(s), array(t)):
                scores = x @ x.swapaxes(-1, -2) / np.sqrt(SIZE)
                sides.append(unit(np.where(hidden, 0.0, scores)))
            expected += np.sqrt(((sides[0] - sides[1]) ** 2).sum())
    assert float(projection_loss(STUDENT, TEACHER)) == pytest.approx(expected, rel=1e-5)


def test_score_loss_leaves_masked_scores_out():
    hidden = np.broadcast_to(array(STUDENT.mask) <= -100, (BATCH, HEADS, 5, 5))
    expected = 0.0
    for s, t in zip(STUDENT.projections, TEACHER.projections, strict=True):
        a, b = (array(q) @ array(k).swapaxes(-1, -2) / np.sqrt(SIZE) for q, k, _ in (s, t))
        expected += (np.where(hidden, 0.0, a - b) ** 2).mean()
    assert float(score_loss(STUDENT, TEACHER)) == pytest.approx(expected, rel=1e-5)


def test_one_output_has_no_logit_loss_in_bits_recipe():
    s, t = observed(3, 1), observed(4, 1)
    s.logits.requires_grad_()
    quirk = logit_loss(s.logits, t.logits, DistillSpec())
    quirk.backward()
    assert quirk.item() == 0.0 and s.logits.grad.eq(0).all()
    sensible = logit_loss(s.logits, t.logits, DistillSpec(scores="mse"))
    assert sensible.item() == pytest.approx(((array(s.logits) - array(t.logits)) ** 2).mean())


def test_label_loss_of_classes_and_scores():
    logits = torch.tensor([[1.0, 2.0], [0.5, -0.5]])
    p = softmax(array(logits))
    expected = -np.log([p[0, 1], p[1, 0]]).mean()
    assert float(label_loss(logits, torch.tensor([1, 0]))) == pytest.approx(expected, rel=1e-6)
    scores = torch.tensor([[1.0], [4.0]])
    assert float(label_loss(scores, torch.tensor([2.0, 4.0]))) == pytest.approx(0.5)


def batch(count=4):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(5, 50, (count, LENGTH), generator=generator)
    return torch.stack([words, torch.zeros_like(words), torch.ones_like(words)], dim=1)


def pair(**options):
    teacher, student = (BertClassifier(tiny_bert(seed=1, **options)) for _ in range(2))
    binarize_(student.classifier, "bit")
    return student, teacher


def test_total_is_the_weighted_sum():
    student, teacher = pair()
    student.eval()
    rows, labels = batch(), torch.tensor([0, 1, 0, 1])
    spec = DistillSpec(logits=0.5, hidden=2.0, projections=3.0, attention=0.25, labels=0.75)
    objective = TextObjective(teacher, spec)
    s, t = outputs = objective.outputs(student, rows)
    expected = (
        0.5 * soft_cross_entropy(s.logits, t.logits)
        + 2.0 * hidden_loss(s, t, spec)
        + 3.0 * projection_loss(s, t)
        + 0.25 * score_loss(s, t)
        + 0.75 * label_loss(s.logits, labels)
    )
    torch.testing.assert_close(objective.loss(outputs, labels, rows), expected)
    assert objective.hits(outputs, s.logits.argmax(1)) == 4


def test_bits_losses_are_the_default():
    student, teacher = pair()
    objective = TextObjective(teacher)
    rows = batch()
    s, t = outputs = objective.outputs(student, rows)
    expected = soft_cross_entropy(s.logits, t.logits) + hidden_loss(s, t, DistillSpec())
    torch.testing.assert_close(objective.loss(outputs, torch.zeros(4), rows), expected)


def test_teacher_is_frozen_and_its_dropout_a_choice():
    student, teacher = pair()
    rows = batch()
    quiet = TextObjective(teacher)
    first, second = (quiet.outputs(student, rows)[1].logits for _ in range(2))
    assert torch.equal(first, second) and not first.requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())
    noisy = TextObjective(teacher, DistillSpec(teacher_dropout=True))
    first, second = (noisy.outputs(student, rows)[1].hidden[-1] for _ in range(2))
    assert not torch.equal(first, second)


def test_scores_train_hidden_states_alone_in_bits_recipe():
    gradients = []
    for scores in ("softmax", "mse"):
        student, teacher = pair(num_labels=1)
        objective = TextObjective(teacher, DistillSpec(scores=scores))
        rows, labels = batch(), torch.rand(4)
        outputs = objective.outputs(student, rows)
        objective.loss(outputs, labels, rows).backward()
        gradients.append(student.classifier.classifier.weight.grad.abs().sum().item())
        assert objective.hits(outputs, labels) == 0
    assert gradients[0] == 0.0 < gradients[1]


def test_every_parameter_takes_part_without_a_logit_loss():
    student, teacher = pair()
    objective = TextObjective(teacher, DistillSpec(logits=0.0, attention=1.0))
    rows = batch()
    objective.loss(objective.outputs(student, rows), torch.zeros(4).long(), rows).backward()
    assert all(p.grad is not None for p in student.parameters())


def test_without_teacher_labels_decide():
    model = BertClassifier(tiny_bert())
    objective = TextObjective()
    rows, labels = batch(), torch.tensor([0, 1, 0, 1])
    outputs = objective.outputs(model.eval(), rows)
    torch.testing.assert_close(
        objective.loss(outputs, labels, rows), label_loss(model(rows), labels)
    )
    assert objective.hits(outputs, model(rows).argmax(1)) == 4
