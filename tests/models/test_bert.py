"""The BERT of the training loop equals transformers' own forward."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertModel

from surge import binarize_
from surge.errors import CheckpointMismatchError, ConfigError
from surge.layers.elastic import initialize_
from surge.models.bert import BertClassifier, Observed, load_bert, load_weights
from tests.berts import save_tiny, tiny_bert, tokens
from tests.nets import assert_same_tensors


def stacked(batch):
    kinds = torch.zeros_like(batch["input_ids"])
    kinds[:, 6:] = 1
    return torch.stack([batch["input_ids"], kinds, batch["attention_mask"]], dim=1)


@pytest.mark.parametrize("method", [None, "bit", "bibert", "binarybert"])
def test_logits_and_hidden_states_are_those_of_transformers(method):
    model = tiny_bert().eval()
    rows = stacked(tokens())
    if method is not None:
        binarize_(model, method)
    wrapped = BertClassifier(model).eval()
    initialize_(wrapped, rows)
    with torch.no_grad():
        seen = wrapped(rows, detailed=True)
        stock = model(
            input_ids=rows[:, 0],
            token_type_ids=rows[:, 1],
            attention_mask=rows[:, 2],
            output_hidden_states=True,
        )
        assert torch.equal(wrapped(rows), seen.logits)
    torch.testing.assert_close(seen.logits, stock.logits, rtol=1e-5, atol=1e-6)
    assert len(seen.hidden) == len(stock.hidden_states) == 3
    for ours, theirs in zip(seen.hidden, stock.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_projections_are_real_valued():
    model = BertClassifier(tiny_bert()).eval()
    binarize_(model.classifier, "bit")
    rows = stacked(tokens())
    seen = model(rows, detailed=True)
    assert isinstance(seen, Observed) and len(seen.projections) == 2
    query, key, value = seen.projections[0]
    assert query.shape == key.shape == value.shape == (3, 2, 12, 8)
    layer = model.classifier.bert.encoder.layer[0].attention.self
    torch.testing.assert_close(query, layer.heads(layer.query(seen.hidden[0])))
    assert seen.mask[0, 0, 0].tolist() == [0.0] * 8 + [-10000.0] * 4


def test_forward_compiles_in_one_graph():
    model = BertClassifier(tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    binarize_(model.classifier, "bit")
    rows = stacked(tokens())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows), model(rows))


def test_pretrained_folder_is_loaded_with_a_fresh_head(tmp_path):
    folder = save_tiny(tmp_path / "bert", seed=4)
    models = []
    for _ in range(2):
        torch.manual_seed(7)
        models.append(load_bert(folder, 3))
    assert models[0].classifier.classifier.out_features == 3
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    stored = BertModel.from_pretrained(folder).state_dict()
    loaded = models[0].classifier.bert.state_dict()
    assert "pooler.dense.weight" in stored and set(stored) == set(loaded)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())
    again = load_bert(save_tiny(tmp_path / "other", seed=5), 3)
    name = "classifier.bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(models[0].state_dict()[name], again.state_dict()[name])


def test_folder_without_weights_is_refused(tmp_path):
    folder = save_tiny(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no readable BERT weights"):
        load_bert(folder, 2)


def test_damaged_weights_are_refused(tmp_path):
    folder = save_tiny(tmp_path / "bert")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="no readable BERT weights"):
        load_bert(folder, 2)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 32}, r"LayerNorm.bias\" is \(16,\), not \(32,\); \d+ tensors"),
        ({"num_hidden_layers": 3}, r"layer.2.attention.* is absent; 16 tensors"),
        ({"max_position_embeddings": 64}, r"\(128, 16\), not \(64, 16\); 1 tensors"),
    ],
)
def test_weights_that_do_not_fit_their_settings_are_refused(tmp_path, changes, words):
    folder = save_tiny(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ConfigError, match=words):
        load_bert(folder, 2)


def test_weights_under_foreign_names_are_refused(tmp_path):
    folder = save_tiny(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    save_file({f"student.{n}": t for n, t in weights.items()}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="do not fit its config.json"):
        load_bert(folder, 2)


def test_head_of_another_task_is_drawn_anew(tmp_path):
    model = tiny_bert(num_labels=5)
    model.save_pretrained(tmp_path)
    loaded = load_bert(tmp_path, 3).classifier
    assert loaded.classifier.out_features == 3
    assert_same_tensors(loaded.bert.state_dict(), model.bert.state_dict())


def test_weights_of_a_teacher_are_taken_over():
    teacher, student = BertClassifier(tiny_bert(seed=1)), BertClassifier(tiny_bert(seed=2))
    binarize_(student.classifier, "bit")
    load_weights(student, teacher.state_dict(), "teacher")
    own = student.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in teacher.state_dict().items())


def test_weights_of_another_model_are_refused():
    other = BertClassifier(tiny_bert(num_labels=3))
    with pytest.raises(CheckpointMismatchError, match='"classifier.classifier.weight" .2 tensors'):
        load_weights(BertClassifier(tiny_bert()), other.state_dict(), "the run")
    with pytest.raises(CheckpointMismatchError, match="another --model"):
        load_weights(nn.Linear(2, 2), other.state_dict(), "the run")
