"""Memory layouts and unusual inputs give the same result as the ordinary ones."""

import pytest
import torch

import surge
from tests.contract.subjects import (
    SUBJECTS,
    assert_all_close,
    every_float_input,
    every_subject,
    modes,
    observe,
    subject,
    twin,
)
from tests.nets import all_methods, cnn, images, output_gradient

# ReCU takes a variance of nothing in an empty batch, and torch says so.
quiet_variance = pytest.mark.filterwarnings("ignore:var.*degrees of freedom")


@modes
@all_methods
def test_channels_last_gives_the_same_result(method, mode):
    case = SUBJECTS["conv2d"]
    layer = subject(method, case, mode)
    other = twin(layer).to(memory_format=torch.channels_last)
    x = case.batch()
    actual = observe(other, x.to(memory_format=torch.channels_last))
    assert_all_close(actual, observe(layer, x), rtol=1e-5, atol=1e-5)


@modes
@all_methods
def test_channels_last_is_kept(method, mode):
    case = SUBJECTS["conv2d"]
    layer = subject(method, case, mode).to(memory_format=torch.channels_last)
    x = case.batch().to(memory_format=torch.channels_last).requires_grad_()
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def spread(x):
    """The same values with gaps between them in memory."""
    return torch.stack([x, x], dim=-1)[..., 0]


@every_float_input
def test_input_that_is_not_contiguous_gives_the_same_result(method, case, mode):
    layer = subject(method, case, mode)
    x = case.batch()
    assert not spread(x).is_contiguous()
    actual = observe(layer, x, lambda x: layer(spread(x)))
    assert_all_close(actual, observe(layer, x), rtol=1e-5, atol=1e-5)


@every_float_input
def test_gradient_that_is_not_contiguous_gives_the_same_result(method, case, mode):
    layer = subject(method, case, mode)
    x = case.batch()
    gradient = output_gradient(layer(x))
    expected = observe(layer, x, gradient=gradient)
    actual = observe(layer, x, gradient=spread(gradient))
    assert_all_close(actual, expected, rtol=1e-5, atol=1e-5)


@quiet_variance
@every_subject
def test_empty_batch_runs_forward_and_backward(method, case, mode):
    layer = subject(method, case, mode)
    x = case.batch()[:0]
    seen = observe(layer, x)
    assert seen["output"].shape[0] == 0
    assert all(tensor.isfinite().all() for tensor in seen.values())


@quiet_variance
@all_methods
def test_empty_batch_keeps_the_scale(method):
    case = SUBJECTS["linear"]
    layer = case.build(method)
    compensation = surge.compensate_(layer)
    before = compensation.scales()
    y = layer(case.batch()[:0].requires_grad_())
    y.backward(torch.zeros_like(y))
    compensation.step()
    assert compensation.scales() == before


@every_float_input
def test_input_of_zeros_has_finite_gradients(method, case, mode):
    layer = subject(method, case, mode)
    seen = observe(layer, torch.zeros(case.shape))
    assert all(tensor.isfinite().all() for tensor in seen.values())


@every_subject
def test_weight_of_zeros_has_finite_gradients(method, case, mode):
    layer = subject(method, case, mode)
    torch.nn.init.zeros_(layer.weight)
    seen = observe(layer, case.batch())
    assert all(tensor.isfinite().all() for tensor in seen.values())


@every_float_input
def test_batch_of_one_runs(method, case, mode):
    layer = subject(method, case, mode)
    seen = observe(layer, case.batch()[:1])
    assert all(tensor.isfinite().all() for tensor in seen.values())


@every_subject
def test_every_parameter_gets_a_gradient(method, case, mode):
    layer = subject(method, case, mode)
    seen = observe(layer, case.batch())
    assert [name for name, p in layer.named_parameters() if seen[name] is None] == []


@all_methods
def test_every_parameter_of_a_network_gets_a_gradient(method):
    net = cnn(method)
    surge.compensate_(net)
    net(images()[0]).sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []
