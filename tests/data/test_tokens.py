"""Tokenised once, kept beside the file, renewed when anything changes."""

import json
import os

import numpy as np
import pytest
import torch

from surge.data import EpochPlan
from surge.data.glue import find_file, get_task
from surge.data.textset import TextLoader, TextSet
from surge.data.tokens import CACHE, Tokenizer, load_glue
from surge.errors import ConfigError
from tests.berts import save_tiny, write_task

LENGTH = 24


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def root(tmp_path):
    return write_task(tmp_path, "mrpc")


def load(root, bert, length=LENGTH, task="mrpc", part="dev"):
    return load_glue(root, get_task(task), part, Tokenizer(bert), length)


def stores(root):
    return sorted(root.glob(f"glue/*/{CACHE}/*"))


def test_tokens_are_those_of_the_tokenizer(root, bert):
    found = load(root, bert)
    assert found.tokens.shape == (16, 3, LENGTH) and found.classes == ("0", "1")
    words, kinds, mask = found.tokens[1]
    used = int(mask.sum())
    tokenizer = Tokenizer(bert)._tokenizer
    text = tokenizer.convert_ids_to_tokens(words[:used].tolist())
    assert text[0] == "[CLS]" and text.count("[SEP]") == 2 and text[1:3] == ["he", "said"]
    second = text.index("[SEP]") + 1
    assert kinds[:used].tolist() == [0] * second + [1] * (used - second)
    assert words[used:].eq(0).all() and mask[used:].eq(0).all()
    assert found.labels.tolist() == [0, 1] * 8


def test_second_load_reads_the_store(root, bert, monkeypatch):
    first = load(root, bert)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("tokenised again"))
    second = load(root, bert)
    assert torch.equal(first.tokens, second.tokens) and torch.equal(first.labels, second.labels)
    assert first.truncated == second.truncated
    assert len(stores(root)) == 1


def test_store_belongs_to_file_tokenizer_and_length(root, bert, tmp_path):
    load(root, bert)
    load(root, bert, length=LENGTH + 1)
    path = find_file(root, get_task("mrpc"), "dev")
    path.write_text(path.read_text().replace("good", "bad"))
    load(root, bert)
    other = save_tiny(tmp_path / "other")
    words = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(words.replace('"lowercase": true', '"lowercase": false'))
    load(root, other)
    assert len(stores(root)) == 4


def test_damaged_store_is_replaced(root, bert):
    first = load(root, bert)
    (store,) = stores(root)
    store.write_bytes(store.read_bytes()[:50])
    assert torch.equal(load(root, bert).tokens, first.tokens)
    assert len(store.read_bytes()) > 50


def test_store_that_cannot_be_written_is_left_out(root, bert):
    path = find_file(root, get_task("mrpc"), "dev").parent / CACHE
    path.write_text("a file where the folder should be")
    assert len(load(root, bert)) == 16


def test_no_partial_file_is_left_when_the_disk_is_full(root, bert, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert len(load(root, bert)) == 16
    assert stores(root) == []


def test_long_texts_are_cut_and_counted(root, bert):
    found = load(root, bert, length=8)
    assert found.truncated == 16
    assert found.tokens[:, 2].sum(1).eq(8).all()
    assert load(root, bert, length=64).truncated == 0


def test_scores_are_real_numbers(tmp_path, bert):
    found = load(write_task(tmp_path, "stsb"), bert, task="stsb")
    assert found.labels.dtype == torch.float32 and found.classes == ()
    assert found.labels[:2].tolist() == [0.5, 4.5]


def test_tokenizer_of_another_model_is_refused(tmp_path):
    folder = save_tiny(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    with pytest.raises(ConfigError, match="knows 9.* words, its model has embeddings for 20"):
        Tokenizer(folder)


def test_length_beyond_the_positions_is_refused(root, bert):
    with pytest.raises(ConfigError, match="takes 3 to 128 tokens"):
        load(root, bert, length=129)


SETTINGS = {"model_type": "bert", "vocab_size": 5, "max_position_embeddings": 8}


@pytest.mark.parametrize(
    "prepare, words",
    [
        (lambda f: None, "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text('{"model_type": "mpnet"}'), 'type "mpnet"'),
        (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
        (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "no vocab_size"),
        (lambda f: (f / "config.json").write_text(json.dumps(SETTINGS)), "no tokenizer"),
    ],
)
def test_folders_that_are_no_bert_are_refused(tmp_path, prepare, words):
    prepare(tmp_path)
    with pytest.raises(ConfigError, match=words):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{\n", "[]", '{"version": "1.0"}'])
def test_damaged_tokenizer_is_refused(tmp_path, content):
    folder = save_tiny(tmp_path / "bert")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match="holds no readable tokenizer"):
        Tokenizer(folder)


def test_loader_gives_the_planned_sentences(root, bert):
    found = load(root, bert)
    loader = TextLoader(found, batch_size=4, seed=3, shuffle=True)
    plan = loader.plan(2)
    tokens, labels = loader.fetch(plan.part(4, 8))
    chosen = plan.permutation[4:8]
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, found.tokens[chosen].long())
    assert torch.equal(labels, found.labels[chosen])
    assert isinstance(plan, EpochPlan)


def test_ranks_share_a_batch(root, bert):
    found = load(root, bert)
    whole = TextLoader(found, batch_size=4, shuffle=True)
    parts = [TextLoader(found, batch_size=4, shuffle=True, rank=r, world=2) for r in (0, 1)]
    batches = [next(loader.batches(1))[0] for loader in (whole, *parts)]
    assert torch.equal(batches[0], torch.cat(batches[1:]))


@pytest.mark.parametrize(
    "tokens, labels",
    [
        (torch.zeros(2, 3, 4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3, 4, dtype=torch.int32), torch.zeros(2)),
        (torch.zeros(2, 3, 4, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_impossible_sets_are_refused(tokens, labels):
    with pytest.raises(ConfigError, match="must be"):
        TextSet(tokens, labels, ("a", "b"))


def test_subset_keeps_order():
    tokens = torch.arange(24, dtype=torch.int32).view(2, 3, 4)
    found = TextSet(tokens, torch.tensor([0, 1]), ("a", "b")).subset(torch.tensor([1, 0]))
    assert found.labels.tolist() == [1, 0] and found.length == 4
    assert np.array_equal(found.tokens[0], tokens[1])
