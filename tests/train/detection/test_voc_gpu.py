"""Detectors on a GPU, in short numbers: they train, resume, and start as they do on a CPU."""

import math
import shutil

import pytest

from surge.train import checkpoint
from tests.train.detection.test_voc import CPU
from tests.train.voc_runs import metrics, others_of, train

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torchvision")]
CHAIN = ("voc-float", "voc-backbone-ida-surge", "voc-ida-surge", "voc-backbone-lws", "voc-lws")


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_stages_train_one_after_the_other(tmp_path, voc_dir, precision):
    for name in CHAIN:
        words = [name, *others_of(name, tmp_path), "--precision", precision]
        assert train(*words, data=voc_dir, out=tmp_path / name, epochs=3, device="cuda") == 0
        assert all(math.isfinite(row["train_loss"]) for row in metrics(tmp_path / name))


def test_first_loss_is_that_of_a_cpu(tmp_path, voc_dir):
    found = []
    for device in ("cpu", "cuda"):
        out = tmp_path / device
        words = ["voc-float", "--precision", "fp32"]
        assert train(*words, data=voc_dir, out=out, device=device) == 0
        found.append(metrics(out)[0]["train_loss"])
    assert found[1] == pytest.approx(found[0], rel=0.2)  # other anchors are drawn


def test_resumed_run_ends_as_the_whole_one(tmp_path, voc_dir):
    a, b = tmp_path / "a", tmp_path / "b"
    assert train("voc-float", data=voc_dir, out=a, epochs=2, limit=4, device="cuda") == 0
    shutil.copytree(a, b)
    (b / "run" / "checkpoints" / "epoch-00002.pt").unlink()
    assert train("--resume", b / "run", data=voc_dir, out=b, device="cuda") == 0
    whole, again = (
        checkpoint.load_newest(arm / "run" / "checkpoints", "voc-float", CPU)[0] for arm in (a, b)
    )
    assert list(again["model"]) == list(whole["model"])
    # RoIAlign adds gradients up in any order on a GPU.
    for name, tensor in whole["model"].items():
        difference = (again["model"][name].double() - tensor.double()).abs().max()
        assert difference < 1e-2 * max(1.0, float(tensor.double().abs().max())), name
