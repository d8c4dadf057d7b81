"""What a BERT is trained for: labels, or a teacher's logits and inner values.

Losses of BiT, with s the student and t the teacher (means over everything)::

    logits   mean(-softmax(t) log_softmax(s)), over batch and classes both, temperature 1
    hidden   sum over the embedding's output and every layer's of mean((s - t)^2)

A score (STS-B) has one output, whose softmax is 1: BiT's loss of the logits is zero there, and only
hidden states train. ``scores="mse"`` takes the squared error instead.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.functional import widened
from surge.methods.bibert import direction_mismatch, similarity
from surge.models.bert import Observed
from surge.recipes.recipe import DistillSpec


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, or for scores the squared error."""
    if logits.shape[1] == 1:
        return F.mse_loss(widened(logits[:, 0]), labels.to(widened(logits).dtype))
    return F.cross_entropy(widened(logits), labels)


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over batch and classes of ``-softmax(t) log_softmax(s)``."""
    return -(widened(teacher).softmax(dim=-1) * widened(student).log_softmax(dim=-1)).mean()


def logit_loss(student: Tensor, teacher: Tensor, spec: DistillSpec) -> Tensor:
    """Return how far the student's logits are from the teacher's."""
    if student.shape[1] == 1 and spec.scores == "mse":
        return F.mse_loss(widened(student), widened(teacher))
    return soft_cross_entropy(student, teacher)


def hidden_loss(student: Observed, teacher: Observed, spec: DistillSpec) -> Tensor:
    """Return the sum over hidden states of their squared error or mismatch of direction."""
    pairs = zip(student.hidden, teacher.hidden, strict=True)
    if spec.hidden_form == "direction":
        return torch.stack([direction_mismatch(s, t) for s, t in pairs]).sum()
    return torch.stack([F.mse_loss(widened(s), widened(t)) for s, t in pairs]).sum()


def projection_loss(student: Observed, teacher: Observed) -> Tensor:
    """Return BiBERT's mismatch of the similarities of queries, keys and values, over all layers."""
    terms = [
        direction_mismatch(similarity(s, student.mask), similarity(t, student.mask))
        for parts in zip(student.projections, teacher.projections, strict=True)
        for s, t in zip(*parts, strict=True)
    ]
    return torch.stack(terms).sum()


def score_loss(student: Observed, teacher: Observed) -> Tensor:
    """Return the sum over layers of the squared error of attention scores; masked ones are 0."""

    def scores(seen: Observed, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        product: Tensor = parts[0] @ parts[1].transpose(-1, -2) / parts[0].shape[-1] ** 0.5
        return torch.where(seen.mask <= -100, 0.0, widened(product))

    pairs = zip(student.projections, teacher.projections, strict=True)
    return torch.stack([F.mse_loss(scores(student, s), scores(teacher, t)) for s, t in pairs]).sum()


class TextObjective:
    """The loss of a step on sentences, without or with a teacher."""

    def __init__(self, teacher: nn.Module | None = None, spec: DistillSpec | None = None) -> None:
        """``teacher`` takes the same tokens as the student and is never changed."""
        self.spec = spec or DistillSpec()
        self.teacher = teacher
        if teacher is not None:
            teacher.requires_grad_(False)
            teacher.train(self.spec.teacher_dropout)

    def outputs(self, network: nn.Module, tokens: Tensor) -> Any:
        """Return what the student does, and what the teacher does."""
        if self.teacher is None:
            return network(tokens), None
        with torch.no_grad():
            taught = self.teacher(tokens, detailed=True)
        return network(tokens, detailed=True), taught

    def loss(self, outputs: Any, labels: Tensor, tokens: Tensor) -> Tensor:
        """Return the sum of all weighted losses."""
        student, teacher = outputs
        if teacher is None:
            return label_loss(student, labels)
        spec = self.spec
        terms = []
        if spec.logits:
            terms.append(spec.logits * logit_loss(student.logits, teacher.logits, spec))
        if spec.hidden:
            terms.append(spec.hidden * hidden_loss(student, teacher, spec))
        if spec.projections:
            terms.append(spec.projections * projection_loss(student, teacher))
        if spec.attention:
            terms.append(spec.attention * score_loss(student, teacher))
        if spec.labels and student.logits.shape[1] > 1:
            terms.append(spec.labels * label_loss(student.logits, labels))
        if not spec.logits:
            # Pooler and classifier take part without effect: processes wait for every gradient.
            terms.append(0.0 * widened(student.logits).sum())
        return torch.stack(terms).sum()

    def hits(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return how many classes are right; scores are never counted."""
        student = outputs[0]
        logits = student.logits if isinstance(student, Observed) else student
        if logits.shape[1] == 1:
            return torch.zeros((), device=logits.device)
        return (logits.argmax(dim=1) == labels).sum()
