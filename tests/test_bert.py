"""binarize_ on a stock BERT: what becomes binary, what stays, and that nothing else changes."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertLMHeadModel

import surge
from surge import binarize_, compensate_
from surge.errors import ConfigError, SurgeWarning
from surge.layers import BinaryEmbedding, BinaryLinear
from surge.layers.attention import BinaryAttention, additive
from surge.layers.elastic import elastic_parts, initialize_
from tests.berts import tiny_bert, tiny_config, tokens

METHODS = ("bit", "bibert", "binarybert")
each = pytest.mark.parametrize("method", METHODS)


def binary(method="bit", **options):
    model = tiny_bert()
    binarize_(model, method, **options)
    return model


@each
def test_the_layers_of_the_papers_become_binary(method):
    model = tiny_bert()
    report = binarize_(model, method)
    verdicts = {row.name: row.verdict for row in report.rows}
    floats = [name for name, verdict in verdicts.items() if verdict != "binary"]
    assert floats == [
        "bert.embeddings.position_embeddings",
        "bert.embeddings.token_type_embeddings",
        "classifier",
    ]
    assert len(report.warnings) == (1 if method == "bibert" else 0)  # it keeps its GELU
    assert type(model.bert.embeddings.word_embeddings) is BinaryEmbedding
    for layer in model.bert.encoder.layer:
        assert isinstance(layer.attention.self, BinaryAttention)
        for part in ("query", "key", "value"):
            assert type(getattr(layer.attention.self, part)) is BinaryLinear
        for dense in (layer.attention.output.dense, layer.intermediate.dense, layer.output.dense):
            assert type(dense) is BinaryLinear
        assert type(layer.output.LayerNorm) is nn.LayerNorm
    assert type(model.bert.pooler.dense) is BinaryLinear
    assert type(model.classifier) is nn.Linear


def test_bit_has_relu_and_two_valued_inputs_behind_it():
    layer = binary().bert.encoder.layer[0]
    assert type(layer.intermediate.intermediate_act_fn) is nn.ReLU
    assert layer.output.dense.method.level.unsigned
    assert not layer.attention.output.dense.method.level.unsigned
    assert not layer.intermediate.dense.method.level.unsigned


def test_bibert_keeps_gelu():
    plain = tiny_bert().bert.encoder.layer[0].intermediate.intermediate_act_fn
    kept = binary("bibert").bert.encoder.layer[0].intermediate.intermediate_act_fn
    assert type(kept) is type(plain)


@each
def test_every_parameter_gets_a_finite_gradient(method):
    model = binary(method)
    initialize_(model, **tokens())
    model(**tokens(), labels=torch.tensor([0, 1, 0])).loss.backward()
    bad = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert bad == []


def attention_by_hand(x, attention, mask):
    """Return the context of BiT's attention in NumPy, from real-valued projections."""
    rule = attention.rule

    def heads(part):
        with torch.no_grad():
            y = part(x).double().numpy()
        return y.reshape(*y.shape[:2], 2, 8).transpose(0, 2, 1, 3)

    def level(name):
        return getattr(rule, f"{name}_level").level.item()

    def signed(part, name):
        return level(name) * np.where(heads(part) >= 0, 1.0, -1.0)

    q, k, v = (signed(getattr(attention, n), n) for n in ("query", "key", "value"))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8)
    scores = np.where(mask[:, None, None, :] == 0, -np.inf, scores)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    a = level("probability")
    factors = a * np.clip(np.rint(p / a), 0, 1)
    return (factors @ v).transpose(0, 2, 1, 3).reshape(*x.shape)


def test_bit_attention_equals_numpy():
    model = binary().eval()
    batch = tokens()
    initialize_(model, **batch)
    attention = model.bert.encoder.layer[0].attention.self
    seen = {}
    attention.register_forward_hook(
        lambda _m, args, kwargs, out: seen.update(x=args[0], y=out[0]), with_kwargs=True
    )
    with torch.no_grad():
        model(**batch)
    expected = attention_by_hand(seen["x"], attention, batch["attention_mask"].numpy())
    torch.testing.assert_close(seen["y"].double(), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_hidden_tokens_have_no_influence():
    model = binary("bibert").eval()
    batch = tokens()
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, -4:] = 7
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, model(**other).logits)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_masks_of_every_implementation_are_understood(implementation):
    model = binary().eval()
    initialize_(model, **tokens())
    with torch.no_grad():
        expected = model(**tokens()).logits
        model.config._attn_implementation = implementation
        assert torch.equal(model(**tokens()).logits, expected)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_later_words_have_no_influence_in_a_decoder(implementation, masked):
    config = tiny_config(is_decoder=True, use_cache=False, attn_implementation=implementation)
    torch.manual_seed(0)
    model = BertLMHeadModel(config)
    surge.binarize_(model, "bibert")
    words = tokens()["input_ids"]
    mask = {"attention_mask": torch.ones_like(words)} if masked else {}
    other = words.clone()
    other[:, -1] = (other[:, -1] + 1) % 10
    with torch.no_grad():
        first, second = (model.eval()(w, **mask).logits for w in (words, other))
    assert torch.equal(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])


