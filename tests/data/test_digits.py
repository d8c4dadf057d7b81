import sys

import pytest
import torch

from surge.data import load_digits, normalize
from surge.errors import ConfigError, MissingDependencyError


def test_load_digits_splits_all_images_once():
    train, test = load_digits("train"), load_digits("test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.images.shape[1:] == (1, 8, 8)
    sums = torch.cat([train.images, test.images]).long().sum((1, 2, 3))
    from sklearn.datasets import load_digits as original

    assert sorted(sums.tolist()) == sorted(original().images.sum((1, 2)).astype(int).tolist())


def test_load_digits_holds_out_a_fifth_of_every_digit():
    train, test = load_digits("train"), load_digits("test")
    share = torch.bincount(test.labels) / torch.bincount(torch.cat([train.labels, test.labels]))
    assert (share - 0.2).abs().max() < 0.005


def test_load_digits_is_the_same_every_time():
    torch.manual_seed(5)
    assert torch.equal(load_digits("test").images, load_digits("test").images)


def test_load_digits_normalises_to_minus_one_to_one():
    train = load_digits("train")
    batch = normalize(train.images, *train.normalization.constants())
    assert batch.min() == -1
    assert batch.max() == 1
    assert train.classes == tuple("0123456789")


def test_load_digits_refuses_an_unknown_split():
    with pytest.raises(ConfigError, match="split='dev'"):
        load_digits("dev")


def test_load_digits_without_sklearn_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match="pip install 'surge-bnn"):
        load_digits("train")
