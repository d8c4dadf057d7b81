"""The queue of a table: order, what is stored, what is begun, what fits."""

import pytest

from surge.recipes import get_recipe, overridden
from surge.study import queue
from surge.study.queue import Job, Plan, expected_seconds, fits, fitting, missing, next_ready
from surge.train.checkpoint import save
from tests.study.stored import result

ROWS = ("resnet20-recu", "resnet20-recu-surge")
RECIPES = [get_recipe(f"cifar10-{row}") for row in ROWS]
PLANS = [Plan(recipe) for recipe in RECIPES]


def kinds(jobs):
    return [(job.recipe.row, job.seed) for job in jobs]


def begin(folder):
    save(folder / "checkpoints", {"recipe": "any"}, 1)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only tests move."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(queue.time, "monotonic", lambda: Clock.now)
    return Clock


def test_missing_goes_seed_by_seed_so_that_pairs_complete(tmp_path):
    jobs = missing(PLANS, (0, 1), [], tmp_path)
    assert kinds(jobs) == [(ROWS[0], 0), (ROWS[1], 0), (ROWS[0], 1), (ROWS[1], 1)]


def test_missing_leaves_out_what_is_stored(tmp_path):
    stored = [result(ROWS[0], 0), result(ROWS[1], 1)]
    assert kinds(missing(PLANS, (0, 1), stored, tmp_path)) == [(ROWS[1], 0), (ROWS[0], 1)]


@pytest.mark.parametrize(
    "fields",
    [{"epochs": 10}, {"data": "cifar10, held out"}, {"overrides": {"eta": 0.5}}, {"metric": "x"}],
)
def test_missing_counts_other_runs_for_nothing(tmp_path, fields):
    stored = [result(row, 0, **fields) for row in ROWS]
    assert len(missing(PLANS, (0,), stored, tmp_path)) == 2


def test_missing_takes_begun_runs_first(tmp_path):
    jobs = missing(PLANS, (0, 1), [], tmp_path)
    begin(jobs[3].folder)
    again = missing(PLANS, (0, 1), [], tmp_path)
    assert [job.begun for job in again] == [True, False, False, False]
    assert kinds(again)[0] == (ROWS[1], 1)