def test_additive_mask_from_every_form():
    like = torch.zeros(1)
    kept = torch.tensor([[1, 1, 0]])
    expected = torch.tensor([0.0, 0.0, -10000.0]).view(1, 1, 1, 3)
    lowest = torch.where(kept == 1, 0.0, torch.finfo(torch.float32).min)[:, None, None]
    for mask in (kept, kept.bool()[:, None, None], lowest):
        assert torch.equal(additive(mask, like), expected)
    assert additive(None, like) is None


@each
def test_float_state_loads_and_levels_are_state(method):
    plain, model = tiny_bert(seed=5), binary(method)
    model.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(model.classifier.weight, plain.classifier.weight)
    initialize_(model, **tokens())
    fresh = binary(method)
    fresh.load_state_dict(model.state_dict(), strict=True)
    model.eval(), fresh.eval()
    with torch.no_grad():
        assert torch.equal(fresh(**tokens()).logits, model(**tokens()).logits)


@each
def test_copies_and_pickles_work(method):
    model = binary(method).eval()
    initialize_(model, **tokens())
    with torch.no_grad():
        expected = model(**tokens()).logits
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(**tokens()).logits, expected)


def test_pickle_opens_in_a_fresh_process(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(binary()))
    code = f"import pickle; m = pickle.load(open({str(path)!r}, 'rb')); print(type(m).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "BertForSequenceClassification"


def test_levels_are_set_once_for_every_quantiser():
    model = binary()
    names = initialize_(model, **tokens())
    assert len(names) == 2 * (6 + 4) + 1
    assert names == [name for name, _ in elastic_parts(model)]
    assert initialize_(model, **tokens(seed=9)) == []


@each
def test_surge_reaches_every_linear_layer_and_changes_no_output(method):
    model = binary(method)
    initialize_(model, **tokens())
    with torch.no_grad():
        expected = model.eval()(**tokens()).logits
    compensation = compensate_(model, auxiliary="copied", example_input=tokens())
    assert len(compensation.paths) == 2 * 6 + 1 and compensation.skipped == {}
    assert torch.equal(model(**tokens()).logits, expected)
    model.train()
    model(**tokens(), labels=torch.tensor([0, 1, 0])).loss.backward()
    compensation.step()
    assert all(0 < scale < 1e4 for scale in compensation.scales().values())
    surge.strip_(model)
    with torch.no_grad():
        assert torch.equal(model.eval()(**tokens()).logits, expected)


def test_alignment_weight_scales_its_loss():
    losses = []
    for weight in (1.0, 0.25):
        model = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        binarize_(model, "bit")
        compensate_(model, align=weight, example_input=tokens())
        model(**tokens())
        losses.append(surge.extra_loss(model).item())
    assert losses[1] > 0
    assert losses[1] == pytest.approx(losses[0] / 4)


def test_compiled_equals_eager():
    model = binary().eval()
    initialize_(model, **tokens())
    torch._dynamo.reset()
    compiled = torch.compile(model.bert.encoder.layer[0], backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 5, 16, requires_grad=True)
    grads = []
    for call in (model.bert.encoder.layer[0], compiled):
        x.grad = None
        call(x).square().sum().backward()
        grads.append(x.grad.clone())
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_plain_methods_leave_attention_real_unless_told():
    model = tiny_bert()
    binarize_(model, "bnn")
    assert not any(isinstance(m, BinaryAttention) for m in model.modules())
    assert type(model.bert.embeddings.word_embeddings) is nn.Embedding
    model = binary("bnn", transformer=True)
    assert isinstance(model.bert.encoder.layer[1].attention.self, BinaryAttention)
    assert type(model.bert.embeddings.word_embeddings) is BinaryEmbedding


def test_transformer_can_be_turned_off():
    model = binary("bit", transformer=False)
    assert not any(isinstance(m, BinaryAttention) for m in model.modules())


def test_patterns_reach_the_attention_products():
    model = binary(skip="*layer.0.attention.self")
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    assert not isinstance(first, BinaryAttention) and isinstance(second, BinaryAttention)
    assert type(first.query) is BinaryLinear


def test_transformer_needs_a_bert():
    with pytest.raises(ConfigError, match="no BERT encoder"):
        binarize_(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "bnn", transformer=True)


def test_key_cache_is_refused():
    attention = binary().bert.encoder.layer[0].attention.self
    with pytest.raises(ConfigError, match="no cache"):
        attention(torch.zeros(1, 2, 16), past_key_values=object())


def test_failed_conversion_leaves_the_model_as_it_was(monkeypatch):
    model = tiny_bert()
    before = {name: type(module) for name, module in model.named_modules()}
    monkeypatch.setattr(surge.pitfalls.Risks, "sentences", lambda *_: ["a pitfall"])
    with warnings.catch_warnings(), pytest.raises(SurgeWarning):
        warnings.simplefilter("error", SurgeWarning)
        binarize_(model, "bit")
    assert {name: type(module) for name, module in model.named_modules()} == before
