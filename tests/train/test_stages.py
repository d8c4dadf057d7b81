"""Two stages and their teacher: what is taken over, and what is refused."""

import math
import shutil
from dataclasses import replace

import pytest
import torch

from surge.cli import main
from surge.models import resnet34
from surge.recipes import get_recipe
from surge.recipes.placing import placed, start_of, teacher_of
from surge.recipes.recipe import DataSpec
from surge.train.build import build_network, for_own_checkpoint
from surge.train.photos.teacher import DistributionObjective, distribution_loss, teacher_objective
from surge.train.run import RunFolder
from surge.train.stages import finished_state
from tests.nets import assert_same_tensors
from tests.train.photo_runs import FIRST, TEACHER, metrics, narrow, train, train_others

CPU = torch.device("cpu")
SECOND = "imagenette-twostage-reactnet"


@pytest.fixture(scope="module")
def others(tmp_path_factory, imagenette_dir):
    folder = tmp_path_factory.mktemp("others")
    train_others(folder, imagenette_dir)
    return folder


def second(others, name=SECOND):
    teacher, start = (others / kind / "run" for kind in ("teacher", "first"))
    return placed(get_recipe(name), model=None, teacher=str(teacher), start=str(start))


def test_distribution_loss_is_a_mean_over_the_batch_alone():
    student = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, -1.0]])
    teacher = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    wanted = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        total = math.log(sum(math.exp(x) for x in s))
        shares = [math.exp(x) / sum(math.exp(y) for y in t) for x in t]
        wanted -= sum(share * (x - total) for share, x in zip(shares, s, strict=True)) / 2
    assert float(distribution_loss(student, teacher)) == pytest.approx(wanted, rel=1e-6)


def test_teacher_is_frozen_and_sees_what_the_student_sees(others):
    with narrow():
        objective = teacher_objective(second(others), CPU)
    assert not objective.teacher.training
    assert not any(p.requires_grad for p in objective.teacher.parameters())
    student = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    images = torch.randn(3, 3, 32, 32)
    outputs = objective.outputs(student, images)
    assert torch.equal(outputs[1], objective.teacher(images))
    objective.loss(outputs, torch.zeros(3).long(), images).backward()
    assert student[1].weight.grad is not None
    assert int(objective.hits(outputs, outputs[0].argmax(1))) == 3


def test_a_file_with_torchvision_names_is_a_teacher_too(tmp_path, others):
    torch.save(resnet34(classes=10).state_dict(), tmp_path / "resnet34.pth")
    recipe = placed(
        get_recipe(FIRST), model=None, teacher=str(tmp_path / "resnet34.pth"), start=None
    )
    objective = teacher_objective(recipe, CPU)
    assert isinstance(objective, DistributionObjective)
    assert len(objective.teacher.layer3) == 6


@pytest.mark.parametrize("name", ["reactnet", "rbonn", "recu", "reactnet-surge"])
def test_second_stage_begins_with_the_weights_of_the_first(others, name):
    recipe = second(others, f"imagenette-twostage-{name}")
    _, state = finished_state(others / "first" / "run", "first stage")
    with narrow():
        model, compensation = build_network(recipe, 0, torch.zeros(2, 3, 64, 64))
    own = model.state_dict()
    for key, tensor in state.items():
        place = key if key in own else key.replace("conv.method.shift", "move.shift")
        torch.testing.assert_close(own[place].float(), tensor.float(), rtol=0, atol=1e-6)
    if name == "reactnet-surge":
        layer = model.stages[1][0].conv
        auxiliary = dict(layer.auxiliary.named_parameters())
        assert torch.equal(next(iter(auxiliary.values())), layer.weight)
        assert compensation is not None


def test_names_of_what_a_stage_needs():
    recipe = get_recipe("imagenet-twostage-rbonn")
    assert teacher_of(recipe) == "imagenet-resnet34-teacher"
    assert start_of(recipe) == "imagenet-twostage-stage1"
    assert teacher_of(get_recipe("glue-rte-bit")) == "glue-rte-teacher"


