"""The scale under gradient accumulation and fp16 loss scaling."""

import pytest
import torch
from torch import nn

import surge
from surge.layers.elastic import elastic_parts
from tests.nets import all_methods, cnn, images, loss_of


def prepared(method="bnn", *, lr=0.05, fused=False, **options):
    """A compensated network without normalisation, its optimizer and its compensation."""
    net = cnn(method, norm=False)
    for _, part in elastic_parts(net):  # whose gradient depends on the size of the part, by design
        part.requires_grad_(False)
    compensation = surge.compensate_(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, fused=fused)
    compensation.follow(optimizer)
    return net, optimizer, compensation


def halves(batch):
    x, labels = batch
    middle = len(x) // 2
    return (x[:middle], labels[:middle]), (x[middle:], labels[middle:])


@all_methods
def test_two_micro_batches_give_the_scale_of_one_batch(method):
    scales = []
    for parts in (1, 2):
        net, optimizer, compensation = prepared(method)
        for batch in (images(seed=5), images(seed=6)):
            optimizer.zero_grad()
            for part in [batch] if parts == 1 else halves(batch):
                (loss_of(net, part) / parts).backward()
            optimizer.step()
        scales.append(compensation.scales())
    assert scales[1] == pytest.approx(scales[0], rel=1e-5)


VARIANTS = {"weight_side": {"weight_side": 0.3}, "tied": {"auxiliary": "tied"}}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("method", ["bnn", "recu"])
def test_two_micro_batches_train_as_one_batch(method, options):
    states = []
    for parts in (1, 2):
        net, optimizer, _ = prepared(method, **options)
        for batch in (images(seed=5), images(seed=6), images(seed=7)):
            optimizer.zero_grad()
            for part in [batch] if parts == 1 else halves(batch):
                (loss_of(net, part) / parts).backward()
            optimizer.step()
        states.append(net.state_dict())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-6)


def test_batch_norm_in_eval_mode_accumulates_alike():
    scales = []
    for parts in (1, 2):
        net = cnn()
        compensation = surge.compensate_(net)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        for part in [images()] if parts == 1 else halves(images()):
            (loss_of(net, part) / parts).backward()
        compensation.step()
        scales.append(compensation.scales())
    assert scales[1] == pytest.approx(scales[0], rel=1e-5)


def test_scale_does_not_move_between_micro_batches():
    net, _, compensation = prepared()
    before = compensation.scales()
    for part in halves(images()):
        loss_of(net, part).backward()
    assert compensation.scales() == before


def test_squares_add_up_over_micro_batches():
    net, _, compensation = prepared()
    path = compensation.paths["2"]
    first, second = halves(images())
    loss_of(net, first).backward()
    alone = float(path.squares("main"))
    loss_of(net, second).backward()
    total = float(path.squares("main"))
    compensation.reset()
    loss_of(net, second).backward()
    assert total == pytest.approx(alone + float(path.squares("main")))


def scaled_steps(scaler, batches, *, overflow_at=None, fused=False):
    """Train with loss scaling; one step may overflow. Return the scales after every step."""
    net, optimizer, compensation = prepared(fused=fused)
    history = []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(net, batch))
        (loss * torch.inf if step == overflow_at else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        history.append(compensation.scales())
    return history


def scaler(initial, **options):
    return torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=1000, **options)


BATCHES = [images(seed=seed) for seed in range(3)]


def test_loss_scale_does_not_reach_the_scale():
    plain = scaled_steps(scaler(1.0), BATCHES)
    large = scaled_steps(scaler(2.0**14), BATCHES)
    for one, other in zip(plain, large, strict=True):
        assert other == pytest.approx(one, rel=1e-5)


# A fused optimizer is stepped even when it overflows, and skips inside; its hook still runs.
overflow = pytest.mark.parametrize("fused", [False, True], ids=["skipped", "fused"])


@overflow
@pytest.mark.filterwarnings("ignore:The gradients of")
def test_overflow_step_leaves_the_scale(fused):
    history = scaled_steps(scaler(1024.0), BATCHES, overflow_at=1, fused=fused)
    assert history[1] == history[0]


@overflow
@pytest.mark.filterwarnings("ignore:The gradients of")
def test_step_after_an_overflow_is_as_if_it_had_not_happened(fused):
    first, lost, last = BATCHES
    without = scaled_steps(scaler(1024.0), [first, last], fused=fused)
    with_overflow = scaled_steps(scaler(1024.0), [first, lost, last], overflow_at=1, fused=fused)
    assert with_overflow[-1] == pytest.approx(without[-1], rel=1e-5)


def test_overflow_seen_by_an_explicit_step_leaves_the_scale():
    net = cnn(norm=False)
    compensation = surge.compensate_(net)
    before = compensation.scales()
    (loss_of(net, images()) * torch.inf).backward()
    with pytest.warns(surge.errors.SurgeWarning, match="not finite"):
        compensation.step()
    assert compensation.scales() == before
