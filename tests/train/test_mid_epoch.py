"""A run stopped inside an epoch ends bit for bit as the whole one."""

from dataclasses import replace

import pytest
import torch

from surge.recipes.recipe import MethodSpec, with_surge
from surge.train import checkpoint, mid_epoch
from surge.train.distributed import World
from surge.train.divergence import first_bad_layer
from surge.train.probe.recorder import read_records
from surge.train.watch import BitWatch, DivergedError
from tests.nets import assert_same_tensors
from tests.train.small import make_trainer, small_recipe, small_sets, weights


class Stop(Exception):
    """What ends a run here."""


ROWS = ["cnn-recu-surge", "cnn-recu-surge-noise", "cnn-rbnn", "cnn-rbonn-surge"]


def recipe_of(row):
    method = row.split("-")[1]
    if method not in ("rbnn", "rbonn"):
        return small_recipe(row, epochs=2, batch=16)
    base = small_recipe("cnn-bnn", epochs=2, batch=16)
    base = replace(base, row=f"cnn-{method}", method=MethodSpec(method))
    return with_surge(base) if row.endswith("-surge") else base


def comparable(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.parametrize("row", ROWS)
def test_run_stopped_inside_an_epoch_continues_there(tmp_path, row):
    recipe, sets = recipe_of(row), small_sets()
    whole, rows = make_trainer(tmp_path / "whole", recipe, sets, save_steps=2, record_every=1), []
    whole.run(rows.append)
    broken, seen = make_trainer(tmp_path / "broken", recipe, sets, save_steps=2, record_every=1), []
    real, steps = broken.step, []

    def step(part, weight):
        if len(steps) == 11:  # the sixth step of the second epoch of six
            raise Stop
        steps.append(1)
        real(part, weight)

    broken.step = step
    with pytest.raises(Stop):
        broken.run(seen.append)
    state, _ = checkpoint.load_newest(broken.folder.checkpoints, recipe.name, torch.device("cpu"))
    assert (state["epoch"], state["midway"]["steps"]) == (1, 4)
    again = make_trainer(tmp_path / "broken", recipe, sets, save_steps=2, record_every=1)
    again.resume()
    counted, inner = [], again.step
    again.step = lambda part, weight: (counted.append(1), inner(part, weight))
    again.run(seen.append)
    assert len(counted) == 2
    assert_same_tensors(weights(again), weights(whole))
    assert comparable(seen) == comparable(rows)
    assert comparable(read_records(again.folder)) == comparable(read_records(whole.folder))


@pytest.mark.parametrize("reason", ["deadline", "stop"])
def test_long_epoch_is_left_inside_when_time_is_over(tmp_path, monkeypatch, reason):
    recipe, sets = recipe_of("cnn-recu-surge"), small_sets()
    whole, rows, seen = make_trainer(tmp_path / "whole", recipe, sets), [], []
    whole.run(rows.append)
    now = [0.0]
    monkeypatch.setattr(mid_epoch.time, "monotonic", lambda: now[0])
    ending = {"deadline": 25.0} if reason == "deadline" else {"stop": lambda: now[0] >= 25}
    late = make_trainer(tmp_path / "late", recipe, sets, **ending)
    inner, steps = late.step, []

    def step(part, weight):
        steps.append(1)
        now[0] += 10
        inner(part, weight)

    late.step = step
    outcome = late.run(seen.append)
    # Over since the third step, at 30 s; half a minute later six steps are done, the whole epoch.
    assert (outcome.finished, outcome.epochs, len(steps)) == (False, 1, 6)
    now[0] = 0.0
    late = make_trainer(tmp_path / "late", recipe, sets, **ending)
    late.resume()
    monkeypatch.setattr(mid_epoch, "GRACE", 10.0)
    inner, late.step = late.step, step
    assert late.run(seen.append).epochs == 1 and len(steps) == 6 + 4 and len(seen) == 1
    again = make_trainer(tmp_path / "late", recipe, sets)
    again.resume()
    assert again.run(seen.append).finished and len(seen) == 2
    assert_same_tensors(weights(again), weights(whole))
    assert comparable(seen) == comparable(rows)
    assert seen[1]["seconds"] == 40.0 and again.seconds == 60.0 + 40.0


@pytest.mark.parametrize(("rank", "restored"), [(0, True), (1, True), (2, False)])
def test_process_that_was_not_there_keeps_the_numbers_of_the_epoch(tmp_path, rank, restored):
    """A run of two processes goes on with three."""
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn"))
    watch = BitWatch(trainer.parts.model)
    noted = mid_epoch.note(trainer, watch, 3)
    states = [torch.Generator().manual_seed(seed).get_state() for seed in (7, 8)]
    noted |= {"random": states, "model": weights(trainer)}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trainer.world = World(rank, 3)
    assert mid_epoch.take_up(trainer, watch, noted) == 3
    expected = states[rank] if restored else before
    assert torch.equal(torch.get_rng_state(), expected)


def test_checkpoint_after_an_epoch_has_nothing_midway(tmp_path):
    trainer = make_trainer(tmp_path, small_recipe("cnn-bnn", epochs=1), save_steps=100)
    trainer.run()
    state, _ = checkpoint.load_newest(
        trainer.folder.checkpoints, trainer.recipe.name, torch.device("cpu")
    )
    assert state["midway"] is None


def test_search_for_a_bad_layer_begins_where_the_checkpoint_is(tmp_path):
    recipe, sets = small_recipe("cnn-bnn", epochs=2, batch=16), small_sets()
    trainer = make_trainer(tmp_path, recipe, sets, save_steps=2, record_every=1)
    real, steps = trainer.step, []

    def step(part, weight):
        if len(steps) == 9:  # the fourth step of the second epoch; a checkpoint holds two
            with torch.no_grad():
                trainer.parts.model.fc.weight.fill_(float("nan"))
        steps.append(1)
        real(part, weight)

    trainer.step = step
    with pytest.raises(DivergedError):
        trainer.run()
    again = make_trainer(tmp_path, recipe, sets)
    again.load()
    assert again.noted["steps"] == 2
    assert first_bad_layer(again) is None  # the NaN came from outside: repeated steps are finite
