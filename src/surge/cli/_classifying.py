"""The work behind ``surge classify``."""

from __future__ import annotations

import json
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from surge.cli.console import print_error, say
from surge.errors import ConfigError, MissingDependencyError
from surge.export.load import load_packed
from surge.pretrained import pretrained_path

if TYPE_CHECKING:
    from surge.cli.classify import ClassifyCommand

UNREADABLE = 2


@dataclass(frozen=True)
class Picture:
    """One decoded image, as the network takes it."""

    pixels: np.ndarray[Any, Any]
    """``[H, W, C]``, scaled to the network's largest stored value."""
    size: tuple[int, int]
    """Width and height of the file's image."""


def classify(command: ClassifyCommand, console: Console) -> int:
    """Name what is in every image that can be read; return 2 if one cannot, else 0."""
    if command.top < 1:
        raise ConfigError(f"--top {command.top} must be at least 1.")
    if not command.images:
        raise ConfigError("no image was given: surge classify IMAGE...")
    model, classes, maximum = _load(command.model, command.threads)
    channels, height, width = _input_shape(model, command.model)
    answers: list[dict[str, Any]] = []
    failures: list[str] = []
    for path in command.images:
        try:
            picture = read_picture(path, channels, (width, height), maximum)
        except ConfigError as error:
            failures.append(str(error))
            continue
        logits = model.run(model.preprocess(picture.pixels[None]))[0]
        answers.append(answer(path, picture, logits, classes, command.top))
    if command.json:
        say(console, json.dumps(answers, indent=2))
    else:
        for found in answers:
            say(console, _line(found))
        resized = [found for found in answers if found["size"] != [width, height]]
        if resized:
            say(
                console,
                f"{len(resized)} of {len(answers)} images were resized to {width}x{height}, the "
                "size this network was trained on: small things are lost.",
            )
    for failure in failures:
        print_error(failure)
    return UNREADABLE if failures else 0


def _load(name: str, threads: int) -> tuple[Any, list[str] | None, float]:
    """Load a shipped network by name, or a packed file; its classes and its largest pixel."""
    if Path(name).is_dir():
        packed = shlex.quote(str(Path(name) / "model.surge"))
        raise ConfigError(
            f"--model {name} is a folder: pack a run with `surge export {shlex.quote(name)}`, then "
            f"name the file, {packed}."
        )
    is_file = name.endswith(".surge") or Path(name).is_file()
    try:
        model = load_packed(Path(name) if is_file else pretrained_path(name), threads=threads)
        return model, model.classes, float((model.preprocessing or {}).get("maximum", 255.0))
    except ValueError as error:  # the engine's word for a damaged file, or threads=0
        raise ConfigError(str(error)) from error


def _input_shape(model: Any, name: str) -> tuple[int, int, int]:
    shape = model.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ConfigError(f"{name} takes inputs of {shape}, not pictures.")
    channels, height, width = shape
    return channels, height, width


def read_picture(path: Path, channels: int, size: tuple[int, int], maximum: float) -> Picture:
    """Decode an image, cut its middle square and resize it.

    Raises:
        ConfigError: it cannot be read; the message names the file.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingDependencyError("surge classify needs Pillow: pip install pillow") from error
    from surge.picture_modes import upright

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large, not too large
        image = upright(path, "L" if channels == 1 else "RGB")
    if image.size != size:
        fitted = ImageOps.fit(image, size, method=Image.Resampling.BICUBIC)
    else:
        fitted = image
    pixels = np.asarray(fitted, dtype=np.float32) * (maximum / 255.0)
    return Picture(pixels.reshape(size[1], size[0], channels), image.size)


def answer(
    path: Path, picture: Picture, logits: Any, classes: list[str] | None, top: int
) -> dict[str, Any]:
    """Return what is said about one image: the likeliest classes with their probabilities."""
    powers = np.exp(logits - logits.max())
    chances = powers / powers.sum()
    names = classes or [f"class {index}" for index in range(len(chances))]
    order = np.argsort(-chances, kind="stable")[:top]
    return {
        "image": str(path),
        "size": list(picture.size),
        "top": [{"class": names[i], "probability": round(float(chances[i]), 4)} for i in order],
    }


def _line(found: dict[str, Any]) -> str:
    said = ", ".join(f"{e['class']} {100 * e['probability']:.1f} %" for e in found["top"])
    return f"{found['image']}: {said}"
