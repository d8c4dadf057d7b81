"""A model as a stock engine should see it: no latent weights, no training, plain operators only."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from surge import functional
from surge.errors import ExportError
from surge.export.ends import Example, evaluated, plain_ends_, unnamed
from surge.export.trace import sign_level
from surge.layers import BinaryEmbedding, BinaryLayer
from surge.layers.hooks import binary_layers
from surge.layers.product import geometry_arguments, product
from surge.method import Method


class Deployed(nn.Module):
    """A binary layer with its weight evaluated once and for all.

    Where inputs and weights are +-1 (``exact``), the product is that of whole numbers and the
    scale follows it; the sign is written out, because ONNX's own ``Sign`` maps 0 to 0.
    """

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: BinaryLayer) -> None:
        super().__init__()
        self.geometry = layer.geometry
        self.exact = is_exact(layer)
        self.method = layer.method.eval()
        scale = None
        with torch.no_grad():
            if self.exact:
                weight, scale = layer.packed_weight()
            else:
                weight = layer.method.binarize_weight(layer.weight)
        if scale is not None and bool((scale == 1).all()):
            scale = None
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("scale", None if scale is None else scale.detach().clone())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        # A model may ask its layer for its sizes: torch lists them.
        for name in cast(list[str], layer.__constants__):
            setattr(self, name, getattr(layer, name))

    def multiply(self, x: Tensor) -> Tensor:
        """Apply the layer's linear operator."""
        *convolution, groups = geometry_arguments(self.geometry)
        return product(x, self.weight, convolution if convolution[0] else (), groups)

    def forward(self, input: Tensor) -> Tensor:
        """Compute what the binary layer computes in evaluation."""
        z = self.method.prepare_input(input)
        y = self.multiply(torch.where(z >= 0, 1.0, -1.0) if self.exact else self.method.binarize(z))
        if self.scale is not None:
            y = y * self.geometry.along_output(self.scale)
        if not self.exact or _scales_itself(self.method):
            y = self.method.scale_output(y, z)
        return y if self.bias is None else y + self.geometry.along_output(self.bias)


def _scales_itself(method: Method) -> bool:
    return type(method).scale_output is not Method.scale_output


def is_exact(layer: BinaryLayer) -> bool:
    """Return whether a layer multiplies signs with signs, so that a 1-bit kernel can do it."""
    method = layer.method
    if layer.geometry.kind == "embedding" or method.bits != (1, 1):
        return False
    if _scales_itself(method) and method.output_scale() is not None:
        return False
    values, _ = layer.packed_weight()
    return bool((values.abs() == 1).all()) and sign_level(layer) == 1


DROPOUTS = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout
"""In evaluation these *are* their input, which an operator may change in place."""


HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where a module keeps what others do around its forward."""


def deployed(model: nn.Module, what: str) -> nn.Module:
    """Return a copy of the model in evaluation mode whose binary layers are :class:`Deployed`.

    Raises:
        ExportError: a layer still has its auxiliary path, or a forward of its own.
    """
    for name, layer in binary_layers(model):
        if layer.auxiliary is not None:
            raise ExportError(
                f'{what}: "{name}" still has its auxiliary path; call surge.strip_(model) first.'
            )
    network = copy.deepcopy(model).cpu().float().eval()
    made: dict[nn.Module, nn.Module] = {}
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if not isinstance(module, BinaryLayer | DROPOUTS):
            continue
        if module not in made:
            made[module] = _without_training(name, module, what)
        if name == "":
            return made[module].eval()
        owner, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(owner), attribute, made[module])
    return network.requires_grad_(False)


def _without_training(name: str, module: nn.Module, what: str) -> nn.Module:
    home = type(module).forward.__module__
    if "forward" in vars(module) or not home.startswith(("torch.", "surge.")):
        raise ExportError(f'{what}: "{name}" has a forward of its own, which would be left out.')
    made: nn.Module = nn.Identity()
    if isinstance(module, BinaryLayer):
        made = _table(module) if isinstance(module, BinaryEmbedding) else Deployed(module)
    for hooks in HOOKS:
        setattr(made, hooks, getattr(module, hooks))
    return made


def _table(layer: BinaryEmbedding) -> nn.Embedding:
    with torch.no_grad():
        rows = layer.method.binarize_weight(layer.weight)
        scale = layer.method.output_scale()
        rows = rows if scale is None else rows * scale.unsqueeze(1)
    table = nn.Embedding(layer.num_embeddings, layer.embedding_dim, layer.padding_idx)
    table.weight = nn.Parameter(rows.clone(), requires_grad=False)
    return table


def prepared(model: nn.Module, example: Example, what: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a deployed copy with plain ends, its input, and the model's own output for that."""
    given, name = unnamed(example)
    value = one_tensor(given, what)
    network = deployed(model, what)
    plain_ends_(network, name, what)
    return network, value, evaluated(model, value, name, what)


def exported(network: nn.Module, example: Tensor, what: str) -> torch.export.ExportedProgram:
    """Trace a deployed network for any batch, the package's own operators written out.

    Raises:
        ExportError: torch.export cannot follow the model.
    """
    batch = torch.cat([example[:1], example[:1]])
    try:
        with torch.no_grad():
            program = torch.export.export(
                network, (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},)
            )
    except ExportError:
        raise
    except Exception as error:  # torch.export raises many kinds, all about the same thing
        first = " ".join(str(error).strip().splitlines()[:1])
        raise ExportError(f"{what}: torch.export cannot trace this model: {first}") from error
    bodies: dict[Any, Callable[..., Any]] = {
        getattr(torch.ops.surge, name).default: body for name, body in functional.BODIES.items()
    }
    return cast(torch.export.ExportedProgram, program.run_decompositions(bodies))


def one_tensor(example: Any, what: str) -> Tensor:
    """Return the example input as one float tensor with a batch, or raise."""
    if not isinstance(example, Tensor) or example.dim() < 2 or example.shape[0] < 1:
        raise ExportError(f"{what}: the example must be one tensor with a batch dimension.")
    value = example.detach().cpu()
    return value.float() if value.is_floating_point() else value


def target_path(path: str | os.PathLike[str], suffix: str) -> Path:
    """Return the path to write, with the ending that the engines demand."""
    target = Path(path)
    return target if target.suffix == suffix else target.with_name(target.name + suffix)
