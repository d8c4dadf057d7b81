"""Trained networks that come with the package, packed: they run in the engine, offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surge.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from surge.data import ImageSet

FOLDER = "weights"
"""Folder of the packed files inside the package."""


def list_pretrained() -> list[str]:
    """Return the names that :func:`load_pretrained` accepts, sorted.

    >>> "resnet20-cifar10" in list_pretrained()
    True
    """
    places = resources.files("surge").joinpath(FOLDER).iterdir()
    return sorted(place.name[: -len(".surge")] for place in places if place.name.endswith(".surge"))


def pretrained_path(name: str) -> Path:
    """Return where a shipped file lies.

    Raises:
        ConfigError: nothing of that name is shipped.
    """
    known = list_pretrained()
    if name not in known:
        raise ConfigError(
            f'There is no pretrained "{name}".{did_you_mean(name, known)} '
            f"Shipped: {', '.join(known)}."
        )
    return Path(str(resources.files("surge").joinpath(FOLDER).joinpath(f"{name}.surge")))


def load_pretrained(name: str, *, threads: int = 1) -> Any:
    """Load a shipped network into the engine; call the result with a NumPy batch.

    ``model.preprocess(images)`` makes a batch of uint8 images ``[N, H, W, C]``, ``model.classes``
    names the outputs, ``model.metadata("accuracy")`` is the accuracy measured with this very file.

    Args:
        name: One of :func:`list_pretrained`.
        threads: How many threads one call may use.

    Raises:
        MissingDependencyError: the engine is not installed.
    """
    from surge.export.load import load_packed

    return load_packed(pretrained_path(name), threads=threads)


def engine_accuracy(path: Path, images: ImageSet, *, batch: int = 250) -> float:
    """Return the top-1 accuracy, in percent, of a packed file on a set of images."""
    from surge.export.load import load_packed

    model = load_packed(path)
    pixels = images.images.permute(0, 2, 3, 1).numpy()
    labels = images.labels.numpy()
    hits = 0
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        hits += int((model.run(model.preprocess(pixels[part])).argmax(1) == labels[part]).sum())
    return 100.0 * hits / len(labels)


def torch_accuracy(model: Any, images: ImageSet, *, batch: int = 250) -> float:
    """Return the top-1 accuracy, in percent, of a model in fp32 on a set of images."""
    hits = torch_classes(model, images, batch=batch) == images.labels
    return 100.0 * int(hits.sum()) / len(images)


def torch_classes(model: Any, images: ImageSet, *, batch: int = 250) -> Tensor:
    """Return the likeliest class of every image."""
    import torch

    scale, shift = images.normalization.constants()
    with torch.no_grad():
        parts = torch.split(images.images, batch)
        return torch.cat([model(part * scale + shift).argmax(1) for part in parts])


def add_facts(path: Path, facts: Mapping[str, str]) -> None:
    """Write further entries into the metadata of a packed file; its checksum is made anew."""
    from safetensors.numpy import load

    from surge.export.container import metadata_of, to_bytes
    from surge.files import write_whole

    content = path.read_bytes()
    kept = metadata_of(content)
    for key in ("format", "version", "checksum"):
        kept.pop(key)
    graph = json.loads(kept.pop("graph"))
    write_whole(path, to_bytes(graph, load(content), {**kept, **facts}))
