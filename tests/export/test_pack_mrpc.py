"""A binary BERT on real sentences: MRPC's dev set, in the engine and in torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import surge
from surge.data.glue import get_task
from surge.data.tokens import Tokenizer, load_glue
from surge.export import pack
from surge.layers.elastic import initialize_
from surge.models.bert import load_bert
from surge.summary import summary

LENGTH = 128
NEAR = 1e-4
"""Logits that differ by less differ by rounding; more is a sign that fell the other way."""


def trained(folder, train, *, steps, method="bit"):
    """Return a pretrained BERT, binarised, its levels set, after a few steps on MRPC."""
    torch.manual_seed(0)
    model = load_bert(folder, 2)
    surge.binarize_(model.classifier, method)
    initialize_(model, train.tokens[:8].long())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    model.train()
    for step in range(steps):
        chosen = slice(4 * step, 4 * step + 4)
        loss = F.cross_entropy(model(train.tokens[chosen].long()), train.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def mrpc(glue_dir):
    folder = glue_dir / "bert-minilm-l6"
    task, tokenizer = get_task("mrpc"), Tokenizer(folder)
    parts = (load_glue(glue_dir, task, part, tokenizer, LENGTH) for part in ("train", "dev"))
    return folder, *parts


def compare(engine, model, x, path):
    """Return logits of torch and of the engine."""
    packed = pack(model, x[:1], path)
    assert packed.tensor_bytes == summary(model, x[:1]).bytes
    with torch.no_grad():
        wanted = torch.cat([model(part) for part in x.split(16)]).numpy()
    return wanted, engine.load(path).run(x.numpy())


def test_packed_bert_agrees_on_pairs_of_sentences(engine, tmp_path, mrpc):
    folder, train, dev = mrpc
    model = trained(folder, train, steps=2)
    wanted, actual = compare(engine, model, dev.tokens[:32].long(), tmp_path / "m.surge")
    near = np.abs(actual - wanted).max(axis=1) < NEAR
    assert near.mean() >= 0.9
    assert np.array_equal(actual.argmax(1)[near], wanted.argmax(1)[near])
    fast, exact = (
        engine.load(tmp_path / "m.surge"),
        engine.load(tmp_path / "m.surge", tier="scalar"),
    )
    some = dev.tokens[:2].numpy()
    assert fast.run(some).tobytes() == exact.run(some).tobytes()


@pytest.mark.slow
def test_packed_bert_agrees_on_all_pairs_of_sentences(engine, tmp_path, mrpc):
    folder, train, dev = mrpc
    model = trained(folder, train, steps=60)
    wanted, actual = compare(engine, model, dev.tokens.long(), tmp_path / "m.surge")
    labels = dev.labels.numpy()
    assert len(labels) == 408
    same = actual.argmax(1) == wanted.argmax(1)
    right = [(logits.argmax(1) == labels).mean() * 100 for logits in (wanted, actual)]
    near = np.abs(actual - wanted).max(axis=1) < NEAR
    print(f"same {same.mean():.4f}, near {near.mean():.4f}, accuracy {right[0]:.2f} {right[1]:.2f}")
    assert same.mean() >= 0.999 and abs(right[0] - right[1]) <= 0.05
    assert near.mean() >= 0.95
