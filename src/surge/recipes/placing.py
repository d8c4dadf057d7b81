"""The folders that a recipe needs besides its data: a BERT, a teacher, a first stage."""

from dataclasses import replace
from pathlib import Path

from surge.errors import ConfigError
from surge.recipes import glue, voc
from surge.recipes.recipe import Recipe

FILE = ", or a file with torchvision's ResNet-34 for the same classes"


def _on_images(recipe: Recipe) -> bool:
    return recipe.data.length is None


def teacher_of(recipe: Recipe) -> str:
    """Return the name of the recipe that trains a student's teacher."""
    if recipe.table == "voc":
        return voc.TEACHER
    return f"{recipe.table}-resnet34-teacher" if _on_images(recipe) else glue.teacher_of(recipe)


def start_of(recipe: Recipe) -> str:
    """Return the name of the recipe that trains what another one begins with."""
    if recipe.table == "voc":
        return voc.start_of(recipe)
    return f"{recipe.table}-twostage-stage1" if _on_images(recipe) else glue.start_of(recipe)


def with_teacher(recipe: Recipe, teacher: str | None) -> Recipe:
    """Return the recipe with its teacher: the folder of a run, or a file of weights."""
    if recipe.distill is None:
        if teacher is not None:
            raise ConfigError(f"{recipe.name} learns from labels alone; drop --teacher.")
        return recipe
    if teacher is None:
        model = "" if _on_images(recipe) else f" --model {recipe.model.options.get('path', 'DIR')}"
        file = FILE if _on_images(recipe) and recipe.table != "voc" else ""
        raise ConfigError(
            f"{recipe.name} learns from a teacher: train one with `surge train "
            f"{teacher_of(recipe)}{model}` and name its folder with --teacher RUN{file}."
        )
    place = str(Path(teacher).expanduser().resolve())
    return replace(recipe, distill=replace(recipe.distill, teacher=place))


def with_start(recipe: Recipe, start: str | None) -> Recipe:
    """Return the recipe with the folder of the run that it begins with."""
    if "start" not in recipe.model.options:
        if start is not None:
            raise ConfigError(f"{recipe.name} starts from no other run; drop --start.")
        return recipe
    if start is None:
        raise ConfigError(
            f"{recipe.name} begins with another run: train that with `surge train "
            f"{start_of(recipe)}` and name its folder with --start RUN."
        )
    options = {**recipe.model.options, "start": str(Path(start).expanduser().resolve())}
    return replace(recipe, model=replace(recipe.model, options=options))


def placed(
    recipe: Recipe,
    *,
    model: str | None,
    teacher: str | None,
    start: str | None = None,
    backbone: str | None = None,
) -> Recipe:
    """Return the recipe with all folders that it needs."""
    recipe = voc.with_backbone(glue.with_model(recipe, model), backbone)
    return with_start(with_teacher(recipe, teacher), start)
