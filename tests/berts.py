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


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
COMMON = ("the", "a", "of", "to", "and", "in", "is", "said", "was", "for", "on", "that", "he")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'\"-"


def vocabulary():
    """Some words, and letters from which all others can be spelled."""
    return [*SPECIAL, *COMMON, *LETTERS, *(f"##{letter}" for letter in LETTERS)]


def save_tiny(folder, *, seed=0, **options):
    """Write the folder of a tiny pretrained BERT with its tokenizer, as transformers has it."""
    from transformers import BertModel, BertTokenizerFast

    words = vocabulary()
    settings = {"vocab_size": len(words), "max_position_embeddings": 128, **options}
    torch.manual_seed(seed)
    BertModel(tiny_config(**settings)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


ROWS = {
    "cola": ("CoLA", None, "gj04\t{label}\t\tthe sentence {number} is {word}"),
    "sst2": ("SST-2", "sentence\tlabel", "the film {number} was {word}\t{label}"),
    "mrpc": (
        "MRPC",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{label}\t1\t2\the said {word} {number}\tthat was {word}",
    ),
    "stsb": (
        "STS-B",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "{number}\tg\tf\ty\t1\tnone\tnone\ta {word}\tthe {word} {number}\t{score}",
    ),
    "rte": (
        "RTE",
        "index\tsentence1\tsentence2\tlabel",
        "{number}\tthe {word}\ta {word} {number}\t{entails}",
    ),
}
"""Folder, header and row of every task, in the official layout."""


def write_tasks(root, *tasks):
    """Write small files of some tasks; see :func:`write_task`."""
    for task in tasks:
        write_task(root, task)
    return root


def write_task(root, task, counts=None):
    """Write small files of a task in the official layout: the word gives the label away."""
    folder, header, row = ROWS[task]
    for part, count in (counts or {"train": 64, "dev": 16}).items():
        lines = [] if header is None else [header]
        for number in range(count):
            label = number % 2
            lines.append(
                row.format(
                    number=number,
                    label=label,
                    word="good" if label else "bad",
                    score=4.5 if label else 0.5,
                    entails="entailment" if label else "not_entailment",
                )
            )
        path = root / "glue" / folder / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root
