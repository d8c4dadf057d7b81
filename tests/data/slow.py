"""The obvious way to crop and flip, to compare the fast one with."""

import torch


def slow_crop_flip(images, offsets, flips, padding):
    """Return the same crops one image at a time, with plain slicing."""
    out = []
    for image, (row, column), flip in zip(images, offsets.tolist(), flips.tolist(), strict=True):
        canvas = torch.zeros(
            image.shape[0],
            image.shape[1] + 2 * padding,
            image.shape[2] + 2 * padding,
            dtype=image.dtype,
        )
        canvas[:, padding : padding + image.shape[1], padding : padding + image.shape[2]] = image
        window = canvas[:, row : row + image.shape[1], column : column + image.shape[2]]
        out.append(torch.flip(window, dims=[2]) if flip else window)
    return torch.stack(out)
