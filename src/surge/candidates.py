"""Which layers of a model can become binary, and why the others cannot."""

import sys
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from surge import pitfalls
from surge.errors import ConfigError, UnsupportedLayerError
from surge.layers import (
    BinaryConv1d,
    BinaryConv2d,
    BinaryEmbedding,
    BinaryLayer,
    BinaryLinear,
    BinaryTransposedLinear,
)
from surge.layers.base import check_convolution
from surge.layers.linear import check_embedding
from surge.layers.stem import StemConv2d

BINARY: dict[type[nn.Module], type[BinaryLayer]] = {
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.Linear: BinaryLinear,
    nn.Embedding: BinaryEmbedding,
    StemConv2d: BinaryConv2d,
}
NO_BINARY_FORM: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.modules.rnn.RNNBase,
    nn.modules.rnn.RNNCellBase,
    nn.Bilinear,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
)
USED_DIRECTLY: dict[type[nn.Module], tuple[str, ...]] = {
    nn.MultiheadAttention: ("out_proj",),
    nn.TransformerEncoderLayer: ("linear1", "linear2"),
}
"""Children whose own forward is passed over: their parent multiplies with ``child.weight``."""
LAZY = "unsupported: lazy, run the model once before"
QUANTIZED = "unsupported: already quantised"


def shown(name: str) -> str:
    """Return a module's name, or a word for the whole model."""
    return name or "(model)"


def weighted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every weighted layer, those without a binary form included; shared ones come once."""
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            raise ConfigError(
                f'"{shown(name)}" is binary already ({module.method.describe()}); binarize_ '
                "works on float models only."
            )
        if _is_listed(module) or is_foreign(module):
            yield name, module


def forms() -> dict[type[nn.Module], type[BinaryLayer]]:
    """Return all layers that have a binary form, that of transformers too where it is in use."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    more = {} if transformers is None else {transformers.Conv1D: BinaryTransposedLinear}
    return {**BINARY, **more}


def _is_listed(module: nn.Module) -> bool:
    return isinstance(module, (*forms(), *NO_BINARY_FORM)) or is_quantized(module)


def is_foreign(module: nn.Module) -> bool:
    """Return whether a module that is none of torch's layers has a weight of its own."""
    if _is_listed(module) or isinstance(module, (*pitfalls.NORMS, ParametrizationList)):
        return False
    return any(is_lazy(p) or p.dim() > 1 for p in module.parameters(recurse=False))


def is_quantized(module: nn.Module) -> bool:
    """Return whether a module holds weights that torch has quantised, or simulates that."""
    # Stubs and containers of packed weights live in the same package, but have no weight.
    return type(module).__module__.startswith("torch.ao.nn.") and hasattr(module, "weight")


def verdict_on(model: nn.Module, name: str, layer: nn.Module, embeddings: bool) -> str:
    """Return ``binary``, or the reason why this layer cannot become binary."""
    if is_quantized(layer):
        return QUANTIZED
    parent = model.get_submodule(name.rpartition(".")[0])
    for kind, children in USED_DIRECTLY.items():
        if isinstance(parent, kind) and name.rpartition(".")[2] in children:
            return f"unsupported: {kind.__name__} uses its weight directly"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return LAZY
    known = forms()
    if not isinstance(layer, tuple(known)):
        return f"unsupported: {type(layer).__name__} has no binary form"
    if type(layer) not in known:
        return f"unsupported: {_why_subclass(layer)}"
    if "forward" in vars(layer):
        return "unsupported: its forward was replaced"
    if type(layer.weight) is not nn.Parameter or not layer.weight.is_floating_point():
        kind_of_weight = type(layer.weight).__name__
        return f"unsupported: its weight is a {kind_of_weight} of {layer.weight.dtype}"
    try:
        if isinstance(layer, nn.Embedding):
            check_embedding(layer)
            return "binary" if embeddings else "float: embedding (embeddings=True converts it)"
        if isinstance(layer, nn.modules.conv._ConvNd):
            check_convolution(layer)
    except UnsupportedLayerError as error:
        return f"unsupported: {error}"
    return "binary"


def _why_subclass(layer: nn.Module) -> str:
    if hasattr(layer, "parametrizations"):
        return "parametrised"
    base = next(kind for kind in forms() if isinstance(layer, kind))
    return f"a subclass of {base.__name__}"


def weight_count(layer: nn.Module) -> int:
    """Return how many weights a layer has."""
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return 0
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor):
        return weight.numel()
    return sum(p.numel() for p in layer.parameters(recurse=False) if p.dim() > 1)
