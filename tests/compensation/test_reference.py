"""The smooth reference: measured gradients, signed scales, learning the bias."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import surge
from surge.compensation.reference import calibrate_, learn_bias_, measure
from surge.errors import ConfigError
from tests.nets import assert_near

DELIVERED = {"dose": "delivered", "example_input": torch.zeros(1, 3, 8, 8)}


def network(method: str = "recu", **options: object) -> tuple[nn.Module, surge.Compensation]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.Hardtanh(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.Hardtanh(),
        nn.Flatten(),
        nn.Linear(8 * 16, 10, bias=False),
        nn.BatchNorm1d(10),
        nn.Linear(10, 4),
    )
    surge.binarize_(model, method)
    return model, surge.compensate_(model, **options)


def batch_loss(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 4, (6,), generator=generator)
    return nn.functional.cross_entropy(model(images), labels)


def test_measure_leaves_everything_as_it_was():
    model, compensation = network()
    before = copy.deepcopy(model.state_dict())
    measure(model, compensation, lambda: batch_loss(model))
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.grad is None for p in model.parameters())
    assert all("forward" not in vars(module) for module in model.modules())
    assert compensation.injected() == 0


def test_measured_gradient_is_the_one_that_is_injected_below_a_clamp():
    model, compensation = network()
    clamped = []
    model[2].register_forward_hook(lambda _m, _args, y: clamped.append(y.detach()))
    whole = measure(model, compensation, lambda: batch_loss(model))["3"].auxiliary
    passed = clamped[0].abs() < 1
    assert 0.2 < float(passed.float().mean()) < 0.9
    model, compensation = network(**DELIVERED)
    kept = measure(model, compensation, lambda: batch_loss(model))["3"].auxiliary
    assert torch.equal(kept, whole * passed)


def test_measure_repeats_dropout_and_leaves_the_random_state():
    model, compensation = network()
    dropout, seen = nn.Dropout(0.5), []
    model.register_forward_pre_hook(lambda _m, args: seen.append(dropout(args[0])) or seen[-1])
    before = torch.get_rng_state()
    measure(model, compensation, lambda: batch_loss(model))
    assert torch.equal(*seen)
    assert torch.equal(torch.get_rng_state(), before)


def test_measured_parts_make_up_the_gradient_of_the_topmost_layer():
    """Above the topmost layer nothing is injected, so its G is the same with and without SURGE."""
    model, compensation = network("bnn")
    found = measure(model, compensation, lambda: batch_loss(model))["7"]
    inputs = []
    handle = model[6].register_forward_hook(lambda _m, _a, out: inputs.append(out) or None)
    loss = batch_loss(model)
    (total,) = torch.autograd.grad(loss, inputs)
    handle.remove()
    scale = compensation.paths["7"].scale
    assert torch.allclose(total, found.main + scale * found.auxiliary, atol=1e-7)


def test_reference_approaches_nothing_at_zero_sharpness():
    model, compensation = network("bnn")
    found = measure(model, compensation, lambda: batch_loss(model), sharpness=1e-12)
    assert all(float(g.reference.abs().max()) < 1e-9 for g in found.values())


def test_optimum_is_the_best_scale_on_the_batch():
    model, compensation = network()
    for found in measure(model, compensation, lambda: batch_loss(model)).values():
        best = float(found.optimum)

        def error(scale: float, found=found) -> float:
            main, other, wanted = (
                t.double() for t in (found.main, found.auxiliary, found.reference)
            )
            return float((main + scale * other - wanted).square().sum())

        assert error(best) <= min(error(best * 1.01 + 1e-6), error(best * 0.99 - 1e-6))


def test_calibrate_limits_the_scale_to_the_dose_and_may_turn_it_negative():
    model, compensation = network()
    factors = calibrate_(model, compensation, lambda: batch_loss(model))
    assert all(-1 <= c <= 1 for c in factors.values())
    for path in compensation.paths.values():
        path.direction.fill_(-0.5)
    batch_loss(model).backward()
    compensation.step()
    assert all(scale < 0 for scale in compensation.scales().values())


@pytest.mark.parametrize("eta", [1e-4, 1.0], ids=["at the limit", "within"])
def test_calibrate_takes_the_share_of_the_dose_that_the_reference_asks_for(eta):
    model, compensation = network(eta=eta)
    found = measure(model, compensation, lambda: batch_loss(model))
    factors = calibrate_(model, compensation, lambda: batch_loss(model))
    for name, path in compensation.paths.items():
        main, auxiliary, smooth = (
            getattr(found[name], part).double().numpy()
            for part in ("main", "auxiliary", "reference")
        )
        dose = eta * np.linalg.norm(main) / np.linalg.norm(auxiliary)
        share = np.sum((smooth - main) * auxiliary) / np.sum(auxiliary**2) / dose
        assert (abs(share) > 1) == (eta < 1)
        assert factors[name] == pytest.approx(np.clip(share, -1, 1), rel=1e-4)
        assert float(path.direction) == pytest.approx(factors[name])


@pytest.mark.parametrize(
    "options", [{"noise": True}, {"aux_input": "layer_input"}], ids=["noise", "elsewhere"]
)
def test_calibrate_refuses_what_it_does_not_measure(options):
    model, compensation = network(**options)
    with pytest.raises(ConfigError, match="enters sign"):
        calibrate_(model, compensation, lambda: batch_loss(model))


@pytest.mark.parametrize("scope", ["clipped", "unclipped"])
def test_measured_gradient_stays_inside_the_scope(scope):
    model, compensation = network("bireal", scope=scope)
    everything, plain = network("bireal")
    found = measure(model, compensation, lambda: batch_loss(model))
    whole = measure(everything, plain, lambda: batch_loss(everything))
    for name, gradients in found.items():
        inside = gradients.auxiliary != 0
        assert 0 < inside.float().mean() < 1
        assert torch.equal(gradients.auxiliary[inside], whole[name].auxiliary[inside])


def test_measure_refuses_a_wrapper():
    model, compensation = network()
    with pytest.raises(ConfigError, match="not a wrapper"):
        measure(nn.Sequential(model), compensation, lambda: batch_loss(model))


def test_weight_that_learns_the_bias_belongs_to_the_optimizer_alone():
    """Not to autograd: data-parallel wrappers wait for the gradient of all it trains."""
    model, compensation = network(objective="bias")
    assert not any(p.requires_grad for p in compensation.parameters())
    others = [p for p in model.parameters() if p.requires_grad]
    with pytest.raises(ConfigError, match="does not hold the auxiliary weight"):
        compensation.follow(torch.optim.SGD(others, lr=0.1))


def test_learning_the_bias_lowers_the_error():
    model, compensation = network(objective="bias")
    weights = [path.weight for path in compensation.paths.values()]
    optimizer = torch.optim.Adam(weights, lr=0.02)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        errors.append(learn_bias_(model, compensation, lambda: batch_loss(model)))
        optimizer.step()
    assert errors[-1] < 0.7 * errors[0]


def test_learning_the_bias_adds_the_gradient_of_the_relative_error():
    model, compensation = network(objective="bias")
    found = measure(model, compensation, lambda: batch_loss(model))
    for path in compensation.paths.values():
        path.weight.grad = torch.ones_like(path.weight)
    returned = learn_bias_(model, compensation, lambda: batch_loss(model))
    errors = []
    for name, path in compensation.paths.items():
        weight, part = path.weight.detach().requires_grad_(), found[name]
        if weight.dim() == 2:
            predicted = part.output @ weight
        else:
            predicted = nn.grad.conv2d_input(part.entering.shape, weight, part.output, 2, 1)
        missing = part.reference - part.main
        error = (predicted - missing).square().sum() / (2 * missing.square().sum())
        (gradient,) = torch.autograd.grad(error, weight)
        assert_near(path.weight.grad, 1 + gradient)
        errors.append(error.item())
    assert returned == pytest.approx(sum(errors) / len(errors), rel=1e-4)


@pytest.mark.parametrize("reading, power", [("unscaled", 1.0), ("scaled", 0.5)])
def test_scale_follows_a_weight_that_learned_much(reading, power):
    """A weight that makes a leap must not make the injected gradient leap with it."""
    model, compensation = network(objective="bias", reading=reading)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compensation.follow(optimizer)
    sizes, scales = [], []
    for rate in (0.0, 30.0, 0.0):
        optimizer.zero_grad()
        batch_loss(model).backward()
        sizes.append(
            {n: path.squares("auxiliary").sqrt() for n, path in compensation.paths.items()}
        )
        scales.append(compensation.scales())
        for parameter in model.parameters():
            parameter.grad = None
        learn_bias_(model, compensation, lambda: batch_loss(model))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    for name, path in compensation.paths.items():
        growth = float(sizes[2][name] / sizes[1][name])
        assert growth > 10 and path.growth is None
        assert scales[2][name] == pytest.approx(scales[1][name] / growth**power, rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"scope": "unclipped"}, {"scope": "clipped"}),
        *({"dose": "clipped_share"}, DELIVERED),
    ],
)
def test_weight_that_did_not_move_leaves_its_scale(options):
    model, compensation = network(**options)
    learn_bias_(model, compensation, lambda: batch_loss(model))
    for path in compensation.paths.values():
        assert float(path.growth()) == pytest.approx(1.0)


def test_gradient_of_the_bias_has_the_layout_of_its_weight():
    """A fused optimizer on a GPU refuses another."""
    model, compensation = network(objective="bias")
    plain = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=layout)
        for path in compensation.paths.values():
            path.weight.grad = None
        learn_bias_(model, compensation, lambda: batch_loss(model))
        for name, path in compensation.paths.items():
            assert path.weight.grad.stride() == path.weight.stride()
            assert_near(path.weight.grad, plain.setdefault(name, path.weight.grad))


def test_learning_the_bias_needs_a_weight():
    model, compensation = network(auxiliary="tied")
    with pytest.raises(ConfigError, match="no auxiliary weight"):
        learn_bias_(model, compensation, lambda: batch_loss(model))


def test_measure_needs_an_auxiliary_gradient():
    model, compensation = network(auxiliary="leaky_tail")
    with pytest.raises(ConfigError, match="no auxiliary gradient"):
        measure(model, compensation, lambda: batch_loss(model))


def test_measure_refuses_a_layer_that_runs_twice_and_one_without_gradient():
    shared = surge.BinaryLinear(6, 6)
    net = nn.Sequential(nn.Linear(6, 6), shared, nn.Tanh(), shared)
    compensation = surge.compensate_(net)
    x = torch.randn(4, 6)
    with pytest.raises(ConfigError, match="ran twice in one forward"):
        measure(net, compensation, lambda: net(x).square().mean())
    net = nn.Sequential(surge.BinaryLinear(6, 6), nn.Tanh(), surge.BinaryLinear(6, 6))
    compensation = surge.compensate_(net, signed=True)
    with pytest.raises(ConfigError, match="an input that needs no gradient"):
        calibrate_(net, compensation, lambda: net(x).square().mean())
