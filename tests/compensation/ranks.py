"""What every process of the distributed test does; imported by the spawned processes."""

import json

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import surge
from surge.compensation.reference import calibrate_, learn_bias_
from tests.methods.ranks import IN_PARTS
from tests.nets import CASES, COMPENSABLE, cnn, images, loss_of

WORLD = 2
BATCHES = [images(count=8, seed=seed) for seed in range(3)]
VARIANTS = {
    "tied": {"auxiliary": "tied"},
    "weight_side": {"weight_side": 0.3},
    "noise": {"noise": True},
    "every": {"every": 2},
}
RUNS = {method: (method, {}) for method in COMPENSABLE} | {
    f"recu-{name}": ("recu", options) for name, options in VARIANTS.items()
}


def share(batch, rank):
    """The part of a batch that belongs to one rank; rank ``None`` takes all of it."""
    return batch if rank is None else tuple(part.chunk(WORLD)[rank] for part in batch)


def turns(method, batch, rank):
    """What a process takes in turn for one step: its share, or all shares where that counts."""
    if rank is None and method in IN_PARTS:
        return [share(batch, part) for part in range(WORLD)]
    return [share(batch, rank)]


def final_scales(method, options, rank=None):
    """Train three steps, alone or as one of the ranks, and return all scales and one weight."""
    net = cnn(method, norm=False)
    compensation = surge.compensate_(net, **options)
    seldom = "every" in options
    model = net if rank is None else DistributedDataParallel(net, find_unused_parameters=seldom)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    compensation.follow(optimizer)
    surge.on_epoch(net, 3, 10)  # else schedules, extra losses and noise are off
    for parts in [turns(method, batch, rank) for batch in BATCHES]:
        optimizer.zero_grad()
        for part in parts:
            (loss_of(model, part) / len(parts)).backward()
        optimizer.step()
        surge.on_step(net)
    weights = {
        f"{name}.weight": float(path.weight.detach().norm())
        for name, path in compensation.paths.items()
        if isinstance(path.weight, nn.Parameter)
    }
    sides = {
        f"{name}.weight_scale": float(path.weight_scale)
        for name, path in compensation.paths.items()
        if path.options.weight_side
    }
    return compensation.scales() | weights | sides


def with_reference(learn, options, rank=None):
    """Train three steps that also ask the smooth reference; return what was learned from it."""
    net = cnn("recu", norm=False)
    compensation = surge.compensate_(net, **options)
    model = net if rank is None else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    compensation.follow(optimizer)
    said = []
    for batch in [share(batch, rank) for batch in BATCHES]:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        answer = learn(net, compensation, lambda batch=batch: loss_of(net, batch))
        said.append(answer if isinstance(answer, float) else sum(answer.values()))
        optimizer.step()
    paths = compensation.paths.items()
    learned = {f"{name}.weight": path.weight.flatten().tolist() for name, path in paths}
    return {"said": said, "scales": list(compensation.scales().values()), **learned}


REFERENCES = {
    "bias": (learn_bias_, {"objective": "bias"}),
    "calibrated": (calibrate_, {}),
}


def overflow_on_one_rank(rank):
    """One rank's gradients are not finite: every rank must keep its scale."""
    net = cnn(norm=False)
    compensation = surge.compensate_(net)
    before = compensation.scales()
    loss = loss_of(net, share(BATCHES[0], rank))
    (loss * torch.inf if rank == 1 else loss).backward()
    compensation.step()
    return {"kept": compensation.scales() == before}


def noise_on_one_batch():
    """The input gradient of one layer, eager and compiled: all ranks have the same batch."""
    case, found = CASES["conv2d"], {}
    for name in ("eager", "compiled"):
        layer = case.build()
        surge.compensate_(layer, noise=True)
        call = layer if name == "eager" else torch.compile(layer, backend="aot_eager")
        x = case.batch().requires_grad_()
        call(x).square().sum().backward()
        found[name] = x.grad.flatten().tolist()
    return found


def work(rank, folder):
    """Run all cases as one rank and leave the results in a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    results = {name: final_scales(*run, rank) for name, run in RUNS.items()}
    results["overflow"] = overflow_on_one_rank(rank)
    results |= {name: with_reference(*run, rank) for name, run in REFERENCES.items()}
    results["noise"] = noise_on_one_batch()
    torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(results))
