"""Where the injection goes, what it is made of, and what else can be trained."""

import copy
import math
import weakref

import pytest
import torch
from torch import nn

import surge
from surge.compensation.attach import _clips
from surge.compensation.dry_run import RecordingHardtanh
from surge.errors import ConfigError, NoLayersMatchedError
from tests.nets import (
    CASES,
    all_methods,
    assert_near,
    auxiliary_gradients,
    cnn,
    each_kind,
    entering_sign,
    every_kind,
    images,
    injected,
    mlp,
    output_gradient,
    pair,
    rows,
    run,
    through_preparation,
)

SCALE = 0.5
WIDE = 2.0
"""Spread of inputs of which about half lie beyond the clip at 1."""


def injection(case, method, **options):
    """The part of the input gradient that compensation added, at a fixed scale."""
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE, **options)
    return injected(plain, compensated, case.batch(WIDE))[1]


def auxiliary_gradient(layer, weight, x):
    """g_a of a layer in float64, for the gradient that ``run`` sends."""
    return auxiliary_gradients(layer, weight, x, output_gradient(layer(x)))[0]


# ---- scope


@every_kind
def test_clipped_and_unclipped_injections_sum_to_all(method, case):
    scopes = ("clipped", "unclipped") if _clips(case.build(method)) else ("unclipped",)
    parts = sum(injection(case, method, scope=scope) for scope in scopes)
    assert_near(parts, injection(case, method), rtol=1e-4)


@pytest.mark.parametrize("scope", ["clipped", "unclipped"])
@every_kind
def test_scope_masks_where_the_surrogate_is_zero(method, case, scope):
    if scope == "clipped" and not _clips(case.build(method)):
        with pytest.raises(NoLayersMatchedError, match="clips nothing"):
            pair(case, method, scope=scope)
        return
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE, scope=scope)
    x = case.batch(WIDE)
    _, added, _ = injected(plain, compensated, x)
    z = entering_sign(plain, x)
    zero = plain.method.surrogate_is_zero(z)
    kept = zero if scope == "clipped" else ~zero
    g_a = auxiliary_gradient(plain, compensated.auxiliary.weight, z) * kept
    assert_near(added, SCALE * through_preparation(plain, x, g_a), rtol=1e-4)


@every_kind
def test_surrogate_is_reported_zero_exactly_where_no_gradient_passes(method, case):
    layer = case.build(method)
    z = case.batch(WIDE).requires_grad_()
    layer.method.binarize(z).sum().backward()
    assert torch.equal(layer.method.surrogate_is_zero(z.detach()), z.grad == 0)


@pytest.mark.parametrize("scope", ["clipped", "unclipped"])
def test_norm_of_the_masked_injection_is_eta(scope):
    case = CASES["conv2d"]
    plain, compensated, compensation = pair(case, eta=0.1, scope=scope)
    run(compensated, case.batch(WIDE))
    compensation.step()
    main, added, _ = injected(plain, compensated, case.batch(WIDE))
    assert float(added.norm() / main.norm()) == pytest.approx(0.1, rel=1e-4)


@each_kind
def test_empty_scope_injects_nothing_and_keeps_the_scale(case):
    _, compensated, compensation = pair(case, "bnn", scope="clipped")
    before = compensation.scales()
    run(compensated, 0.01 * case.batch(WIDE))
    compensation.step()
    assert compensation.scales() == before


# ---- dose per channel


@each_kind
def test_dose_by_clipped_share_weighs_every_channel(case):
    plain, compensated, _ = pair(case, fixed_scale=SCALE, dose="clipped_share")
    x = case.batch(WIDE)
    _, added, _ = injected(plain, compensated, x)
    channel = x.dim() - 1 - len(plain.geometry.kernel_size)
    others = [d for d in range(x.dim()) if d != channel]
    share = (x.abs() > 1).double().mean(dim=others, keepdim=True)
    g_a = auxiliary_gradient(plain, compensated.auxiliary.weight, x)
    assert_near(added, SCALE * share * g_a)


@each_kind
def test_dose_by_clipped_share_stays_inside_the_scope(case):
    weighted = injection(case, "bnn", dose="clipped_share", scope="clipped")
    assert not weighted[case.batch(WIDE).abs() <= 1].any()


def test_dose_by_clipped_share_still_totals_eta():
    case = CASES["conv2d"]
    plain, compensated, compensation = pair(case, eta=0.1, dose="clipped_share")
    run(compensated, case.batch(WIDE))
    compensation.step()
    main, added, _ = injected(plain, compensated, case.batch(WIDE))
    assert float(added.norm() / main.norm()) == pytest.approx(0.1, rel=1e-4)


