"""BatchNorm over the whole batch of all processes, on any device."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


class _Synced(_BatchNorm):
    """Means and variances are those of all processes together; shares may differ in size."""

    def forward(self, input: Tensor) -> Tensor:  # torch's name, for calls by keyword
        """Normalise; two small exchanges per call in training, none in evaluation."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        dims = [d for d in range(x.dim()) if d != 1]
        shape = [1, -1, *(1 for _ in dims[1:])]
        count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype, device=x.device)
        sums = _summed(torch.cat([x.sum(dims), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        away = x - mean.view(shape)
        variance = _summed(away.square().sum(dims)) / total
        self._track(mean.detach(), variance.detach(), total)
        y = away * (variance.view(shape) + self.eps).rsqrt()
        y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.momentum is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * count / (count - 1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


def _summed(values: Tensor) -> Tensor:
    """Return the sum over all processes; gradients are summed likewise."""
    return cast(Tensor, all_reduce(values))  # type: ignore[no-untyped-call]


class SyncBatchNorm1d(_Synced, nn.BatchNorm1d):
    """For vectors and sequences."""


class SyncBatchNorm2d(_Synced, nn.BatchNorm2d):
    """For images."""


def synchronize_norms_(model: nn.Module) -> int:
    """Let every BatchNorm of a model see the batches of all processes; return how many there are.

    Names and state stay, so that checkpoints fit either way.
    """
    kinds: dict[type[nn.Module], type[nn.Module]] = {
        nn.BatchNorm1d: SyncBatchNorm1d,
        nn.BatchNorm2d: SyncBatchNorm2d,
    }
    chosen = [module for module in model.modules() if type(module) in kinds]
    for module in chosen:
        module.__class__ = kinds[type(module)]
    return len(chosen)