def told(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_second_stage_asks_for_its_teacher_and_its_start(tmp_path, imagenette_dir, others, capsys):
    teacher = ["--teacher", others / "teacher" / "run"]
    assert train(SECOND, data=imagenette_dir, out=tmp_path) == 2
    assert "surge train imagenette-resnet34-teacher" in told(capsys)
    assert train(SECOND, *teacher, data=imagenette_dir, out=tmp_path) == 2
    assert "surge train imagenette-twostage-stage1" in told(capsys)
    assert train("imagenette-onestage-bireal", *teacher, data=imagenette_dir, out=tmp_path) == 2
    assert "drop --teacher" in told(capsys)


def test_foreign_start_is_refused(tmp_path, imagenette_dir, others, capsys):
    words = [SECOND, "--teacher", others / "teacher" / "run", "--start"]
    assert train(*words, others / "teacher" / "run", data=imagenette_dir, out=tmp_path) == 2
    line = told(capsys)
    assert f"holds {TEACHER}, which is no first stage for {SECOND}" in line
    assert f"surge train {FIRST}" in line
    assert train(*words, tmp_path, data=imagenette_dir, out=tmp_path) == 2
    assert "is not the folder of a run" in told(capsys)
    assert not (tmp_path / "run").exists()


def test_foreign_teacher_is_refused(tmp_path, imagenette_dir, others, capsys):
    words = [FIRST, "--teacher"]
    assert train(*words, others / "first" / "run", data=imagenette_dir, out=tmp_path) == 2
    assert f"holds {FIRST}, which is no float teacher" in told(capsys)
    (tmp_path / "junk.pth").write_bytes(b"junk")
    assert train(*words, tmp_path / "junk.pth", data=imagenette_dir, out=tmp_path) == 2
    assert "is not a file of weights" in told(capsys)
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    assert train(*words, tmp_path / "other.pth", data=imagenette_dir, out=tmp_path) == 2
    assert "holds no ResNet-18 or ResNet-34" in told(capsys)
    torch.save(resnet34(classes=7).state_dict(), tmp_path / "seven.pth")
    assert train(*words, tmp_path / "seven.pth", data=imagenette_dir, out=tmp_path) == 2
    assert "knows 7 classes, the student has 10" in told(capsys)
    assert not (tmp_path / "run").exists()


def test_unfinished_first_stage_is_refused(tmp_path, imagenette_dir, others, capsys):
    words = [FIRST, "--teacher", others / "teacher" / "run", "--budget", "0s"]
    assert train(*words, data=imagenette_dir, out=tmp_path / "half", epochs=2) == 0
    capsys.readouterr()
    assert RunFolder(tmp_path / "half" / "run").begun
    again = [SECOND, "--teacher", others / "teacher" / "run", "--start", tmp_path / "half" / "run"]
    assert train(*again, data=imagenette_dir, out=tmp_path) == 2
    assert "stopped after epoch 1 of 2. Finish it with: surge train --resume" in told(capsys)


def test_held_out_stage_refuses_runs_that_saw_all(tmp_path, imagenette_dir, others, capsys):
    words = [FIRST, "--teacher", others / "teacher" / "run", "--held-out"]
    assert train(*words, data=imagenette_dir, out=tmp_path) == 2
    line = told(capsys)
    assert f"The teacher in {others / 'teacher' / 'run'} was trained on what {FIRST} holds" in line
    # Nobody knows what a file of weights was trained on.
    with narrow():
        torch.save(resnet34(classes=10).state_dict(), tmp_path / "file.pth")
    taught = ["--teacher", tmp_path / "file.pth", "--held-out"]
    start = ["--start", others / "first" / "run"]
    assert train(SECOND, *taught, *start, data=imagenette_dir, out=tmp_path) == 2
    line = told(capsys)
    assert f"The first stage in {others / 'first' / 'run'} was trained on what {SECOND}" in line
    assert "train it with --held-out too." in line
    assert not (tmp_path / "run").exists()
    assert train(FIRST, *taught, data=imagenette_dir, out=tmp_path) == 0


def test_begun_second_stage_goes_on_without_the_first(tmp_path, imagenette_dir, others):
    gone = tmp_path / "others"
    shutil.copytree(others, gone)
    given = ["--teacher", others / "teacher" / "run", "--start", gone / "first" / "run"]
    out = tmp_path / "whole"
    assert train(SECOND, *given, data=imagenette_dir, out=out, epochs=2) == 0
    shutil.copytree(out, tmp_path / "part")
    (tmp_path / "part" / "run" / "checkpoints" / "epoch-00002.pt").unlink()
    shutil.rmtree(gone)
    again = tmp_path / "part"
    assert train("--resume", again / "run", data=imagenette_dir, out=again) == 0
    whole, part = (finished_state(place / "run", "")[1] for place in (out, again))
    assert_same_tensors(part, whole)


def test_layers_chosen_by_saliency_and_detectors_still_need_the_first(others):
    chosen = second(others, "imagenette-twostage-reactnet-surge")
    assert for_own_checkpoint(chosen).model.options["start"] is None
    chosen = replace(chosen, surge=replace(chosen.surge, chosen="saliency"))
    detector = replace(second(others), data=DataSpec("voc"))
    for recipe in (chosen, detector):
        assert for_own_checkpoint(recipe) == recipe


def test_trained_second_stage_needs_no_other_run(tmp_path, imagenette_dir, others, capsys):
    gone = tmp_path / "gone"
    shutil.copytree(others, gone)
    given = ["--teacher", gone / "teacher" / "run", "--start", gone / "first" / "run"]
    assert train(f"{SECOND}-surge", *given, data=imagenette_dir, out=tmp_path) == 0
    (row,) = metrics(tmp_path)
    shutil.rmtree(gone)
    capsys.readouterr()
    words = ["evaluate", tmp_path / "run", "--data", imagenette_dir, "--device", "cpu"]
    with narrow():
        assert main([str(word) for word in words]) == 0
        assert main(["export", str(tmp_path / "run")]) == 0
    assert f"top-1 {row['test_top1']:.2f} %" in capsys.readouterr().out
    assert (tmp_path / "run" / "model.surge").exists()
