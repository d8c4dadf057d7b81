"""Sums of +-1 are exact integers, and a real scale multiplies them afterwards.

A sum of zero must come out as zero: as a rounding error its sign would be the next layer's input.
"""

import pytest
import torch
import torch.nn.functional as F

import surge
from surge.functional import sign
from surge.method import Method, get_method
from tests.contract.subjects import assert_all_close, modes, observe
from tests.nets import CENTRED, COMPENSABLE, METHODS, published_methods

REAL = [method for method in METHODS if get_method(method).bits[1] == 32]
"""Methods with real inputs."""
LEVELS = [method for method in METHODS if get_method(method).two_levels]
"""Methods whose inputs are multiples of a learned level."""
LAYERS = {
    "conv2d": (lambda m: surge.BinaryConv2d(16, 5, 3, padding=1, bias=False, method=m), (6, 6)),
    "conv1d": (lambda m: surge.BinaryConv1d(16, 6, 3, groups=2, bias=False, method=m), (9,)),
    "linear": (lambda m: surge.BinaryLinear(16, 5, bias=False, method=m), ()),
}
each_layer = pytest.mark.parametrize("kind", LAYERS)
exact = pytest.mark.parametrize(
    "method", [m for m in METHODS if m not in (*CENTRED, *LEVELS, *REAL)]
)


def build(method, kind):
    make, space = LAYERS[kind]
    torch.manual_seed(3)
    layer = make(method)
    surge.on_epoch(layer, 3, 10)
    return layer, torch.randn(8, 16, *space)


SCALED = [m for m in METHODS if build(m, "conv2d")[0].eval().method.scales_signs()]


def scales_by_input(method):
    """Whether the output has a factor of the method's own that depends on the input."""
    return get_method(method).scale_output is not Method.scale_output


def inputs_of(layer, x):
    """What enters the product, and the factor of the output that is the method's own."""
    z = layer.method.prepare_input(x)
    own = layer.method.scale_output(torch.ones(()), z) if scales_by_input(layer.method.name) else 1
    return layer.method.binarize(z), own


def is_soft(layer):
    """Whether weights are others while training, as real ones are."""
    trained, used = (
        layer.train(mode).method.binarize_weight(layer.weight) for mode in (True, False)
    )
    return not torch.equal(trained, used)


def integer_sums(layer, binary, values):
    """The product in int64, by unfolding it in float64, where every sum is exact."""
    with torch.no_grad():
        sums = layer.double().multiply(binary.double(), values.double())
    layer.float()
    assert torch.equal(sums, sums.round())
    return sums


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@each_layer
@exact
def test_output_is_the_scale_times_an_integer_bit_for_bit(method, kind, training):
    layer, x = build(method, kind)
    layer.train(training and not is_soft(layer))
    values, scale = layer.packed_weight()
    binary, own = inputs_of(layer, x)
    sums = integer_sums(layer, binary, values)
    expected = sums.float() * layer.geometry.along_output(scale) * own
    assert torch.equal(layer(x), expected)
    assert (sums == 0).any(), "a test of ties needs some"
    assert torch.equal(sign(layer(x)[sums == 0]), torch.ones(int((sums == 0).sum())))


@modes
@pytest.mark.parametrize("kind", ["conv2d", "linear"])
@pytest.mark.parametrize("method", SCALED)
def test_gradients_are_those_of_the_product_with_the_scaled_weight(method, kind, mode):
    """Bit for bit: g_b, the weight's gradient and SURGE's norms see the scaled weight."""
    layer, x = build(method, kind)
    if mode == "compensated":
        surge.compensate_(layer, eta=0.1)
    actual = observe(layer, x)
    layer.product = layer.multiply
    expected = observe(layer, x)
    assert_all_close(actual, expected, rtol=1e-5, atol=1e-5)
    exact = [name for name in expected if name != "output"]
    assert_all_close({n: actual[n] for n in exact}, {n: expected[n] for n in exact}, rtol=0, atol=0)


def test_every_method_with_a_real_scale_in_its_weight_says_so():
    """Found by looking at the weights, not at the declaration."""
    for method in [m for m in METHODS if m not in LEVELS]:
        layer, _ = build(method, "conv2d")
        layer.eval()
        effective = layer.method.binarize_weight(layer.weight).abs()
        one_scale = (effective == effective[:, :1, :1, :1]).all()
        power_of_two = torch.equal(torch.exp2(effective.log2().round()), effective)
        assert layer.method.scales_signs() == bool(one_scale and not power_of_two), method
        if layer.method.bits[0] == 1:
            assert layer.method.centred_values == (not one_scale), method
    scaled = "bireal reactnet xnor dorefa fda rbonn tbn bonn bibert ida"
    assert published_methods().intersection(SCALED) == set(scaled.split())


def test_published_methods_are_of_their_known_kinds():
    soft = [method for method in METHODS if is_soft(build(method, "conv2d")[0])]
    known = published_methods()
    assert known.intersection(soft) == {"slb", "fda", "lws"}
    assert known.intersection(LEVELS) == {"binarybert", "bit"}
    assert known.intersection(REAL) == {"binaryconnect"}
    assert known.intersection(filter(scales_by_input, METHODS)) == {"xnor"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_the_product_in_low_precision(dtype):
    layer, x = build("bireal", "conv2d")
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
        assert y.dtype == F.conv2d(x, layer.weight).dtype == dtype
    torch.testing.assert_close(y.float(), layer(x), rtol=0.02, atol=0.02)


def test_network_of_scaled_signs_decides_ties_as_integers_do():
    """Two layers without norm: the second sees the sign of the first one's sums."""
    torch.manual_seed(0)
    for method in SCALED:
        if get_method(method).bits[1] != 1 or scales_by_input(method) or method not in COMPENSABLE:
            continue
        first, x = build(method, "linear")
        layer = surge.BinaryLinear(5, 4, bias=False, method=method)
        net = torch.nn.Sequential(first, layer).eval()
        (v1, s1), (v2, s2) = first.packed_weight(), layer.packed_weight()
        hidden = (sign(x).long() @ v1.long().T) * s1.sign().long()
        sums = torch.where(hidden >= 0, 1, -1) @ v2.long().T
        assert (hidden == 0).any()
        assert torch.equal(net(x), sums.float() * s2), method
