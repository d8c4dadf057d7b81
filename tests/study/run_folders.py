"""Made-up run folders: the files of a run without its training."""

import json
import math
from dataclasses import replace

import numpy as np

from surge.data.glue import get_task
from surge.data.glue_metrics import score
from surge.recipes import get_recipe
from surge.train.run import RunFolder


def write_run(
    root, row="digits-cnn-recu", *, seed=0, epochs=20, done=None, last=96.0, bad=None, **changed
):
    """A run of some epochs; ``bad`` is the epoch, from 0, from which on nothing is finite."""
    recipe = get_recipe(row)
    recipe = replace(recipe, train=replace(recipe.train, epochs=epochs))
    environment = {
        "surge": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11",
        "cuda": None,
        "device": "cpu",
        "hardware": "a CPU",
        "commit": "abc",
        "dirty": False,
        "seed": seed,
        "command": f"surge train {row} --seed {seed}",
        "overrides": {**({} if epochs == 20 else {"epochs": epochs}), **changed},
    }
    folder = RunFolder.create(root / f"{row}-seed{seed}", recipe, environment)
    for epoch in range(epochs if done is None else done):
        share = (epoch + 1) / epochs
        finite = bad is None or epoch < bad
        metrics = {
            "epoch": epoch,
            "seconds": 1.5,
            "lr": 0.1 * (1 - share),
            "train_loss": 2.3 * math.exp(-3 * share) if finite else math.nan,
            "train_top1": last * share,
            "test_loss": 2.0 * math.exp(-2 * share) if finite else math.inf,
            "test_top1": last - 40 * (1 - share) if finite else math.nan,
            "flips": 10.0 * (1.01 - share),
        }
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")
    return folder.path


def write_glue(
    root, row="mrpc-bit", seed=0, *, logits, labels, name=None, data=None, device="cuda", **changed
):
    """A finished run on GLUE that gave these answers; ``data`` are fields of its data."""
    recipe, outputs = get_recipe(f"glue-{row}"), get_task(row.partition("-")[0]).outputs
    given = {"tokenizer": "/berts/mini", **(data or {})}
    train = replace(recipe.train, epochs=changed.get("epochs", recipe.train.epochs))
    recipe = replace(recipe, data=replace(recipe.data, **given), train=train)
    environment = {"seed": seed, "device": device, "overrides": changed}
    folder = RunFolder.create(root / (name or f"glue-{row}-seed{seed}"), recipe, environment)
    logits, labels = np.asarray(logits, np.float32), np.asarray(labels)
    logits = (
        np.eye(outputs, dtype=np.float32)[logits.astype(int)] if outputs > 1 else logits[:, None]
    )
    last = score(recipe.metric, logits.astype(float), labels.astype(float))
    for epoch in range(train.epochs):
        folder.append_metrics({"epoch": epoch, f"test_{recipe.metric}": last})
    section = np.zeros(len(labels), np.uint8)
    folder.write_predictions({"logits": logits, "labels": labels, "section": section})
    return folder.path