# ---- dose below the clamp


def arrived(method, **options):
    """What is left of the injected gradient above the clamp, over the main one, at eta = 0.1."""
    net, compensation = clamped(CASES["conv2d"], method, eta=0.1, **options)
    x = CASES["conv2d"].batch(WIDE)
    run(net, x)
    compensation.step()
    both = run(net, x).input
    surge.strip_(net)
    main = run(net, x).input
    return float((both - main).norm() / main.norm())


@pytest.mark.parametrize("entry", ["sign_input", "layer_input"])
@all_methods
def test_dose_delivered_is_what_arrives(method, entry):
    """RBNN and ReCU divide by a spread, through which a little more or less passes."""
    rel = 0.02 if method in ("rbnn", "recu") else 1e-3
    given = {"dose": "delivered", "aux_input": entry}
    assert arrived(method, **given) == pytest.approx(0.1, rel=rel)


@pytest.mark.parametrize(("scope", "lost"), [("all", 0.06), ("clipped", 0.03)])
def test_dose_delivered_makes_scopes_comparable(scope, lost):
    """ReCU's clipped inputs lie between its spread and the clamp, or are saturated."""
    assert arrived("recu", scope=scope) < lost
    assert arrived("recu", scope=scope, dose="delivered") == pytest.approx(0.1, rel=0.02)
    # Of the others nothing is lost in the first place.
    assert arrived("recu", scope="unclipped") == pytest.approx(0.1, rel=0.02)


@every_kind
def test_dose_delivered_injects_the_same_below_the_clamp_at_the_same_scale(method, case):
    """What it leaves out is what the clamp would have lost, but for a division by the spread."""
    x = case.batch(WIDE)
    nets = [clamped(case, method, fixed_scale=SCALE, dose=d)[0] for d in ("uniform", "delivered")]
    whole, kept = (run(net, x) for net in nets)
    assert torch.equal(kept.output, whole.output)
    name = "1.auxiliary.weight"
    assert_near(kept.parameters[name], whole.parameters[name])
    if method not in ("rbnn", "recu"):
        assert_near(kept.input, whole.input, rtol=1e-4)


@each_kind
def test_dose_delivered_is_uniform_where_nothing_clamps(case):
    added = [
        run(clamped(case, activation=nn.Identity, eta=0.1, dose=dose)[0], case.batch(WIDE)).input
        for dose in ("uniform", "delivered")
    ]
    assert torch.equal(*added)


def test_dose_delivered_needs_an_example():
    with pytest.raises(ConfigError, match="needs example_input"):
        surge.compensate_(mlp(), dose="delivered")


# ---- which tensor the path sees


@each_kind
def test_layer_input_of_recu_is_before_the_division(case):
    plain, compensated, _ = pair(case, "recu", fixed_scale=SCALE, aux_input="layer_input")
    x = case.batch(3.0)
    main, both = run(plain, x), run(compensated, x)
    weight = compensated.auxiliary.weight
    g_a, to_weight = auxiliary_gradients(plain, weight, x, main.gradient)
    assert_near(both.input, main.input + SCALE * g_a)
    assert_near(both.parameters["auxiliary.weight"], SCALE * to_weight)


def shifted(case, **options):
    """ReActNet layers, plain and compensated, whose thresholds are not zero."""
    plain = case.build("reactnet")
    with torch.no_grad():
        plain.method.shift.uniform_(-1, 1)
    compensated = copy.deepcopy(plain)
    surge.compensate_(compensated, fixed_scale=SCALE, **options)
    return plain, compensated


@each_kind
def test_sign_input_of_reactnet_is_after_the_shift(case):
    plain, compensated = shifted(case)
    x = case.batch()
    both = run(compensated, x)
    z = x + plain.geometry.along_input(plain.method.shift.detach())
    _, expected = auxiliary_gradients(plain, compensated.auxiliary.weight, z, both.gradient)
    assert_near(both.parameters["auxiliary.weight"], SCALE * expected)


@each_kind
def test_layer_input_of_reactnet_is_before_the_shift(case):
    plain, compensated = shifted(case, aux_input="layer_input")
    x = case.batch()
    main, both = run(plain, x), run(compensated, x)
    _, expected = auxiliary_gradients(plain, compensated.auxiliary.weight, x, both.gradient)
    assert_near(both.parameters["auxiliary.weight"], SCALE * expected)
    assert torch.equal(both.parameters["method.shift"], main.parameters["method.shift"])


