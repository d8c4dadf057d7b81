"""Trace a model with torch.export, its binary layers as single operators.

While tracing, a binary layer's product is one opaque operator. What a method does around it (a
shift of the input, a map that scales the output) is traced as it is, so a new method packs
without being named here. Where inputs become +-a in evaluation the product takes them before the
sign; other quantisers are traced too, and the product takes what they make.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from surge import functional
from surge.compensation.dry_run import evaluating
from surge.errors import ExportError
from surge.export.attention import plain_attention
from surge.layers import BinaryConv1d, BinaryConv2d, BinaryEmbedding, BinaryLayer, BinaryLinear
from surge.layers.hooks import binary_layers
from surge.method import Method

LEAF = "surge_export::binary_product"
TABLE_LEAF = "surge_export::embedding_rows"
REAL_LEAF = "surge_export::real_product"
PROBE = (-2.0, -1.0, -0.4, -1e-3, -0.0, 0.0, 1e-3, 0.4, 1.0, 2.0)
"""Inputs that tell a sign from every other quantiser."""


@torch.library.custom_op(LEAF, mutates_args=())
def binary_product(z: Tensor, index: int, shape: list[int]) -> Tensor:
    """Stand for the scaled product of layer number ``index`` with the sign of ``z``."""
    raise NotImplementedError("binary_product only exists while a model is traced.")


@torch.library.custom_op(REAL_LEAF, mutates_args=())
def real_product(x: Tensor, index: int, shape: list[int]) -> Tensor:
    """Stand for the scaled product of layer number ``index`` with ``x`` itself."""
    raise NotImplementedError("real_product only exists while a model is traced.")


@torch.library.custom_op(TABLE_LEAF, mutates_args=())
def embedding_rows(numbers: Tensor, index: int, shape: list[int]) -> Tensor:
    """Stand for the rows of embedding number ``index``."""
    raise NotImplementedError("embedding_rows only exists while a model is traced.")


def _empty(x: Tensor, index: int, shape: list[int]) -> Tensor:
    return x.new_empty(shape)


binary_product.register_fake(_empty)
real_product.register_fake(_empty)


@embedding_rows.register_fake
def _no_rows(numbers: Tensor, index: int, shape: list[int]) -> Tensor:
    return numbers.new_empty(shape, dtype=torch.float32)


@dataclass(frozen=True)
class Traced:
    """A traced model and its binary layers, in the order of their numbers in the trace."""

    program: ExportedProgram
    layers: tuple[tuple[str, BinaryLayer], ...]


def trace(model: nn.Module, example: Tensor, *, samples: int = 2) -> Traced:
    """Trace the model in evaluation mode; it is left as it was.

    The example is traced with a batch of two, so that the batch is told from a dimension of one.
    """
    layers = tuple(binary_layers(model))
    for name, layer in layers:
        check_layer(name, layer)
    batch = torch.cat([example[:1]] * samples)
    with torch.no_grad(), evaluating(model), _as_leaves(layers), plain_attention(model):
        try:
            program = torch.export.export(model, (batch,))
        except ExportError:
            raise
        except Exception as error:  # torch.export raises many kinds, all about the same thing
            first = str(error).strip().splitlines()[:1]
            whole = "" if example.is_floating_point() else " with an example_input of whole numbers"
            raise ExportError(
                f"pack: torch.export cannot trace this model{whole}: {' '.join(first)} "
                "Data-dependent control flow and changes of Python state in forward cannot be "
                "packed."
            ) from error
    program.graph.eliminate_dead_code()
    return Traced(program, layers)


def check_layer(name: str, layer: BinaryLayer) -> None:
    """Raise unless the engine can compute this layer."""
    where = f'pack: "{name}" ({type(layer).__name__}, {layer.method.describe()})'
    if layer.auxiliary is not None:
        raise ExportError(f"{where} still has its auxiliary path; call surge.strip_(model) first.")
    if not isinstance(layer, BinaryConv1d | BinaryConv2d | BinaryLinear | BinaryEmbedding):
        raise ExportError(
            f"{where} has no operator in the packed format; BinaryConv1d, BinaryConv2d, "
            "BinaryLinear and BinaryEmbedding do."
        )
    method = layer.method
    if type(method).scale_output is not Method.scale_output and method.output_scale() is not None:
        raise ExportError(f"{where} has both an output scale and a scale_output of its own.")


def sign_level(layer: BinaryLayer) -> float | None:
    """Return a if the method's inputs become exactly a times their sign, else None."""
    shape = layer.geometry
    # Every sample holds all of them: a threshold may depend on the sample.
    places = torch.arange(len(PROBE)).view(-1, *(1,) * len(shape.kernel_size))
    places = places.view(-1, 1, *places.shape[1:]) + torch.arange(shape.in_features).view(
        1, -1, *(1,) * len(shape.kernel_size)
    )
    for dim in range(2, places.dim()):
        size = [1] * places.dim()
        size[dim] = len(PROBE)
        places = places + torch.arange(len(PROBE)).view(size)
    z = torch.tensor(PROBE)[places % len(PROBE)].to(layer.weight.device)
    training = layer.method.training
    layer.method.eval()
    try:
        with torch.no_grad():
            result = layer.method.binarize(z)
            level = result.abs().max()
            same = torch.equal(result, level * functional.sign(z))
            return float(level) if same and 0 < float(level) < float("inf") else None
    finally:
        layer.method.train(training)


@contextmanager
def _as_leaves(layers: tuple[tuple[str, BinaryLayer], ...]) -> Iterator[None]:
    """Let every layer compute its product by the opaque operator."""
    try:
        for index, (name, layer) in enumerate(layers):
            if isinstance(layer, BinaryEmbedding):
                vars(layer)["forward"] = _table_leaf(name, layer, index)
            else:
                vars(layer)["respond"] = _leaf(layer, index)
        yield
    finally:
        for _, layer in layers:
            vars(layer).pop("respond", None)
            vars(layer).pop("forward", None)


def _table_leaf(name: str, layer: BinaryEmbedding, index: int) -> Any:
    def forward(input: Tensor) -> Tensor:
        if input.is_floating_point():
            raise ExportError(
                f'pack: "{name}" (BinaryEmbedding) looks up rows by real numbers; give an '
                "example_input of whole ones."
            )
        shape = [*(int(size) for size in input.shape), layer.embedding_dim]
        rows: Tensor = torch.ops.surge_export.embedding_rows(input, index, shape)
        return rows

    return forward


def _leaf(layer: BinaryLayer, index: int) -> Any:
    signs = sign_level(layer) is not None

    def respond(z: Tensor) -> Tensor:
        shape = _output_shape(layer, z)
        if signs:
            y = torch.ops.surge_export.binary_product(z, index, shape)
        else:
            y = torch.ops.surge_export.real_product(layer.method.binarize(z), index, shape)
        # The default scale is part of the product; a method's own acts on top.
        own = type(layer.method).scale_output is not Method.scale_output
        scaled: Tensor = layer.method.scale_output(y, z) if own else y
        return scaled

    return respond


def _output_shape(layer: BinaryLayer, z: Tensor) -> list[int]:
    shape = layer.geometry
    if shape.kind == "linear":
        return [*z.shape[:-1], shape.out_features]
    spatial = [
        (int(size) + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(
            z.shape[2:],
            shape.kernel_size,
            shape.stride,
            shape.padding,
            shape.dilation,
            strict=True,
        )
    ]
    return [int(z.shape[0]), shape.out_features, *spatial]
