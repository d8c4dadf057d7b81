"""What ``binarize_`` knows of a transformers BERT beside its weighted layers.

Papers on binary BERT also make the word embeddings and the two products of every self-attention
binary, and leave position and token-type embeddings, norms and the classifier real.
"""

from collections.abc import Callable, Iterator

from torch import nn

from surge.layers.attention import binary_attention
from surge.method import Method

ATTENTION = "BertSelfAttention"
WORDS = "word_embeddings"
REAL_EMBEDDINGS = ("position_embeddings", "token_type_embeddings")


def _is(module: nn.Module, name: str) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def is_attention(module: nn.Module) -> bool:
    """Return whether a module is the self-attention of a BERT, float or binary."""
    return _is(module, ATTENTION)


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the self-attentions of all BERT encoders in a model, by name."""
    return {name: module for name, module in model.named_modules() if is_attention(module)}


def is_bert(model: nn.Module) -> bool:
    """Return whether a model has a BERT encoder inside."""
    return bool(attentions(model))


def embedding_verdict(name: str) -> str | None:
    """Return what becomes of an embedding of a BERT, or None for other layers.

    >>> embedding_verdict("bert.embeddings.word_embeddings")
    'binary'
    """
    last = name.rpartition(".")[2]
    if last == WORDS:
        return "binary"
    return "float: position or token-type embedding" if last in REAL_EMBEDDINGS else None


def _feed_forwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every feed-forward's first half, with the name of the layer that follows it."""
    for name, module in model.named_modules():
        if _is(module, "BertLayer"):
            prefix = f"{name}." if name else ""
            yield f"{prefix}output.dense", module.intermediate


def behind_activation(model: nn.Module) -> set[str]:
    """Return the names of the layers that take the output of a feed-forward's activation."""
    return {name for name, _ in _feed_forwards(model)}


class Changes:
    """What was changed in a BERT beside its weighted layers, so that it can be undone."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._undo: list[Callable[[], None]] = []

    def apply(self, model: nn.Module, method: type[Method], products: set[str]) -> None:
        """Make the products of the named attentions binary, and set the activation."""
        for name, module in attentions(model).items():
            if name in products:
                self._bind(module, method)
        if method.relu_feed_forward:
            for _, half in _feed_forwards(model):
                self._activate(half)

    def _bind(self, module: nn.Module, method: type[Method]) -> None:
        before = type(module)
        target = binary_attention(before)
        module.__class__ = target
        self._undo.append(lambda: _unbind(module, before))
        target.bind(module, method.attention())  # type: ignore[arg-type]

    def _activate(self, half: nn.Module) -> None:
        before = half.intermediate_act_fn
        half.intermediate_act_fn = nn.ReLU()
        self._undo.append(lambda: _activate_with(half, before))

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _unbind(module: nn.Module, kind: type[nn.Module]) -> None:
    module._modules.pop("rule", None)
    module.__class__ = kind


def _activate_with(half: nn.Module, activation: object) -> None:
    half._modules.pop("intermediate_act_fn", None)
    half.intermediate_act_fn = activation  # type: ignore[assignment]
