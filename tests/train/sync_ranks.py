"""What every process of the tests of synced norms does; imported by the spawned processes."""

from contextlib import suppress

import torch
from torch import nn

from surge.train.distributed import World
from surge.train.sync_norm import synchronize_norms_
from tests.train.small import make_trainer, small_recipe, small_sets, weights

WORLD = 2


def one_norm(rank=None):
    """Forward and backward of two norms on 11 images, or on this rank's 5 or 6 of them."""
    torch.manual_seed(3)
    x, grad = torch.randn(11, 4, 5, 5, dtype=torch.double), torch.randn(11, 4, 5, 5).double()
    norm = nn.BatchNorm2d(4).double()
    nn.init.normal_(norm.weight)
    if rank is not None:
        synchronize_norms_(norm)
        window = slice(0, 5) if rank == 0 else slice(5, 11)
        x, grad = x[window], grad[window]
    x.requires_grad_()
    y = norm(x)
    y.backward(grad)
    return {
        "y": y.detach(),
        "x": x.grad,
        "weight": norm.weight.grad,
        **{name: buffer.clone() for name, buffer in norm.named_buffers()},
    }


def build(path, world=None, *, synced=True, **options):
    """A float network with BatchNorm; 43 images give a last batch of 11."""
    recipe = small_recipe("cnn-float", epochs=2, batch=32, lr=0.02, sync_norm=synced)
    return make_trainer(path, recipe, small_sets(train=43, test=41), world=world, **options)


def interrupted(path, world):
    """Stop after the first step of the second epoch, and continue there."""
    first, seen = build(path, world, save_steps=1), []
    real, done = first.step, []

    def step(part, weight):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        real(part, weight)

    first.step = step
    with suppress(KeyboardInterrupt):
        first.run(seen.append)
    torch.distributed.barrier()
    again = build(path, world, save_steps=1)
    again.resume()
    steps = again.noted["steps"]
    again.run(seen.append)
    return {"weights": weights(again), "rows": seen, "steps": steps}


def work(rank, folder):
    """Run everything as one rank and leave the results in a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    results = {"norm": one_norm(rank)}
    for name, synced in (("synced", True), ("alone", False)):
        trainer, rows = build(folder / name, World(rank, WORLD), synced=synced), []
        trainer.run(rows.append)
        results[name] = {"weights": weights(trainer), "rows": rows, "mode": str(trainer.mode)}
    results["interrupted"] = interrupted(folder / "interrupted", World(rank, WORLD))
    torch.distributed.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")
