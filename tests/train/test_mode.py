"""Which path the steps take, and the reason that is given."""

import pytest
import torch

from surge.errors import ConfigError
from surge.train.distributed import World
from surge.train.mode import choose_mode
from surge.train.parts import set_arithmetic

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")


@pytest.mark.parametrize(
    "device, size, options, name, reason",
    [
        (CPU, 1, (None, None), "eager", "no GPU is used"),
        (CPU, 2, (None, None), "eager", "no GPU is used"),
        (CPU, 1, (True, None), "compiled", "--compiled True, no GPU is used"),
        (GPU, 1, (None, None), "compiled and captured", "one process with a GPU"),
        (GPU, 1, (False, None), "captured", "--compiled False, one process with a GPU"),
        (GPU, 1, (None, False), "compiled", "--captured False, one process with a GPU"),
        (GPU, 4, (None, None), "compiled", "a GPU in each of 4 processes"),
    ],
)
def test_mode_says_what_and_why(device, size, options, name, reason):
    mode = choose_mode(device, World(0, size), *options)
    assert str(mode) == name
    assert mode.why.startswith(reason)


def test_capture_without_gpu_is_refused():
    with pytest.raises(ConfigError, match="--captured needs a CUDA GPU"):
        choose_mode(CPU, World(), None, True)


def test_capture_of_several_processes_is_refused():
    with pytest.raises(ConfigError, match="--captured works in one process, not in 2"):
        choose_mode(GPU, World(0, 2), None, True)


@pytest.mark.parametrize("precision, exact", [("fp32", True), ("bf16", True), ("tf32", False)])
def test_convolutions_are_as_exact_as_products(monkeypatch, precision, exact):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", exact)
    products = torch.get_float32_matmul_precision()
    try:
        set_arithmetic(torch.device("cuda"), precision)
        assert torch.backends.cudnn.allow_tf32 is not exact
        assert torch.get_float32_matmul_precision() == ("highest" if exact else "high")
    finally:
        torch.set_float32_matmul_precision(products)
