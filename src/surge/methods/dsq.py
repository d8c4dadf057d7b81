"""DSQ: a tanh whose steepness is learned stands for the derivative of sign."""

import torch
from torch import Tensor, nn

from surge import functional
from surge.method import Geometry, Method, register_method

SHAPE_MIN, SHAPE_MAX = 1e-3, 0.5
WIDTH_MIN = 1e-3


def soft_sign(x: Tensor, lower: Tensor, upper: Tensor, shape: Tensor) -> Tensor:
    """Return ``lower`` or ``upper``, whichever side of the middle; DSQ's gradient to all four.

    >>> one = torch.ones(())
    >>> soft_sign(torch.tensor([-3.0, 0.0, 0.2]), -one, one, 0.2 * one).tolist()
    [-1.0, 1.0, 1.0]
    """
    middle, half = (lower + upper) / 2, (upper - lower) / 2
    if not torch.is_grad_enabled():  # nothing but the side is read off the curve
        return middle + half * functional.sign_identity(x - middle)
    a = shape.clamp(SHAPE_MIN, SHAPE_MAX)
    steepness = torch.log(2 / a - 1) / (upper - lower)
    curve = torch.tanh(steepness * (torch.clamp(x, lower, upper) - middle)) / (1 - a)
    return middle + half * functional.sign_identity(curve)


@register_method("dsq", bits=(1, 1), reference="Gong et al., ICCV 2019, arXiv:1908.05033")
class DSQ(Method):
    """DSQ (Gong et al. 2019): differentiable soft quantisation at one bit.

    Curve     p(u) = tanh(k (u - m)) / (1 - a), k = ln(2/a - 1) / (U - L), m = (L + U) / 2; it
              runs from -1 at L to 1 at U, and a -> 0 makes it a step
    Weights   w_b = sign(w)      gradient k (1 - tanh(k w)^2) / (1 - a) where abs(w) <= 1, else 0
    Inputs    x_b = m + (U - L)/2 sign(p(x)): L or U, which are -1 and 1, or learnable with
              ``learn_interval``; gradient (U - L)/2 p'(x) where L <= x <= U, else 0
    Learnable a, one for weights and one for inputs, from 0.2, kept in [0.001, 0.5]; sign passes
              its gradient to p unchanged, and from there it reaches a, L and U too
    Schedule  none.   Extra loss  none.   Output scale  none.
    Paper vs here: the paper bounds a softly, here it is clamped after each step. The weights keep
    L = -1 and U = 1: a norm follows, and a centre other than 0 could not be packed.
    """

    dropped = ("weight_shape", "input_shape")

    def __init__(self, geometry: Geometry, weight: Tensor, *, learn_interval: bool = False) -> None:
        """Start both curves at a = 0.2; an embedding has no input."""
        super().__init__(geometry, weight)
        self.weight_shape = nn.Parameter(torch.full((), 0.2))
        has_input = geometry.kind != "embedding"
        self.input_shape = nn.Parameter(torch.full((), 0.2)) if has_input else None
        learnt = learn_interval and has_input
        self.input_lower = nn.Parameter(-torch.ones(())) if learnt else None
        self.input_upper = nn.Parameter(torch.ones(())) if learnt else None

    def interval(self) -> tuple[Tensor, Tensor]:
        """Return L and U of the inputs."""
        if self.input_lower is None or self.input_upper is None:
            one = torch.ones_like(self.weight_shape)
            return -one, one
        return self.input_lower, self.input_upper

    def binarize(self, z: Tensor) -> Tensor:
        """Take the nearer end of the interval."""
        assert self.input_shape is not None
        return soft_sign(z, *self.interval(), self.input_shape)

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero outside the interval."""
        lower, upper = self.interval()
        return (z < lower) | (z > upper)

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign with the gradient of the weights' curve."""
        one = torch.ones_like(self.weight_shape)
        return soft_sign(weight, -one, one, self.weight_shape)

    def on_step(self, weight: nn.Parameter) -> None:
        """Keep the curves between a step and a straight line, and the interval's ends apart."""
        with torch.no_grad():
            for shape in (self.weight_shape, self.input_shape):
                if shape is not None:
                    shape.clamp_(SHAPE_MIN, SHAPE_MAX)
            if self.input_lower is not None and self.input_upper is not None:
                self.input_upper.clamp_(min=self.input_lower + WIDTH_MIN)
