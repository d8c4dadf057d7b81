"""A layer as the sum of two: what a ternary layer becomes when it is split into binary ones."""

from torch import Tensor, nn


class SplitLayer(nn.Module):
    """Two layers that take the same input and whose outputs are added."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        """Hold both halves."""
        super().__init__()
        self.first, self.second = first, second

    def forward(self, input: Tensor) -> Tensor:  # torch's name, for calls by keyword
        """Add the outputs of both halves."""
        total: Tensor = self.first(input) + self.second(input)
        return total
