"""Detectors on a few real images: stored losses, resume, what is frozen, what is learned beside."""

import json
import re
import shutil

import pytest
import torch

import surge
from surge.cli import main
from surge.errors import DataNotFoundError
from surge.layers.hooks import binary_layers
from surge.models import plain_resnet
from surge.models.pyramid import JoinedStages
from surge.recipes import get_recipe, list_recipes
from surge.train import checkpoint
from surge.train.detection.build import build_detector, new_detector
from surge.train.detection.predict import load_detector
from surge.train.detection.task import load_detection_sets
from surge.train.run import RunFolder
from tests.data.trees import make_voc
from tests.nets import assert_same_tensors
from tests.runtime.building import import_engine
from tests.train.losses import double_precision
from tests.train.voc_runs import losses, metrics, others_of, small_detectors, stored, train

pytestmark = pytest.mark.usefixtures("torchvision")

GOLDEN = stored()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, voc_dir, torchvision):
    """Every row, each with the runs it begins with, and its losses by name."""
    folder = tmp_path_factory.mktemp("voc")
    found = {name: losses(name, voc_dir, folder) for name in list_recipes("voc")}
    return folder, found


def state_of(out, recipe):
    return checkpoint.load_newest(out / "run" / "checkpoints", recipe, CPU)[0]


@pytest.mark.parametrize("name", GOLDEN)
def test_losses_are_the_stored_ones(runs, name):
    assert runs[1][name] == pytest.approx(GOLDEN[name], abs=1e-4)


def test_every_row_has_stored_losses():
    assert set(GOLDEN) == set(list_recipes("voc"))


def test_a_stage_with_surge_starts_with_the_same_loss_as_without():
    assert GOLDEN["voc-backbone-ida-surge"][0] == GOLDEN["voc-backbone-ida"][0]


def test_metrics_and_results_have_both_precisions(runs):
    folder = runs[0] / "voc-ida"
    for row in metrics(folder):
        assert "train_top1" not in row and "test_loss" not in row
        # The short form tests after every third epoch, and after the last of these four.
        tested = {"test_map", "test_map-area"} & set(row)
        assert len(tested) == (2 if row["epoch"] in (2, 3) else 0)
        assert all(0 <= row[name] <= 100 for name in tested)
    lines = (folder / "results" / "voc.jsonl").read_text().splitlines()
    assert [json.loads(line)["metric"] for line in lines] == ["map-area", "map"]
    assert json.loads(lines[0])["data"] == "voc, test set, 96 px, first 2"


@pytest.mark.parametrize("options", [(), ("--save-steps", "1")])
@pytest.mark.parametrize("name", ["voc-ida-surge", "voc-lws"])
def test_resumed_run_ends_bit_for_bit_as_the_whole_one(runs, tmp_path, voc_dir, name, options):
    words, settings = [name, *others_of(name, runs[0])], {"epochs": 2, "limit": 4}
    assert train(*words, *options, data=voc_dir, out=tmp_path / "a", **settings) == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    checkpoints = tmp_path / "b" / "run" / "checkpoints"
    (checkpoints / "epoch-00002.pt").unlink()
    noted = checkpoint.load_newest(checkpoints, name, CPU)[0]["midway"]
    assert (noted is not None) == bool(options)
    assert train("--resume", tmp_path / "b" / "run", data=voc_dir, out=tmp_path / "b") == 0
    whole, again = (state_of(tmp_path / arm, name) for arm in "ab")
    assert_same_tensors(again["model"], whole["model"])
    assert_same_tensors(again["learned"], whole["learned"])
    kept = [[{**row, "seconds": 0} for row in metrics(tmp_path / arm)] for arm in "ab"]
    assert kept[0] == kept[1]


def test_adapters_are_trained_and_kept_beside_the_model(runs):
    state = state_of(runs[0] / "voc-ida", "voc-ida")
    assert state["learned"]["sigma"].item() != 1.000001
    assert state["learned"]["adapters.0.bias"].any()
    assert not any("adapters" in name or "sigma" in name for name in state["model"])
    assert "learned" not in state_of(runs[0] / "voc-reactnet", "voc-reactnet")


def test_second_stage_begins_with_the_first_and_is_binary_in_more_places(runs):
    names = {}
    for row in ("voc-backbone-ida", "voc-ida"):
        _, recipe, _ = RunFolder.open(runs[0] / row / "run")
        with small_detectors():
            names[row] = {name for name, _ in binary_layers(new_detector(recipe))}
    first, second = names.values()
    assert len(first) == 16 and all(name.startswith("backbone.body.stages") for name in first)
    more = second - first
    assert first < second and "rpn.head.conv" in more and len(more) == 9


def test_new_scales_of_a_stage_have_the_size_of_its_weights_and_learned_ones_stay(runs):
    _, recipe, _ = RunFolder.open(runs[0] / "voc-ida" / "run")
    held = state_of(runs[0] / "voc-backbone-ida", "voc-backbone-ida")["model"]
    with small_detectors(), double_precision():
        built = build_detector(recipe, 0).state_dict()
    name = "backbone.body.stages.2.1.conv.method.scale"
    assert torch.equal(built[name], held[name])
    size = built["rpn.head.conv.weight"].abs().mean(dim=(1, 2, 3))
    torch.testing.assert_close(0.02 * built["rpn.head.conv.method.scale"].abs(), size)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A file with the weights of a narrow ResNet-18, by torchvision's names."""
    with small_detectors():
        torch.manual_seed(7)
        state = plain_resnet.resnet18(classes=3).state_dict()
    path = tmp_path_factory.mktemp("backbone") / "resnet18.pth"
    torch.save(state, path)
    return path, state


