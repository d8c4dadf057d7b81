"""The kinds of auxiliary weight: where each comes from and what it computes."""

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.compensation.auxiliary import redraw
from surge.errors import ConfigError
from tests.nets import (
    CASES,
    UNBATCHED,
    all_methods,
    assert_near,
    auxiliary_gradients,
    binarized,
    each_kind,
    entering_sign,
    every_kind,
    injected,
    mlp,
    pair,
    run,
    through_preparation,
    to_numpy,
)

SCALE = 0.5


def equal_layers(count=3):
    """Linear layers that all start from the same weight."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(count + 2)))
    for layer in net[1:]:
        layer.load_state_dict(net[0].state_dict())
    return binarized(net)


# ---- independent and copied


@each_kind
def test_independent_weight_has_the_values_of_the_main_weight(case):
    _, compensated, _ = pair(case)
    drawn, source = compensated.auxiliary.weight, compensated.weight
    assert torch.equal(drawn.flatten().sort().values, source.flatten().sort().values)


def test_an_auxiliary_weight_is_laid_out_as_the_main_one():
    source = torch.randn(8, 4, 3, 3)
    last = source.to(memory_format=torch.channels_last)
    drawn, turned = (redraw(x, x.shape, torch.Generator().manual_seed(0)) for x in (source, last))
    assert turned.stride() == last.stride() and drawn.stride() == source.stride()
    assert torch.equal(turned, drawn)


@each_kind
def test_independent_weight_has_another_order(case):
    _, compensated, _ = pair(case)
    assert not torch.equal(compensated.auxiliary.weight, compensated.weight)


def test_independent_weight_is_the_same_for_the_same_seed():
    weights = [pair(CASES["conv2d"], seed=7)[1].auxiliary.weight for _ in range(2)]
    assert torch.equal(*weights)


def test_independent_weight_differs_between_seeds():
    weights = [pair(CASES["conv2d"], seed=seed)[1].auxiliary.weight for seed in (0, 1)]
    assert not torch.equal(*weights)


def test_independent_weight_differs_between_equal_layers():
    net = equal_layers()
    surge.compensate_(net)
    orders = [net[i].auxiliary.weight for i in (1, 2, 3)]
    assert not any(torch.equal(orders[i], orders[i - 1]) for i in range(3))


@each_kind
def test_copied_weight_is_the_main_weight(case):
    _, compensated, _ = pair(case, auxiliary="copied")
    assert torch.equal(compensated.auxiliary.weight, compensated.weight)


@each_kind
def test_copied_weight_is_not_shared(case):
    _, compensated, _ = pair(case, auxiliary="copied")
    assert compensated.auxiliary.weight.data_ptr() != compensated.weight.data_ptr()


# ---- tied


def standardized(weight):
    """Each filter minus its mean, over its unbiased standard deviation, in NumPy."""
    flat = to_numpy(weight).reshape(len(weight), -1)
    flat = (flat - flat.mean(1, keepdims=True)) / flat.std(1, ddof=1, keepdims=True)
    return torch.from_numpy(flat.reshape(weight.shape))


def tied_weight(layer):
    """Packed scale times standardised latent weight."""
    _, scale = layer.packed_weight()
    return scale.detach().double().view(-1, *(1 for _ in layer.weight.shape[1:])) * standardized(
        layer.weight
    )


@every_kind
def test_tied_weight_is_the_packed_scale_times_the_standardised_latent(method, case):
    plain, compensated, _ = pair(case, method, auxiliary="tied", fixed_scale=SCALE)
    x = case.batch()
    _, added, gradient = injected(plain, compensated, x)
    g_a, _ = auxiliary_gradients(plain, tied_weight(plain), entering_sign(plain, x), gradient)
    assert_near(added, SCALE * through_preparation(plain, x, g_a), rtol=1e-4)


@every_kind
def test_tied_path_has_no_parameter(method, case):
    _, _, compensation = pair(case, method, auxiliary="tied")
    assert compensation.parameters() == []


def test_tied_weight_follows_the_main_weight():
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, "bireal", auxiliary="tied", fixed_scale=SCALE)
    x = case.batch()
    with torch.no_grad():
        for layer in (plain, compensated):
            layer.weight.copy_(layer.weight.flip(0) * 3)
    _, added, gradient = injected(plain, compensated, x)
    g_a, _ = auxiliary_gradients(plain, tied_weight(plain), x, gradient)
    assert_near(added, SCALE * g_a, rtol=1e-4)


def test_tied_weight_takes_the_sign_of_a_negative_output_scale():
    case = CASES["linear"]
    layer = case.build("recu")
    surge.compensate_(layer, auxiliary="tied")
    with torch.no_grad():
        layer.method.alpha.fill_(1.0)
        positive = layer.auxiliary.effective_weight(layer)
        layer.method.alpha.fill_(-1.0)
    assert torch.equal(layer.auxiliary.effective_weight(layer), -positive)


@all_methods
def test_tied_path_leaves_the_weight_gradient(method):
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, method, auxiliary="tied", fixed_scale=SCALE)
    x = case.batch()
    assert torch.equal(run(compensated, x).parameters["weight"], run(plain, x).parameters["weight"])


def test_tied_path_refuses_filters_of_one_weight():
    layer = surge.BinaryConv2d(4, 4, 1, groups=4)
    with pytest.raises(ConfigError, match="at least 2 weights"):
        surge.compensate_(layer, auxiliary="tied")


# ---- pointwise (SURGE*)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 5), (6, 8), (1, 9)])
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (5, 1), (3, 2), (1, 1)])
def test_pointwise_gradient_is_that_of_a_1x1_convolution(kernel, dilation, size, stride):
    layer = surge.BinaryConv2d(
        4, 6, kernel, stride=stride, padding=dilation * (kernel // 2), dilation=dilation, bias=False
    )
    x = torch.randn(2, 4, *size)
    main = run(layer, x)
    surge.compensate_(layer, auxiliary="pointwise", fixed_scale=SCALE)
    both = run(layer, x)
    weight = layer.auxiliary.weight
    assert weight.shape == (6, 4, 1, 1)
    real = nn.Conv2d(4, 6, 1, stride=stride, bias=False).double()
    real.weight.data.copy_(weight)
    x = x.double().requires_grad_()
    real(x).backward(main.gradient.double())
    assert_near(both.input - main.input, SCALE * x.grad)
    assert_near(both.parameters["auxiliary.weight"], SCALE * real.weight.grad)


@pytest.mark.parametrize(
    "layer",
    [surge.BinaryConv2d(4, 6, 3), surge.BinaryConv2d(4, 6, 2, padding=1)],
    ids=["no-padding", "even-kernel"],
)
def test_pointwise_refuses_a_kernel_that_is_off_centre(layer):
    with pytest.raises(ConfigError, match="does not centre its kernel"):
        surge.compensate_(layer, auxiliary="pointwise")


def test_pointwise_path_keeps_the_groups():
    _, compensated, _ = pair(CASES["conv2d-groups"], auxiliary="pointwise")
    assert compensated.auxiliary.weight.shape == (6, 2, 1, 1)


def test_pointwise_weight_is_drawn_from_the_main_weights_values():
    _, compensated, _ = pair(CASES["conv2d"], auxiliary="pointwise")
    assert torch.isin(compensated.auxiliary.weight, compensated.weight).all()


def test_pointwise_path_of_a_linear_layer_is_the_full_one():
    _, compensated, _ = pair(CASES["linear"], auxiliary="pointwise")
    assert compensated.auxiliary.weight.shape == compensated.weight.shape


# ---- low rank

GEOMETRIES = {**CASES, **{f"{name}-unbatched": case for name, case in UNBATCHED.items()}}
every_geometry = pytest.mark.parametrize("case", GEOMETRIES.values(), ids=GEOMETRIES.keys())


@pytest.mark.parametrize("rank", [1, 2, 3])
@each_kind
def test_low_rank_weight_has_its_rank(case, rank):
    _, compensated, _ = pair(case, auxiliary="low_rank", rank=rank)
    weight = compensated.auxiliary.effective_weight(compensated)
    assert weight.shape == compensated.weight.shape
    assert np.linalg.matrix_rank(to_numpy(weight.flatten(1)), rtol=1e-5) == rank


@each_kind
def test_low_rank_never_exceeds_the_layers_own(case):
    _, compensated, _ = pair(case, auxiliary="low_rank", rank=1000)
    path = compensated.auxiliary
    assert path.left.shape[1] == min(compensated.weight.flatten(1).shape)


@every_geometry
@pytest.mark.parametrize("objective", ["follow", "frozen"])
def test_low_rank_injects_what_the_product_of_its_factors_would(case, objective):
    options = {"fixed_scale": SCALE, "objective": objective}
    plain, compensated, _ = pair(case, auxiliary="low_rank", rank=2, **options)
    x = case.batch()
    _, found, gradient = injected(plain, compensated, x)
    weight = compensated.auxiliary.effective_weight(compensated)
    g_a, _ = auxiliary_gradients(compensated, weight, x, gradient)
    assert_near(found, SCALE * g_a)


@every_geometry
def test_low_rank_factors_get_their_share_of_the_weight_gradient(case):
    _, compensated, _ = pair(case, auxiliary="low_rank", rank=2, fixed_scale=SCALE)
    x = case.batch()
    both = run(compensated, x)
    path = compensated.auxiliary
    weight = path.effective_weight(compensated)
    _, to_weight = auxiliary_gradients(compensated, weight, x, both.gradient)
    to_weight = SCALE * to_weight.flatten(1)
    left, right = path.left.detach().double(), path.right.detach().double()
    assert_near(both.parameters["auxiliary.left"], to_weight @ right.T)
    assert_near(both.parameters["auxiliary.right"], left.T @ to_weight)


@every_geometry
@pytest.mark.parametrize("auxiliary", ["independent", "tied", "low_rank"])
def test_ingredients_make_up_the_effective_weight(case, auxiliary):
    _, compensated, _ = pair(case, auxiliary=auxiliary)
    path = compensated.auxiliary
    whole = path.ingredients(compensated).whole()
    assert whole.shape == compensated.weight.shape
    assert_near(whole, path.effective_weight(compensated))


# ---- leaky tail: the control without auxiliary weights

SURROGATES = {
    "bnn": lambda x: (np.abs(x) <= 1) * 1.0,
    "bireal": lambda x: np.maximum(0, 2 - 2 * np.abs(x)),
    "dorefa": lambda x: (np.abs(x) <= 1) * 1.0,
}


@each_kind
@pytest.mark.parametrize("method", SURROGATES)
def test_leaky_tail_adds_a_constant_to_the_surrogate(method, case):
    rho = 0.3
    plain, compensated, _ = pair(case, method, auxiliary="leaky_tail", eta=rho)
    x = case.batch(spread=1.5)
    both = run(compensated, x)
    values, scale = plain.packed_weight()
    binary = values * scale.view(-1, *(1 for _ in values.shape[1:]))
    through, _ = auxiliary_gradients(plain, binary, x, both.gradient)
    real = to_numpy(x)
    kappa = np.abs(real).mean() / (real**2).mean()
    expected = (SURROGATES[method](real) + rho * kappa) * to_numpy(through)
    assert_near(both.input, torch.from_numpy(expected))


@every_kind
def test_leaky_tail_leaves_the_output(method, case):
    plain, compensated, _ = pair(case, method, auxiliary="leaky_tail")
    x = case.batch().requires_grad_()
    assert torch.equal(compensated(x), plain(x))


@all_methods
def test_leaky_tail_leaves_the_weight_gradient(method):
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, method, auxiliary="leaky_tail")
    x = case.batch()
    assert torch.equal(run(compensated, x).parameters["weight"], run(plain, x).parameters["weight"])


@all_methods
def test_leaky_tail_reaches_every_clipped_input(method):
    case = CASES["linear"]
    _, compensated, _ = pair(case, method, auxiliary="leaky_tail", eta=0.5)
    x = case.batch(spread=5.0)
    assert (run(compensated, x).input != 0).all()


def test_leaky_tail_survives_an_input_of_zeros():
    case = CASES["linear"]
    _, compensated, _ = pair(case, auxiliary="leaky_tail")
    assert run(compensated, torch.zeros(case.shape)).input.isfinite().all()


def test_leaky_tail_has_no_parameter():
    assert surge.compensate_(mlp(), auxiliary="leaky_tail").parameters() == []


# ---- all of them


@pytest.mark.parametrize("auxiliary", ["independent", "copied", "tied", "pointwise", "low_rank"])
@each_kind
def test_all_zero_weight_is_refused(case, auxiliary):
    layer = case.build()
    nn.init.zeros_(layer.weight)
    with pytest.raises(ConfigError, match="all zeros"):
        surge.compensate_(layer, auxiliary=auxiliary)


@pytest.mark.parametrize("auxiliary", ["independent", "copied", "tied", "pointwise", "low_rank"])
@all_methods
def test_every_kind_injects_eta_with_every_method(method, auxiliary):
    case = CASES["conv2d"]
    plain, compensated, compensation = pair(
        case, method, auxiliary=auxiliary, eta=0.1, aux_input="layer_input"
    )
    run(compensated, case.batch())
    compensation.step()
    main, added, _ = injected(plain, compensated, case.batch())
    assert float(added.norm() / main.norm()) == pytest.approx(0.1, rel=1e-4)
