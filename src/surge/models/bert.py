"""A transformers BERT behind one tensor of tokens, and what distillation wants to see of it."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from surge.data.tokens import transformers_package
from surge.errors import CheckpointMismatchError, ConfigError
from surge.layers.attention import BinaryAttention, additive

FRESH = ("classifier.", "bert.pooler.")
"""Parts that a pretrained folder may lack: they are drawn."""


class Observed(NamedTuple):
    """The output of a BERT with what happened inside, for every layer."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    """The embedding's output and every layer's: ``[batch, tokens, features]``."""
    projections: tuple[tuple[Tensor, Tensor, Tensor], ...]
    """Real-valued queries, keys and values: ``[batch, heads, tokens, size]``."""
    mask: Tensor
    """Term of the scores: 0, or far below where there is no word."""


class BertClassifier(nn.Module):
    """A ``BertForSequenceClassification`` that takes ``[batch, 3, tokens]``.

    The three rows are word numbers, which of two texts, and 1 where there is a word. Layers are
    called one by one, so that inner values need no hooks and a step compiles in one graph.
    """

    def __init__(self, classifier: nn.Module) -> None:
        """Hold a classifier of transformers, float or binary."""
        super().__init__()
        self.classifier = classifier

    def forward(self, tokens: Tensor, *, detailed: bool = False) -> Any:
        """Return logits, or all that was :class:`Observed`."""
        model: Any = self.classifier
        words, kinds, present = tokens.unbind(1)
        x = model.bert.embeddings(input_ids=words, token_type_ids=kinds)
        mask = additive(present, x)
        assert mask is not None
        hidden, projections = [x], []
        for layer in model.bert.encoder.layer:
            context, parts = attend(layer.attention.self, x, mask)
            middle = layer.attention.output(context, x)
            x = layer.output(layer.intermediate(middle), middle)
            hidden.append(x)
            projections.append(parts)
        logits = model.classifier(model.dropout(model.bert.pooler(x)))
        if not detailed:
            return logits
        return Observed(logits, tuple(hidden), tuple(projections), mask)


def attend(module: Any, x: Tensor, mask: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the context of a self-attention, float or binary, and its real-valued projections."""
    shape = (*x.shape[:-1], module.num_attention_heads, module.attention_head_size)
    query, key, value = (
        part(x).view(shape).transpose(1, 2) for part in (module.query, module.key, module.value)
    )
    if isinstance(module, BinaryAttention):
        context, _ = module.mix(query, key, value, mask)
    else:
        drop = module.dropout.p if module.training else 0.0
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask.to(query.dtype), dropout_p=drop
        )
        context = heads.transpose(1, 2).flatten(2)
    return context, (query, key, value)


def load_bert(folder: Path, outputs: int) -> BertClassifier:
    """Read a pretrained BERT and give it a fresh classifier with so many outputs.

    Nothing is downloaded. The classifier is drawn from torch's random numbers.
    """
    transformers = transformers_package()
    verbosity = transformers.logging.get_verbosity()
    shown = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, found = transformers.BertForSequenceClassification.from_pretrained(
            str(folder),
            num_labels=outputs,
            dtype=torch.float32,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise ConfigError(f"{folder} holds no readable BERT weights (--model): {error}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
        if shown:
            transformers.logging.enable_progress_bar()
    _check_loaded(folder, found)
    return BertClassifier(model.to(torch.get_default_dtype()))


def _check_loaded(folder: Path, found: dict[str, Any]) -> None:
    """Raise if anything but the head of a classifier would stay as it was drawn."""
    other = {
        name: f"{tuple(has)}, not {tuple(needs)}" for name, has, needs in found["mismatched_keys"]
    }
    drawn = {**dict.fromkeys(found["missing_keys"], "absent"), **other}
    wrong = {name: why for name, why in sorted(drawn.items()) if not name.startswith(FRESH)}
    if wrong:
        name, why = next(iter(wrong.items()))
        raise ConfigError(
            f'{folder} holds weights that do not fit its config.json (--model): "{name}" is {why}; '
            f"{len(wrong)} tensors in all."
        )


def load_weights(model: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Take the weights of another run; layers of this model that it lacks stay as they are."""
    own = model.state_dict()
    wrong = [n for n, t in state.items() if n not in own or own[n].shape != t.shape]
    if wrong:
        raise CheckpointMismatchError(
            f'{where} does not fit this model: "{wrong[0]}" ({len(wrong)} tensors in all). Was it '
            "trained from another --model, or for another task?"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
