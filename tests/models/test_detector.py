"""The detector: what it returns, what becomes binary, what it costs, and that it learns."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import surge
from surge.errors import CheckpointMismatchError, ConfigError
from surge.models import (
    Detector,
    DetectorSettings,
    detector_scope,
    float_detector,
    load_body_,
    reactnet_detector,
    reactnet_resnet18,
    resnet18,
)
from surge.models.pyramid import pad_together
from tests.detectors import SMALL, scene

pytestmark = pytest.mark.usefixtures("torchvision")

EVERYTHING = replace(SMALL, sampled_anchors=10**6, sampled_regions=10**6)
LOSSES = {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}


@pytest.fixture(params=[reactnet_detector, float_detector])
def detector(request):
    return request.param(3, SMALL)


def test_training_gives_four_losses_and_every_parameter_a_gradient(detector):
    losses = detector(*scene())
    assert losses.keys() == LOSSES
    sum(losses.values()).backward()
    without = [n for n, p in detector.named_parameters() if p.grad is None]
    assert not without


def test_eval_gives_detections_within_each_image_best_first(detector):
    images, _ = scene()
    with torch.no_grad():
        found = detector.eval()(images)
    for image, detections in zip(images, found, strict=True):
        boxes, scores = detections["boxes"], detections["scores"]
        assert 0 < len(boxes) == len(scores) == len(detections["labels"]) <= 100
        assert (scores.diff() <= 0).all() and (scores > 0.05).all()
        assert set(detections["labels"].tolist()) <= {1, 2, 3}
        height, width = image.shape[1:]
        assert (boxes >= 0).all()
        assert (boxes[:, 0::2] <= width).all() and (boxes[:, 1::2] <= height).all()


def test_one_look_gives_losses_and_the_maps_that_made_them(detector):
    images, targets = scene()
    look = detector.look(images, targets)
    assert look.losses.keys() == LOSSES
    shapes = [tuple(values.shape[1:]) for values in look.pyramid.values()]
    assert shapes == [(32, 24, 24), (32, 12, 12), (32, 6, 6), (32, 3, 3), (32, 2, 2)]
    assert look.pyramid["0"].requires_grad
    assert look.batch.image_sizes == [(96, 96), (96, 88)]
    found = look.proposals
    assert found.boxes.shape == (2, SMALL.proposals, 4) and not found.boxes.requires_grad
    assert ((found.scores >= 0) & (found.scores <= 1)).all()
    assert (found.scores.diff(dim=1) <= 0).all()
    assert torch.equal(found.valid.sum(dim=1) > 0, torch.tensor([True, True]))
    assert not found.boxes[~found.valid].any() and not found.scores[~found.valid].any()


def test_propose_on_given_maps_is_what_a_look_proposes(detector):
    images, _ = scene()
    detector.eval()
    with torch.no_grad():
        again = detector.propose(*detector.pyramid(images))
        first = detector.look(images).proposals
    assert torch.equal(again.boxes, first.boxes) and torch.equal(again.valid, first.valid)


def test_detections_do_not_depend_on_the_other_image_of_a_batch(detector):
    """Both images have the same padding here; eval mode shares nothing else."""
    images, _ = scene(count=2, size=96)
    images[1] = images[1][:, :, :80]
    with torch.no_grad():
        together = detector.eval()(images)
        alone = detector([images[1]])
    for key in ("boxes", "scores"):
        assert torch.allclose(together[1][key], alone[0][key], atol=1e-3)


def test_an_image_without_objects_trains_the_background_alone(detector):
    images, targets = scene()
    for target in targets:
        target["boxes"], target["labels"] = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    losses = detector(images, targets)
    assert losses["loss_rpn_box_reg"] == 0 and losses["loss_box_reg"] == 0
    assert losses["loss_classifier"] > 0 and losses["loss_objectness"] > 0
    sum(losses.values()).backward()


def test_loss_weight_multiplies_all_four():
    light = float_detector(3, SMALL)
    heavy = copy.deepcopy(light)
    heavy.loss_weight = 5.0
    torch.manual_seed(1)
    first = light(*scene())
    torch.manual_seed(1)
    second = heavy(*scene())
    for name, value in first.items():
        assert torch.allclose(second[name], 5 * value)
    assert reactnet_detector(3, SMALL).loss_weight == 5.0


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (None, "targets: none"),
        ([], "targets: 0"),
        ([{"boxes": torch.zeros(4), "labels": torch.tensor([1])}] * 2, "boxes \\[n, 4\\]"),
    ],
)
def test_wrong_targets_are_refused(detector, targets, message):
    with pytest.raises(ConfigError, match=message):
        detector(scene()[0], targets)


def test_wrong_images_are_refused(detector):
    with pytest.raises(ConfigError, match="list of images"):
        detector([torch.zeros(1, 3, 64, 64)])
    with pytest.raises(ConfigError, match="list of images"):
        pad_together([])


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="frozen=5"):
        float_detector(3, SMALL, frozen=5)
    with pytest.raises(ConfigError, match="channels=0"):
        DetectorSettings(channels=0)
    with pytest.raises(ConfigError, match='Did you mean "whole"'):
        detector_scope("wohle")


def test_losses_and_detections_are_those_of_torchvisions_own_forward(
    torchvision, detector, monkeypatch
):
    """Sides are multiples of 64: on others torchvision spaces its coarsest anchors unevenly.

    Its box losses are smooth; made L1 for this test, all four must agree. All anchors and regions
    are taken, of which both would draw others.
    """
    detector.settings = EVERYTHING
    for part in (detector.rpn, detector.roi_heads):
        monkeypatch.setattr(part.fg_bg_sampler, "batch_size_per_image", 10**6)

    def l1(values, targets, beta, reduction):
        return torch.nn.functional.l1_loss(values, targets, reduction=reduction)

    monkeypatch.setattr(torch.nn.functional, "smooth_l1_loss", l1)
    parts = torchvision.models.detection
    same = parts.transform.GeneralizedRCNNTransform(
        128, 128, [0.0] * 3, [1.0] * 3, _skip_resize=True
    )
    theirs = parts.generalized_rcnn.GeneralizedRCNN(
        detector.backbone, detector.rpn, detector.roi_heads, same
    )
    images, targets = scene(count=2, size=128)
    images[1] = torch.nn.functional.pad(images[1], (0, 8))
    torch.manual_seed(2)
    ours = detector(images, targets)
    torch.manual_seed(2)
    losses = theirs(images, targets)
    for name, value in losses.items():
        assert torch.allclose(ours[name], detector.loss_weight * value, rtol=1e-4)
    with torch.no_grad():
        found, expected = detector.eval()(images), theirs.eval()(images)
    for mine, other in zip(found, expected, strict=True):
        assert mine["labels"].tolist() == other["labels"].tolist()
        assert torch.allclose(mine["boxes"], other["boxes"], atol=1e-3)
        assert torch.allclose(mine["scores"], other["scores"], atol=1e-5)


def test_bf16_autocast_gives_nearly_the_same_losses(detector):
    torch.manual_seed(1)
    exact = detector(*scene())
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        rough = detector(*scene())
    for name, value in exact.items():
        assert rough[name].dtype == torch.float32
        assert rough[name].item() == pytest.approx(value.item(), rel=0.2, abs=0.1)
    sum(rough.values()).backward()


@pytest.mark.gpu
def test_cuda_gives_the_losses_and_gradients_of_the_cpu(detector, monkeypatch):
    """All anchors and regions are taken, so that no random choice stands between.

    In tf32 other proposals would pass: the box loss of the float detector is off by an eighth.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    detector.settings = EVERYTHING
    images, targets = scene()
    exact = detector(images, targets)
    sum(exact.values()).backward()
    expected = detector.backbone.fpn.outputs[0].weight.grad.clone()
    detector.zero_grad()
    detector.cuda()
    losses = detector(
        [image.cuda() for image in images], [{k: v.cuda() for k, v in t.items()} for t in targets]
    )
    sum(losses.values()).backward()
    for name, value in exact.items():
        assert losses[name].item() == pytest.approx(value.item(), rel=0.05), name
    gradient = detector.backbone.fpn.outputs[0].weight.grad.cpu()
    assert torch.nn.functional.cosine_similarity(gradient.flatten(), expected.flatten(), 0) > 0.95


