"""Several runs in one process at the same time: small networks leave most of a large GPU idle.

Each run has a thread and a stream of its own; what they compute is what each computes alone.
"""

import threading
from contextlib import AbstractContextManager, nullcontext

import torch

from surge.recipes.recipe import Recipe

BUILDING = threading.Lock()
"""Held while a network is built: its weights come from torch's one global generator."""


def stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which all work of this thread goes to a new stream of the device."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call, no-any-return]


def draws_in_steps(recipe: Recipe) -> bool:
    """Return whether training steps draw random numbers, from a generator that all runs share."""
    # A BERT has dropout.
    noisy = recipe.model.name == "bert" or (recipe.surge is not None and recipe.surge.noise)
    return noisy or (recipe.method is not None and bool(recipe.method.options.get("stochastic")))
