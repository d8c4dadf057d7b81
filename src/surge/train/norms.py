"""Statistics of norms for the weights of inference, where training uses others (SLB)."""

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from surge.layers.hooks import binary_layers
from surge.ranks import count_ranks, joined

BATCHES = 32
"""Training batches whose statistics are averaged."""


def wants_recalibration(model: nn.Module) -> bool:
    """Return whether some method of the model asks for it."""
    return any(layer.method.recalibrates_norms for _, layer in binary_layers(model))


@torch.no_grad()
def recalibrate_norms(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set running statistics to their plain mean over some batches; the model is left in eval mode.

    All else is in eval mode meanwhile, so methods use the weights of inference. In several
    processes the mean is over the batches of all of them. Nothing waits for the device.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
    rates = [norm.momentum for norm in norms]
    model.eval()
    try:
        for number, images in enumerate(islice(batches, BATCHES), start=1):
            for norm in norms:
                norm.train()
                norm.momentum = 1 / number
            model(images)
    finally:
        for norm, rate in zip(norms, rates, strict=True):
            norm.momentum = rate
        model.eval()
    _average([t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None])


def _average(tensors: list[Tensor]) -> None:
    """Replace the tensors by their mean over all processes, in one exchange."""
    if not joined() or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    torch.distributed.all_reduce(flat)
    flat /= count_ranks()
    parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
