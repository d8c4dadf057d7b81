"""The table on paper against its own formula, and the page that shows it."""

import json
from pathlib import Path

import pytest
import torch

from surge.compensation import compensate_
from surge.convert import binarize_
from surge.errors import ConfigError
from surge.models import reactnet_resnet18
from surge.recipes import get_recipe
from surge.recipes.variants import options_of
from surge.study.published import scaling

PAGE = Path(__file__).parents[3] / "docs" / "distributed.md"


def store(folder, **changes):
    row = {"network": "reactnet-224", "mode": "compiled", "variant": "plain", "batch": 256}
    row |= {"step_ms": 36.0, "hardware": "GPU X", "torch": "2.13", "commit": None}
    row |= {"images_per_s": 1.0, "peak_bytes": None, "saved_bytes": 0, "flops": 0, "floor_ms": None}
    with (folder / "training.jsonl").open("a") as file:
        file.write(json.dumps({**row, **changes}) + "\n")


def test_exchange_is_that_of_a_ring():
    assert scaling.ring_seconds(1000, 1) == 0
    assert scaling.ring_seconds(3 * 10**11, 8) == pytest.approx(2 * 7 / 8)
    assert scaling.ring_seconds(4 * 10**10, 64) == pytest.approx(2 * 63 / 64)
    with pytest.raises(ConfigError, match="gpus=0"):
        scaling.ring_seconds(1, 0)


def test_prediction_by_hand():
    """626 steps an epoch, 200 epochs."""
    made = scaling.predict(0.036, 256, 11_704_424, 8)
    exchange = 2 * 7 / 8 * 4 * 11_704_424 / 300e9
    assert made.batch == 2048
    assert (made.hidden, made.bare) == pytest.approx((0.036, 0.036 + exchange))
    assert made.hours(made.hidden) == pytest.approx(200 * 626 * 0.036 / 3600)


@pytest.mark.parametrize("variant", ["plain", "surge", "1x1"])
def test_bytes_are_those_of_the_real_network(variant):
    model = reactnet_resnet18()
    binarize_(model, "reactnet", skip=("*downsample*",))
    if variant != "plain":
        options = vars(options_of("" if variant == "surge" else variant))
        compensate_(model, **options, example_input=torch.zeros(2, 3, 64, 64))
    learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert learned == scaling.PARAMETERS[variant]


def test_epochs_are_the_recipes():
    assert get_recipe("imagenet-onestage-reactnet-surge").train.epochs == scaling.EPOCHS


def test_table_is_open_without_measurements_and_filled_with_them(tmp_path):
    empty = scaling.section(tmp_path)
    assert empty.count("open | open") == 9 and "times are open" in empty
    store(tmp_path, step_ms=99.0)
    store(tmp_path)
    store(tmp_path, width=2, step_ms=77.0)
    filled = scaling.section(tmp_path)
    assert filled.count("open | open") == 6
    assert "| ReActNet | 8 | 2,048 | 46.8 | 0.27 | 36.00 to 36.27 | 1.25 to 1.26 |" in filled
    assert "Steps measured on one GPU X, torch 2.13, bf16 (compiled)" in filled


def test_step_of_several_gpus_lies_between_the_captured_and_the_eager_one(tmp_path):
    store(tmp_path, mode="captured", variant="surge", step_ms=20.0)
    alone = scaling.section(tmp_path)
    assert "| SURGE | 1 | 256 | 90.8 | 0.00 | 20.00 |" in alone
    assert "| SURGE | 8 | 2,048 | 90.8 | 0.53 | open | open |" in alone
    store(tmp_path, mode="eager", variant="surge", step_ms=50.0)
    both = scaling.section(tmp_path)
    assert "| SURGE | 1 | 256 | 90.8 | 0.00 | 20.00 |" in both
    assert "| SURGE | 8 | 2,048 | 90.8 | 0.53 | 20.00 to 50.53 |" in both
    store(tmp_path, mode="compiled", variant="surge", step_ms=30.0)
    assert "| SURGE | 8 | 2,048 | 90.8 | 0.53 | 30.00 to 30.53 |" in scaling.section(tmp_path)
