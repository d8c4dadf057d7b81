"""The layer of IDa-Det: weight and scale are optimised together, as in RBONN, without recurrence.

What makes the method a detector's, the choice of proposals and the entropy loss, is in
:mod:`surge.train.detection.ida_distill`.
"""

from torch import Tensor

from surge.method import Geometry, register_method
from surge.methods.rbonn import Bilinear


@register_method("ida", bits=(1, 1), reference="Xu et al., ECCV 2022, arXiv:2210.03477")
class IDa(Bilinear):
    """IDa-Det (Xu et al. 2022): its 1-bit layer; g is the gradient at w_b.

    Weights   w_b = 0.02 a sign(w), a = abs(scale), learnable per filter, from N(0, 1)
              gradient a g to w (no clip); sum of g w per filter to a
    Inputs    as ReActNet: z = x + shift per channel, x_b = sign(z); gradient max(0, 2 - 2 abs(z))
    Loss      p/2 sum((w - 0.02 a sign(w))^2) with sign(w) constant, p = ``penalty`` = 1e-4
    Schedule  the loss starts with the first announced epoch.
    Paper vs here: the authors take abs inside their function and its backward forgets the factor
    sign(scale), so that half of all scales move the wrong way: ``forgets_sign=True``. As in RBONN
    the penalty is a loss here, and a part of the backward there.
    """

    dropped = ("active_penalty", "scale")

    def __init__(
        self,
        geometry: Geometry,
        weight: Tensor,
        *,
        penalty: float = 1e-4,
        forgets_sign: bool = False,
    ) -> None:
        """Draw the scales."""
        super().__init__(geometry, weight, penalty=penalty)
        self.forgets_sign = forgets_sign

    def magnitude(self) -> Tensor:
        """Return a, one number per filter."""
        magnitude = self.scale.abs()
        # s + (|s| - s) is |s| exactly, and its gradient is 1.
        return self.scale + (magnitude - self.scale).detach() if self.forgets_sign else magnitude