def test_pretrained_stem_and_first_layer_stay_as_they_came(pretrained, tmp_path, voc_dir):
    path, state = pretrained
    assert train("voc-float", "--backbone", path, data=voc_dir, out=tmp_path, epochs=2) == 0
    held = state_of(tmp_path, "voc-float")["model"]
    for name, tensor in state.items():
        place = f"backbone.body.{name}"
        if name.startswith(("conv1", "bn1", "layer1")) or "running" in name:
            assert torch.equal(held[place], tensor), name
    assert not torch.equal(
        held["backbone.body.layer2.0.conv1.weight"], state["layer2.0.conv1.weight"]
    )
    assert not torch.equal(held["backbone.body.layer2.0.bn1.weight"], state["layer2.0.bn1.weight"])


def test_surge_is_off_where_nothing_below_learns(runs, pretrained, tmp_path, voc_dir):
    """A frozen first stage needs no gradient, so the first layer behind it has none to repair."""
    name = "voc-backbone-ida-surge"
    words = [name, *others_of(name, runs[0]), "--backbone", pretrained[0]]
    assert train(*words, data=voc_dir, out=tmp_path) == 0
    held = state_of(tmp_path, name)["model"]
    paths = {key.partition(".auxiliary.")[0] for key in held if ".auxiliary." in key}
    stages = [
        f"backbone.body.stages.{stage}.{block}.conv" for stage in range(4) for block in range(4)
    ]
    assert paths == set(stages[5:])
    begun = [
        "voc-ida-surge",
        "--start",
        tmp_path / "run",
        "--teacher",
        runs[0] / "voc-float" / "run",
    ]
    assert train(*begun, data=voc_dir, out=tmp_path / "second") == 0
    again = state_of(tmp_path / "second", "voc-ida-surge")["model"]
    assert not any(".auxiliary." in key and "stages.0." in key for key in again)
    frozen = [key for key in again if "stages.0." in key]
    assert frozen and all(torch.equal(again[key], held[key]) for key in frozen)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["voc-backbone-reactnet"], "begins with another run: train that with `surge train voc-fl"),
        (["voc-ida", "--start", "x"], "learns from a teacher: train one with `surge train voc-fl"),
        (
            ["voc-ida", "--backbone", "x"],
            "takes no --backbone; only voc-float and rows of voc-back",
        ),
        (["voc-float", "--backbone", "nowhere.pth"], "--backbone .*nowhere.pth is not there"),
        (["voc-float", "--captured", "True", "--device", "cpu"], "--captured needs a CUDA GPU"),
        (["voc-float", "--compiled", "True"], "--compiled needs steps that all do the same"),
        (["voc-float", "--size", "40"], "too small .--size"),
        (["digits-cnn-recu", "--short"], "has no short form"),
    ],
)
def test_mistakes_are_told_in_a_sentence(tmp_path, voc_dir, capsys, words, sentence):
    settings = ["--limit", "2", "--device", "cpu", "--data", str(voc_dir)]
    assert main(["train", *words, *settings, "--out", str(tmp_path / "run")]) == 2
    found = capsys.readouterr().err
    assert re.search(sentence, found), found


def test_a_run_begins_with_no_other_than_its_own_first_stage(runs, tmp_path, voc_dir, capsys):
    wrong = runs[0] / "voc-backbone-lws" / "run"
    words = ["voc-reactnet", "--start", wrong]
    assert train(*words, data=voc_dir, out=tmp_path) == 2
    assert (
        "holds voc-backbone-lws, with which voc-reactnet does not begin" in capsys.readouterr().err
    )
    words = ["voc-ida", "--start", runs[0] / "voc-backbone-ida" / "run", "--teacher", wrong]
    assert train(*words, data=voc_dir, out=tmp_path / "other") == 2
    assert "which is no float teacher" in capsys.readouterr().err


def test_test_images_without_objects_that_count_are_refused(tmp_path):
    make_voc(tmp_path, [[("dog", 5, 5, 50, 40)]])
    make_voc(tmp_path, [[], [("dog", 5, 5, 50, 40, 1)]], part="test")
    spec = get_recipe("voc-float").data
    with pytest.raises(DataNotFoundError, match="None of the 2 images .* an object that counts"):
        load_detection_sets(spec, tmp_path)


def test_exported_run_is_its_backbone(runs, tmp_path, capsys):
    import_engine()
    run, path = runs[0] / "voc-ida-surge" / "run", tmp_path / "body.surge"
    with small_detectors():
        assert main(["export", str(run), "--out", str(path)]) == 0
        assert "the backbone, for pictures padded to 64x96" in capsys.readouterr().out
        image = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
        packed = torch.from_numpy(surge.load_packed(path)(image.numpy()))
        model = load_detector(run, CPU)[1].double()
        with torch.no_grad():
            expected = model.backbone.stages(image.double())
        for ours, theirs in zip(JoinedStages.parted(packed, 64, 96), expected, strict=True):
            assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
        assert main(["export", str(run), "--out", str(path), "--measure"]) == 2
    assert "voc-ida-surge finds boxes" in capsys.readouterr().err


def test_evaluate_says_what_the_last_epoch_said(runs, voc_dir, capsys):
    folder = runs[0] / "voc-reactnet"
    with small_detectors():
        assert (
            main(["evaluate", str(folder / "run"), "--data", str(voc_dir), "--device", "cpu"]) == 0
        )
    printed = capsys.readouterr().out
    row = metrics(folder)[-1]
    assert f"mean average precision {row['test_map']:.2f} %" in printed and "tvmonitor" in printed
