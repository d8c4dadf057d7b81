"""From a recipe of GLUE to what trains: sentences, a BERT, its teacher, its optimizer."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surge.compensation import Compensation, compensate_
from surge.convert import binarize_
from surge.data.glue import get_task
from surge.data.split import stratified_split
from surge.data.textset import TextLoader, TextSet
from surge.data.tokens import Tokenizer, load_glue
from surge.errors import CheckpointMismatchError, ConfigError, SurgeWarning
from surge.layers.elastic import elastic_parts
from surge.models.bert import BertClassifier, load_bert, load_weights
from surge.models.bert_stages import halve_, split_
from surge.recipes.recipe import DataSpec, Recipe, TrainSpec
from surge.train.parts import Place
from surge.train.stages import check_unseen, finished_state, first_stage
from surge.train.text.bertadam import BertAdam
from surge.train.text.distill import TextObjective

TEST_BATCH = 64
UNDECAYED = ("bias", "LayerNorm", "method.shift")
"""Parts of names whose parameters take no weight decay; levels have a group of their own."""


def load_text_sets(spec: DataSpec, root: Path) -> tuple[TextSet, TextSet]:
    """Return the sentences to train on and to test on; parts of a test set stay apart."""
    if not spec.tokenizer:
        raise ConfigError(f"The sentences of {spec.name} need the tokenizer of a model (--model).")
    task, tokenizer = get_task(spec.name), Tokenizer(Path(spec.tokenizer))
    assert spec.length is not None
    train = load_glue(root, task, "train", tokenizer, spec.length)
    if spec.held_out:
        # Scores are held out by their whole number.
        kept, held = stratified_split(train.labels.round().long(), 0.1)
        train, test = train.subset(kept), train.subset(held)
    else:
        parts = [load_glue(root, task, part, tokenizer, spec.length) for part in task.tests]
        test = joined_parts(parts, task.tests)
    if spec.limit is not None:
        train, test = (s.subset(torch.arange(min(spec.limit, len(s)))) for s in (train, test))
    return train, test


def joined_parts(parts: list[TextSet], names: tuple[str, ...]) -> TextSet:
    """Return several sets as one that knows where each ends."""
    sections = tuple((name, len(part)) for name, part in zip(names, parts, strict=True))
    return replace(
        parts[0],
        tokens=torch.cat([part.tokens for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        cut=torch.cat([_cut(part) for part in parts]),
        sections=sections if len(parts) > 1 else (),
    )


def _cut(part: TextSet) -> Tensor:
    return torch.zeros(len(part), dtype=torch.bool) if part.cut is None else part.cut


def make_text_loaders(
    recipe: Recipe, sets: tuple[TextSet, TextSet], seed: int, place: Place
) -> tuple[TextLoader, TextLoader]:
    """Put both sets on the device; all arms of one seed see the same order."""
    shared: dict[str, Any] = {k: getattr(place, k) for k in ("device", "rank", "world")}
    train = TextLoader(
        sets[0],
        batch_size=min(recipe.train.batch, len(sets[0])),
        seed=seed,
        shuffle=True,
        drop_last=recipe.train.drop_last,
        **shared,
    )
    return train, TextLoader(sets[1], batch_size=min(TEST_BATCH, len(sets[1])), **shared)


def build_bert(
    recipe: Recipe, seed: int, example: Tensor
) -> tuple[BertClassifier, Compensation | None]:
    """Build the network on the CPU: pretrained, or with the weights of its teacher.

    A start that is None is split as drawn.
    """
    model = _float_bert(recipe, seed)
    if recipe.distill is not None:
        load_weights(model, *teacher_state(recipe))
    options = recipe.model.options
    if options.get("width") == "half":
        halve_(model.classifier)
    if recipe.method is not None:
        method = recipe.method
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with warnings.catch_warnings():
                # BiBERT keeps the GELU of a BERT: that is how the network is.
                warnings.simplefilter("ignore", SurgeWarning)
                binarize_(model.classifier, method.name, skip=method.skip, **method.options)
    if "start" in options:
        if options["start"] is not None:
            load_weights(model, first_stage(recipe), f"The first stage in {options['start']}")
        split_(model)
    compensation = None
    if recipe.surge is not None:
        fields = {**vars(recipe.surge), "seed": seed}
        compensation = compensate_(model, **fields, example_input=example)
    return model, compensation


def _float_bert(recipe: Recipe, seed: int) -> BertClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return load_bert(Path(recipe.model.options["path"]), get_task(recipe.data.name).outputs)


def teacher_state(recipe: Recipe) -> tuple[dict[str, Tensor], str]:
    """Return the weights of the teacher's last checkpoint, and where they are from."""
    assert recipe.distill is not None
    path = Path(recipe.distill.teacher)
    taught, state = finished_state(path, "teacher")
    if taught.method is not None or taught.data.name != recipe.data.name:
        raise CheckpointMismatchError(
            f"{path} holds {taught.name}, which is no float teacher for {recipe.data.name}."
        )
    where = f"The teacher in {path}"
    check_unseen(recipe, taught, where)
    return state, where


def objective_of(recipe: Recipe, seed: int, device: torch.device) -> TextObjective:
    """Return what the steps minimise; a teacher is put on the device."""
    if recipe.distill is None:
        return TextObjective()
    teacher = _float_bert(recipe, seed)
    load_weights(teacher, *teacher_state(recipe))
    return TextObjective(teacher.to(device), recipe.distill)


def bert_groups(model: nn.Module, spec: TrainSpec) -> list[dict[str, Any]]:
    """Return BiT's three groups: weights with decay, biases and norms without, elastic levels.

    An auxiliary weight is a weight like the one it stands beside.
    """
    levels = {id(part.level) for _, part in elastic_parts(model)}
    kinds: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "levels": []}
    for name, parameter in model.named_parameters():
        if id(parameter) in levels:
            kinds["levels"].append(parameter)
        else:
            plain = any(part in name for part in UNDECAYED)
            kinds["plain" if plain else "decayed"].append(parameter)
    return [
        {
            "params": parameters,
            "lr_factor": spec.level_lr / spec.lr if kind == "levels" else 1.0,
            "weight_decay": spec.weight_decay if kind == "decayed" else 0.0,
        }
        for kind, parameters in kinds.items()
        if parameters
    ]


def make_bertadam(model: nn.Module, spec: TrainSpec, device: torch.device) -> BertAdam:
    """Return BertAdam; on a GPU learning rates are tensors that a captured step reads."""
    groups = bert_groups(model, spec)
    for group in groups:
        rate = spec.lr * group["lr_factor"]
        group["lr"] = torch.tensor(rate, device=device) if device.type == "cuda" else rate
    return BertAdam(groups, fused=device.type == "cuda")
