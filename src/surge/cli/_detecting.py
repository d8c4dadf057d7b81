"""The work behind ``surge detect``."""

from __future__ import annotations

import colorsys
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from surge.cli._training import choose_device
from surge.cli.console import print_error, print_table, say
from surge.data.pictures import as_tensor
from surge.data.voc import CLASSES
from surge.errors import ConfigError
from surge.picture_modes import upright
from surge.train.detection.predict import Found, load_detector, look

if TYPE_CHECKING:
    from rich.console import Console

    from surge.cli.detect import DetectCommand

UNREADABLE = 2
SUFFIX = ".detected.png"


def detect(command: DetectCommand, console: Console) -> int:
    """Look at every picture that can be read; return 2 if one cannot, else 0."""
    if not command.images:
        raise ConfigError("no image was given: surge detect IMAGE... --model RUN")
    if not 0 <= command.score <= 1:
        raise ConfigError(f"--score {command.score} is no score: need 0 to 1.")
    if command.size is not None and command.size < 1:
        raise ConfigError(f"--size {command.size} must be at least 1.")
    targets = _targets(command.images, command.out)
    recipe, model = load_detector(command.model, choose_device(command.device))
    size = command.size or recipe.data.size
    assert size is not None
    answers: list[dict[str, Any]] = []
    failures: list[str] = []
    for path, target in zip(command.images, targets, strict=True):
        try:
            picture = upright(path, "RGB")
        except ConfigError as error:
            failures.append(str(error))
            continue
        found = look(model, as_tensor(picture), size, command.score)
        target.parent.mkdir(parents=True, exist_ok=True)
        draw(picture, found).save(target)
        answers.append(
            {"image": str(path), "drawn": str(target), "found": [asdict(one) for one in found]}
        )
    if command.json:
        say(console, json.dumps(answers, indent=2))
    else:
        _print(answers, recipe.name, console)
    for failure in failures:
        print_error(failure)
    return UNREADABLE if failures else 0


def _targets(images: Sequence[Path], out: Path | None) -> list[Path]:
    """Return where every picture is drawn: not over another one, and not over an original."""
    if out is not None and out.suffix and not out.is_dir():
        if len(images) > 1:
            raise ConfigError(f"--out {out} is one file for {len(images)} pictures; name a folder.")
        targets = [out]
    else:
        targets = [(out or path.parent) / f"{path.stem}{SUFFIX}" for path in images]
    originals = {path.resolve() for path in images}
    places = [target.resolve() for target in targets]
    for target, place in zip(targets, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"Two pictures would be drawn to {target}; choose another --out.")
        if place in originals:
            raise ConfigError(
                f"{target} is a picture to look at, and would be drawn over; choose another --out."
            )
    return targets


Rectangle = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def draw(picture: Image.Image, found: Sequence[Found]) -> Image.Image:
    """Return the picture with a box and a label for everything found, the surest on top."""
    drawn = picture.copy()
    pen = ImageDraw.Draw(drawn)
    width = max(2, round(max(picture.size) / 250))
    font = ImageFont.load_default(size=max(11, round(max(picture.size) / 40)))
    for one in reversed(found):
        pen.rectangle(one.box, outline=colour_of(one.label), width=width)
    words = [f"{one.label} {100 * one.score:.0f} %" for one in found]
    inks = [pen.textbbox((0, 0), word, font=font) for word in words]
    places: list[Rectangle] = []
    for one, (left, top, right, bottom) in zip(found, inks, strict=True):
        size = right - left + 4, bottom - top + 4
        places.append(free_place(one.box, size, picture.size, places))
    for one, word, ink, place in reversed(list(zip(found, words, inks, places, strict=True))):
        pen.rectangle(place, fill=colour_of(one.label))
        pen.text((place[0] + 2 - ink[0], place[1] + 2 - ink[1]), word, fill="white", font=font)
    return drawn


def free_place(
    box: Sequence[float],
    size: tuple[float, float],
    picture: tuple[int, int],
    taken: Sequence[Rectangle],
) -> Rectangle:
    """Return where a label goes: above its box, in it or below it, where no other one is.

    >>> free_place((10, 20, 90, 80), (30, 12), (100, 100), [])
    (10, 8, 40, 20)
    >>> free_place((10, 20, 90, 80), (30, 12), (100, 100), [(0, 0, 50, 15)])
    (10, 20, 40, 32)
    """
    width, height = size
    x = max(0, min(box[0], picture[0] - width))
    heights = (box[1] - height, box[1], box[3] - height, box[3])
    inside = (max(0, min(y, picture[1] - height)) for y in heights)
    places = [(x, y, x + width, y + height) for y in inside]
    return next((p for p in places if not any(_meet(p, other) for other in taken)), places[0])


def _meet(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def colour_of(label: str) -> tuple[int, int, int]:
    """Return a colour of its own for every class."""
    red, green, blue = colorsys.hsv_to_rgb(CLASSES.index(label) * 0.618 % 1, 0.85, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)


def _print(answers: Sequence[dict[str, Any]], name: str, console: Console) -> None:
    rows: list[dict[str, object]] = [
        {
            "image": answer["image"],
            "class": one["label"],
            "score": f"{100 * one['score']:.1f} %",
            "box": ", ".join(f"{edge:.0f}" for edge in one["box"]),
        }
        for answer in answers
        for one in answer["found"]
    ]
    if rows:
        print_table(console, rows, title=name)
    for answer in answers:
        count = len(answer["found"])
        say(
            console,
            f"{answer['image']}: {count} object{'' if count == 1 else 's'}, drawn in "
            f"{answer['drawn']}",
        )
