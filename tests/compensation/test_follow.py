"""Following an optimizer, stepping by hand, and the warning when neither happens."""

import warnings

import pytest
import torch

import surge
from surge.compensation.path import Watch
from surge.errors import ConfigError, SurgeWarning
from tests.nets import cnn, images, loss_of, mlp, rows, train

BATCHES = [images(seed=seed) for seed in range(3)]


def prepared(**options):
    net = cnn()
    compensation = surge.compensate_(net, **options)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), compensation


def test_follow_refuses_an_optimizer_built_before():
    net = cnn()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compensation = surge.compensate_(net)
    with pytest.raises(ConfigError, match=r'weight of "2" \(3 layers.*after compensate_'):
        compensation.follow(optimizer)


def test_refused_optimizer_is_not_followed():
    net = cnn()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compensation = surge.compensate_(net)
    before = compensation.scales()
    with pytest.raises(ConfigError):
        compensation.follow(optimizer)
    train(net, optimizer, BATCHES[:1])
    assert compensation.scales() == before


def test_follow_accepts_auxiliary_weights_in_their_own_group():
    net = cnn()
    compensation = surge.compensate_(net)
    auxiliary = {id(p) for p in compensation.parameters()}
    rest = [p for p in net.parameters() if id(p) not in auxiliary]
    optimizer = torch.optim.SGD([{"params": rest}, {"params": compensation.parameters()}], lr=0.1)
    assert compensation.follow(optimizer) is compensation


def test_follow_does_not_ask_for_frozen_auxiliary_weights():
    net, _, compensation = prepared()
    for weight in compensation.parameters():
        weight.requires_grad_(False)
    compensation.follow(torch.optim.SGD([net[0].weight], lr=0.1))


@pytest.mark.parametrize("auxiliary", ["tied", "leaky_tail"])
def test_follow_takes_any_optimizer_without_auxiliary_weights(auxiliary):
    net = cnn()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    surge.compensate_(net, auxiliary=auxiliary).follow(optimizer)
    train(net, optimizer, BATCHES)


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, which never runs torch's own constructor."""

    def __init__(self, inside):
        self.inside, self.param_groups = inside, inside.param_groups


