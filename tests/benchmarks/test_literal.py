"""The paper's form, written out in benchmarks/, computes what the library computes."""

import pytest
import torch
import torch.nn.functional as F

import surge
from surge.errors import ConfigError
from surge.study.bench.training_speed import literal
from tests.nets import cnn, images


def paired():
    """Return our network and the literal one, with the same weights in all four paths."""
    ours, theirs = cnn("recu").double(), cnn("recu").double()
    theirs.load_state_dict(ours.state_dict())
    compensation = surge.compensate_(ours, eta=0.01)
    make = lambda model: torch.optim.SGD(model.parameters(), lr=0.05)  # noqa: E731
    ours_optimizer = make(ours)
    compensation.follow(ours_optimizer)
    theirs_optimizer = literal().compensate_literally_(theirs, make)
    for name, path in compensation.paths.items():
        twin = theirs.get_submodule(name).auxiliary
        twin.weight.data.copy_(path.weight.data)
        path.scale.fill_(twin.scale)
    return (ours, ours_optimizer), (theirs, theirs_optimizer), compensation


def test_literal_form_trains_to_the_same_weights():
    ours, theirs, compensation = paired()
    x, labels = images(count=8)
    for _ in range(3):
        for model, optimizer in (ours, theirs):
            optimizer.zero_grad()
            F.cross_entropy(model(x.double()), labels).backward()
            optimizer.step()
    expected = dict(theirs[0].named_parameters())
    for name, value in ours[0].named_parameters():
        assert torch.allclose(value, expected[name], rtol=1e-6, atol=1e-8), name
    for name, scale in compensation.scales().items():
        assert scale == pytest.approx(theirs[0].get_submodule(name).auxiliary.scale, rel=1e-5)


def test_without_a_checkout_it_says_where_the_form_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="run this in a checkout"):
        literal()
