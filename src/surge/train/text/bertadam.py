"""BertAdam: the Adam with which BERT was trained, and BiT after it."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

FAR = 1e9
"""A step so late that torch's own AdamW has no bias left to correct."""


class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, with decoupled decay and a clip per parameter.

    With g the gradient of one parameter w, clipped to norm 1 by itself::

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
        w = w - lr (m / (sqrt(v) + eps) + decay w)

    All parameters of a group are updated together by a few kernels; nothing waits for the device,
    and a learning rate that is a tensor is read there, so that a step can be captured. ``fused``
    leaves the last two lines to the kernel of torch's AdamW, which does the same far from step 0.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        largest_norm: float = 1.0,
        fused: bool = False,
    ) -> None:
        """Take parameters or groups of them, as every optimizer does."""
        self.fused = fused
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "largest_norm": largest_norm,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["mean"] = torch.zeros_like(weight)
                self.state[weight]["square"] = torch.zeros_like(weight)
        gradients = [cast(Tensor, p.grad) for p in weights]
        clip_(gradients, group["largest_norm"])
        means = [self.state[p]["mean"] for p in weights]
        squares = [self.state[p]["square"] for p in weights]
        first, second = group["betas"]
        if self.fused:
            torch._fused_adamw_(
                weights,
                gradients,
                means,
                squares,
                [],
                [self._far(weights[0].device)] * len(weights),
                lr=group["lr"],
                beta1=first,
                beta2=second,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
            return
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_add_(divisors, group["eps"])
        updates = torch._foreach_div(means, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(weights, updates)

    def _far(self, device: torch.device) -> Tensor:
        # Made once: a captured step cannot copy a number from the host.
        if not hasattr(self, "_late"):
            self._late = torch.full((), FAR, device=device)
        return self._late


def clip_(gradients: list[Tensor], largest: float) -> None:
    """Shorten each gradient to a norm by itself where it is longer, in place."""
    norms = torch.stack(torch._foreach_norm(gradients))
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))