class Derived(torch.optim.SGD):
    """An optimizer whose step is more than its base class's."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Derived])
def test_a_step_counts_once_however_many_classes_take_part(kind):
    net, _, compensation = prepared(every=2)  # torch wraps the step of SGD with the first one made
    optimizer = kind(net.parameters(), lr=0.1)
    compensation.follow(optimizer)
    learnt = []
    for batch in (*BATCHES, *BATCHES):
        before = compensation.parameters()[0].detach().clone()
        train(net, optimizer, [batch])
        learnt.append(not torch.equal(compensation.parameters()[0], before))
    assert learnt == [True, False] * 3 and compensation.steps == 6


def test_follow_refuses_what_takes_no_hooks():
    _, optimizer, compensation = prepared()
    with pytest.raises(ConfigError, match=r"got a Wrapper.*torch.optim.Optimizer inside"):
        compensation.follow(Wrapper(optimizer))
    with pytest.raises(ConfigError, match="got a list"):
        compensation.follow([optimizer])
    compensation.follow(optimizer)


def test_an_optimizer_built_anew_takes_the_place_of_the_first():
    results = []
    for rebuilt in (False, True):
        net, optimizer, compensation = prepared()
        compensation.follow(optimizer)
        train(net, optimizer, BATCHES[:1])
        if rebuilt:
            first, optimizer = optimizer, torch.optim.SGD(net.parameters(), lr=1)
            optimizer.load_state_dict(first.state_dict())
            compensation.follow(optimizer)
            first.param_groups.clear()
            first.step()
        train(net, optimizer, BATCHES[1:])
        results.append((compensation.scales(), compensation.steps))
    assert results[1] == results[0]


def test_several_optimizers_renew_by_one_explicit_step():
    results = []
    for several in (False, True):
        net, optimizer, compensation = prepared()
        optimizers = [optimizer]
        if several:
            optimizers = [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()]
            with pytest.raises(ConfigError, match=r"several hold them.*compensation.step\(\)"):
                compensation.follow(optimizers[0])
        for batch in BATCHES:
            net.zero_grad()
            loss_of(net, batch).backward()
            for one in optimizers:
                one.step()
            compensation.step()
        results.append(compensation.scales())
    assert results[1] == results[0]


def test_follow_updates_once_per_optimizer_step():
    net, optimizer, compensation = prepared()
    calls = []
    compensation.step = lambda: calls.append(len(calls))
    compensation.follow(optimizer)
    train(net, optimizer, BATCHES)
    assert calls == [0, 1, 2]


def test_explicit_step_equals_follow():
    net, optimizer, followed = prepared()
    followed.follow(optimizer)
    train(net, optimizer, BATCHES)
    net, optimizer, stepped = prepared()
    for batch in BATCHES:
        train(net, optimizer, [batch])
        stepped.step()
    assert stepped.scales() == followed.scales()


def test_following_twice_equals_following_once():
    results = []
    for times in (1, 2):
        net, optimizer, compensation = prepared()
        for _ in range(times):
            compensation.follow(optimizer)
        train(net, optimizer, BATCHES)
        results.append(compensation.scales())
    assert results[1] == results[0]


def test_zero_grad_forgets_squares():
    net, optimizer, compensation = prepared()
    compensation.follow(optimizer)
    loss_of(net, images()).backward()
    optimizer.zero_grad()
    assert float(compensation.paths["2"].squares("main")) == 0.0


def test_gradients_that_the_model_zeroes_take_their_squares_along():
    results = []
    for thrown_away in (None, BATCHES[1]):
        net, optimizer, compensation = prepared()
        compensation.follow(optimizer)
        if thrown_away is not None:
            loss_of(net, thrown_away).backward()
            net.zero_grad()  # the optimizer, which is followed, never hears of it
        loss_of(net, BATCHES[0]).backward()
        optimizer.step()
        results.append(compensation.scales())
    assert results[1] == results[0]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_still_zeroes(set_to_none):
    net, optimizer, compensation = prepared()
    compensation.follow(optimizer)
    loss_of(net, images()).backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    grads = [p.grad for p in net.parameters()]
    assert all(g is None if set_to_none else not g.any() for g in grads)


def test_scales_do_not_depend_on_how_gradients_are_zeroed():
    results = []
    for set_to_none in (True, False):
        net, optimizer, compensation = prepared()
        compensation.follow(optimizer)
        for batch in BATCHES:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(net, batch).backward()
            optimizer.step()
        results.append(compensation.scales())
    assert results[1] == results[0]


def test_zeroing_after_the_step_equals_zeroing_before():
    results = []
    for after in (False, True):
        net, optimizer, compensation = prepared()
        compensation.follow(optimizer)
        for batch in BATCHES:
            if not after:
                optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
            if after:
                optimizer.zero_grad()
        results.append(compensation.scales())
    assert results[1] == results[0]


def test_learning_rate_scheduler_and_following_get_along():
    net, optimizer, compensation = prepared()
    compensation.follow(optimizer)
    before = compensation.scales()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in BATCHES:
            train(net, optimizer, [batch])
            scheduler.step()
    assert compensation.scales() != before


def test_optimizer_state_of_a_followed_optimizer_can_be_saved(tmp_path):
    net, optimizer, compensation = prepared()
    compensation.follow(optimizer)
    train(net, optimizer, BATCHES)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    train(net, optimizer, BATCHES)


def test_auxiliary_weights_are_trained():
    net, optimizer, compensation = prepared()
    before = [w.detach().clone() for w in compensation.parameters()]
    train(net, optimizer, BATCHES)
    assert not any(
        torch.equal(w, b) for w, b in zip(compensation.parameters(), before, strict=True)
    )


def test_report_counts_layers_and_weights():
    _, _, compensation = prepared(eta=0.02)
    text = str(compensation)
    assert text.startswith("SURGE on 3 layers (independent auxiliary, eta 0.02)")
    assert "576 auxiliary weights" in text


def test_report_says_why_a_layer_is_left_out():
    compensation = surge.compensate_(cnn(), skip="9")
    assert "9: not compensated, left out by pattern" in str(compensation)


# ---- the warning when the scale is never updated


@pytest.fixture
def impatient(monkeypatch):
    """Make the warning due after five forwards instead of hundreds."""
    monkeypatch.setattr(Watch, "PATIENCE", 5)


def warnings_of(steps, net=None, **options):
    """Train without ever updating the scale, and return what was said."""
    net = mlp() if net is None else net
    surge.compensate_(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(net, optimizer, [rows()] * steps)
    return [str(w.message) for w in caught if issubclass(w.category, SurgeWarning)]


@pytest.mark.usefixtures("impatient")
def test_never_updated_scale_warns_exactly_once():
    (sentence,) = warnings_of(steps=20)
    assert sentence.startswith("5 training forwards went by") and "follow(optimizer)" in sentence


@pytest.mark.usefixtures("impatient")
def test_layers_behind_a_frozen_one_warn_in_its_place():
    net = mlp()
    net[0].requires_grad_(False)
    (sentence,) = warnings_of(steps=20, net=net)
    assert sentence.startswith("5 training forwards went by")


def test_compiled_training_that_never_renewed_a_scale_is_told_at_its_end():
    net = mlp()
    compensation = surge.compensate_(net)
    compiled = torch.compile(net, backend="aot_eager")
    compiled(rows()[0]).sum().backward()
    assert all(path.forwards == 0 for path in compensation.paths.values())
    with pytest.warns(SurgeWarning, match="Compiled training steps went by"):
        surge.strip_(net)


@pytest.mark.usefixtures("impatient")
def test_patience_counts_forwards_of_the_network_not_of_its_layers():
    assert warnings_of(steps=4) == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "options", [{"fixed_scale": 0.1}, {"auxiliary": "leaky_tail"}], ids=["fixed", "leaky_tail"]
)
def test_scale_that_needs_no_update_does_not_warn(options):
    assert warnings_of(steps=20, **options) == []


@pytest.mark.usefixtures("impatient")
def test_fixed_scale_with_a_weight_side_still_warns():
    assert len(warnings_of(steps=20, fixed_scale=0.1, weight_side=0.1)) == 1


@pytest.mark.usefixtures("impatient")
def test_followed_training_does_not_warn():
    net = mlp()
    compensation = surge.compensate_(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compensation.follow(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net, optimizer, [rows()] * 20)


@pytest.mark.usefixtures("impatient")
def test_evaluation_does_not_count_as_training():
    net = mlp().eval()
    surge.compensate_(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            net(rows()[0])
