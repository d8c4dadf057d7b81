"""What a detector stores and computes for one image, as the paper's table counts."""

import torch

from surge.cost import Summary
from surge.models.detector_parts import CountedDetector
from surge.recipes.recipe import Recipe
from surge.summary import summary
from surge.train.detection.build import new_detector

IMAGE = (600, 1000)
"""Height and width of the image that is counted."""
NEAREST = (608, 992)
"""The same for networks whose sides must be multiples of 32; 0.5 % more pixels."""


def cost_of(recipe: Recipe) -> Summary:
    """Return the cost of a recipe's detector for an image of 1000x600 and 1000 proposals."""
    height, width = IMAGE if recipe.method is None else NEAREST
    with torch.device("meta"):  # shapes are all that counts
        model = new_detector(recipe)
    return summary(CountedDetector(model), torch.zeros(1, 3, height, width, device="meta"))
