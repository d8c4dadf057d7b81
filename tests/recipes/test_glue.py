"""The rows of GLUE: what BiT ran, and the folders they need."""

import pytest

from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes, overridden
from surge.recipes.placing import placed
from surge.recipes.recipe import DistillSpec


@pytest.mark.parametrize(
    "task, epochs, batch, lr, length, metric",
    [
        ("cola", 50, 16, 5e-4, 64, "matthews"),
        ("sst2", 10, 8, 1e-4, 64, "accuracy"),
        ("mrpc", 20, 8, 5e-4, 128, "accuracy"),
        ("stsb", 20, 8, 5e-4, 128, "pearson_spearman"),
        ("qqp", 6, 32, 2e-4, 128, "accuracy"),
        ("mnli", 6, 16, 2e-4, 128, "accuracy"),
        ("qnli", 10, 8, 2e-4, 128, "accuracy"),
        ("rte", 20, 8, 5e-4, 128, "accuracy"),
    ],
)
def test_rows_are_what_bit_ran(task, epochs, batch, lr, length, metric):
    recipe = get_recipe(f"glue-{task}-bit")
    train = recipe.train
    assert (train.epochs, train.batch, train.lr) == (epochs, batch, lr)
    assert (recipe.data.length, recipe.metric) == (length, metric)
    assert (train.optimizer, train.schedule, train.weight_decay) == ("bertadam", "steps", 0.01)
    assert (train.level_lr, train.test_every) == (1e-4, 100)
    assert recipe.distill == DistillSpec()
    assert recipe.paper is None


def test_bibert_has_its_own_batch_rate_and_losses():
    recipe = get_recipe("glue-rte-bibert")
    assert (recipe.train.batch, recipe.train.lr) == (16, 1e-5)
    assert recipe.distill.hidden_form == "direction" and recipe.distill.labels == 0.5
    assert recipe.distill.scores == "mse"


def test_surge_starts_from_copies_with_a_small_eta():
    surge = get_recipe("glue-mrpc-bit-surge").surge
    assert (surge.eta, surge.auxiliary, surge.align) == (1e-3, "copied", 0.0)
    assert get_recipe("glue-mrpc-bit-surge-align").surge.align == 1.0
    assert get_recipe("glue-mrpc-bit-surge-tied").surge.auxiliary == "tied"
    low = get_recipe("glue-mrpc-bit-surge-lowrank").surge
    assert (low.auxiliary, low.rank, low.eta) == ("low_rank", 8, 1e-3)


def test_alignment_and_eta_can_be_swept():
    base = get_recipe("glue-mrpc-bit-surge-align")
    changed = overridden(base, {"align": 0.01, "eta": 0.1})
    assert (changed.surge.align, changed.surge.eta) == (0.01, 0.1)


def test_binarybert_is_a_ternary_half_and_its_split():
    first, second = get_recipe("glue-rte-ternary"), get_recipe("glue-rte-binarybert")
    assert first.model.options == {"width": "half"} and first.train.lr == 1e-5
    assert second.model.options == {"width": "half", "start": ""} and second.train.lr == 5e-5
    assert first.method.options == second.method.options == {"ternary": True}
    assert first.distill == second.distill == get_recipe("glue-rte-bit").distill
    folders = {"model": "m", "teacher": "t"}
    with pytest.raises(ConfigError, match="begins with another run.*--start RUN"):
        placed(second, **folders)
    with pytest.raises(ConfigError, match="drop --start"):
        placed(first, **folders, start="s")
    assert placed(second, **folders, start="/s").model.options["start"] == "/s"


def test_every_task_has_its_teacher():
    names = list_recipes("glue")
    assert len([name for name in names if name.endswith("-teacher")]) == 8
    assert all(get_recipe(n).distill for n in names if not n.endswith("-teacher"))


def test_placed_names_the_folders(tmp_path):
    found = placed(get_recipe("glue-rte-bit"), model=str(tmp_path), teacher=str(tmp_path / "t"))
    assert found.model.options == {"path": str(tmp_path)} and found.data.tokenizer == str(tmp_path)
    assert found.distill.teacher == str(tmp_path / "t")


@pytest.mark.parametrize(
    "name, folders, words",
    [
        ("glue-rte-bit", {}, "needs a pretrained BERT.*--model"),
        (
            "glue-rte-bit",
            {"model": "m"},
            "surge train glue-rte-teacher --model .*m. and.*--teacher RUN",
        ),
        ("glue-rte-teacher", {"model": "m", "teacher": "t"}, "drop --teacher"),
        ("digits-cnn-bnn", {"model": "m"}, "takes no --model"),
        ("digits-cnn-bnn", {"teacher": "m"}, "learns from labels alone; drop --teacher"),
    ],
)
def test_missing_and_needless_folders_are_refused(name, folders, words):
    with pytest.raises(ConfigError, match=words):
        placed(get_recipe(name), **{"model": None, "teacher": None, **folders})


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"hidden": -1.0}, "hidden=-1.0 must not be negative"),
        ({"hidden": 0.0, "logits": 0.0, "labels": 1.0}, "all losses with the teacher"),
    ],
)
def test_impossible_distillation_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        DistillSpec(**settings)
