"""The registry, the geometry helpers, and the rule for float checkpoints."""

import re

import pytest
import torch
from torch import nn

from surge import functional, method
from surge.errors import ConfigError
from surge.layers import BinaryConv2d, BinaryLinear
from surge.method import (
    Geometry,
    Method,
    check_options,
    get_method,
    list_methods,
    mean_magnitude,
    needs_spread,
    per_filter,
    register_method,
    standardize,
)

FIRST_SEVEN = {"bireal", "bnn", "dorefa", "irnet", "reactnet", "recu", "xnor"}


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry that the test may spoil."""
    list_methods()
    copy = dict(method._registry)
    monkeypatch.setattr(method, "_registry", copy)
    return copy


def register(name, qualname):
    return register_method(name, bits=(1, 1), reference="A, B 2000")(type(qualname, (Method,), {}))


def test_registry_finds_the_methods_sorted():
    assert set(list_methods()) >= FIRST_SEVEN
    assert list_methods() == sorted(list_methods())


@pytest.mark.parametrize("name", list_methods())
def test_registry_entries_describe_themselves(name):
    cls = get_method(name)
    assert cls.name == name
    assert re.search(r", [\w ]*20\d\d(, arXiv:\d{4}\.\d{5})?$", cls.reference)
    assert "Paper vs here:" in cls.__doc__
    layer = BinaryConv2d(4, 4, 3, method=name)
    weights, inputs = layer.method.bits
    assert layer.method.describe().startswith(f"{name} ({weights}/{inputs} bit")
    assert set(cls.dropped) <= set(layer.method.state_dict())


def test_registry_accepts_a_new_method(registry):
    cls = register("mine", "Mine")
    assert get_method("mine") is cls and "mine" in list_methods()
    assert BinaryLinear(3, 2, method="mine").method.describe() == "mine (1/1 bit)"


def test_registry_refuses_a_taken_name(registry):
    with pytest.raises(ConfigError, match='"recu" is taken by'):
        register("recu", "Other")
    assert get_method("recu").__name__ == "ReCU"


def test_registry_lets_a_class_register_again(registry):
    register("mine", "Mine")
    again = register("mine", "Mine")  # as a reloaded module does
    assert get_method("mine") is again


@pytest.mark.parametrize(("typo", "near"), [("recuu", "recu"), ("birel", "bireal")])
def test_registry_names_the_near_miss(typo, near):
    with pytest.raises(ConfigError, match=f'Unknown method "{typo}".*Did you mean "{near}"'):
        get_method(typo)


def test_registry_lists_all_methods_for_a_far_miss():
    with pytest.raises(ConfigError, match="Available: .*bireal, .*xnor") as error:
        get_method("zzzzzz")
    assert "Did you mean" not in str(error.value)


def test_options_near_miss_and_list():
    with pytest.raises(
        ConfigError, match=r'"recu" has no option "tau_mn"\. Did you mean "tau_min"'
    ):
        check_options(get_method("recu"), {"tau_mn": 0.9})
    with pytest.raises(ConfigError, match=r"It accepts: tau_min, tau_max\."):
        check_options(get_method("recu"), {"xyz": 0})


def test_options_of_a_method_without_any():
    check_options(get_method("bnn"), {})
    with pytest.raises(ConfigError, match="It has no options"):
        check_options(get_method("bnn"), {"alpha": 1})


@pytest.mark.parametrize("positional", ["geometry", "weight", "self"])
def test_options_do_not_include_the_fixed_arguments(positional):
    with pytest.raises(ConfigError, match="has no option"):
        check_options(get_method("recu"), {positional: None})


CONV = Geometry("conv", 6, 4, (3, 3), (1, 1), (1, 1), (1, 1))
CONV1 = Geometry("conv", 6, 4, (3,), (1,), (1,), (1,))
LINEAR = Geometry("linear", 6, 4)


@pytest.mark.parametrize(
    ("geometry", "y", "x", "w"),
    [
        (CONV, (2, 6, 5, 5), (2, 4, 5, 5), (6, 4, 3, 3)),
        (CONV, (6, 5, 5), (4, 5, 5), (6, 4, 3, 3)),
        (CONV1, (2, 6, 5), (2, 4, 5), (6, 4, 3)),
        (LINEAR, (2, 3, 6), (2, 3, 4), (6, 4)),
        (LINEAR, (6,), (4,), (6, 4)),
    ],
)
def test_geometry_views_broadcast_over_their_tensor(geometry, y, x, w):
    spatial = len(geometry.kernel_size)

    def differs_only_along(values, dim):
        moved = values.movedim(dim, 0).reshape(values.shape[dim], -1)
        return torch.equal(moved, torch.arange(moved.shape[0]).float()[:, None].expand_as(moved))

    out, inputs = torch.arange(6).float(), torch.arange(4).float()
    assert differs_only_along(geometry.along_output(out).expand(y), -1 - spatial)
    assert differs_only_along(geometry.along_input(inputs).expand(x), -1 - spatial)
    assert differs_only_along(geometry.along_weight(out).expand(w), 0)


@pytest.mark.parametrize(
    ("geometry", "shape", "sample", "feature"),
    [
        (CONV, (2, 4, 5, 5), (1, 2, 3), 1),
        (CONV, (4, 5, 5), (0, 1, 2), 0),
        (CONV1, (2, 4, 5), (1, 2), 1),
        (CONV1, (4, 5), (0, 1), 0),
        (LINEAR, (2, 4), (1,), 1),
        (LINEAR, (2, 3, 4), (1, 2), 2),
    ],
)
def test_geometry_knows_samples_and_features_of_an_input(geometry, shape, sample, feature):
    x = torch.zeros(shape)
    assert geometry.sample_dims(x) == sample and geometry.feature_dim(x) == feature


def test_geometry_is_frozen_and_comparable():
    assert Geometry("linear", 6, 4) == LINEAR
    with pytest.raises(AttributeError):
        LINEAR.groups = 2


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2), (5, 3, 2, 2)])
def test_filter_statistics(shape):
    w = torch.randn(shape, dtype=torch.double)
    rows = w.flatten(1)
    assert per_filter(w) == tuple(range(1, len(shape)))
    torch.testing.assert_close(mean_magnitude(w).flatten(), rows.abs().mean(1))
    v = standardize(w).flatten(1)
    torch.testing.assert_close(v.mean(1), torch.zeros(5, dtype=torch.double))
    torch.testing.assert_close(v.std(1), torch.ones(5, dtype=torch.double))
    expected = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(standardize(w, eps=0.5).flatten(1), expected)


def test_needs_spread_says_what_to_do():
    needs_spread("irnet", torch.zeros(3, 2))
    with pytest.raises(ConfigError, match=r"shape \(3, 1, 1, 1\)\. Keep the layer float"):
        needs_spread("irnet", torch.zeros(3, 1, 1, 1))


def test_base_method_is_plain_sign():
    weight, z = torch.randn(6, 4), torch.tensor([-2.0, -1.0, 0.5, 1.0, 1.5])
    base = Method(LINEAR, weight)
    assert base.prepare_input(z) is z
    assert torch.equal(base.binarize(z), functional.sign(z))
    assert base.surrogate_is_zero(z).tolist() == [True, False, False, False, True]
    assert torch.equal(base.binarize_weight(weight), functional.sign(weight))
    assert base.output_scale() is None and base.extra_loss(torch.ones(2, 2)) is None
    assert base.scale_output(z, z) is z
    assert base.on_epoch(1, 2) is None and base.on_step(nn.Parameter(weight)) is None
    values, scale = base.packed_weight(weight)
    assert torch.equal(values, functional.sign(weight)) and scale.eq(1).all()


def test_float_checkpoint_keeps_the_fresh_method_state():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2))
    model = nn.Sequential(BinaryConv2d(3, 4, 3, method="recu"), BinaryLinear(4, 2, method="irnet"))
    alpha = model[0].method.alpha.detach().clone()
    assert not any(model.load_state_dict(plain.state_dict(), strict=True))
    assert torch.equal(model[0].weight, plain[0].weight)
    assert torch.equal(model[0].method.alpha, alpha)


def test_binary_checkpoint_restores_the_method_state():
    layers = [BinaryLinear(4, 2, method="recu") for _ in range(2)]
    layers[0].method.on_epoch(3, 10)
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(layers[1].method.alpha, layers[0].method.alpha)
    assert torch.equal(layers[1].method.tau, layers[0].method.tau)


def test_binary_checkpoint_with_a_missing_piece_is_refused():
    layer = BinaryLinear(4, 2, method="recu")
    state = layer.state_dict()
    del state["method.alpha"]
    with pytest.raises(RuntimeError, match=r"method\.alpha"):
        layer.load_state_dict(state)


def test_checkpoint_of_another_method_is_refused():
    state = BinaryLinear(4, 2, method="irnet").state_dict()
    with pytest.raises(RuntimeError, match=r"method\.(alpha|k)"):
        BinaryLinear(4, 2, method="recu").load_state_dict(state)


def test_binary_checkpoint_in_a_stateless_method_is_refused():
    state = BinaryLinear(4, 2, method="recu").state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*method\.alpha"):
        BinaryLinear(4, 2, method="bnn").load_state_dict(state)
