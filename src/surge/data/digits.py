"""scikit-learn's handwritten digits: 1,797 images of 8x8 that come with the package."""

import torch

from surge.data.imageset import HALF, ImageSet
from surge.data.split import stratified_split
from surge.errors import ConfigError, MissingDependencyError

TEST_FRACTION = 0.2
"""Share of each digit that is held out; the data set has no official test part."""


def load_digits(split: str) -> ImageSet:
    """Return the ``"train"`` (1,438) or ``"test"`` (359) part as uint8 ``[N, 1, 8, 8]``.

    Pixels keep their stored values 0..16; the set's normalization maps them to [-1, 1].
    """
    if split not in ("train", "test"):
        raise ConfigError(f'split={split!r} is not known. Accepted: "train", "test".')
    try:
        from sklearn.datasets import load_digits as sklearn_digits
    except ImportError as error:
        raise MissingDependencyError(
            "The digits come with scikit-learn, which is not installed: "
            "pip install 'surge-bnn[demo]'"
        ) from error
    stored = sklearn_digits()
    images = torch.from_numpy(stored.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(stored.target).to(torch.int64)
    kept, held = stratified_split(labels, TEST_FRACTION)
    whole = ImageSet(images, labels, tuple(str(digit) for digit in range(10)), HALF)
    return whole.subset(kept if split == "train" else held)
