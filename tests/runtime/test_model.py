"""The Python face of the engine."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from surge.export import pack
from surge.export.container import to_bytes
from surge.models import build_model
from tests.export.packing import settle
from tests.nets import binarized
from tests.runtime.seeds import PIXELS


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


HOSTILE = (
    ["classes", "{"],
    ["classes", "[" * 10_000],
    ["classes", "3"],
    ["classes", '["a"]'],
    ["classes", "[1, 2]"],
    ["preprocessing", "["],
    ["preprocessing", "[1]"],
    ["preprocessing", "{}"],
    ["preprocessing", '{"mean": 0, "std": 1, "maximum": 255}'],
    ["preprocessing", '{"mean": [0, 0], "std": [1, 1], "maximum": 255}'],
    ["preprocessing", '{"mean": ["0"], "std": [1], "maximum": 255}'],
    ["preprocessing", '{"mean": [0], "std": [0], "maximum": 255}'],
    ["preprocessing", '{"mean": [NaN], "std": [1], "maximum": 255}'],
    ["preprocessing", '{"mean": [0], "std": [1], "maximum": 1%s}' % ("0" * 400)],
)


@pytest.mark.parametrize(("key", "text"), HOSTILE)
def test_facts_that_cannot_be_are_an_error_message(engine, key, text):
    flat = {"op": "flatten", "name": "0", "inputs": ["input"], "output": "v0", "channels_first": 1}
    graph = {
        "input": {"value": "input", "shape": [1, 1, 2]},
        "output": {"value": "v0", "shape": [2]},
        "nodes": [flat],
    }
    model = engine.load(to_bytes(graph, {}, {key: text}))
    with pytest.raises(engine.PackedFileError, match=f'damaged header: "{key}" is not'):
        getattr(model, key)


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


def wide_images(method, **options):
    layers = [nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardtanh()]
    layers += [nn.Conv2d(16, 32, 3, groups=2, padding=1), nn.BatchNorm2d(32), nn.PReLU()]
    layers += [nn.Conv2d(32, 32, 3, groups=32, padding=1, bias=False), nn.BatchNorm2d(32)]
    layers += [nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)]
    return settle(binarized(nn.Sequential(*layers), method, **options), torch.randn(4, 2, 3, 400))


@pytest.mark.parametrize(
    ("method", "options"),
    [("bnn", {}), ("reactnet", {}), ("tbn", {}), ("dorefa", {"weight_bits": 2, "input_bits": 2})],
)
def test_parts_of_wide_rows_are_the_whole(engine, tmp_path, method, options):
    torch.manual_seed(0)
    images = torch.rand(2, 2, 3, 400)
    pack(wide_images(method, **options), images[:1], tmp_path / "m.surge", preprocessing=PIXELS)
    batch = (images * 255).round().numpy()
    wanted = engine.load(tmp_path / "m.surge").run(batch)
    for threads in (2, 3, 8):
        found = engine.load(tmp_path / "m.surge", threads=threads).run(batch)
        assert found.tobytes() == wanted.tobytes(), threads


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hammer(engine, file, batch, seconds):
    """Run one handle from six threads; return (wrong answers, runs, growth of memory)."""
    model = engine.load(file, threads=2)
    wanted = {count: model.run(batch[:count]) for count in (1, 3, 5)}

    def work(worker, until):
        wrong = runs = 0
        while time.monotonic() < until:
            count = (1, 3, 5)[(worker + runs) % 3]
            wrong += not np.array_equal(model.run(batch[:count]), wanted[count])
            runs += 1
        return wrong, runs

    with ThreadPoolExecutor(6) as pool:
        # Memory of runs at the same time is kept for later ones: it grows once.
        list(pool.map(lambda worker: work(worker, time.monotonic() + 1), range(6)))
        before, until = resident_bytes(), time.monotonic() + seconds
        counts = list(pool.map(lambda worker: work(worker, until), range(6)))
    wrong, runs = (sum(column) for column in zip(*counts, strict=True))
    return wrong, runs, resident_bytes() - before


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_many_threads_share_one_handle(engine, file, batch, seconds):
    wrong, runs, growth = hammer(engine, file, batch, seconds)
    assert wrong == 0 and runs > 100
    assert growth < 8 * 2**20


def test_profile_names_every_step_and_its_time(engine, file, batch):
    model = engine.load(file)
    steps = model.profile(batch[:2])
    names = [name for name, _, _ in steps]
    kinds = [kind for _, kind, _ in steps]
    assert names[0] == kinds[0] == "input" and "conv1" in names and names[-1] == "fc"
    assert kinds.count("binary_conv2d") == 18 and {"conv2d", "avg_pool"} <= set(kinds)
    assert all(time >= 0 for _, _, time in steps) and sum(time for _, _, time in steps) > 0
    with pytest.raises(ValueError, match=r"takes \[N, 3, 32, 32\]"):
        model.profile(batch[0])


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


def test_a_subsample_that_pads_is_refused(engine):
    node = {"op": "subsample", "name": "s", "inputs": ["i"], "output": "v", "stride": [40, 1]}
    graph = {"input": {"value": "i", "shape": [1, 1, 4]}, "output": {"value": "v"}, "nodes": [node]}
    node["padding"], graph["output"]["shape"] = [20, 0], [1, 2, 4]
    content = to_bytes(graph, {"z": np.zeros(1, np.float32)}, {"method": "float", "rest": "fp32"})
    with pytest.raises(ValueError, match="a subsample has a stride alone"):
        engine.load(content)


def test_a_small_file_does_not_become_gigabytes(engine):
    channels = 1 << 25
    grow = {"op": "pad_channels", "name": "p", "inputs": ["i"], "output": "v0", "before": 0}
    steps = [{**grow, "after": channels - 1}]
    for k in range(4):
        steps.append({"op": "affine", "name": "a", "inputs": [f"v{k}"], "output": f"v{k + 1}"})
    ends = {"input": {"value": "i", "shape": [1]}, "output": {"value": "v4", "shape": [channels]}}
    graph = {**ends, "nodes": steps}
    content = to_bytes(graph, {"z": np.zeros(1, np.float32)}, {"method": "float", "rest": "fp32"})
    with pytest.raises(ValueError, match="too many channels share a single number"):
        engine.load(content)


@pytest.mark.parametrize(
    "program",
    [
        "import threading, time; threading.Thread(target=lambda: [m(x) for _ in iter(int, 1)], "
        "daemon=True).start(); time.sleep(0.3)",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "try: engine.load(path, threads=1024)\n"
        "except ValueError: pass",
    ],
    ids=["a thread at the end", "too many threads"],
)
def test_process_ends_well(engine, file, program):
    start = (
        "import sys, numpy as np, surge_runtime as engine; path = sys.argv[1]; "
        "m = engine.load(path); x = np.zeros((1, 3, 32, 32), np.float32)\n"
    )
    done = subprocess.run([sys.executable, "-c", start + program, str(file)], timeout=60)
    assert done.returncode == 0
