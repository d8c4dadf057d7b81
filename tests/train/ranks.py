"""What every process of the two-process tests does; imported by the spawned processes."""

import shutil
import time
from dataclasses import replace
from functools import partial

import torch

from surge.errors import CheckpointMismatchError
from surge.recipes.recipe import DataSpec, MethodSpec
from surge.train import checkpoint
from surge.train.distributed import World
from tests.train.small import (
    make_trainer,
    register_with_dropout,
    register_without_norm,
    small_recipe,
    small_sets,
    weights,
)

WORLD = 2
CASES = {
    "plain": {"row": "cnn-bnn"},
    "surge": {"row": "cnn-bnn-surge"},
    "accumulated": {"row": "cnn-bnn-surge", "accumulate": 2},
    "partial": {"row": "cnn-bnn-surge", "train": 43},
    "compiled": {"row": "cnn-bnn-surge", "compiled": True},
    "features": {"row": "cnn-bnn-surge", "method": "bonn", "accumulate": 2},
    "compiled-features": {"row": "cnn-bnn-surge", "method": "bonn", "compiled": True},
}
"""Two epochs of a network without BatchNorm; the last batch of ``partial`` has 5 and 6 images."""


def build(name, path, world=None):
    """Return the trainer of a case, alone or as one of the ranks."""
    register_without_norm()
    case = dict(CASES[name])
    sets = small_sets(train=case.pop("train", 64), test=41)
    compiled = case.pop("compiled", False) and world is not None
    method = case.pop("method", None)
    recipe = small_recipe(
        case.pop("row"), model="without_norm", epochs=2, batch=32, lr=0.02, **case
    )
    recipe = replace(recipe, data=DataSpec("digits", augment=False))
    if method is not None:
        recipe = replace(recipe, method=MethodSpec(method))
    return make_trainer(path, recipe, sets, world=world, compiled=compiled)


def finished(name, path, world=None):
    """Train a case; return weights, rows and scales."""
    trainer, rows = build(name, path, world), []
    outcome = trainer.run(rows.append)
    compensation = trainer.parts.compensation
    scales = {} if compensation is None else compensation.scales()
    learned = trainer.train_step.learned
    own = {} if learned is None else learned.state_dict()
    held = {**weights(trainer), **own}
    return {"weights": held, "rows": rows, "scales": scales, "best": outcome.best}


def stopped(path, world):
    """Only rank 0 has a deadline in the past; all must stop together, and go on together."""
    trainer = build("surge", path, world)
    late = 0.0 if world.leads else 1e9
    trainer.options = replace(trainer.options, deadline=time.monotonic() + late)
    first = trainer.run()
    again = build("surge", path, world)
    again.resume()
    second = again.run()
    return {
        "epochs": [first.epochs, second.epochs],
        "finished": [first.finished, second.finished],
        "weights": weights(again),
    }


def parted(path, seen, world):
    """The newest checkpoint is damaged where one rank looks; return what each rank is told."""
    torch.distributed.barrier()  # the first rank has written it
    mine = seen / str(world.rank)
    shutil.copytree(path, mine)
    if not world.leads:
        checkpoint.found(mine / "checkpoints")[0].write_bytes(b"torn")
    try:
        build("surge", mine, world).resume()
    except CheckpointMismatchError as error:
        return str(error)
    return ""


class Stop(Exception):
    """What ends a run here."""


def interrupted(path, world):
    """A run whose steps draw random numbers, whole, and ended in its second epoch and resumed."""
    register_with_dropout()
    recipe = small_recipe("cnn-bnn-surge", model="with_dropout", epochs=2, batch=16, lr=0.02)

    def trainer(place):
        return make_trainer(path / place, recipe, small_sets(), world=world, save_steps=2)

    whole = trainer("whole")
    whole.run()
    broken = trainer("broken")
    real, steps = broken.step, []

    def step(part, weight):
        if len(steps) == 11:  # the sixth step of the second epoch; a checkpoint holds four
            raise Stop
        steps.append(1)
        real(part, weight)

    broken.step = step
    try:
        broken.run()
    except Stop:
        torch.manual_seed(99)  # another process has another random state
    again = trainer("broken")
    again.resume()
    noted = again.noted["steps"]
    again.run()
    return {"noted": noted, "whole": weights(whole), "weights": weights(again)}


def work(rank, folder):
    """Run all cases as one rank and leave the results in a file."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="aot_eager")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    world = World(rank, WORLD)
    results = {name: finished(name, folder / f"two-{name}", world) for name in CASES}
    results["stopped"] = stopped(folder / "stopped", world)
    results["parted"] = parted(folder / "stopped", folder / "parted", world)
    results["interrupted"] = interrupted(folder / "interrupted", world)
    torch.distributed.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")
