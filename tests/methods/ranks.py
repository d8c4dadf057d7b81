"""What each of two processes does in the test of methods over ranks; imported by both."""

from datetime import timedelta

import torch
from torch.nn.parallel import DistributedDataParallel

import surge
from surge.layers.elastic import elastic_parts
from surge.train.norms import recalibrate_norms
from tests.nets import METHODS, cnn, images, loss_of

WORLD = 2
IN_PARTS = ("rad", *(method for method in METHODS if any(elastic_parts(cnn(method)))))
"""Methods for which a batch in parts is not the whole: RAD's loss judges the batch at hand, and the
gradient of an elastic level counts its elements."""
EPOCHS = 5
PATIENCE = 180
"""Seconds that one rank waits for the other."""


def trained(method, rank=None, parts=1):
    """Train some epochs of one step each, on one rank's part of the batch or on all parts in turn.

    Return the state.
    """
    # Without norms: their statistics would be those of a part of the batch.
    model = cnn(method, norm=False)
    net = model if rank is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    whole = images(count=8)
    batches = list(zip(*(tensor.chunk(parts) for tensor in whole), strict=True))
    mine = batches if rank is None else batches[rank : rank + 1]
    for epoch in range(EPOCHS):
        surge.on_epoch(model, epoch, EPOCHS)
        optimizer.zero_grad()
        for batch in mine:
            (loss_of(net, batch) / len(mine)).backward()
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
        states = {method: trained(method, rank, WORLD) for method in METHODS}
        states["norms"] = statistics(rank)
    finally:
        torch.distributed.destroy_process_group()
    torch.save(states, folder / f"{rank}.pt")


def second(_index, folder):
    """Be the second rank, in a process of its own."""
    torch.set_num_threads(1)
    work(1, folder)