def test_folder_without_checkpoint_is_not_begun(tmp_path):
    job = Job(RECIPES[0], 0, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("x")
    assert not job.begun


def test_folders_tell_runs_apart(tmp_path):
    short = [overridden(recipe, {"epochs": 10}) for recipe in RECIPES]
    held = [overridden(recipe, {"held_out": True}) for recipe in RECIPES]
    plans = [Plan(recipe) for recipe in (*RECIPES, *short, *held)]
    jobs = missing(plans, (0, 1), [], tmp_path)
    assert len({job.folder for job in jobs}) == len(jobs) == 12
    assert jobs[0].folder == tmp_path / "cifar10-resnet20-recu-600ep-seed0"


def test_run_of_a_fixed_time_is_another_than_one_of_all_its_epochs(tmp_path):
    whole, timed, longer = (
        Plan(RECIPES[0], {**given, "test_epochs": 5})
        for given in ({}, {"budget": "60s"}, {"budget": "90s"})
    )
    stored = [
        result(ROWS[0], 0),
        result(ROWS[0], 1, epochs=3, overrides={"budget": "60s", "test_epochs": 2}),
        result(ROWS[0], 2, epochs=4, overrides={"budget": "60s", "eta": 0.1}),
    ]
    assert [job.seed for job in missing([whole], (0, 1, 2), stored, tmp_path)] == [1, 2]
    jobs = missing([timed], (0, 1, 2), stored, tmp_path)
    assert [job.seed for job in jobs] == [0, 2]
    assert jobs[0].overrides == timed.overrides
    assert jobs[0].folder == tmp_path / "cifar10-resnet20-recu-60s-seed0"
    assert len(missing([longer], (0, 1, 2), stored, tmp_path)) == 3


def test_run_of_a_fixed_time_takes_that(tmp_path, clock):
    (job,) = missing([Plan(RECIPES[0], {"budget": "60s"})], (0,), [], tmp_path)
    assert expected_seconds(job, [result(ROWS[0], 0)], "H200") == 60.0
    assert fits(job, [], "H200", 161.0) and not fits(job, [], "H200", 159.0)


def test_expected_seconds_come_from_the_newest_run_of_the_row_on_this_machine(tmp_path):
    job = Job(RECIPES[0], 0, tmp_path)
    stored = [
        result(epochs=100, seconds=500.0),
        result(epochs=100, seconds=50.0),
        result(epochs=100, seconds=9.0, hardware="other"),
        result("resnet20-bnn", epochs=100, seconds=7.0),
    ]
    assert expected_seconds(job, stored, "H200") == pytest.approx(300.0)
    assert expected_seconds(job, [], "H200") is None


@pytest.mark.parametrize("fields", [{"data": "cifar10, held out"}, {"overrides": {"eta": 0.1}}])
def test_other_data_and_other_settings_tell_nothing_about_the_time(tmp_path, fields):
    job = missing(PLANS[1:], [0], [], tmp_path)[0]
    stored = [result("resnet20-recu-surge", 0, **fields)]
    assert expected_seconds(job, stored, "H200") is None


def test_expected_seconds_never_come_from_runs_with_more_neighbours(tmp_path):
    job = Job(RECIPES[0], 0, tmp_path)
    stored = [
        result(epochs=600, seconds=100.0),
        result(epochs=600, seconds=300.0, side_by_side=4),
        result(epochs=600, seconds=900.0, side_by_side=16),
    ]
    seconds = [expected_seconds(job, stored, "H200", n) for n in (1, 3, 4, 15, 16)]
    assert seconds == pytest.approx([100.0, 100.0, 300.0, 300.0, 900.0])
    assert expected_seconds(job, stored[2:], "H200") is None


def test_run_that_was_slow_beside_others_still_fits_alone(tmp_path, clock):
    stored = [result(seconds=900.0, side_by_side=16)]
    job = Job(RECIPES[0], 0, tmp_path)
    assert fits(job, stored, "H200", 600.0)
    assert not fits(job, stored, "H200", 600.0, 16)


def test_runs_wait_for_those_they_build_on_and_others_go_on(tmp_path):
    names = ("resnet34-teacher", "twostage-stage1", "twostage-reactnet", "onestage-bireal")
    plans = [Plan(get_recipe(f"imagenette-{name}")) for name in names]
    teacher, first, second, other = jobs = missing(plans, (0,), [], tmp_path)
    assert second.needs == {teacher.key, first.key} and not other.needs
    assert next_ready(jobs, set()) == teacher
    assert next_ready(jobs[1:], {teacher.key}) == other
    assert next_ready([first, second], {teacher.key, other.key}) is None
    assert next_ready([first, second], {other.key}) == first
    assert next_ready([second], {first.key}) is None
    assert next_ready([second], set()) == second
    (another,) = missing(plans[2:3], (1,), [], tmp_path)
    assert next_ready([another], {first.key}) == another  # its own seed is what counts


def test_fitting_without_budget_yields_everything(tmp_path):
    jobs = missing(PLANS, (0, 1), [], tmp_path)
    assert list(fitting(jobs, [], "H200", None)) == jobs


def test_fitting_stops_when_the_time_is_over(tmp_path, clock):
    jobs = missing(PLANS, (0, 1), [], tmp_path)
    done = []
    for job in fitting(jobs, [], "H200", 160.0):
        done.append(job)
        clock.now += 40.0
    assert len(done) == 2


def test_fitting_passes_over_what_is_known_to_be_too_long(tmp_path, clock):
    stored = [result(ROWS[0], 7, seconds=300.0), result(ROWS[1], 7, seconds=30.0)]
    jobs = missing(PLANS, (0,), stored, tmp_path)
    assert kinds(fitting(jobs, stored, "H200", 200.0)) == [(ROWS[1], 0)]


def test_fitting_always_continues_a_begun_run(tmp_path, clock):
    stored = [result(row, 7, seconds=300.0) for row in ROWS]
    begin(missing(PLANS, (0,), stored, tmp_path)[0].folder)
    jobs = missing(PLANS, (0,), stored, tmp_path)
    assert kinds(fitting(jobs, stored, "H200", 200.0)) == [(ROWS[0], 0)]


def test_fitting_learns_from_runs_that_end_meanwhile(tmp_path, clock):
    stored = []
    jobs = missing(PLANS[:1], (0, 1, 2), stored, tmp_path)
    done = []
    for job in fitting(jobs, stored, "H200", 1000.0):
        done.append(job.seed)
        clock.now += 500.0
        stored.append(result(ROWS[0], job.seed, seconds=500.0))
    assert done == [0]  # 400 s are left, and now it is known that a run takes 500
