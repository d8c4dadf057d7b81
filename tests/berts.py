"""A tiny BERT with random weights, and a batch for it."""

import torch
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH = 50, 12


def tiny_config(**options):
    settings = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 20,
    }
    return BertConfig(**{**settings, **options})


def tiny_bert(*, seed=0, **options):
    """A stock classifier of transformers."""
    torch.manual_seed(seed)
    return BertForSequenceClassification(tiny_config(**options))


def tokens(count=3, *, seed=1):
    """Word numbers with a mask that hides the end of the first sentence."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(count, LENGTH, dtype=torch.long)
    mask[0, LENGTH - 4 :] = 0
    return {
        "input_ids": torch.randint(WORDS, (count, LENGTH), generator=generator),
        "attention_mask": mask,
    }
