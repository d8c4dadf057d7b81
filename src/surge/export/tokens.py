"""A BERT of transformers as ``pack`` takes it: one tensor of tokens in, logits out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surge.bert import is_bert
from surge.errors import ExportError

ROWS = ("input_ids", "token_type_ids", "attention_mask")


def with_one_input(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Return a model of one tensor and that tensor, if tokens were given by name.

    What a tokenizer of transformers returns becomes ``[N, 3, tokens]``: word numbers, which of two
    texts, and 1 where there is a word. Anything else is returned as it is.
    """
    if not isinstance(example, Mapping):
        return model, example
    from surge.models.bert import BertClassifier

    wrapped = isinstance(model, BertClassifier)
    if not wrapped and not (is_bert(model) and hasattr(model, "bert")):
        raise ExportError(
            "pack: example_input by name is for a BertForSequenceClassification of transformers; "
            "give one tensor."
        )
    return model if wrapped else BertClassifier(model), _stacked(example)


def _stacked(example: Mapping[str, Any]) -> Tensor:
    unknown = sorted(set(example) - set(ROWS))
    words = example.get("input_ids")
    if unknown or not isinstance(words, Tensor) or words.dim() != 2:
        raise ExportError(
            f"pack: example_input must hold the tensors {', '.join(ROWS)} of shape [N, tokens], "
            f"of which only the first is needed; it holds {', '.join(sorted(example))}."
        )
    missing = {"token_type_ids": torch.zeros_like(words), "attention_mask": torch.ones_like(words)}
    parts = [{**missing, **example}[name] for name in ROWS]
    if any(part.shape != words.shape for part in parts):
        raise ExportError("pack: the tensors of example_input have different shapes.")
    return torch.stack([part.long() for part in parts], dim=1)