@pytest.mark.parametrize("entry", ["sign_input", "layer_input"])
@all_methods
def test_norms_are_taken_at_the_tensor_that_is_repaired(method, entry):
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, method, aux_input=entry)
    x = case.batch()
    main = run(plain, x)
    run(compensated, x)
    if entry == "sign_input":
        z = entering_sign(plain, x).requires_grad_()
        plain.respond(z).backward(main.gradient)
        g_b, seen = z.grad, z
    else:
        g_b, seen = main.input, x
    path = compensated.auxiliary
    g_a, _ = auxiliary_gradients(plain, path.weight, seen, main.gradient)
    assert_near(path.squares("main"), g_b.double().square().sum())
    assert_near(path.squares("auxiliary"), g_a.square().sum())


# ---- above the clamp


def clamped(case, method="bnn", activation=nn.Hardtanh, **options):
    """A layer behind a clamp, compensated above it."""
    net = nn.Sequential(activation(), case.build(method))
    example = 1 * case.batch().requires_grad_()
    return net, surge.compensate_(net, example_input=example, **options)


@every_kind
def test_above_clamp_reaches_saturated_units(method, case):
    x = case.batch(WIDE)
    saturated = x.abs() > 1
    below, _ = clamped(case, method, fixed_scale=SCALE)
    above, _ = clamped(case, method, fixed_scale=SCALE, aux_input="above_clamp")
    assert not run(below, x).input[saturated].any()
    assert (run(above, x).input[saturated] != 0).all()


@every_kind
def test_above_clamp_injects_the_auxiliary_gradient_at_the_preactivation(method, case):
    x = case.batch(WIDE)
    net, _ = clamped(case, method, fixed_scale=SCALE, aux_input="above_clamp")
    weight = net[1].auxiliary.weight
    both = run(net, x)
    surge.strip_(net)
    main = run(net, x)
    g_a, to_weight = auxiliary_gradients(net[1], weight, x, main.gradient)
    assert_near(both.input, main.input + SCALE * g_a)
    assert_near(both.parameters["1.auxiliary.weight"], SCALE * to_weight)


@each_kind
def test_above_clamp_leaves_the_output(case):
    x = case.batch(WIDE).requires_grad_()
    net, _ = clamped(case, aux_input="above_clamp")
    assert torch.equal(net(x), case.build()(x.clamp(-1, 1)))


def test_above_clamp_follows_a_clamp_shared_by_layers():
    clamp = nn.Hardtanh()
    first, second = CASES["linear"].build(), surge.BinaryLinear(6, 6, bias=False)
    net = nn.Sequential(clamp, first, clamp, second)
    options = {"aux_input": "above_clamp", "fixed_scale": SCALE}
    surge.compensate_(net, example_input=torch.ones(2, 8, requires_grad=True), **options)
    x = CASES["linear"].batch(WIDE).requires_grad_()
    hidden = first(clamp(x))
    y = second(clamp(hidden))
    y.backward(output_gradient(y))
    # Of the second layer the path sees the first one's output, which the clamp saturates.
    weight = second.auxiliary.weight
    _, expected = auxiliary_gradients(second, weight, hidden, output_gradient(y))
    assert_near(weight.grad, SCALE * expected)


