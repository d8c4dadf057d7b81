"""Count the products that a forward computes outside of layers whose sizes say it all.

Attention multiplies activations, and a module of a user's own may hold a matrix: neither shows in
any layer of torch. Seen are the matrix products and convolutions that arrive at the dispatcher.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from surge.layers.attention import two_level_product  # noqa: F401  (registers its operator)


def _matrix(args: Any, out: Tensor) -> int:
    return int(out.numel() * args[0].shape[-1])


def _added(args: Any, out: Tensor) -> int:
    return _matrix(args[1:], out)


def _convolution(args: Any, out: Tensor) -> int:
    x, weight, transposed = args[0], args[1], args[6]
    return int((x if transposed else out).numel() * math.prod(weight.shape[1:]))


_aten = torch.ops.aten
COUNTED: dict[Any, Callable[[Any, Tensor], int]] = {
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv, _aten.dot), _matrix),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm, _aten.addmv), _added),
    **dict.fromkeys((_aten.convolution, _aten._convolution), _convolution),
    torch.ops.surge.two_level_product: _matrix,
}
"""Multiply-accumulates by operator."""
IN_BITS = (torch.ops.surge.two_level_product,)
"""Operators that multiply bits, whichever module calls them."""

Products = Counter[tuple[nn.Module, bool]]
"""Multiply-accumulates by module, and by whether they are of bits."""


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: Products, running: list[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self.running = found, running

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = COUNTED.get(func.overloadpacket)
        if count is not None and self.running:
            self.found[self.running[-1], func.overloadpacket in IN_BITS] += count(args, out)
        return out


@contextmanager
def counted_products(model: nn.Module, closed: Callable[[nn.Module], bool]) -> Iterator[Products]:
    """Count what runs inside by the innermost module that runs; a ``closed`` one hides its parts.

    Attention and its layers run step by step, not as the one kernel that torch has for them.
    """
    found: Products = Counter()
    running: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        inside = running and closed(running[-1])
        running.append(running[-1] if inside else module)

    def leave(*_: Any) -> None:
        running.pop()

    handles = [module.register_forward_pre_hook(enter, prepend=True) for module in model.modules()]
    handles += [module.register_forward_hook(leave) for module in model.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _Counting(found, running):
            yield found
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for handle in handles:
            handle.remove()
