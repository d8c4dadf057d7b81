"""Small files of binary BERTs that together use every operator of tokens."""

import torch

from surge.export import pack
from tests.export.berts import binary_bert, some_tokens

LENGTH = 5
KINDS = {
    "bit": {"rest": "int8"},
    "bibert": {"rest": "fp16"},
    "binarybert": {},
    "split": {},
    "bnn": {},
}


def write_token_seeds(folder):
    """Write the files and return their paths."""
    paths = []
    for method, options in KINDS.items():
        paths.append(folder / f"{method}.surge")
        model = binary_bert(method, 2, 4 if method != "bnn" else 32, LENGTH, layers=1)
        pack(model, some_tokens(1, LENGTH), paths[-1], **options)
    return paths


def token_batch(count=1):
    return some_tokens(count, LENGTH, seed=3).to(torch.float32).numpy()
