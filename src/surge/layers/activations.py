"""The learnable activations of ReActNet."""

import torch
from torch import Tensor, nn

from surge import functional


def _per_channel(vector: Tensor, x: Tensor) -> Tensor:
    # As biases under autocast: activations that are short stay so.
    return vector.view(-1, *(1 for _ in x.shape[2:])).to(x.dtype)


class RSign(nn.Module):
    """Sign with a learnable threshold per channel: ``sign(x + shift)``, Bi-Real gradient.

    Channels are dimension 1. The ``reactnet`` method holds the same shift inside a layer.
    """

    def __init__(self, channels: int) -> None:
        """Start with all thresholds at zero."""
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return +-1."""
        return functional.sign_bireal(x + _per_channel(self.shift, x))


class RPReLU(nn.Module):
    """PReLU between two learnable shifts: ``prelu(x + shift_in) + shift_out``, per channel."""

    def __init__(self, channels: int) -> None:
        """Start as PReLU with slope 0.25."""
        super().__init__()
        self.shift_in = nn.Parameter(torch.zeros(channels))
        self.slope = nn.Parameter(torch.full((channels,), 0.25))
        self.shift_out = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the shifted PReLU."""
        y = torch.nn.functional.prelu(x + _per_channel(self.shift_in, x), self.slope)
        return y + _per_channel(self.shift_out, y)
