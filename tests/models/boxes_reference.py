"""NMS, RoIAlign and overlaps one number at a time, in NumPy: slow, and easy to check by eye."""

import math

import numpy as np


def slow_overlap(a, b):
    across = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    shared = across * down
    whole = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / whole if whole > 0 else 0.0


def slow_nms(boxes, scores, threshold):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    kept = []
    for index in order:
        if all(slow_overlap(boxes[index], boxes[other]) <= threshold for other in kept):
            kept.append(index)
    return kept


def slow_sample(plane, y, x):
    """Bilinear; zero when more than one pixel outside."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    return (
        plane[top, left] * (1 - dy) * (1 - dx)
        + plane[top, right] * (1 - dy) * dx
        + plane[bottom, left] * dy * (1 - dx)
        + plane[bottom, right] * dy * dx
    )


def slow_roi_align(features, rois, scale, size, ratio, aligned):
    features = np.asarray(features, dtype=np.float64)
    out = np.zeros((len(rois), features.shape[1], size, size))
    for k, (image, *box) in enumerate(np.asarray(rois, dtype=np.float64)):
        x1, y1, x2, y2 = (scale * c - (0.5 if aligned else 0.0) for c in box)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        down = ratio if ratio > 0 else math.ceil(height / size)
        across = ratio if ratio > 0 else math.ceil(width / size)
        for channel in range(features.shape[1]):
            plane = features[int(image), channel]
            for row in range(size):
                for column in range(size):
                    total = 0.0
                    for i in range(down):
                        y = y1 + (row + (i + 0.5) / down) * height / size
                        for j in range(across):
                            x = x1 + (column + (j + 0.5) / across) * width / size
                            total += slow_sample(plane, y, x)
                    out[k, channel, row, column] = total / max(down * across, 1)
    return out
