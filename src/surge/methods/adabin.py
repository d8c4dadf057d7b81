"""AdaBin: two values per filter and per input, with a centre of their own."""

import torch
from torch import Tensor, nn

from surge import functional
from surge.method import Geometry, per_filter, register_method
from surge.methods.irnet import Sharpening


@register_method("adabin", bits=(1, 1), reference="Tu et al., ECCV 2022, arXiv:2208.08084")
class AdaBin(Sharpening):
    """AdaBin (Tu et al. 2022): adaptive binary sets {centre - distance, centre + distance}.

    Weights   centre c = mean(w), distance d = norm(w - c) / sqrt(n) per filter; v = (w - c) / d
              w_b = c + d sign(v); gradient of sign k t (1 - tanh(t v)^2), c and d differentiated
    Inputs    z = (x - c) / d with learnable scalars c, from 0, and d, from 1
              x_b = c + d sign(z); gradient of sign max(0, 2 - 2 abs(z)), so
              1{abs(z) < 1} (2 - 2 abs(z)) g to x, and to c and d by the chain rule
    Schedule  t = t_min (t_max / t_min)^(e/E), k = max(1/t, 1).   Extra loss  none.
    Paper vs here: the released code also multiplies the inputs' centre by their distance, here the
    formula of the paper; d of the inputs is kept positive after each step. Maxout, the paper's
    nonlinearity, belongs to the network. The centre of a filter is more than bits and a scale can
    say: a packed file holds it as an offset.
    """

    centred_values = True

    def __init__(
        self, geometry: Geometry, weight: Tensor, *, t_min: float = 0.1, t_max: float = 10.0
    ) -> None:
        """Start from plain sign for the inputs; an embedding has none."""
        super().__init__(geometry, weight, t_min=t_min, t_max=t_max)
        has_input = geometry.kind != "embedding"
        self.input_centre = nn.Parameter(torch.zeros(())) if has_input else None
        self.input_distance = nn.Parameter(torch.ones(())) if has_input else None

    def prepare_input(self, x: Tensor) -> Tensor:
        """Measure from the centre, in distances."""
        assert self.input_centre is not None and self.input_distance is not None
        return (x - self.input_centre) / self.input_distance

    def binarize(self, z: Tensor) -> Tensor:
        """Take the nearer of the two values."""
        assert self.input_centre is not None and self.input_distance is not None
        return self.input_centre + self.input_distance * functional.sign_bireal(z)

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero from 1 on."""
        return z.abs() >= 1

    def equalized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return centre and distance of every filter, shaped to broadcast over the weight."""
        weight = functional.widened(weight)
        centre = weight.mean(dim=per_filter(weight), keepdim=True)
        square = (weight - centre).square().mean(dim=per_filter(weight), keepdim=True)
        # Far below any real distance: it only turns the 0/0 of a constant filter into 0.
        return centre, (square + 1e-30).sqrt()

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Take the nearer of the filter's two values."""
        centre, distance = self.equalized(weight)
        bits = functional.sign_ede((weight - centre) / distance, self.k, self.t)
        return (centre + distance * bits).to(weight.dtype)

    def on_step(self, weight: nn.Parameter) -> None:
        """Keep the distance of the inputs positive."""
        if self.input_distance is not None:
            with torch.no_grad():
                self.input_distance.clamp_(min=1e-4)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return sign + centre / distance, and the distances; what is stored are the signs."""
        with torch.no_grad():
            _, distance = self.equalized(weight)
            return self.binarize_weight(weight) / distance, distance.flatten()

    def stored_values(self, weight: Tensor) -> Tensor:
        """Return which of the filter's two values every weight takes."""
        with torch.no_grad():
            return functional.sign(weight - self.equalized(weight)[0])
