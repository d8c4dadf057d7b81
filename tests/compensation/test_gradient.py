"""dL/dz = g_b + s W_a^T G, dL/dW_a = s (z * G), and nothing else changes."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import surge
from surge.compensation.dual_path import squared_norm, tap
from tests.nets import (
    CASES,
    UNBATCHED,
    all_methods,
    assert_near,
    assert_same_tensors,
    auxiliary_gradients,
    each_kind,
    entering_sign,
    every_case,
    injected,
    mlp,
    pair,
    rows,
    run,
    through_preparation,
)

SCALE = 0.5
"""Large, so that an error in the injection cannot hide behind the main gradient."""


@every_case
def test_output_is_the_plain_one_in_training(method, case):
    plain, compensated, _ = pair(case, method)
    x = case.batch().requires_grad_()
    assert torch.equal(compensated(x), plain(x))


@every_case
def test_output_is_the_plain_one_in_evaluation(method, case):
    plain, compensated, _ = pair(case, method)
    x = case.batch().requires_grad_()
    assert torch.equal(compensated.eval()(x), plain.eval()(x))


@every_case
def test_input_gradient_is_main_plus_scaled_auxiliary(method, case):
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE)
    x = case.batch()
    main, both = run(plain, x), run(compensated, x)
    z = entering_sign(plain, x)
    g_a, _ = auxiliary_gradients(plain, compensated.auxiliary.weight, z, main.gradient)
    assert_near(both.input, main.input + SCALE * through_preparation(plain, x, g_a))


@every_case
def test_auxiliary_weight_gradient_is_scaled_correlation(method, case):
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE)
    x = case.batch()
    both = run(compensated, x)
    z = entering_sign(plain, x)
    _, expected = auxiliary_gradients(plain, compensated.auxiliary.weight, z, both.gradient)
    assert_near(both.parameters["auxiliary.weight"], SCALE * expected)


@pytest.mark.parametrize("case", UNBATCHED.values(), ids=UNBATCHED.keys())
def test_one_sample_without_batch_dimension_is_compensated(case):
    plain, compensated, _ = pair(case, fixed_scale=SCALE)
    x = case.batch()
    main, both = run(plain, x), run(compensated, x)
    weight = compensated.auxiliary.weight
    g_a, to_weight = auxiliary_gradients(plain, weight, x, main.gradient)
    assert_near(both.input, main.input + SCALE * g_a)
    assert_near(both.parameters["auxiliary.weight"], SCALE * to_weight)


@every_case
def test_weight_gradient_of_one_layer_is_unchanged(method, case):
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE)
    x = case.batch()
    assert torch.equal(run(compensated, x).parameters["weight"], run(plain, x).parameters["weight"])


@pytest.mark.parametrize("name", ["conv2d-stride2", "linear-bias"])
@all_methods
def test_bias_gradient_is_unchanged(method, name):
    case = CASES[name]
    plain, compensated, _ = pair(case, method, fixed_scale=SCALE)
    x = case.batch()
    assert torch.equal(run(compensated, x).parameters["bias"], run(plain, x).parameters["bias"])


@each_kind
def test_output_scale_gradient_is_unchanged(case):
    plain, compensated, _ = pair(case, "recu", fixed_scale=SCALE)
    x = case.batch()
    name = "method.alpha"
    assert torch.equal(run(compensated, x).parameters[name], run(plain, x).parameters[name])


@each_kind
def test_threshold_gradient_contains_the_compensation(case):
    plain, compensated, _ = pair(case, "reactnet", fixed_scale=SCALE)
    x = case.batch()
    main, both = run(plain, x), run(compensated, x)
    g_a, _ = auxiliary_gradients(plain, compensated.auxiliary.weight, x, main.gradient)
    kernel = len(plain.geometry.kernel_size)
    channels = x.dim() - 1 - kernel
    summed = g_a.sum(dim=[d for d in range(x.dim()) if d != channels])
    expected = main.parameters["method.shift"] + SCALE * summed
    assert_near(both.parameters["method.shift"], expected)


@each_kind
def test_scale_multiplies_the_injection_once(case):
    plain, small, _ = pair(case, fixed_scale=0.25)
    _, large, _ = pair(case, fixed_scale=0.5)
    x = case.batch()
    assert_near(injected(plain, large, x)[1], 2 * injected(plain, small, x)[1])


def compensated_twins(method):
    """A two-layer net, plain and compensated, after one backward of the same batch."""
    nets = mlp(method), mlp(method)
    surge.compensate_(nets[1], fixed_scale=SCALE)
    x, labels = rows()
    for net in nets:
        torch.nn.functional.cross_entropy(net(x), labels).backward()
    return nets


@all_methods
def test_topmost_weight_gradient_is_unchanged(method):
    plain, compensated = compensated_twins(method)
    assert torch.equal(compensated[4].weight.grad, plain[4].weight.grad)


@all_methods
def test_lower_weight_gradient_is_repaired_by_the_layer_above(method):
    plain, compensated = compensated_twins(method)
    assert not torch.allclose(compensated[2].weight.grad, plain[2].weight.grad)


@each_kind
def test_double_backward_is_refused(case):
    _, compensated, _ = pair(case)
    x = case.batch().requires_grad_()
    y = compensated(x).sum()
    with pytest.raises(RuntimeError, match="differentiated twice.*strip_"):
        torch.autograd.grad(y, x, create_graph=True)


@each_kind
def test_layer_accepts_its_input_by_torchs_keyword(case):
    plain, compensated, _ = pair(case)
    x = case.batch().requires_grad_()
    assert torch.equal(compensated(input=x), plain(x))


@each_kind
def test_a_layer_used_twice_adds_up(case):
    _, compensated, _ = pair(case, fixed_scale=SCALE)
    first, second = case.batch(seed=5), case.batch(seed=6)
    alone = [run(compensated, x) for x in (first, second)]
    inputs = [x.requires_grad_() for x in (first, second)]
    compensated.zero_grad()
    outputs = [compensated(x) for x in inputs]
    torch.autograd.backward(outputs, [r.gradient for r in alone])
    assert_near(
        compensated.auxiliary.weight.grad,
        sum(r.parameters["auxiliary.weight"] for r in alone),
    )


@all_methods
def test_gradients_are_repeatable(method):
    case = CASES["conv2d"]
    _, compensated, _ = pair(case, method)
    x = case.batch()
    assert_same_tensors(run(compensated, x).parameters, run(compensated, x).parameters)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled_norms_are_those_of_torch_in_any_layout(layout):
    """A compiled norm of an image is summed row by row."""
    x = torch.randn(3, 4, 5, 6).to(memory_format=layout)
    compiled = torch.compile(squared_norm, backend="aot_eager", fullgraph=True)
    for value in (x, x.double(), x.bfloat16()):
        expected = value.double().square().sum()
        for found in (squared_norm(value), compiled(value)):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("announced", [True, False])
def test_norms_of_a_compiled_backward_are_summed_by_row(monkeypatch, announced):
    """Also where torch does not say that it traces a backward, as version 2.11 does not."""
    if not announced:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    seen = []

    def note(graph, _):
        seen.extend(getattr(node.target, "_opname", "") for node in graph.graph.nodes)
        return make_boxed_func(graph)

    probe = torch.zeros((), requires_grad=True)
    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    compiled = torch.compile(lambda x: tap(2 * x, probe), backend=backend)
    x = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    compiled(x).sum().backward()
    assert seen.count("sum") >= 3 and not any("norm" in name for name in seen)
    assert float(probe.grad) == x.numel()