@pytest.mark.parametrize("options", [{"aux_input": "above_clamp"}, {"align": 1.0}])
def test_nothing_of_a_forward_outlives_the_optimizer_step(options):
    """What a path remembers would keep the graph of the whole batch alive."""
    case = CASES["linear"]
    net, compensation = clamped(case, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compensation.follow(optimizer)
    path = net[1].auxiliary
    x = Passed.apply(case.batch(WIDE).requires_grad_())
    graph = weakref.ref(x.grad_fn)
    (net(x).square().sum() + surge.extra_loss(net)).backward()
    del x
    assert (graph() is None) == ("align" in options) == (path.alignment is not None)
    optimizer.step()
    assert graph() is None and path.alignment is None


class Passed(torch.autograd.Function):
    """The identity, as a node of a graph that can be watched."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_above_clamp_needs_an_example():
    with pytest.raises(ConfigError, match="needs example_input"):
        surge.compensate_(mlp(), aux_input="above_clamp")


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU, nn.ReLU6, lambda: nn.Hardtanh(inplace=True), nn.Identity],
    ids=["relu", "relu6", "in-place", "identity"],
)
def test_above_clamp_refuses_other_activations(activation):
    with pytest.raises(ConfigError, match='input of "1" is not the output of a Hardtanh'):
        clamped(CASES["linear"], activation=activation, aux_input="above_clamp")


def test_above_clamp_replaces_only_the_clamps_it_uses():
    net = cnn()
    surge.compensate_(net, aux_input="above_clamp", example_input=images()[0], skip=("5", "9"))
    kinds = [type(module) for module in net if isinstance(module, nn.Hardtanh)]
    assert kinds == [RecordingHardtanh, nn.Hardtanh, nn.Hardtanh, nn.Hardtanh]


# ---- weight side


@each_kind
def test_weight_side_adds_a_share_of_the_weight_gradient(case):
    share = 0.3
    plain, compensated, compensation = pair(case, weight_side=share)
    x = case.batch()
    run(compensated, x)
    compensation.step()
    main, both = run(plain, x), run(compensated, x)
    added = both.parameters["weight"] - main.parameters["weight"]
    assert float(added.norm() / main.parameters["weight"].norm()) == pytest.approx(share, rel=1e-4)


@each_kind
def test_weight_side_adds_the_real_correlation(case):
    plain, compensated, _ = pair(case, weight_side=0.3)
    x = case.batch()
    main, both = run(plain, x), run(compensated, x)
    _, expected = auxiliary_gradients(plain, plain.weight, x, main.gradient)
    added = both.parameters["weight"] - main.parameters["weight"]
    assert_near(added, expected / math.sqrt(plain.weight.numel()), rtol=1e-4)


@every_kind
def test_weight_side_share_holds_at_the_binary_weight(method, case):
    share = 0.3
    _, compensated, compensation = pair(case, method, weight_side=share)
    x = case.batch()
    for _ in range(3):
        compensation.step()
        run(compensated, x)
    path = compensated.auxiliary
    ratio = (path.squares("weight_side") / path.squares("weight")).sqrt()
    assert float(ratio) == pytest.approx(share, rel=1e-5)


@every_kind
def test_weight_side_leaves_output_and_input_gradient(method, case):
    _, without, _ = pair(case, method)
    _, compensated, _ = pair(case, method, weight_side=0.3)
    x = case.batch()
    expected, actual = run(without, x), run(compensated, x)
    assert torch.equal(actual.output, expected.output)
    torch.testing.assert_close(actual.input, expected.input)  # a scale may act elsewhere


# ---- alignment loss


@pytest.mark.parametrize("auxiliary", ["independent", "copied", "pointwise", "low_rank"])
@each_kind
def test_alignment_loss_is_the_mean_squared_difference(case, auxiliary):
    layer = case.build("recu")
    surge.compensate_(layer, align=2.0, auxiliary=auxiliary)
    y = layer(case.batch().requires_grad_())
    bias = 0 if layer.bias is None else layer.geometry.along_output(layer.bias)
    z = entering_sign(layer, case.batch())
    real = copy.deepcopy(layer).double()
    weight = real.auxiliary.effective_weight(real)
    if weight.shape[2:] != layer.weight.shape[2:]:
        centre = [k // 2 for k in layer.kernel_size for _ in range(2)]
        weight = nn.functional.pad(weight, centre)
    expected = (real.multiply(z.double(), weight) - (y - bias).double()).square().mean()
    assert_near(surge.extra_loss(layer), 2 * expected)


@pytest.mark.parametrize("objective", ["follow", "bias"])
@all_methods
def test_alignment_loss_trains_only_auxiliary_weights(method, objective):
    net = cnn(method)
    compensation = surge.compensate_(net, align=1.0, objective=objective)
    net(images()[0])
    surge.extra_loss(net).backward()
    trained = {id(p) for p in net.parameters() if p.grad is not None and p.grad.any()}
    assert trained == {id(p) for p in compensation.parameters()}


def test_alignment_loss_is_averaged_over_layers():
    net = mlp()
    compensation = surge.compensate_(net, align=1.0)
    net(rows()[0])
    terms = [path.extra_loss() for path in compensation.paths.values()]
    assert len(terms) == 2
    assert_near(surge.extra_loss(net), sum(terms) / 2)


def test_without_alignment_there_is_no_extra_loss():
    net = mlp()
    surge.compensate_(net)
    net(rows()[0])
    assert surge.extra_loss(net) == 0


# ---- objective


@every_kind
def test_bias_objective_gives_the_auxiliary_weight_no_gradient(method, case):
    _, compensated, _ = pair(case, method, objective="bias")
    assert "auxiliary.weight" not in run(compensated, case.batch()).parameters


@each_kind
def test_bias_objective_injects_alike(case):
    assert torch.equal(injection(case, "bnn", objective="bias"), injection(case, "bnn"))
