"""Average precision against cases worked out by hand."""

import math

import numpy as np
import pytest
import torch

from surge.data.voc_metrics import _Matches, area, average_precision, eleven_points, overlap
from surge.errors import ConfigError


def truth(*boxes, labels=None, difficult=None):
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
        "difficult": torch.tensor(difficult or [False] * len(boxes), dtype=torch.bool),
    }


def found(*boxes, scores=(), labels=None):
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
        "scores": torch.tensor(scores, dtype=torch.float32),
    }


A, B, C = (0, 0, 10, 10), (20, 20, 40, 40), (100, 100, 120, 130)
MISS = (200, 200, 210, 210)


def both(detections, truths, classes=1):
    return [average_precision(detections, truths, classes, style=s).mean for s in ("07", "area")]


def test_perfect_detections_have_100():
    assert both([found(A, B, scores=(0.9, 0.8))], [truth(A, B)]) == [100, 100]


def test_no_detections_have_0():
    assert both([found()], [truth(A)]) == [0, 0]


def test_right_wrong_right_of_two_objects():
    """Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1.

    11 points: recall 0 to 0.5 best precision 1 (6 points), 0.6 to 1 best 2/3 (5 points).
    Area: 1/2 * 1 + 1/2 * 2/3.
    """
    eleven, below = both([found(A, MISS, B, scores=(0.9, 0.8, 0.7))], [truth(A, B)])
    assert eleven == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)
    assert below == pytest.approx(100 * (1 / 2 + 1 / 3))


def test_a_missed_object_ends_the_curve():
    """One of three found: 11 points count recalls 0 to 0.3 (4 points), the area a third."""
    eleven, below = both([found(A, scores=(0.5,))], [truth(A, B, C)])
    assert eleven == pytest.approx(100 * 4 / 11)
    assert below == pytest.approx(100 / 3)


def test_a_second_detection_of_an_object_is_wrong():
    """Right, wrong, right: the same curve as with a miss in the middle."""
    twice = both([found(A, A, B, scores=(0.9, 0.8, 0.7))], [truth(A, B)])
    assert twice == both([found(A, MISS, B, scores=(0.9, 0.8, 0.7))], [truth(A, B)])


def test_difficult_objects_neither_count_nor_punish():
    """Two detections on the difficult object vanish; it is not among the objects to find."""
    detections = [found(B, B, A, scores=(0.9, 0.8, 0.7))]
    assert both(detections, [truth(A, B, difficult=[False, True])]) == [100, 100]


def test_the_order_of_scores_goes_across_images():
    """0.9 wrong in the second image, 0.8 right in the first: precision 1/2 at recall 1."""
    detections = [found(A, scores=(0.8,)), found(MISS, scores=(0.9,))]
    assert both(detections, [truth(A), truth()]) == pytest.approx([50, 50])


def test_half_an_overlap_is_enough_and_less_is_not():
    """10x10 against 10x20 (half) and against 10x20.1."""
    assert both([found((0, 0, 10, 20), scores=(0.9,))], [truth(A)]) == [100, 100]
    assert both([found((0, 0, 10, 20.1), scores=(0.9,))], [truth(A)]) == [0, 0]


def test_another_class_is_no_match():
    detections = [found(A, scores=(0.9,), labels=[2])]
    result = average_precision(detections, [truth(A)], 2)
    assert result.classes[0] == 0 and math.isnan(result.classes[1]) and result.mean == 0


def test_classes_without_objects_are_left_out_of_the_mean():
    result = average_precision([found(A, scores=(0.9,))], [truth(A)], 20)
    assert result.mean == 100 and sum(map(math.isnan, result.classes)) == 19


def test_a_class_with_difficult_objects_alone_is_left_out():
    result = average_precision([found()], [truth(A, difficult=[True])], 1)
    assert math.isnan(result.mean)


def test_the_mean_is_over_classes_not_objects():
    detections = [found(A, B, scores=(0.9, 0.8), labels=[1, 1])]
    result = average_precision(detections, [truth(A, B, C, labels=[1, 1, 2])], 2)
    assert result.classes == (100, 0) and result.mean == 50


def test_curves_on_their_own():
    recall, precision = np.array([0.25, 0.5, 0.5, 0.75]), np.array([1, 1, 2 / 3, 3 / 4])
    assert area(recall, precision) == pytest.approx(100 * (0.5 + 0.25 * 0.75))
    assert eleven_points(recall, precision) == pytest.approx(100 * (6 + 2 * 0.75) / 11)


def test_overlap_of_empty_boxes_is_zero():
    assert overlap(np.zeros((1, 4)), np.zeros((2, 4))).tolist() == [[0, 0]]


def slow(detections, truths, label):
    """Right and wrong, one detection after the other, as the rule is written."""
    places = [
        (-float(d["scores"][i]), image, i)
        for image, d in enumerate(detections)
        for i in range(len(d["labels"]))
        if d["labels"][i] == label
    ]
    taken, right, wrong = set(), [], []
    for _, image, index in sorted(places):
        box = detections[image]["boxes"][index].numpy()
        best, share = None, -1.0
        for number, other in enumerate(truths[image]["boxes"].numpy()):
            mine = overlap(box[None].astype(float), other[None].astype(float))[0, 0]
            if truths[image]["labels"][number] == label and mine > share:
                best, share = number, mine
        if share >= 0.5 and truths[image]["difficult"][best]:
            right.append(0), wrong.append(0)
        else:
            hit = share >= 0.5 and (image, best) not in taken
            right.append(int(hit)), wrong.append(int(not hit))
            taken |= {(image, best)} if hit else set()
    return right, wrong


def test_many_random_detections_are_judged_as_one_by_one():
    generator = torch.Generator().manual_seed(0)

    def entry(count, key):
        corner = 12 * torch.rand(count, 2, generator=generator)
        extent = 14 + 8 * torch.rand(count, 2, generator=generator)
        labels = torch.randint(1, 3, (count,), generator=generator)
        extra = torch.rand(count, generator=generator)
        extra = extra if key == "scores" else extra < 0.3
        return {"boxes": torch.cat([corner, corner + extent], 1), "labels": labels, key: extra}

    detections = [entry(20, "scores") for _ in range(6)]
    truths = [entry(n, "difficult") for n in (0, 1, 3, 5, 5, 8)]
    for label in (1, 2):
        right, wrong = slow(detections, truths, label)
        ours = _Matches(detections, truths).judged(label)
        assert ours[0].tolist() == right and ours[1].tolist() == wrong
        assert sum(right) > 2 and sum(wrong) + sum(right) < len(wrong)


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="style='12'"):
        average_precision([], [], 1, style="12")
    with pytest.raises(ConfigError, match="1 images with detections, 0"):
        average_precision([found()], [], 1)
