"""The probe on every method, and on a BERT."""

import json

import pytest
import torch
import torch.nn.functional as F

import surge
from surge.errors import SurgeError
from surge.method import list_methods
from surge.models import cnn_digits
from surge.train.probe.record import Probe
from tests.berts import tiny_bert, tokens
from tests.nets import assert_same_tensors, no_pitfalls


@pytest.mark.parametrize("method", list_methods())
def test_every_method_can_be_recorded(method):
    torch.manual_seed(0)
    model = cnn_digits(width=8)
    with no_pitfalls():
        surge.binarize_(model, method)
    x, labels = torch.randn(8, 1, 8, 8), torch.arange(8)
    try:
        surge.compensate_(model)
    except SurgeError:  # nothing to repair: the method says so
        compensated = False
    else:
        compensated = True
    probe = Probe(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layers, _ = probe.measure(lambda: F.cross_entropy(model(x), labels))
    assert_same_tensors(before, model.state_dict())
    assert set(layers) == set(probe.layers)
    json.dumps(layers, allow_nan=False)
    for layer in layers.values():
        assert layer["main_norm"] > 0
        assert ("input_cosine" in layer) == compensated


def test_a_bert_can_be_recorded():
    model, batch = tiny_bert(), tokens()
    with no_pitfalls():
        surge.binarize_(model, "bit")
    surge.initialize_(model, **batch)
    surge.compensate_(model, auxiliary="copied")
    layers, mapped = Probe(model).measure(lambda: model(**batch).logits.square().mean())
    assert len(layers) > 6
    # Attention that is all zeros at the start passes nothing to its values.
    assert all(
        (layer["auxiliary_norm"] > 0) == (layer["main_norm"] > 0) for layer in layers.values()
    )
    assert sum(layer["main_norm"] > 0 for layer in layers.values()) > 6
    assert mapped["with"].shape == mapped["clipped"].shape
