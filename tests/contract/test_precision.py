"""Low precision: autocast, casting the model, and fp16 with loss scaling.

No convolution here has a stride: the backward of a strided bf16 convolution, torch's own, ends
in an illegal instruction on some virtual machines with AMX (torch 2.13, oneDNN).
"""

import pytest
import torch

import surge
from tests.contract.subjects import assert_all_equal, modes, observe, subject, twin
from tests.nets import (
    CASES,
    COMPENSABLE,
    KINDS,
    all_methods,
    assert_same_tensors,
    cnn,
    every_kind,
    images,
    loss_of,
    registered_methods,
    run,
)

LOW = [torch.bfloat16, torch.float16]
low_precision = pytest.mark.parametrize("dtype", LOW, ids=["bf16", "fp16"])
TOLERANCE = {torch.bfloat16: 0.03, torch.float16: 0.005}


def autocast(dtype):
    return torch.autocast("cpu", dtype=dtype)


def share_of(difference, reference):
    """Norm of a difference relative to a reference."""
    return float(difference.double().norm() / reference.double().norm())


@low_precision
@modes
@every_kind
def test_autocast_gradients_are_finite_and_float32(method, case, mode, dtype):
    layer = subject(method, case, mode)
    with autocast(dtype):
        seen = observe(layer, case.batch())
    assert all(tensor.isfinite().all() for tensor in seen.values())
    assert {t.dtype for name, t in seen.items() if name != "output"} == {torch.float32}


@low_precision
@modes
@every_kind
def test_cast_layer_has_finite_gradients_of_its_dtype(method, case, mode, dtype):
    layer = subject(method, case, mode).to(dtype)
    seen = observe(layer, case.batch().to(dtype))
    assert all(tensor.isfinite().all() for tensor in seen.values())
    probes = {"probe main", "probe auxiliary"}
    assert {t.dtype for name, t in seen.items() if name not in probes} == {dtype}


@low_precision
@registered_methods
def test_cast_layer_keeps_its_schedule_exactly(method, dtype):
    layer = CASES["linear"].build(method)
    surge.on_epoch(layer, 3, 10)
    scalars = {n: b.clone() for n, b in layer.method.named_buffers() if b.dim() == 0}
    layer.to(dtype)
    kept = {n: b for n, b in layer.method.named_buffers() if b.dim() == 0}
    assert_same_tensors(kept, scalars)
    assert {b.dtype for b in kept.values()} <= {torch.float32, torch.bool}
    assert {p.dtype for p in layer.parameters()} == {dtype}
    surge.on_epoch(layer, 7, 10)
    moved = CASES["linear"].build(method)
    surge.on_epoch(moved, 7, 10)
    expected = {n: b for n, b in moved.method.named_buffers() if b.dim() == 0}
    assert_same_tensors({n: b for n, b in layer.method.named_buffers() if b.dim() == 0}, expected)


def test_schedules_follow_to_double_precision():
    layer = CASES["linear"].build("recu").double()
    assert layer.method.tau.dtype == torch.float64


@low_precision
@every_kind
def test_autocast_output_is_the_plain_one(method, case, dtype):
    plain, compensated = subject(method, case, "plain"), subject(method, case)
    x = case.batch().requires_grad_()
    with autocast(dtype):
        assert torch.equal(compensated(x), plain(x))


@low_precision
@every_kind
def test_cast_output_is_the_plain_one(method, case, dtype):
    plain, compensated = (subject(method, case, m).to(dtype) for m in ("plain", "compensated"))
    x = case.batch().to(dtype).requires_grad_()
    assert torch.equal(compensated(x), plain(x))


@low_precision
@every_kind
def test_autocast_injection_is_that_of_float32(method, case, dtype):
    layers = [case.build(method) for _ in range(2)]
    surge.compensate_(layers[1], fixed_scale=2.0, aux_input="layer_input")
    x = case.batch()
    exact = run(layers[1], x).input - run(layers[0], x).input
    with autocast(dtype):
        low = run(layers[1], x).input - run(layers[0], x).input
    assert share_of(low - exact, exact) < TOLERANCE[dtype]


@low_precision
@every_kind
def test_autocast_scale_is_that_of_float32(method, case, dtype):
    scales = []
    for enabled in (False, True):
        layer = case.build(method)
        compensation = surge.compensate_(layer)
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            run(layer, case.batch())
        compensation.step()
        scales.append(compensation.scales()[""])
    assert scales[1] == pytest.approx(scales[0], rel=TOLERANCE[dtype])


@all_methods
def test_fp16_training_with_loss_scaling_keeps_scales_finite_and_equal(method):
    results = []
    for dtype in (torch.float32, torch.float16):
        net = cnn(method)
        compensation = surge.compensate_(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        compensation.follow(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype == torch.float16):
            loss = loss_of(net, images())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        results.append(compensation.scales())
    # A rounded activation may change sign, so this is no more than the same size.
    assert results[1] == pytest.approx(results[0], rel=0.5)


@low_precision
@all_methods
def test_attach_then_strip_is_bit_identical_in_low_precision(method, dtype):
    case = CASES[KINDS[0]]
    plain = subject(method, case, "plain").to(dtype)
    layer = twin(plain)
    surge.compensate_(layer)
    surge.strip_(layer)
    x = case.batch().to(dtype)
    assert_all_equal(observe(layer, x), observe(plain, x))


@every_kind
def test_double_precision_agrees_with_single(method, case):
    layer = subject(method, case)
    single = observe(layer, case.batch())
    double = observe(twin(layer).double(), case.batch().double())
    for name, tensor in single.items():
        torch.testing.assert_close(tensor.double(), double[name].double(), rtol=1e-3, atol=1e-4)


@low_precision
@registered_methods
def test_a_low_default_dtype_leaves_schedules_and_scales_wide(method, dtype):
    case, scalars = CASES["linear"], []
    before = torch.get_default_dtype()
    for default in (torch.float32, dtype):
        torch.set_default_dtype(default)
        try:
            layer = case.build(method)
            with torch.no_grad():  # by what every dtype holds exactly
                layer.weight.copy_(torch.arange(48.0).view_as(layer.weight) / 16 - 1)
            if method in COMPENSABLE:
                surge.compensate_(layer, eta=0.01)
            surge.on_epoch(layer, 3, 10)
            if method in COMPENSABLE:
                kept = layer.auxiliary.probes.values()
                assert {probe.dtype for probe in kept} == {torch.float32}
        finally:
            torch.set_default_dtype(before)
        scalars.append({n: b for n, b in layer.named_buffers() if b.dim() == 0})
    assert_same_tensors(*scalars)
