"""Small binary BERTs whose values are not all alike, and tokens for them."""

import torch

import surge
from surge.layers.elastic import initialize_
from surge.models.bert import BertClassifier
from surge.models.bert_stages import halve_, split_
from tests.berts import WORDS, tiny_bert

METHODS = ("bit", "bibert", "binarybert", "bnn", "split", "linears")
"""The last one has binary linear layers around a real attention."""


def some_tokens(count, length, *, seed=1):
    """Return ``[count, 3, length]``: words, two texts, and masks that end at different places."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(length // 2, length + 1, (count, 1), generator=generator)
    ends[0] = length
    places = torch.arange(length).expand(count, -1)
    words = torch.randint(WORDS, (count, length), generator=generator)
    return torch.stack([words, (places > ends // 2).long(), (places < ends).long()], dim=1)


def binary_bert(method, heads=2, size=8, length=12, *, seed=0, layers=2):
    """Return a binary classifier of tokens with drawn biases, shifts, norms and levels."""
    options = {
        "hidden_size": heads * size,
        "num_attention_heads": heads,
        "intermediate_size": 3 * heads * size // 2,
        "max_position_embeddings": length + 8,
        "num_hidden_layers": layers,
    }
    model = tiny_bert(seed=seed, **options)
    if method == "split":
        halve_(model)
        surge.binarize_(model, "binarybert", ternary=True)
        split_(model)
    elif method == "linears":
        surge.binarize_(model, "bnn")
    else:
        surge.binarize_(model, method, transformer=True)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[2] in ("bias", "shift"):
                parameter.uniform_(-0.3, 0.3)
            elif "LayerNorm" in name:
                parameter.uniform_(0.5, 1.5)
        model.classifier.weight.normal_()
    model = BertClassifier(model).eval()
    initialize_(model, some_tokens(5, length, seed=2))
    return model
