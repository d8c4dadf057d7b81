"""BinaryBERT's stages: half the width, and a split that changes no output."""

import pytest
import torch
from torch import nn

from surge import binarize_, compensate_
from surge.errors import ConfigError
from surge.layers import BinaryEmbedding, BinaryLinear
from surge.layers.elastic import initialize_
from surge.layers.split import SplitLayer
from surge.models.bert_stages import halve_, split_
from tests.berts import tiny_bert, tokens


def ternary(**options):
    model = tiny_bert(**options).double()
    halve_(model)
    binarize_(model, "binarybert", ternary=True)
    initialize_(model, **tokens())
    return model.eval()


def test_half_of_heads_and_features_is_kept():
    whole, half = tiny_bert(num_attention_heads=4), tiny_bert(num_attention_heads=4)
    halve_(half)
    for before, after in zip(whole.bert.encoder.layer, half.bert.encoder.layer, strict=True):
        attention = after.attention.self
        assert attention.num_attention_heads == 2 and attention.query.weight.shape == (8, 16)
        assert after.intermediate.dense.weight.shape == (16, 16)
        assert after.output.dense.weight.shape == (16, 16)
        kept = after.intermediate.dense.bias
        assert torch.isin(kept, before.intermediate.dense.bias).all()
        importance = before.intermediate.dense.weight.norm(dim=1) * before.output.dense.weight.norm(
            dim=0
        )
        chosen = importance.argsort(descending=True)[:16].sort().values
        assert torch.equal(
            after.intermediate.dense.weight, before.intermediate.dense.weight[chosen]
        )
    assert half(**tokens()).logits.shape == (3, 2)


def test_dropped_heads_are_the_unimportant_ones():
    model = tiny_bert(num_attention_heads=4)
    layer = model.bert.encoder.layer[0]
    with torch.no_grad():
        layer.attention.self.value.weight[4:12] *= 100  # heads 1 and 2
    kept = layer.attention.self.query.weight[4:12].clone()
    halve_(model)
    assert torch.equal(layer.attention.self.query.weight, kept)


def test_odd_heads_are_refused():
    with pytest.raises(ConfigError, match="1 heads"):
        halve_(tiny_bert(num_attention_heads=1))


def test_split_changes_no_output():
    model = ternary()
    batch = tokens()
    with torch.no_grad():
        expected = model(**batch).logits
        names = split_(model)
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-9, atol=1e-9)
    assert len(names) == 2 * 6 + 2
    assert isinstance(model.bert.embeddings.word_embeddings, SplitLayer)


def test_halves_are_binary_layers_that_train_and_take_surge():
    model = ternary()
    split_(model)
    parts = model.bert.encoder.layer[0].output.dense
    assert type(parts.first) is type(parts.second) is BinaryLinear
    assert parts.first.method.bits == (1, 1) and not parts.first.method.ternary
    assert not torch.equal(parts.first.weight, parts.second.weight)
    assert type(model.bert.embeddings.word_embeddings.first) is BinaryEmbedding
    compensation = compensate_(model, example_input=tokens())
    assert len(compensation.paths) == 2 * (2 * 6 + 1)
    model.train()
    model(**tokens(), labels=torch.tensor([0, 1, 0])).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_biases_are_halved_and_levels_copied():
    model = ternary()
    before = model.bert.pooler.dense
    bias, level = before.bias.clone(), before.method.level.level.clone()
    split_(model)
    for half in (model.bert.pooler.dense.first, model.bert.pooler.dense.second):
        torch.testing.assert_close(half.bias, bias / 2)
        assert half.method.level.level == level and half.method.level.initialized


def test_split_needs_ternary_layers():
    with pytest.raises(ConfigError, match="no ternary layer"):
        split_(nn.Linear(2, 2))
