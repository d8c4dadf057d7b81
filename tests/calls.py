"""How often a piece of code calls torch, and how often it has to wait for the device."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_dim",
    "equal",
    "is_nonzero",
    "nms",
    "repeat_interleave",
)
"""Operators whose result the host needs, or whose size it has to know."""
VIEWS = (
    "view", "_unsafe_view", "expand", "permute", "transpose", "t", "slice", "select", "unsqueeze",
    "squeeze", "split", "split_with_sizes", "alias", "detach", "as_strided", "unbind", "numpy_T",
    "_reshape_alias", "lift_fresh",
)  # fmt: skip
"""Operators that launch nothing."""


class Calls(TorchDispatchMode):
    """Counts operators by name; the backward included, which runs in the same thread on a CPU."""

    def __init__(self):
        super().__init__()
        self.names = Counter()
        self.waits = 0
        self.paused = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2].rstrip("_")
        if not self.paused:
            self.names[name] += 1
            self.waits += name in WAITING or self._picks(name, args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _picks(name, args):
        """An index by a mask is as long as the mask says."""
        if name not in ("index", "index_put"):
            return False
        return any(i is not None and i.dtype == torch.bool for i in args[1])

    @property
    def total(self):
        return sum(self.names.values())

    @property
    def launches(self):
        return sum(count for name, count in self.names.items() if name not in VIEWS)
