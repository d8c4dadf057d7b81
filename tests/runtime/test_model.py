"""The Python face of the engine."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from surge.export import pack
from surge.models import build_model
from tests.export.packing import settle
from tests.nets import binarized


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "resnet20.surge"
    model = binarized(build_model("resnet20"), "recu")
    pack(settle(model, torch.randn(4, 3, 32, 32)), torch.zeros(1, 3, 32, 32), path)
    return path


@pytest.fixture(scope="module")
def batch():
    return np.random.default_rng(0).standard_normal((5, 3, 32, 32)).astype(np.float32)


def test_model_describes_itself(engine, file):
    model = engine.load(file)
    assert model.input_shape == (3, 32, 32) and model.output_shape == (10,)
    assert model.metadata("method") == "recu" and model.metadata("nothing") is None
    assert model.classes is None and model.preprocessing is None
    assert "recu" in repr(model) and model.workspace_bytes > 0


def test_content_loads_as_the_file_does(engine, file, batch):
    wanted = engine.load(file).run(batch)
    assert np.array_equal(engine.load(file.read_bytes()).run(batch), wanted)


def test_batch_gives_what_single_samples_give(engine, file, batch):
    model = engine.load(file)
    singles = np.concatenate([model.run(batch[i : i + 1]) for i in range(len(batch))])
    assert np.array_equal(model.run(batch), singles)
    assert model.run(batch[:0]).shape == (0, 10)


def test_any_layout_and_type_of_numbers_is_taken(engine, file, batch):
    model = engine.load(file)
    wide = np.asfortranarray(batch.astype(np.float64))
    assert np.array_equal(model(wide), model(batch))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing_but_the_time(engine, file, batch, threads):
    alone, together = engine.load(file), engine.load(file, threads=threads)
    assert together.threads == threads
    for count in (1, 5):
        assert np.array_equal(together.run(batch[:count]), alone.run(batch[:count]))
    together.threads = 1
    assert np.array_equal(together.run(batch), alone.run(batch))


def test_many_threads_share_one_handle(engine, file, batch):
    model = engine.load(file, threads=2)
    wanted = model.run(batch)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: model.run(batch), range(24)))
    assert all(np.array_equal(result, wanted) for result in results)


def test_tier_is_forced_by_setting_and_by_environment(engine, file, monkeypatch):
    monkeypatch.setenv("SURGE_RUNTIME_TIER", "scalar")
    assert engine.load(file).tier == "scalar"
    assert engine.load(file, tier="auto").tier == engine.tiers()[0]
    monkeypatch.setenv("SURGE_RUNTIME_TIER", "abacus")
    with pytest.raises(engine.PackedFileError, match='no tier "abacus"; it has .*scalar'):
        engine.load(file)


def test_mistakes_are_answered_by_a_sentence(engine, file, batch, tmp_path):
    model = engine.load(file)
    with pytest.raises(ValueError, match=r"takes \[N, 3, 32, 32\]"):
        model.run(batch[0])
    with pytest.raises(engine.PackedFileError, match="threads must be from 1"):
        model.threads = 0
    with pytest.raises(FileNotFoundError):
        engine.load(tmp_path / "none.surge")
    with pytest.raises(engine.PackedFileError, match="not a packed file"):
        engine.load(b"short")


def test_foreign_safetensors_file_is_named_as_such(engine):
    from safetensors.numpy import save

    with pytest.raises(engine.PackedFileError, match="not one that surge.pack wrote"):
        engine.load(save({"x": np.zeros(3, np.float32)}))
