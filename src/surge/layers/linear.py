"""Binary linear layer and binary embedding."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from surge.errors import UnsupportedLayerError
from surge.layers.base import BinaryLayer
from surge.method import Geometry


class BinaryLinear(BinaryLayer, nn.Linear):  # type: ignore[misc]
    """A linear layer with binary weights and inputs; takes ``nn.Linear``'s arguments."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        method: str = "bnn",
        method_options: dict[str, Any] | None = None,
        **linear_options: Any,
    ) -> None:
        """Build the layer, then give it its method."""
        nn.Linear.__init__(self, in_features, out_features, **linear_options)
        self.bind(method, method_options or {})

    @property
    def geometry(self) -> Geometry:
        """The shape facts a method needs."""
        return Geometry("linear", self.out_features, self.in_features)

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply without bias."""
        return F.linear(x, weight)


class BinaryTransposedLinear(BinaryLinear):
    """A binary linear layer that a ``state_dict`` has as ``[in, out]``.

    What ``Conv1D`` of transformers becomes. The weight itself is ``[out, in]``, as everywhere.
    """

    def bind(self, method: str, options: dict[str, Any]) -> None:
        """Give the layer its method, and its sizes under the names of ``nn.Linear``."""
        self.out_features, self.in_features = self.weight.shape
        super().bind(method, options)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = destination[f"{prefix}weight"].T

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # The caller made this dict for us: torch copies what it is given.
        if f"{prefix}weight" in state_dict:
            state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"].T
        super()._load_from_state_dict(state_dict, prefix, *args)


class BinaryEmbedding(BinaryLayer, nn.Embedding):  # type: ignore[misc]
    """An embedding with binary rows; there is no input to binarise and none to compensate.

    The row of ``padding_idx`` is binarised like every other; it learns nothing, as in nn.Embedding.
    """

    bias = None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        method: str = "bnn",
        method_options: dict[str, Any] | None = None,
        **embedding_options: Any,
    ) -> None:
        """Build the table, then give it its method."""
        nn.Embedding.__init__(self, num_embeddings, embedding_dim, **embedding_options)
        check_embedding(self)
        self.bind(method, method_options or {})

    @property
    def geometry(self) -> Geometry:
        """The shape facts a method needs."""
        return Geometry("embedding", self.num_embeddings, self.embedding_dim)

    def forward(self, input: Tensor) -> Tensor:
        """Look up binarised rows; a per-row output scale is applied to the row."""
        weight = self.method.binarize_weight(self.weight)
        scale = self.method.output_scale()
        if scale is not None:
            weight = weight * scale.unsqueeze(1).to(weight.dtype)
        return F.embedding(
            input,
            weight,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )


def check_embedding(layer: nn.Module) -> None:
    """Raise if an embedding has an option that its binary form does not support."""
    if getattr(layer, "sparse", False):
        raise UnsupportedLayerError("sparse=True is not supported: latent rows need all gradients.")
    if getattr(layer, "max_norm", None) is not None:
        raise UnsupportedLayerError("max_norm is not supported: binary rows have a fixed norm.")
