"""From GLUE's sentences to numbers: tokenised once, kept in a file beside the data."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from surge.data.glue import Examples, Task, find_file, read_examples
from surge.data.integrity import sha256_of_file
from surge.data.textset import TextSet
from surge.errors import ConfigError, MissingDependencyError
from surge.files import write_whole

FORMAT = 1
CACHE = ".tokens"
FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")


class Tokenizer:
    """The tokenizer in a model's folder, checked against the model."""

    def __init__(self, folder: Path) -> None:
        """Read it; nothing is downloaded."""
        self.folder = folder
        config = read_config(folder)
        self._tokenizer = _load(folder)
        words, rows = len(self._tokenizer), config["vocab_size"]
        if words > rows:
            raise ConfigError(
                f"{folder}: its tokenizer knows {words:,} words, its model has embeddings for "
                f"{rows:,}. They do not belong together."
            )
        self.longest: int = config["max_position_embeddings"]
        self.identity = self._identity()

    def _identity(self) -> str:
        digest = hashlib.sha256()
        for name in FILES:
            if (self.folder / name).is_file():
                digest.update(f"{name} {sha256_of_file(self.folder / name)}\n".encode())
        return digest.hexdigest()

    def check_length(self, length: int) -> None:
        """Raise unless the model has a position for every token."""
        if not 3 <= length <= self.longest:
            raise ConfigError(
                f"length={length} is not accepted: the model in {self.folder} takes 3 to "
                f"{self.longest} tokens."
            )

    def encode(self, texts: tuple[tuple[str, ...], ...], length: int) -> tuple[Any, Any]:
        """Return int32 ``[N, 3, length]``, and bool ``[N]`` for the texts longer than that."""
        columns = [list(column) for column in zip(*texts, strict=True)]
        whole = self._tokenizer(*columns, return_attention_mask=False)["input_ids"]
        done = self._tokenizer(
            *columns,
            truncation="longest_first",
            max_length=length,
            padding="max_length",
            return_token_type_ids=True,
        )
        parts = [done[key] for key in ("input_ids", "token_type_ids", "attention_mask")]
        tokens = np.stack([np.asarray(part, dtype=np.int32) for part in parts], axis=1)
        return tokens, np.asarray([len(numbers) > length for numbers in whole])


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a transformers BERT, or say what is wrong with the folder."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is not the folder of a transformers model: it has no config.json (--model)."
        ) from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds a {type(config).__name__}, no settings of a model.")
    if config.get("model_type") != "bert":
        raise ConfigError(
            f'{folder} holds a model of type "{config.get("model_type")}"; only BERT is supported.'
        )
    for name in ("vocab_size", "max_position_embeddings"):
        if not isinstance(config.get(name), int):
            raise ConfigError(f"{path} names no {name}.")
    return config


def transformers_package() -> Any:
    """Return transformers, or raise with the install command."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "GLUE needs transformers, which is not installed: pip install 'surge-bnn[glue]'"
        ) from error
    return transformers


def _load(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in FILES[:2]):
        raise ConfigError(
            f"{folder} has no tokenizer: neither tokenizer.json nor vocab.txt is there (--model)."
        )
    transformers = transformers_package()
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # reading foreign bytes can fail in any way
        raise ConfigError(f"{folder} holds no readable tokenizer (--model): {error!r}") from error


def load_glue(root: Path, task: Task, part: str, tokenizer: Tokenizer, length: int) -> TextSet:
    """Return a file of a task as tokens; the first call stores them beside the file.

    The stored tokens belong to the file's content, the tokenizer and the length: whatever of them
    changes, they are made anew. A damaged store is replaced, one that cannot be written left out.
    """
    tokenizer.check_length(length)
    path = find_file(root, task, part)
    # What decides the numbers; labels are part of the file.
    key = f"{FORMAT} {task.name} {sha256_of_file(path)} {tokenizer.identity} {length}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    stored = path.parent / CACHE / f"{part}-{length}-{digest[:16]}.safetensors"
    arrays = _read(stored)
    if arrays is None:
        arrays = _make(read_examples(path, task), tokenizer, length)
        _write(stored, arrays)
    labels = torch.from_numpy(arrays["labels"])
    return TextSet(
        torch.from_numpy(arrays["tokens"]),
        labels.long() if task.labels else labels.float(),
        task.labels,
        torch.from_numpy(arrays["cut"]),
    )


def _make(examples: Examples, tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    tokens, cut = tokenizer.encode(examples.texts, length)
    labels = np.asarray(examples.labels, dtype=np.float64)
    return {"tokens": tokens, "labels": labels, "cut": cut}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        arrays: dict[str, Any] = load_arrays(path.read_bytes())
    except (OSError, SafetensorError):
        return None
    return arrays if {"tokens", "labels", "cut"} <= arrays.keys() else None


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Store atomically; without the right to write here every run tokenises for itself."""
    with suppress(OSError):
        write_whole(path, save_arrays(arrays))
