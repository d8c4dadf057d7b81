"""DoReFa-Net: weights and inputs of any number of bits."""

import torch
from torch import Tensor

from surge import functional
from surge.errors import ConfigError
from surge.method import Geometry, Method, register_method

REAL = 32


def _check_bits(name: str, bits: int) -> int:
    if bits == REAL:
        return bits
    try:
        return functional.check_bits(bits)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error} {REAL} keeps real values.") from None


@register_method("dorefa", bits=(1, 1), reference="Zhou et al., 2016, arXiv:1606.06160")
class DoReFa(Method):
    """DoReFa-Net (Zhou et al. 2016); q_k(u) rounds [0, 1] to 2^k - 1 equal steps.

    Weights   1 bit:  w_b = E sign(w), E = mean(abs(w)) of the whole layer, a constant;
                      gradient passes unchanged, not multiplied by E
              k bits: w_b = 2 q_k(tanh(w) / (2 max abs(tanh(w))) + 1/2) - 1, max over the layer;
                      gradient passes the rounding, then through tanh and max;
                      ``keeps_size`` multiplies w_b by the max again, as a constant
    Inputs    1 bit:  x_b = sign(x); gradient passes where abs(x) <= 1, else 0
              k bits, or 1 bit with ``unit_inputs``: x_b = q_k(clip(x, 0, 1)); gradient passes
                      where 0 <= x <= 1, else 0
    Schedule  none.   Extra loss  none.   32 bits: real values, true gradient.
    Paper vs here: the paper's 1-bit inputs are {0, 1}, which is ``unit_inputs=True``; BNN
    comparisons at 1/1 bit use +-1, so that is the default. Gradients are not quantised. Weights of
    k bits fill [-1, 1], which a norm behind them mends; ``keeps_size`` is for layers without one.
    """

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        weight_bits: int = 1,
        input_bits: int = 1,
        unit_inputs: bool = False,
        keeps_size: bool = False,
    ) -> None:
        """Choose the bits; there is no state."""
        super().__init__(geometry, weight)
        self.bits = (_check_bits("weight_bits", weight_bits), _check_bits("input_bits", input_bits))
        self.unit_inputs = unit_inputs or 1 < input_bits < REAL
        self.keeps_size = keeps_size and 1 < weight_bits < REAL
        if unit_inputs and input_bits == REAL:
            raise ConfigError("unit_inputs=True needs quantised inputs, but input_bits is 32.")
        if input_bits == REAL:
            self.not_compensable = "its inputs are real, so their gradient is exact"

    def binarize(self, z: Tensor) -> Tensor:
        """Quantise to +-1, or to steps of [0, 1]."""
        if self.unit_inputs:
            return functional.quantize_unit(z, self.bits[1])
        return z if self.bits[1] == REAL else functional.sign_clipped(z)

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Zero beyond the clip."""
        if self.unit_inputs:
            return (z < 0) | (z > 1)
        return torch.zeros_like(z, dtype=torch.bool) if self.bits[1] == REAL else z.abs() > 1

    def scales_signs(self) -> bool:
        """At 1 bit E is in the weight."""
        return self.bits[0] == 1

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Quantise the weight."""
        if self.bits[0] == REAL:
            return weight
        if self.bits[0] == 1:
            return functional.scaled_sign_identity(weight, weight.detach().abs().mean())
        squashed, largest = self._squashed(weight)
        steps = 2 * functional.quantize(squashed / (2 * largest) + 0.5, self.bits[0]) - 1
        return steps * largest.detach() if self.keeps_size else steps

    @staticmethod
    def _squashed(weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return tanh(w) and its largest magnitude; a layer of zeros has none to divide by."""
        squashed = torch.tanh(weight)
        largest = squashed.abs().max()
        return squashed, torch.where(largest > 0, largest, 1.0)

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return +-1, or odd numbers up to 2^k - 1 over that; 32 bits stay as they are."""
        if self.bits[0] == 1:
            return super().packed_weight(weight)
        with torch.no_grad():
            levels = 1 if self.bits[0] == REAL else 2 ** self.bits[0] - 1
            whole = self._squashed(weight)[1] if self.keeps_size else 1.0
            values = self.binarize_weight(weight) / whole * levels
            scale = weight.new_full((self.geometry.out_features,), 1 / levels) * whole
            return values if self.bits[0] == REAL else values.round(), scale

    def describe(self) -> str:
        """Name the bits, and {0, 1} where one would expect +-1."""
        text = super().describe()
        return f"{text}, inputs 0 and 1" if self.unit_inputs and self.bits[1] == 1 else text
