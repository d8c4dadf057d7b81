"""XNOR-Net: scales for the weights and for the inputs."""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surge.errors import ConfigError
from surge.functional import operator, sign
from surge.method import Geometry, Method, mean_magnitude, per_filter, register_method

Gradient = Literal["paper", "port"]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.port = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (weight,) = ctx.saved_tensors
    n, channels = weight[0].numel(), weight.shape[1]
    centred = weight - weight.mean(dim=1, keepdim=True)
    passed = mean_magnitude(centred.clamp(-1, 1)) * (centred.abs() <= 1)
    if not ctx.port:
        return grad * (passed + 1 / n), None
    bits = sign(centred)
    shared = (bits * grad).mean(dim=per_filter(grad), keepdim=True)
    return (passed * grad + bits * shared) * (n * (1 - 1 / channels)), None


@operator("xnor_weight", backward=_backward, setup=_setup)
def xnor_weight(weight: Tensor, port: bool) -> Tensor:
    """Return ``alpha sign(v)`` for the weight ``v`` centred over its input channels."""
    centred = weight - weight.mean(dim=1, keepdim=True)
    return mean_magnitude(centred.clamp(-1, 1)) * sign(centred)


@register_method("xnor", bits=(1, 1), reference="Rastegari et al., ECCV 2016, arXiv:1603.05279")
class XNOR(Method):
    """XNOR-Net (Rastegari et al. 2016); n is the number of weights in a filter.

    Weights   v = w - mean over the input channels; alpha = mean(abs(clamp(v, -1, 1))) per filter
              w_b = alpha sign(v); gradient 1/n + alpha where abs(v) <= 1, 1/n elsewhere;
              ``gradient="port"``: n (1 - 1/channels) (alpha 1{abs(v) <= 1} g + s mean(s g)),
              with g the gradient at w_b and s = sign(v)
    Inputs    x_b = sign(x)      gradient passes where abs(x) <= 1, else 0
    Output    times K, a constant: mean abs(x) over all channels (also across groups), averaged
              over the kernel's window with zeros beyond the border; off by ``input_scale=False``
    Step      v is clamped to [-1, 1], once.   Schedule  none.   Extra loss  none.
    Paper vs here: centring and clamping come from the authors' code, which edits the latent weight
    in place before each forward; here the latent keeps its mean, which w_b and its gradient, passed
    on directly as there, do not see. The well-known PyTorch port ignores K and stops the input
    gradient at abs(x) = 1 already.
    """

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        input_scale: bool = True,
        gradient: Gradient = "paper",
    ) -> None:
        """Choose the output factor and the weight gradient; there is no state."""
        super().__init__(geometry, weight)
        if gradient not in get_args(Gradient):
            raise ConfigError(f'gradient="{gradient}" is not one of: {get_args(Gradient)}.')
        if weight.shape[1] < 2:
            raise ConfigError(
                'Method "xnor" centres the weight over its input channels and needs at least 2 of '
                f"them; this layer's weight has shape {tuple(weight.shape)}. Keep the layer float "
                "(skip=)."
            )
        self.input_scale = input_scale
        self.gradient = gradient

    def scales_signs(self) -> bool:
        """Alpha is in the weight."""
        return True

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Sign of the centred weight times its mean magnitude."""
        return xnor_weight(weight, self.gradient == "port")

    def on_step(self, weight: nn.Parameter) -> None:
        """Take back what is further than 1 from the centre."""
        with torch.no_grad():
            centred = weight - weight.mean(dim=1, keepdim=True)
            weight.sub_(centred - centred.clamp(-1, 1))

    def scale_output(self, y: Tensor, z: Tensor) -> Tensor:
        """Multiply by K."""
        return y * self.magnitude_map(z).to(y.dtype) if self.input_scale else y

    def magnitude_map(self, z: Tensor) -> Tensor:
        """Return K, the mean magnitude of the input under every position of the kernel."""
        shape = self.geometry
        with torch.no_grad():
            if shape.kind == "linear":
                return z.abs().mean(dim=-1, keepdim=True)
            spatial = len(shape.kernel_size)
            mean = z.abs().mean(dim=-1 - spatial, keepdim=True)
            box = mean.new_ones(1, 1, *shape.kernel_size)
            convolve = F.conv1d if spatial == 1 else F.conv2d
            total = convolve(mean, box, None, shape.stride, shape.padding, shape.dilation)
            return total / box.numel()
