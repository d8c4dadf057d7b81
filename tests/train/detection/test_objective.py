"""What detectors learn from each other: sure proposals, a student that begins as its teacher."""

from unittest import mock

import pytest
import torch

from surge.errors import CheckpointMismatchError
from surge.models import float_detector, reactnet_detector
from surge.models.detector_parts import Proposals
from surge.recipes import get_recipe
from surge.train.detection import build as detect_build
from surge.train.detection.build import backbone_state, new_detector, take_float_
from surge.train.detection.objective import IDaObjective, LWSObjective, confident
from tests.detectors import SMALL, scene

pytestmark = pytest.mark.usefixtures("torchvision")


def proposals(boxes, scores):
    most = max(map(len, scores))
    corners, rated = torch.zeros(len(boxes), most, 4), torch.zeros(len(boxes), most)
    for image, (some, values) in enumerate(zip(boxes, scores, strict=True)):
        corners[image, : len(some)] = torch.tensor(some).reshape(-1, 4)
        rated[image, : len(values)] = torch.tensor(values)
    empty = torch.zeros(0)
    return Proposals(corners, rated, rated > 0, empty, empty, empty)


def test_sure_proposals_are_thinned_out_within_an_image_and_a_detector():
    square, inside, apart = [0, 0, 10, 10], [1, 1, 9, 9], [50, 50, 60, 60]
    teacher = proposals([[square, inside, apart], []], [[0.99, 0.95, 0.9], []])
    student = proposals([[square, apart, inside], [inside]], [[0.97, 0.5, 0.4], [0.86]])
    boxes, valid = confident([teacher, student])
    kept = [boxes[image][valid[image]].tolist() for image in range(2)]
    assert kept == [[square, apart, square], [inside]]


def test_few_proposals_are_looked_at():
    many = [[20.0 * n, 0, 20.0 * n + 10, 10] for n in range(70)]
    found = proposals([many], [[0.99 - n / 1000 for n in range(70)]])
    _, valid = confident([found, found])
    assert valid.shape == (1, 128) and valid.all()


def test_student_begins_as_its_teacher_around_the_backbone():
    torch.manual_seed(0)
    teacher, student = float_detector(20, SMALL).eval(), reactnet_detector(20, SMALL).eval()
    with mock.patch.object(detect_build, "AROUND", 0.0):
        take_float_(student, teacher.state_dict())
    stages = teacher.backbone.stages(torch.randn(1, 3, 64, 64))
    ours, theirs = (list(d.backbone.fpn(stages).values()) for d in (student, teacher))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(student.rpn.head(theirs), teacher.rpn.head(theirs), strict=True):
        torch.testing.assert_close(mine, other)
    weight = teacher.backbone.body.layer2[0].conv1.weight
    assert torch.equal(student.backbone.body.stages[1][0].conv.weight, weight)


def test_kernels_keep_some_of_their_own_signs_around_the_middle():
    torch.manual_seed(0)
    teacher, student = float_detector(20, SMALL), reactnet_detector(20, SMALL)
    take_float_(student, teacher.state_dict())
    lateral = student.backbone.fpn.laterals[0].weight
    assert torch.equal(lateral[:, :, 1, 1], teacher.backbone.fpn.laterals[0].weight[:, :, 0, 0])
    assert 0.3 < (lateral[:, :, 0, 0] > 0).float().mean() < 0.7
    assert lateral[:, :, 0, 0].abs().max() < lateral[:, :, 1, 1].abs().max()


@pytest.fixture
def pair():
    torch.manual_seed(0)
    recipe = get_recipe("voc-lws")
    with mock.patch.object(detect_build, "SETTINGS", SMALL):
        return new_detector(recipe).train(), float_detector(20, SMALL)


@pytest.mark.parametrize("kind", [IDaObjective, LWSObjective])
def test_teacher_adds_a_loss_that_reaches_student_and_adapters_but_not_the_teacher(pair, kind):
    student, teacher = pair
    with mock.patch("surge.train.detection.objective.SURE", 0.0):
        objective, inputs = kind(student, teacher, 0.5), scene()
        before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
        outputs = objective.outputs(student, inputs)
        alone = torch.stack(list(outputs.look.losses.values())).sum()
        loss = objective.loss(outputs, torch.zeros(2), inputs)
    assert loss > alone
    loss.backward()
    adapter = objective.learned.adapters[0].weight
    assert adapter.grad is not None and adapter.grad.any()
    assert all(p.grad is None for p in teacher.parameters()) and not teacher.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_lws_watches_every_convolution_that_both_detectors_have(pair):
    student, teacher = pair
    objective = LWSObjective(student, teacher, 1.0)
    names = [ours for ours, _, _, _ in objective.pairs]
    assert len(names) == 16 + 4 + 1  # the body, the outputs of the pyramid, the proposal head
    assert not any("laterals" in name for name in names)
    student.eval()(scene()[0])
    assert objective.ours.take() == {}  # a test is none of its business


def test_backbone_must_be_weights(tmp_path):
    (tmp_path / "words.pth").write_text("no weights")
    with pytest.raises(CheckpointMismatchError, match=r"words.pth is not a file of weights"):
        backbone_state(tmp_path / "words.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(CheckpointMismatchError, match="holds no weights by name"):
        backbone_state(tmp_path / "list.pth")
    with pytest.raises(CheckpointMismatchError, match="is not there"):
        backbone_state(tmp_path / "gone.pth")
