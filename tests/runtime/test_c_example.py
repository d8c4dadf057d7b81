"""The same file, run by a C program; and on ARM, in an emulator."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

from surge.export import pack
from surge.models import build_model
from tests.export.packing import settle
from tests.nets import binarized
from tests.runtime.building import ARM, RUNTIME, build
from tests.runtime.seeds import write_seeds

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "digits.surge"
    torch.manual_seed(0)
    x = torch.randn(4, 1, 8, 8)
    model = settle(binarized(build_model("cnn_digits", width=20), "reactnet"), x)
    facts = {"mean": [0.5], "std": [0.5], "maximum": 16}
    pack(model, x, path, classes=NAMES, preprocessing=facts)
    return path


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def numbers(done):
    assert done.returncode == 0, done.stderr
    return np.array([np.float32(line) for line in done.stdout.split()], dtype=np.float32)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    values = np.random.default_rng(1).standard_normal((1, 1, 8, 8)).astype(np.float32)
    path = tmp_path_factory.mktemp("raw") / "x.f32"
    values.tofile(path)
    return path, values


def test_c_program_gives_the_same_numbers(engine, classify, file, raw):
    path, values = raw
    assert np.array_equal(
        numbers(run(classify, file, "--raw", path)), engine.load(file).run(values)[0]
    )


def test_c_program_names_the_class_of_an_image(engine, classify, file, tmp_path):
    pixels = np.random.default_rng(2).integers(0, 17, (8, 8), dtype=np.uint8)
    (tmp_path / "x.pgm").write_bytes(b"P5 8 8 16\n" + pixels.tobytes())
    done = run(classify, file, tmp_path / "x.pgm")
    model = engine.load(file)
    best = model.run(model.preprocess(pixels[None, :, :, None]))[0].argsort()[::-1]
    assert [line.split()[0] for line in done.stdout.splitlines()] == [NAMES[i] for i in best[:3]]


def test_c_program_reports_mistakes(classify, file, tmp_path):
    (tmp_path / "bad.surge").write_bytes(file.read_bytes()[:-1])
    for words in ((), (tmp_path / "bad.surge", "--raw", file), (file, tmp_path / "no.pgm")):
        done = run(classify, *words)
        assert done.returncode == 2 and done.stderr.startswith("error: ")


@pytest.fixture(scope="module")
def on_arm():
    """Return a function that runs a file in an emulator of ARM, with the kernels of a tier."""
    missing = [tool for tool in ARM if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: ARM cannot be emulated")
    toolchain = RUNTIME / "cmake" / "aarch64-linux-gnu.cmake"
    program = build("runtime-arm", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}") / "classify"

    def run_file(path, raw, tier):
        words = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
        words += ["-E", f"SURGE_RUNTIME_TIER={tier}", program, path, "--raw", raw]
        return numbers(run(*words))

    return run_file


def test_neon_and_scalar_on_arm_equal_this_machine(engine, on_arm, file, raw):
    path, values = raw
    wanted = engine.load(file, tier="scalar").run(values)[0]
    for tier in ("neon", "scalar"):
        assert np.array_equal(on_arm(file, path, tier), wanted), tier


def test_every_operator_on_arm_equals_this_machine(engine, on_arm, tmp_path):
    for seed in write_seeds(tmp_path):
        model = engine.load(seed, tier="scalar")
        shape = (1, *model.input_shape)
        values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        values.tofile(tmp_path / "x.f32")
        assert np.array_equal(on_arm(seed, tmp_path / "x.f32", "neon"), model.run(values)[0]), seed
