"""torchvision's operators in plain torch, against slow NumPy and against the compiled ones."""

import os
import subprocess
import sys
import types
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest
import torch

from surge.errors import MissingDependencyError
from surge.models import vision_ops
from surge.models.vision_ops import compiled, nms, overlaps, roi_align, vision
from tests.detectors import search_path
from tests.models.boxes_reference import slow_nms, slow_overlap, slow_roi_align

SCALE = 1 / 16


def boxes_of(count, *, side=100.0, least=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corner = side * torch.rand(count, 2, generator=generator)
    extent = least + side / 2 * torch.rand(count, 2, generator=generator)
    return torch.cat([corner, corner + extent], dim=1)


def regions_of(count, *, images=2, seed=0):
    """Boxes on images of 608 x 1008 pixels; some reach far outside."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(images, (count, 1), generator=generator).float()
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([1000.0, 600.0]) - 60
    extent = 600 * torch.rand(count, 2, generator=generator) ** 3
    return torch.cat([which, corner, corner + extent], dim=1)


@pytest.fixture
def features():
    return torch.randn(2, 3, 38, 63)


# --- NMS ---


def test_overlaps_are_those_of_the_definition():
    ours, others = boxes_of(7), boxes_of(5, seed=1)
    expected = [[slow_overlap(a, b) for b in others.tolist()] for a in ours.tolist()]
    assert np.allclose(overlaps(ours, others), expected, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("block", [16, 1024])
def test_nms_keeps_what_the_one_by_one_rule_keeps(threshold, block, monkeypatch):
    monkeypatch.setattr(vision_ops, "BLOCK", block)
    boxes, scores = boxes_of(300), torch.rand(300)
    expected = slow_nms(boxes.tolist(), scores.tolist(), threshold)
    assert nms(boxes, scores, threshold).tolist() == expected


def test_nms_follows_a_long_chain():
    """Each box beats the next: every second one stays, and no shortcut finds that."""
    start = 3.0 * torch.arange(50)
    boxes = torch.stack([start, torch.zeros(50), start + 9, torch.ones(50)], dim=1)
    scores = torch.linspace(1, 0, 50)
    assert nms(boxes, scores, 0.45).tolist() == list(range(0, 50, 2))


def test_nms_of_equal_scores_prefers_the_first():
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(3, 1)
    assert nms(boxes, torch.ones(3), 0.5).tolist() == [0]


def test_nms_keeps_a_box_at_the_threshold_itself():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 20]])
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, 0.5).tolist() == [0, 1]
    assert nms(boxes, scores, 0.49).tolist() == [0]


def test_nms_of_nothing_is_nothing():
    kept = nms(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert kept.shape == (0,) and kept.dtype == torch.int64


# --- RoIAlign ---


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align_is_the_average_of_samples(features, ratio, aligned):
    rois = regions_of(25)
    expected = slow_roi_align(features, rois, SCALE, 7, ratio, aligned)
    ours = roi_align(features, rois, SCALE, 7, 7, ratio, aligned)
    assert np.abs(ours.numpy() - expected).max() < 1e-4


def test_regions_outside_the_image_are_zero(features):
    far = torch.tensor([[0.0, -900, -900, -500, -500], [1, 5000, 100, 6000, 200]])
    assert (roi_align(features, far, SCALE, 7, 7, 0, False) == 0).all()


def test_an_empty_region_is_zero_where_sides_may_shrink(features):
    rois = torch.tensor([[0.0, 80, 80, 80, 200], [1, 80, 80, 200, 200]])
    out = roi_align(features, rois, SCALE, 7, 7, 0, True)
    assert (out[0] == 0).all() and (out[1] != 0).any()
    assert (roi_align(features, rois[:1], SCALE, 7, 7, 0, False) != 0).any()


def test_pieces_give_the_same_as_the_whole(features, monkeypatch):
    rois = regions_of(40)
    whole = roi_align(features, rois, SCALE, 7, 7, 2, False)
    monkeypatch.setattr(vision_ops, "POINTS", 1)
    assert torch.allclose(roi_align(features, rois, SCALE, 7, 7, 2, False), whole, atol=1e-6)


def test_no_regions_give_no_output_and_a_zero_gradient(features):
    features.requires_grad_()
    out = roi_align(features, torch.zeros(0, 5), SCALE, 7, 7, 0, False)
    assert out.shape == (0, 3, 7, 7)


def test_half_precision_keeps_its_type(features):
    rois = regions_of(10)
    half = roi_align(features.bfloat16(), rois.bfloat16(), SCALE, 7, 7, 2, False)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("ratio", [0, 2])
def test_gradient_of_roi_align_is_that_of_differences(ratio):
    features = torch.randn(2, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    rois = regions_of(4).double() * torch.tensor([1, 0.1, 0.1, 0.1, 0.1])

    def pooled(values):
        return roi_align(values, rois, SCALE, 3, 3, ratio, False)

    assert torch.autograd.gradcheck(pooled, (features,))


# --- torchvision itself ---


def test_torchvision_calls_what_we_defined(torchvision, features):
    boxes, scores = boxes_of(50), torch.rand(50)
    assert torch.equal(torchvision.ops.nms(boxes, scores, 0.5), nms(boxes, scores, 0.5))
    rois = regions_of(20)
    ours = roi_align(features, rois, SCALE, 7, 7, 0, False)
    theirs = torchvision.ops.roi_align(features, rois, (7, 7), SCALE, 0)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_gradient_passes_through_torchvisions_pooling(torchvision, features):
    features.requires_grad_()
    pool = torchvision.ops.MultiScaleRoIAlign(["0"], 7, sampling_ratio=0)
    pool(
        {"0": features}, [regions_of(5)[:, 1:].clamp(min=0)] * 2, [(608, 1008)] * 2
    ).sum().backward()
    assert features.grad.abs().sum() > 0


def test_missing_torchvision_is_answered_with_the_command(monkeypatch):
    monkeypatch.setattr(
        sys, "modules", {n: m for n, m in sys.modules.items() if n != "torchvision"}
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'surge-bnn\[vision\]'.* `make setup`"
    ):
        vision()


def test_the_compiled_library_is_preferred_where_it_loads(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    assert not vision_ops._compiled_loads(tmp_path)
    library = tmp_path / f"_C{EXTENSION_SUFFIXES[-1]}"
    library.touch()
    assert vision_ops._compiled_loads(tmp_path) and loaded == [str(library)]
    package = types.ModuleType("torchvision")
    monkeypatch.setattr(vision_ops, "_compiled_loads", lambda _: True)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: spec)
    monkeypatch.setattr("importlib.import_module", lambda _: package)
    assert vision() is package


NEIGHBOURS = """
import sys
import torch

def detection():
    sys.path.insert(0, {apart!r})
    from surge.models.vision_ops import vision
    print(vision().ops.nms(torch.zeros(1, 4), torch.ones(1), 0.5).tolist())
    sys.path.remove({apart!r})

if sys.argv[1] == "first":
    detection()
import lightning.pytorch, torchmetrics.classification
from transformers import AutoModel, BertConfig, BertModel, Trainer
lightning.pytorch.Trainer(logger=False, enable_checkpointing=False, barebones=True)
small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
BertModel(BertConfig(**small))
if sys.argv[1] == "last":
    detection()
"""


@pytest.mark.parametrize("order", ["first", "last"])
def test_lightning_and_transformers_work_before_and_after(torchvision, order):
    code = NEIGHBOURS.format(apart=search_path())
    done = subprocess.run([sys.executable, "-c", code, order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0]"


ALONE = """
import sys
before = list(sys.path)
from surge.models.vision_ops import vision
print(vision().__file__)
from torchvision.models.detection import FasterRCNN
assert sys.path == before
"""


def test_the_folder_of_make_setup_is_found_without_being_named(torchvision):
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip()).parent
    assert found == Path(torchvision.__file__).parent


def test_a_torchvision_that_is_installed_comes_before_the_one_apart(tmp_path):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / f"_C{EXTENSION_SUFFIXES[-1]}").touch()
    code = (
        "import torch; torch.ops.load_library = print; from surge.models.vision_ops import vision"
    )
    code += "; print(vision().__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.split()[-1] == str(package / "__init__.py")


FAILED_BEFORE = """
import sys
sys.path.insert(0, {apart!r})
import torch
try:
    import torchvision
    print("compiled")
except RuntimeError:
    print("failed")
from surge.models.vision_ops import compiled, vision
vision().models.detection.FasterRCNN
print(compiled())
"""


def test_an_import_that_failed_before_does_no_harm(torchvision):
    code = FAILED_BEFORE.format(apart=search_path())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["failed", "False"], ["compiled", "True"])


# --- against the compiled operators, where both exist ---


@pytest.fixture
def own(torchvision):
    if not compiled():
        pytest.skip("torchvision's compiled operators do not load here")
    return torchvision.ops


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
def test_nms_equals_the_compiled_one(own, device, threshold):
    boxes, scores = boxes_of(4000, side=800.0).to(device), torch.rand(4000, device=device)
    assert torch.equal(nms(boxes, scores, threshold), own.nms(boxes, scores, threshold))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align_equals_the_compiled_one(own, device, ratio, aligned):
    features = torch.randn(2, 32, 38, 63, device=device, requires_grad=True)
    rois = regions_of(500).to(device)
    ours = roi_align(features, rois, SCALE, 7, 7, ratio, aligned)
    theirs = own.roi_align(features, rois, (7, 7), SCALE, ratio, aligned)
    assert (ours - theirs).abs().max() < 1e-4
    weight = torch.randn_like(ours) / len(rois) ** 0.5
    (first,) = torch.autograd.grad((ours * weight).sum(), features)
    (second,) = torch.autograd.grad((theirs * weight).sum(), features)
    assert (first - second).abs().max() < 1e-4
