"""The yardstick itself: the NumPy operators against torch's float layers."""

import pytest
import torch
from torch.nn import functional as F

from tests.methods.reference import CASES, Conv2d, Linear, close


@pytest.mark.parametrize("case", [name for name in CASES if name != "linear"])
def test_numpy_convolution_is_torch_convolution(case):
    options = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | CASES[case]
    kernel = options.pop("kernel_size")
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    groups = options.pop("groups")
    pairs = {k: v if isinstance(v, tuple) else (v, v) for k, v in options.items()}
    x = torch.randn(2, 4, 7, 6, dtype=torch.double, requires_grad=True)
    w = torch.randn(6, 4 // groups, *kernel, dtype=torch.double, requires_grad=True)
    y = F.conv2d(x, w, None, groups=groups, **pairs)
    grad = torch.randn_like(y)
    y.backward(grad)

    operator = Conv2d(**pairs, groups=groups)
    w_, x_, grad_ = w.detach().numpy(), x.detach().numpy(), grad.numpy()
    close(y, operator.forward(x_, w_))
    close(x.grad, operator.to_input(grad_, w_, x_.shape))
    close(w.grad, operator.to_weight(grad_, x_, w_.shape))


def test_numpy_linear_is_torch_linear():
    x = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    w = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    y = F.linear(x, w)
    grad = torch.randn_like(y)
    y.backward(grad)
    w_, x_, grad_ = w.detach().numpy(), x.detach().numpy(), grad.numpy()
    close(y, Linear().forward(x_, w_))
    close(x.grad, Linear().to_input(grad_, w_, x_.shape))
    close(w.grad, Linear().to_weight(grad_, x_, w_.shape))
