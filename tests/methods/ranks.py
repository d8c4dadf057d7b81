"""What each of two processes does in the test of methods with state; imported by both."""

from datetime import timedelta

import torch
from torch.nn.parallel import DistributedDataParallel

import surge
from surge.train.norms import recalibrate_norms
from tests.nets import cnn, images, loss_of

WORLD = 2
STATEFUL = ("rbonn", "rbnn", "slb", "irnet", "bonn", "fda")
EPOCHS = 5
PATIENCE = 180
"""Seconds that one rank waits for the other."""


def trained(method, rank=0, world=1):
    """Train some epochs of one step each on this rank's part of the batch; return the state."""
    # Without norms: their statistics would be those of half a batch.
    model = cnn(method, norm=False)
    net = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, labels = images(count=8)
    part = slice(rank * 8 // world, (rank + 1) * 8 // world)
    for epoch in range(EPOCHS):
        surge.on_epoch(model, epoch, EPOCHS)
        optimizer.zero_grad()
        loss_of(net, (x[part], labels[part])).backward()
        optimizer.step()
        surge.on_step(model)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def statistics(rank=None):
    """Re-estimate the norms of a network on one rank's images, or on those of all ranks."""
    net = cnn("slb")
    parts = range(WORLD) if rank is None else [rank]
    recalibrate_norms(net, [images(count=8, seed=part)[0] for part in parts])
    return {name: t.clone() for name, t in net.state_dict().items() if "running" in name}


def work(rank, folder):
    """Train all methods as one rank and leave the states in a file."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE),
    )
    try:
        states = {method: trained(method, rank, WORLD) for method in STATEFUL}
        states["norms"] = statistics(rank)
    finally:
        torch.distributed.destroy_process_group()
    torch.save(states, folder / f"{rank}.pt")


def second(_index, folder):
    """Be the second rank, in a process of its own."""
    torch.set_num_threads(1)
    work(1, folder)
