"""Runs on GLUE with a tiny BERT, through the real command.

The losses of the first 4 steps are in ``golden/glue.json``, and of SURGE the mean scale after each
step and the norm of all auxiliary weights at the end: its own path is too weak to show in 4 losses.
After a change that is meant to change them: ``SURGE_DATA=... python -m tests.train.glue_runs``. One
step is one epoch of one batch, in float64 and without dropout, on the first sentences of the real
files.
"""

import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from surge.cli import main
from surge.data.glue import find_file, get_task
from tests.berts import save_tiny
from tests.train.losses import STEPS, double_precision

STORED = Path(__file__).parent / "golden" / "glue.json"
TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
STUDENTS = {task: ("bit", "bit-surge") for task in TASKS}
STUDENTS["mrpc"] += ("bit-surge-align", "bit-surge-tied", "bibert", "bibert-surge", "bnn")
STUDENTS["mrpc"] += ("ternary", "binarybert", "binarybert-surge")
STUDENTS["stsb"] += ("bibert",)
LIMIT, KEPT = 8, 40
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def quiet_bert(folder, **options):
    """A tiny pretrained BERT without dropout, the same on every processor.

    Its biases are not zero: sums of signs often are, and then rounding would decide.
    """
    save_tiny(folder, **{**NO_DROPOUT, **options})
    path, draw = folder / "model.safetensors", np.random.default_rng(0)
    drawn = {
        name: (draw.normal(scale=0.02, size=x.shape) + (x.ndim == 1 and x.mean())).astype(x.dtype)
        for name, x in sorted(load_file(path).items())
    }
    save_file(drawn, path, metadata={"format": "pt"})
    return folder


def head_of(data, root, task):
    """Copy the first rows of a task's real files, in the official layout."""
    spec = get_task(task)
    for part in ("train", "dev"):
        lines = find_file(data, spec, part).read_text(encoding="utf-8").split("\n")
        path = root / "glue" / spec.folder / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines[:KEPT]) + "\n", encoding="utf-8")
    return root


def command(name, bert, root, out, *options):
    """Train a row with the command; return the rows of its metrics."""
    words = ["train", name, "--model", str(bert), "--data", str(root), "--device", "cpu"]
    words += ["--out", str(out), "--results", str(out.parent / "results"), "--save-every", "1e9"]
    assert main([*words, *map(str, options)]) == 0
    return rows(out)


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def measured(task, bert, root, folder, students=None, *options):
    """Return what the first steps of a teacher and of its students did, by row."""
    short = ("--epochs", STEPS, "--limit", LIMIT)
    found = {}
    with double_precision():
        for kind in ("teacher", *(STUDENTS[task] if students is None else students)):
            others = () if kind == "teacher" else ("--teacher", folder / f"{task}-teacher")
            if kind.startswith("binarybert"):
                others += ("--start", folder / f"{task}-ternary")
            out = folder / f"{task}-{kind}"
            done = command(f"glue-{task}-{kind}", bert, root, out, *short, *others, *options)
            found[f"{task}-{kind}"] = traces(done, last_weights(out))
    return found


def traces(done, weights):
    """Return losses, and of SURGE the scales and the norm of its weights, to 9 digits."""
    found = {"train_loss": [row["train_loss"] for row in done]}
    if "scale" in done[0]:
        found["scale"] = [row["scale"] for row in done]
        own = [t.norm().item() for name, t in weights.items() if name.endswith("auxiliary.weight")]
        found["auxiliary"] = [math.hypot(*own)]
    return {key: [float(f"{x:.9g}") for x in values] for key, values in found.items()}


def last_weights(folder):
    """The weights of a run's newest checkpoint, auxiliary ones too."""
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    return torch.load(newest, weights_only=True)["model"]


def stored():
    return json.loads(STORED.read_text())


def regenerate():
    torch.set_num_threads(1)
    data, found = Path(os.environ.get("SURGE_DATA", "data")), {}
    for task in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            root, bert = head_of(data, folder / "data", task), quiet_bert(folder / "bert")
            found |= measured(task, bert, root, folder / "runs")
    lines = [f'"{key}": {json.dumps(values)}' for key, values in found.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    regenerate()
