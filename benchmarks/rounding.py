"""What rounding alone does to a test: the same weights in fp32, in bf16, and with random last bits.

    python benchmarks/rounding.py RUN RUN ... --data DATA

A sum that is rounded lands on the other side of a norm's mean, that turns a sign, and a sign is all
that a binary layer sees. In a draw every layer's output is multiplied by 1 + u, with u as large as
rounding to bf16 makes it. A run is a folder, or one checkpoint. One line per run is added to
results/rounding.jsonl.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from surge.cli.export import load_run
from surge.data import ImageSet
from surge.errors import ConfigError
from surge.pretrained import torch_classes
from surge.train.build import load_sets
from surge.train.run import git_state, hardware

HALF_STEP = 2.0**-9
"""Rounding to 8 bits changes a number by at most this share of it."""

POOL = 1 << 25
"""Random numbers of a draw; each layer of each batch takes a part that begins anywhere."""


@contextmanager
def random_last_bits(model: nn.Module, seed: int) -> Iterator[None]:
    """Let every layer's output carry an error as large as that of rounding."""
    generator = torch.Generator().manual_seed(seed)
    factors = 1 + HALF_STEP * (2 * torch.rand(POOL, generator=generator) - 1)

    def disturb(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        begin = int(torch.randint(POOL - output.numel(), (), generator=generator))
        return output * factors[begin : begin + output.numel()].view(output.shape)

    with ExitStack() as stack:
        for module in model.modules():
            if not list(module.children()):
                stack.callback(module.register_forward_hook(disturb).remove)
        yield


def measure(path: Path, data: Path, draws: int) -> dict[str, object]:
    """Return the line of one run."""
    recipe, model, *_ = load_run(path)
    _, images = load_sets(recipe.data, data)
    if not isinstance(images, ImageSet) or recipe.data.size is not None:
        raise ConfigError(f"{recipe.name} is not tested on whole small images.")
    exact = torch_classes(model, images)
    with torch.autocast("cpu", torch.bfloat16):
        short = torch_classes(model, images)
    drawn = []
    for seed in range(draws):
        with random_last_bits(model, seed):
            drawn.append(torch_classes(model, images))

    def share(right: Tensor) -> float:
        return round(100 * float(right.float().mean()), 3)

    return {
        "recipe": recipe.name,
        "images": len(images.labels),
        "fp32": share(exact == images.labels),
        "bf16": share(short == images.labels),
        "draws": [share(classes == images.labels) for classes in drawn],
        "other_bf16": share(short != exact),
        "other_draws": [share(classes != exact) for classes in drawn],
        "torch": torch.__version__,
        "hardware": hardware(torch.device("cpu")),
        "commit": git_state()[0],
    }


def main() -> None:
    """Measure the runs; print and store every line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or checkpoints")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    chosen = parser.parse_args()
    chosen.results.mkdir(parents=True, exist_ok=True)
    with (chosen.results / "rounding.jsonl").open("a") as file:
        for run in chosen.runs:
            line = measure(run, chosen.data, chosen.draws)
            print(json.dumps(line), flush=True)
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
