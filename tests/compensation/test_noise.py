"""The noise control: what replaces g_a, and where its random numbers come from."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import surge
from surge.compensation.noise import Source, mixed, normal, words
from tests.nets import (
    CASES,
    assert_near,
    cnn,
    each_kind,
    images,
    injected,
    loss_of,
    output_gradient,
    pair,
    run,
)

SCALE = 0.5
WIDE = 2.0
"""Spread of inputs of which about half lie beyond the clip at 1."""


def injection(case, **options):
    """The part of the input gradient that compensation added, at a fixed scale."""
    plain, compensated, _ = pair(case, fixed_scale=SCALE, **options)
    return injected(plain, compensated, case.batch(WIDE))[1]


def cosine(a, b):
    return float(nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def noisy(case=CASES["conv2d"], **options):
    return pair(case, fixed_scale=SCALE, noise=True, **options)[1]


# ---- what is injected


@each_kind
def test_noise_has_the_norm_of_the_auxiliary_gradient(case):
    assert_near(injection(case, noise=True).norm(), injection(case).norm(), rtol=1e-4)


def test_noise_has_another_direction():
    case = CASES["conv2d"]
    assert abs(cosine(injection(case, noise=True), injection(case))) < 0.3


def test_noise_leaves_the_auxiliary_weight_gradient():
    case = CASES["conv2d"]
    grads = [
        run(pair(case, fixed_scale=SCALE, noise=noise)[1], case.batch()).parameters
        for noise in (False, True)
    ]
    assert torch.equal(grads[0]["auxiliary.weight"], grads[1]["auxiliary.weight"])


@pytest.mark.parametrize("scope", ["clipped", "unclipped"])
@each_kind
def test_noise_stays_inside_the_scope(case, scope):
    added = injection(case, scope=scope, noise=True)
    clipped = case.batch(WIDE).abs() > 1
    outside = ~clipped if scope == "clipped" else clipped
    assert not added[outside].any() and added[~outside].all()
    assert_near(added.norm(), injection(case, scope=scope).norm(), rtol=1e-4)


def test_noise_in_an_empty_scope_is_nothing():
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, "bnn", scope="clipped", noise=True, fixed_scale=SCALE)
    assert not injected(plain, compensated, 0.01 * case.batch(WIDE))[1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_noise_works_in_other_precisions(dtype):
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, fixed_scale=SCALE, noise=True)
    plain, compensated = plain.to(dtype), compensated.to(dtype)
    added = injected(plain, compensated, case.batch(WIDE).to(dtype))[1]
    assert added.dtype == dtype
    assert_near(added.norm(), injection(case).norm(), rtol=0.05)


def test_noise_keeps_the_memory_format():
    layer = noisy().to(memory_format=torch.channels_last)
    x = CASES["conv2d"].batch().to(memory_format=torch.channels_last)
    assert run(layer, x).input.is_contiguous(memory_format=torch.channels_last)


# ---- where it comes from


def test_noise_leaves_torchs_generator_alone():
    """Dropout and augmentation of a paired run must not move."""
    layer, before = noisy(), torch.get_rng_state()
    run(layer, CASES["conv2d"].batch())
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_does_not_depend_on_torchs_generator():
    found = []
    for seed in (1, 2):
        layer = noisy()
        torch.manual_seed(seed)
        found.append(run(layer, CASES["conv2d"].batch()).input)
    assert torch.equal(*found)


def test_noise_is_drawn_anew_in_every_step_and_micro_batch():
    layer = noisy()
    found = [run(layer, CASES["conv2d"].batch()).input for _ in range(4)]
    assert len({tuple(grad.flatten().tolist()) for grad in found}) == 4


def test_noise_goes_on_where_a_checkpoint_was_written():
    layer, x = noisy(), CASES["conv2d"].batch()
    run(layer, x)
    saved = copy.deepcopy(layer.state_dict())
    expected = run(layer, x).input
    fresh = noisy(seed=5)
    fresh.load_state_dict(saved)
    assert torch.equal(run(fresh, x).input, expected)


def test_noise_differs_by_seed_and_layer():
    x = CASES["linear"].batch()
    first, same, other = (run(noisy(CASES["linear"], seed=s), x).input for s in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)
    net = cnn()
    compensation = surge.compensate_(net, noise=True)
    keys = {tuple(path.source.key.tolist()) for path in compensation.paths.values()}
    assert len(keys) == len(compensation.paths) > 1


def test_noise_counts_once_in_a_forward_and_not_in_eval():
    net = cnn()
    compensation = surge.compensate_(net, noise=True)
    loss_of(net, images()).backward()
    with torch.no_grad():
        net(images()[0])
    net.eval()(images()[0])
    assert {int(path.source.draws) for path in compensation.paths.values()} == {1}


@pytest.mark.parametrize("reentrant", [False, True])
def test_noise_bears_activation_checkpointing(reentrant):
    layer, x = noisy(), CASES["conv2d"].batch().requires_grad_()
    y = checkpoint(layer, x, use_reentrant=reentrant)
    y.backward(output_gradient(y))
    plain, compensated, _ = pair(CASES["conv2d"], fixed_scale=SCALE)
    main, expected, _ = injected(plain, compensated, x)
    assert_near((x.grad - main).norm(), expected.norm(), rtol=1e-4)


def test_only_the_noise_control_has_a_source():
    net = cnn()
    surge.compensate_(net)
    assert not any("source" in name for name in net.state_dict())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_noise_is_the_eager_noise(backend):
    x = CASES["conv2d"].batch()
    eager, layer = noisy(), noisy()
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for _ in range(2):
        entry = x.clone().requires_grad_()
        y = compiled(entry)
        seen = run(eager, x)
        y.backward(seen.gradient)
        assert_near(entry.grad, seen.input, rtol=1e-5)
    assert int(layer.auxiliary.source.draws) == 2


# ---- what it is made of


def drawn(count, *, seed=0, draws=0, rank=0):
    made = Source(torch.Generator().manual_seed(seed), torch.device("cpu"))
    return normal(words(made.key, torch.tensor(draws), rank), torch.empty(count))


def test_numbers_are_those_of_box_and_muller():
    key = torch.tensor([3, 14, 159])
    place = mixed(torch.arange(12) ^ 3)
    u, v = (mixed(place ^ word).double().numpy() for word in (14, 159))
    u, v = (u + 0.5) / 2**32, v / 2**32
    expected = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
    assert_near(normal(key, torch.empty(3, 4)), torch.from_numpy(expected).view(3, 4))


def test_numbers_are_standard_normal():
    x = drawn(400_000).double()
    assert float(x.mean()) == pytest.approx(0, abs=0.008)
    assert float(x.var()) == pytest.approx(1, abs=0.012)
    assert float((x**3).mean()) == pytest.approx(0, abs=0.03)
    assert float((x**4).mean()) == pytest.approx(3, abs=0.08)
    expected = torch.special.ndtr(x.sort().values)
    steps = torch.arange(1, len(x) + 1) / len(x)
    assert float((expected - steps).abs().max()) < 1.63 / len(x) ** 0.5  # Kolmogorov, 1 %
    assert float(x.abs().max()) > 4


def test_neighbours_and_neighbouring_draws_ranks_and_keys_are_uncorrelated():
    count = 200_000
    base = drawn(count)
    others = [
        base.roll(1),
        base.roll(2),
        drawn(count, draws=1),
        drawn(count, draws=2),
        drawn(count, rank=1),
        drawn(count, seed=1),
    ]
    assert all(abs(cosine(base, other)) < 4.5 / count**0.5 for other in others)


def test_hash_turns_half_of_the_bits():
    """Each of 32 bits of the input, turned over, turns each of the output in half of the cases."""
    values = torch.randint(2**32, (4096,), generator=torch.Generator().manual_seed(1))
    bits = torch.arange(32)
    for turned in range(32):
        changed = mixed(values) ^ mixed(values ^ (1 << turned))
        share = ((changed[:, None] >> bits) & 1).double().mean(dim=0)
        assert float((share - 0.5).abs().max()) < 0.05, turned


def test_hash_is_the_end_of_murmurhash3():
    def by_hand(x):
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    values = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    assert mixed(torch.tensor(values)).tolist() == [by_hand(x) for x in values]
    assert by_hand(1) == 0x514E28B7


def test_hash_stays_within_32_bits_and_has_no_collision():
    values = torch.cat([torch.arange(100_000), 2**32 - 1 - torch.arange(100_000)])
    found = mixed(values)
    assert int(found.min()) >= 0 and int(found.max()) < 2**32
    assert len(found.unique()) == len(values)
