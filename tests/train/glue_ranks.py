"""What every process of the two-process tests on sentences does."""

from dataclasses import replace

import numpy as np
import torch

from surge.recipes import get_recipe
from surge.recipes.placing import placed
from surge.train.build import load_sets
from surge.train.distributed import World
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import PREDICTIONS, RunFolder

WORLD = 2
KINDS = ("bnn-surge", "bit-surge")


def finished(kind, folder, world=None):
    """Train a student for two epochs; return weights, rows, scales and what it keeps."""
    recipe = placed(
        get_recipe(f"glue-rte-{kind}"), model=str(folder / "bert"), teacher=str(folder / "teacher")
    )
    recipe = replace(
        recipe,
        data=replace(recipe.data, length=16),
        # Small steps: a sign that rounding turns over would be another run.
        train=replace(recipe.train, epochs=2, batch=8, lr=1e-5, test_every=3),
    )
    path = folder / f"{kind}-{world.rank if world else 'alone'}"  # each rank's own
    path.mkdir(exist_ok=True)
    trainer = Trainer(
        recipe,
        load_sets(recipe.data, folder / "data"),
        seed=0,
        device=torch.device("cpu"),
        folder=RunFolder(path),
        world=world,
        options=LoopOptions(save_every=1e9),
    )
    rows = []
    trainer.run(rows.append)
    state = {name: tensor.clone() for name, tensor in trainer.parts.model.state_dict().items()}
    scales = trainer.parts.compensation.scales()
    return {"weights": state, "rows": rows, "scales": scales, "kept": kept(path)}


def kept(path):
    """Return the arrays that a run keeps, as lists; None without any."""
    file = path / PREDICTIONS
    return {k: v.tolist() for k, v in np.load(file).items()} if file.exists() else None


def work(rank, folder):
    """Run all kinds as one rank and leave the results in a file."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    results = {kind: finished(kind, folder, World(rank, WORLD)) for kind in KINDS}
    torch.distributed.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")
