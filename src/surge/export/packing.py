"""pack: write a trained model as one small file that the engine runs."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from surge.errors import ConfigError, ExportError, did_you_mean
from surge.export.batch import check_batch
from surge.export.container import to_bytes
from surge.export.encode import encode
from surge.export.fold import fold
from surge.export.lower import Lowering
from surge.export.pixels import fold_pixels
from surge.export.tokens import with_one_input
from surge.export.trace import trace
from surge.files import write_whole
from surge.summary import Rest


@dataclass(frozen=True)
class Packed:
    """What was written; print it."""

    path: Path
    file_bytes: int
    """Size of the file."""
    tensor_bytes: int
    """Bytes of all tensors; the rest is the header. With ``folded_bytes`` it is what
    :func:`surge.summary.summary` says."""
    folded_bytes: int
    """Bytes of slopes and shifts that are part of the thresholds between binary layers, and of
    factors that are part of others."""
    operators: tuple[str, ...]
    """The operators in running order, ``name: op``."""

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.path}: {self.file_bytes:,} bytes ({self.tensor_bytes:,} of tensors), "
            f"{len(self.operators)} operators."
        )


def pack(
    model: nn.Module,
    example_input: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    rest: Rest = "fp32",
    preprocessing: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    accuracy: float | None = None,
) -> Packed:
    """Write a model to ``path``: 1 bit per binary weight, the rest as ``rest`` says.

    The model is evaluated as in eval mode and left as it is. BatchNorm, biases and the methods'
    scales become one scale and bias per channel. Compensated models must be stripped before.

    Args:
        model: A binarised (or float) model of images, vectors or rows of tokens, or a binary
            ``BertForSequenceClassification``.
        example_input: One input with a batch dimension; it fixes all other sizes. For a BERT what
            its tokenizer returns; the engine then takes ``[N, 3, tokens]``: word numbers, which of
            two texts, and 1 where there is a word.
        path: Where to write; an existing file is replaced.
        rest: How real weights are stored: ``fp32``, ``fp16`` or ``int8``; vectors stay fp32. A
            rounded first layer moves values near zero to the other side of the next sign, so
            smaller costs a little accuracy. With ``int8`` and ``preprocessing`` the first
            convolution is computed in whole numbers, from the pixels themselves.
        preprocessing: ``{"mean": [...], "std": [...], "maximum": 255}``: how stored pixels become
            input, ``(pixel / maximum - mean) / std`` per channel.
        classes: Names of the outputs.
        accuracy: Measured top-1 accuracy in percent, to be kept with the model.

    Raises:
        ExportError: something in the model has no form in the packed format; the message names
            the operator and its module.
    """
    _check_rest(rest)
    _check_precision(model)
    model, given = with_one_input(model, example_input)
    example = _one_tensor(given)
    traced = trace(model, example)
    graph = Lowering(traced).run()
    check_batch(traced.program, trace(model, example, samples=3).program)
    fold(graph)
    facts = _facts(preprocessing, classes, accuracy, graph.input_shape, graph.output_shape)
    methods = sorted({layer.method.name for _, layer in traced.layers})
    facts |= {"method": ", ".join(methods) or "float", "rest": rest}
    if rest == "int8" and "preprocessing" in facts:
        fold_pixels(graph, facts["preprocessing"])
    text, arrays = encode(graph, rest)
    content = to_bytes(text, arrays, facts)
    target = Path(path)
    write_whole(target, content)
    return Packed(
        target,
        len(content),
        sum(array.nbytes for array in arrays.values()),
        graph.folded,
        tuple(f"{node.module}: {node.op}" for node in graph),
    )


def _check_rest(rest: str) -> None:
    accepted = get_args(Rest)
    if rest not in accepted:
        raise ConfigError(
            f'rest="{rest}" is not known.{did_you_mean(str(rest), accepted)} '
            f"Accepted: {', '.join(accepted)}."
        )


def _check_precision(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ExportError(
                f'pack: "{name}" is {kind}; the engine computes in fp32: call model.float() first.'
            )


def _one_tensor(example: Any) -> Tensor:
    if isinstance(example, tuple | list) and len(example) == 1:
        example = example[0]
    if not isinstance(example, Tensor) or example.is_complex() or example.dtype == torch.bool:
        raise ExportError("pack: example_input must be one tensor of numbers with a batch.")
    if example.dim() not in (2, 3, 4) or example.shape[0] < 1:
        raise ExportError(
            f"pack: example_input has shape {tuple(example.shape)}; accepted are [N, C, H, W], "
            "[N, tokens, features] and [N, features] with at least one sample."
        )
    return example.detach().to(torch.float32 if example.is_floating_point() else torch.int64)


def _facts(
    preprocessing: Mapping[str, Any] | None,
    classes: Sequence[str] | None,
    accuracy: float | None,
    input_shape: list[int],
    output_shape: list[int],
) -> dict[str, Any]:
    """Check and collect what a user of the file wants to know."""
    facts: dict[str, Any] = {}
    if preprocessing is not None:
        facts["preprocessing"] = _preprocessing(preprocessing, input_shape[0])
    if classes is not None:
        if len(classes) != output_shape[-1]:
            raise ConfigError(
                f"classes has {len(classes)} names, but the model has {output_shape[-1]} outputs."
            )
        facts["classes"] = [str(name) for name in classes]
    if accuracy is not None:
        facts["accuracy"] = str(float(accuracy))
    return facts


def _preprocessing(given: Mapping[str, Any], channels: int) -> dict[str, Any]:
    known = {"maximum": 255.0, **given}
    try:
        lists = {key: [float(item) for item in known[key]] for key in ("mean", "std")}
        maximum = float(known["maximum"])
    except (KeyError, TypeError, ValueError):
        lists, maximum = {"mean": [], "std": []}, 0.0
    numbers = [*lists["mean"], *lists["std"], maximum]
    fits = set(known) == {"mean", "std", "maximum"} and all(math.isfinite(n) for n in numbers)
    for key in ("mean", "std"):
        fits = fits and len(lists[key]) == channels
    if not fits or min(*lists["std"], maximum) <= 0:
        raise ConfigError(
            'preprocessing must be {"mean": [...], "std": [...], "maximum": 255} with one mean and '
            f"one std above 0 for each of the {channels} input channels; got {dict(given)}."
        )
    return {**lists, "maximum": maximum}