# --- what becomes binary ---


def test_stage_a_makes_the_sixteen_block_convolutions_binary():
    report = surge.binarize_(
        reactnet_detector(3, SMALL), "reactnet", only=detector_scope("backbone")
    )
    assert len(report.binary) == 16
    assert all(n.startswith("backbone.body.stages.") and n.endswith(".conv") for n in report.binary)


@pytest.mark.parametrize(("linear", "more"), [(False, ()), (True, ("fc6", "fc7"))])
def test_stage_b_makes_every_3x3_binary_and_the_linear_layers_by_flag(linear, more):
    detector = reactnet_detector(3, SMALL, binary_linear=linear)
    report = surge.binarize_(
        detector, "reactnet", only=detector_scope("whole", binary_linear=linear)
    )
    inner = [
        name
        for name, module in detector.named_modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)
    ]
    assert set(report.binary) == {*inner, *(f"roi_heads.box_head.{name}" for name in more)}
    assert len(inner) == 16 + 8 + 1
    assert not report.warnings
    losses = detector(*scene())
    sum(losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in detector.parameters() if p.grad is not None)


def test_binary_linear_layers_are_not_fed_by_a_relu():
    head = reactnet_detector(3, SMALL, binary_linear=True).roi_heads.box_head
    assert isinstance(head.act6, nn.PReLU)
    assert isinstance(reactnet_detector(3, SMALL).roi_heads.box_head.act6, nn.ReLU)


