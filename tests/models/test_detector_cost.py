"""What the detector costs: the arithmetic behind the published table, and ours.

On the meta device: shapes are all that counts.
"""

import pytest
import torch

import surge
from surge.models import detector_scope, float_detector, reactnet_detector
from surge.models.detector_parts import CountedDetector

pytestmark = [
    pytest.mark.usefixtures("torchvision"),
    pytest.mark.filterwarnings("ignore::surge.errors.SurgeWarning"),
]

TABLE = ("backbone.body.layer*.conv?", "backbone.fpn.outputs.*", "rpn.head.conv")
"""What the table's OPs column counts as binary: no lateral and no linear layer."""


def counted(detector, height=600, width=1000):
    example = torch.zeros(1, 3, height, width, device="meta")
    return surge.summary(CountedDetector(detector.to("meta")), example)


@pytest.fixture
def plain():
    return float_detector(20)


def test_float_detector_costs_what_the_table_says(plain):
    cost = counted(plain)
    parts = {}
    for row in cost.rows:
        key = next((k for k in ("downsample", "laterals", "outputs") if k in row.name), row.name)
        parts[key] = parts.get(key, 0) + row.macs
    blocks = sum(m for name, m in parts.items() if name.startswith("backbone.body.layer"))
    assert parts["backbone.body.conv1"] == 64 * 3 * 49 * 300 * 500
    assert blocks == pytest.approx(20.33e9, rel=1e-3)
    assert parts["downsample"] == pytest.approx(0.235e9, rel=1e-3)
    assert parts["laterals"] == pytest.approx(1.16e9, rel=0.005)
    assert parts["outputs"] == pytest.approx(29.42e9, rel=1e-3)
    assert parts["rpn.head.conv"] == pytest.approx(29.51e9, rel=1e-3)
    shared = 1000 * (256 * 49 * 1024 + 1024 * 1024)
    assert parts["roi_heads.box_head.fc6"] + parts["roi_heads.box_head.fc7"] == shared
    assert cost.macs == pytest.approx(96.26e9, rel=1e-4)
    assert cost.macs == pytest.approx(96.40e9, rel=2e-3)  # printed
    assert cost.parameters == 28_380_856
    assert cost.float_bytes == pytest.approx(112.88e6, rel=6e-3)  # printed


def test_binary_row_of_the_table_keeps_laterals_and_linear_layers_real(plain):
    surge.binarize_(plain, "bnn", only=TABLE)
    cost = counted(plain)
    assert cost.bops == pytest.approx(79.26e9, rel=1e-4)
    assert cost.ops == pytest.approx(96.26e9 - 79.26e9 + 79.26e9 / 64, rel=1e-3)
    assert cost.ops == pytest.approx(18.49e9, rel=0.015)  # printed
    # Printed are 16.61 MB, which the linear layers alone exceed: they are 13.9 M real numbers.
    assert cost.bytes == pytest.approx(59.5e6, rel=0.01)


def test_four_bit_row_of_the_table_counts_a_product_as_an_eighth(plain):
    surge.binarize_(plain, "dorefa", only=TABLE, weight_bits=4, input_bits=4)
    cost = counted(plain)
    inner, real = cost.bops / 16, cost.ops - cost.bops / 64
    assert real + inner / 8 == pytest.approx(27.15e9, rel=0.01)  # printed
    assert cost.ops == pytest.approx(36.8e9, rel=0.001)  # by bits: 4 * 4 / 64


@pytest.mark.parametrize(("linear", "ops", "megabytes"), [(False, 17.25, 58.9), (True, 3.57, 5.14)])
def test_our_student_with_linear_layers_real_and_binary(linear, ops, megabytes):
    detector = reactnet_detector(20, binary_linear=linear)
    surge.binarize_(detector, "reactnet", only=detector_scope("whole", binary_linear=linear))
    cost = counted(detector, 608, 992)
    assert cost.ops / 1e9 == pytest.approx(ops, rel=2e-3)
    assert cost.bytes / 1e6 == pytest.approx(megabytes, rel=2e-3)
    assert counted(reactnet_detector(20), 608, 992).macs == pytest.approx(105.57e9, rel=1e-3)
