"""Whether a trained binary BERT answers in the engine as it does in torch, on a whole dev set.

    surge reproduce glue --model BERT --rows mrpc-bit --seeds 0 --runs runs
    python benchmarks/packed_bert.py runs/glue-mrpc-bit-seed0 --data DATA

Both compute in float32 on the CPU; where a sum lands on the other side of a threshold by rounding,
a sign differs, and with it that sentence's logits. One line is added to results/packed_bert.jsonl.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import surge_runtime
import torch

from surge.cli.export import load_run
from surge.data.tokens import TextSet
from surge.export import pack
from surge.train.build import load_sets
from surge.train.run import git_state, hardware

BATCH = 16
NEAR = 1e-4
"""Logits that differ by less differ by rounding; more is a sign that fell the other way."""


def measure(run: Path, data: Path, limit: int | None) -> dict[str, object]:
    """Return one line for a run."""
    recipe, model, example, facts, _ = load_run(run)
    _, dev = load_sets(recipe.data, data)
    assert isinstance(dev, TextSet)
    tokens, labels = dev.tokens[:limit].long(), dev.labels[:limit].numpy()
    model.eval()
    with torch.no_grad():
        wanted = torch.cat([model(part) for part in tokens.split(BATCH)]).float().numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.surge"
        pack(model, example, path, **facts)
        size = path.stat().st_size
        found = surge_runtime.load(path).run(tokens.numpy())
    near = np.abs(found - wanted).max(axis=1) < NEAR
    same = found.argmax(1) == wanted.argmax(1)
    right = [100 * float((logits.argmax(1) == labels).mean()) for logits in (wanted, found)]
    return {
        "recipe": recipe.name,
        "sentences": len(labels),
        "classes_in_use": len(np.unique(wanted.argmax(1))),
        "same_class": round(100 * float(same.mean()), 3),
        "same_logits": round(100 * float(near.mean()), 3),
        "torch_accuracy": round(right[0], 3),
        "engine_accuracy": round(right[1], 3),
        "bytes": size,
        "hardware": hardware(torch.device("cpu")),
        "torch": str(torch.__version__),
    }


def main() -> None:
    """Measure the runs; print and store every line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of trained binary BERTs")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds glue/")
    parser.add_argument("--limit", type=int, default=None, help="only so many sentences")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--commit", default=None)
    chosen = parser.parse_args()
    chosen.results.mkdir(parents=True, exist_ok=True)
    for run in chosen.runs:
        line = {
            **measure(run, chosen.data, chosen.limit),
            "commit": chosen.commit or git_state()[0],
        }
        print(json.dumps(line))
        with (chosen.results / "packed_bert.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