def test_a_float_state_loads_into_the_binary_detector():
    detector = reactnet_detector(3, SMALL)
    state = copy.deepcopy(detector.state_dict())
    surge.binarize_(detector, "bnn", only=detector_scope("whole"))
    detector.load_state_dict(state)


# --- frozen stages, pretrained bodies ---


@pytest.mark.parametrize("build", [reactnet_detector, float_detector])
def test_frozen_stem_and_first_stage_get_no_gradient(build):
    detector = build(3, SMALL, frozen=1, norm_eval=True).train()
    body = detector.backbone.body
    first = body.stages[0] if hasattr(body, "stages") else body.layer1
    frozen = [*body.conv1.parameters(), *body.bn1.parameters(), *first.parameters()]
    assert frozen and not any(p.requires_grad for p in frozen)
    norms = [m for m in body.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms)
    mean = norms[-1].running_mean.clone()
    sum(detector(*scene()).values()).backward()
    assert torch.equal(norms[-1].running_mean, mean)
    assert norms[-1].weight.grad is not None


def test_freezing_again_covers_what_a_method_added():
    detector = reactnet_detector(3, SMALL, frozen=1)
    surge.binarize_(detector, "reactnet", only=detector_scope("backbone"))
    first = detector.backbone.body.stages[0]
    assert any(p.requires_grad for p in first.parameters())
    detector.freeze_()
    assert not any(p.requires_grad for p in first.parameters())


def test_compensation_leaves_out_layers_whose_input_needs_no_gradient():
    detector = reactnet_detector(3, SMALL, frozen=1)
    surge.binarize_(detector, "reactnet", only=detector_scope("backbone"))
    detector.freeze_()
    found = surge.compensate_(detector, eta=0.001, example_input=(scene()[0],))
    left = [f"backbone.body.stages.0.{block}.conv" for block in range(4)]
    assert set(found.skipped) == {*left, "backbone.body.stages.1.0.conv"}


def test_a_pretrained_classifier_fills_the_body(detector):
    donor = resnet18(classes=10)
    report = load_body_(detector, donor.state_dict())
    assert "fc.weight" in report.left
    body = detector.backbone.body
    second = body.stages[1][2].conv if hasattr(body, "stages") else body.layer2[1].conv1
    assert torch.equal(second.weight, donor.layer2[1].conv1.weight)
    assert torch.equal(body.conv1.weight, donor.conv1.weight)


def test_a_binary_classifier_fills_a_binary_body_with_its_thresholds():
    donor = reactnet_resnet18(classes=10)
    surge.binarize_(donor, "reactnet", skip=("*downsample*",))
    with torch.no_grad():
        for parameter in donor.parameters():
            parameter.add_(0.5)
    detector = reactnet_detector(3, SMALL)
    surge.binarize_(detector, "reactnet", only=detector_scope("backbone"))
    report = load_body_(detector, donor.state_dict())
    assert not report.kept
    assert report.left == ("fc.weight", "fc.bias")


def test_a_state_that_is_no_resnet_is_refused(detector):
    with pytest.raises(CheckpointMismatchError, match="no convolution fits"):
        load_body_(detector, {"embed.weight": torch.zeros(2, 2)})


def test_state_round_trip_gives_the_same_detections(detector):
    images, _ = scene()
    other = type(detector)(
        reactnet_resnet18(classes=1) if detector.loss_weight == 5 else resnet18(classes=1),
        3,
        SMALL,
        lateral=3 if detector.loss_weight == 5 else 1,
        activation="prelu" if detector.loss_weight == 5 else "relu",
    )
    assert isinstance(other, Detector)
    other.load_state_dict(detector.state_dict())
    with torch.no_grad():
        first, second = detector.eval()(images), other.eval()(images)
    assert torch.equal(first[0]["scores"], second[0]["scores"])
