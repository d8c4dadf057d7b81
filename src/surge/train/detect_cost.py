"""What a detector computes for one image: operations as the paper's table counts them."""

import torch
from torch import Tensor, nn

from surge.models.detector import Detector
from surge.models.detector_parts import REGION
from surge.models.pyramid import MULTIPLE
from surge.recipes.recipe import Recipe
from surge.summary import summary
from surge.train.detect_build import new_detector

IMAGE = (600, 1000)
"""Height and width of the image that is counted."""


class _Counted(nn.Module):
    """The layers of a detector on one image, with a full number of proposals."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> Tensor:
        maps = self.detector.backbone(images)
        self.detector.rpn.head(list(maps.values()))
        settings, heads = self.detector.settings, self.detector.roi_heads
        shape = (settings.proposals, settings.channels, REGION, REGION)
        scores: Tensor = heads.box_predictor(heads.box_head(images.new_zeros(shape)))[0]
        return scores


def operations(recipe: Recipe) -> float:
    """Return the operations of a recipe's detector for an image of 1000x600 and all proposals.

    Sides are padded to multiples of 32; what that adds to convolutions is taken off again.
    """
    height, width = (-(-side // MULTIPLE) * MULTIPLE for side in IMAGE)
    with torch.device("meta"):
        model = new_detector(recipe)
    found = summary(_Counted(model), torch.zeros(1, 3, height, width, device="meta"))
    share = IMAGE[0] * IMAGE[1] / (height * width)
    return sum(row.ops * (1.0 if "roi_heads" in row.name else share) for row in found.rows)
