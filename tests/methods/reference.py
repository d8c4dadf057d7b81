"""NumPy in float64: the linear operators, and a comparison of a layer with a paper's formulas.

Nothing here calls ``surge``'s own mathematics. A *rule* maps real values to ``(binary, back)``,
where ``back`` turns the gradient at the binary values into the gradient at the real ones.
"""

from dataclasses import dataclass

import numpy as np
import torch

from surge.layers import BinaryConv2d, BinaryLinear

CASES = {
    "conv": {"kernel_size": 3, "padding": 1},
    "conv-strided": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": 2},
    "conv-grouped": {"kernel_size": 3, "padding": 1, "stride": 2, "groups": 2},
    "linear": {},
}


def sign(x):
    return np.where(x >= 0, 1.0, -1.0)


def triangle(x):
    return np.maximum(0, 2 - 2 * np.abs(x))


def inside(x):
    return (np.abs(x) <= 1).astype(float)


def per_filter_mean(w):
    return w.mean(axis=tuple(range(1, w.ndim)), keepdims=True)


def sign_input(slope):
    """Return the rule ``sign(x)`` whose gradient is multiplied by ``slope(x)``."""
    return lambda x: (sign(x), lambda g: g * slope(x))


@dataclass
class Linear:
    """``y = x w^T`` and its two adjoints."""

    def forward(self, x, w):
        return x @ w.T

    def to_input(self, grad, w, shape):
        return grad @ w

    def to_weight(self, grad, x, shape):
        return grad.reshape(-1, shape[0]).T @ x.reshape(-1, shape[1])


@dataclass
class Conv2d:
    """A 2-d convolution written over its taps, and its two adjoints."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def taps(self, shape, kernel):
        """Yield (row, column, the slice of the padded input that this tap multiplies)."""
        size = [n + 2 * p for n, p in zip(shape[-2:], self.padding, strict=True)]
        out = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(size, kernel, self.stride, self.dilation, strict=True)
        ]
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                first = (i * self.dilation[0], j * self.dilation[1])
                window = tuple(
                    slice(f, f + s * (o - 1) + 1, s)
                    for f, s, o in zip(first, self.stride, out, strict=True)
                )
                yield i, j, (..., *window)

    def pad(self, x):
        return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])

    def split(self, x):
        """Move the groups of dimension 1 to a dimension of their own."""
        return x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])

    def filters(self, w):
        return w.reshape(self.groups, -1, *w.shape[1:])

    def forward(self, x, w):
        padded, filters = self.pad(x), self.filters(w)
        y = sum(
            np.einsum("ngchw,goc->ngohw", self.split(padded[window]), filters[..., i, j])
            for i, j, window in self.taps(x.shape, w.shape[2:])
        )
        return y.reshape(y.shape[0], -1, *y.shape[3:])

    def to_input(self, grad, w, shape):
        filters, result = self.filters(w), self.pad(np.zeros(shape))
        for i, j, window in self.taps(shape, w.shape[2:]):
            part = np.einsum("ngohw,goc->ngchw", self.split(grad), filters[..., i, j])
            result[window] += part.reshape(part.shape[0], -1, *part.shape[3:])
        rows, columns = (slice(p, p + n) for p, n in zip(self.padding, shape[2:], strict=True))
        return result[:, :, rows, columns]

    def to_weight(self, grad, x, shape):
        padded, result = self.pad(x), np.zeros(shape)
        for i, j, window in self.taps(x.shape, shape[2:]):
            part = np.einsum("ngohw,ngchw->goc", self.split(grad), self.split(padded[window]))
            result[..., i, j] = part.reshape(shape[:2])
        return result


def make(case, method, options=None, *, scale=0.7):
    """Return a float64 layer and an input, both with values at and beyond the edges."""
    settings = {"method": method, "method_options": options, "bias": False, "dtype": torch.double}
    if case == "linear":
        layer, x = BinaryLinear(6, 5, **settings), torch.randn(7, 6)
    else:
        layer, x = BinaryConv2d(4, 6, **CASES[case], **settings), torch.randn(3, 4, 7, 6)
    with torch.no_grad():
        layer.weight.normal_(std=scale)
        layer.weight.flatten()[:4] = torch.tensor([-1.0, 1.0, 0.0, 1.5])
    x = 1.2 * x.double()
    x.flatten()[:5] = torch.tensor([-1.0, 1.0, 0.0, -0.0, 2.0])
    return layer.double(), x


def operator_of(layer):
    if isinstance(layer, BinaryLinear):
        return Linear()
    return Conv2d(layer.stride, layer.padding, layer.dilation, layer.groups)


@dataclass
class Reference:
    """What NumPy says about one forward and backward."""

    output: np.ndarray
    weight_grad: np.ndarray
    input_grad: np.ndarray
    """At the prepared input, the tensor that enters sign."""
    product: np.ndarray
    """The output before the output factor."""


def compute(layer, x, grad, *, weight_rule, input_rule, factor=1.0):
    """Return the reference for prepared input ``x`` and output gradient ``grad``."""
    operator, w = operator_of(layer), layer.weight.detach().numpy()
    w_b, weight_back = weight_rule(w)
    x_b, input_back = input_rule(x)
    product = operator.forward(x_b, w_b)
    inner = grad * factor
    return Reference(
        output=product * factor,
        weight_grad=weight_back(operator.to_weight(inner, x_b, w.shape)),
        input_grad=input_back(operator.to_input(inner, w_b, x.shape)),
        product=product,
    )


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(
        actual.detach().double(), torch.as_tensor(expected), rtol=tolerance, atol=tolerance
    )


def run(layer, x):
    """Return (output, gradient at the input, the output gradient that was used)."""
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    y.backward(grad)
    return y, leaf.grad, grad


def check(case, method, options=None, *, weight_rule, input_rule, factor=None, scale=0.7):
    """Assert that a layer without learnable extras does what the two rules say."""
    layer, x = make(case, method, options, scale=scale)
    y, input_grad, grad = run(layer, x)
    factor = 1.0 if factor is None else factor(layer, x.numpy())
    expected = compute(
        layer,
        x.numpy(),
        grad.numpy(),
        weight_rule=weight_rule,
        input_rule=input_rule,
        factor=factor,
    )
    close(y, expected.output)
    close(layer.weight.grad, expected.weight_grad)
    close(input_grad, expected.input_grad)


def check_packed(case, method, options=None, *, input_rule=None, factor=None, prepare=None):
    """Assert that ``values * scale`` reproduces the evaluated layer to float32 rounding."""
    layer, x = make(case, method, options)
    if prepare is not None:
        prepare(layer)
    layer, x = layer.float().eval(), x.float()
    values, scale = layer.packed_weight()
    assert scale.shape == (layer.weight.shape[0],)
    assert torch.equal(values, values.round())
    weight = values * scale.view(-1, *(1,) * (values.dim() - 1))
    x_b = sign(x.double().numpy()) if input_rule is None else input_rule(x.double().numpy())[0]
    expected = operator_of(layer).forward(x_b, weight.detach().double().numpy())
    expected = expected * (1.0 if factor is None else factor(layer, x.double().numpy()))
    with torch.no_grad():
        close(layer(x), expected, tolerance=2e-6)
    return layer, values, scale
