"""Who trains when: order, room, what waits for what, what is shown; no process is begun here."""

import io
import os
import signal

import pytest
import torch
from rich.console import Console

from surge.cli import _run_lines, _side_by_side
from surge.cli._run_lines import run_lines
from surge.cli._side_by_side import Crew, mps_runs, share_of_cores
from surge.cli.reproduce import ReproduceCommand
from surge.errors import CheckpointMismatchError, DataNotFoundError
from surge.recipes import get_recipe
from surge.study import queue, results
from surge.study.queue import Plan, missing
from surge.train.loop import Outcome
from surge.train.processes.child import Ended
from tests.study.stored import result

STAGES = ("resnet34-teacher", "twostage-stage1", "twostage-reactnet", "onestage-bireal")
ENVIRONMENT = {"seed": 0, "cuda": None, "hardware": "here", "torch": "2", "commit": None}


class Clock:
    now = 100.0


class FakeApart:
    """A run of three turns, or as many as its script says; every end is written down."""

    begun, active, crowd, turns, ends = [], [], 0, {}, {}

    def __init__(self, function, job, *args, log):
        self.job, self.left = job, FakeApart.turns.get(job.recipe.row, 3)
        self.pipe, self.alive = None, True
        self.asked = False
        FakeApart.begun.append(job.recipe.row)
        FakeApart.active.append(self)
        FakeApart.crowd = max(FakeApart.crowd, len(FakeApart.active))

    def heard(self):
        self.left -= 1
        epochs = self.job.recipe.train.epochs
        if self.asked:
            return [], self.ended(Ended((outcome(False), ENVIRONMENT)))
        if self.left:
            return [(1, "top1 50.00")], None
        end = FakeApart.ends.get(self.job.recipe.row)
        return [(epochs, "top1 60.00")], self.ended(end or Ended((outcome(True), ENVIRONMENT)))

    def ended(self, end):
        self.alive = False
        FakeApart.active.remove(self)
        return end

    def ask_to_stop(self):
        self.asked = True

    def leave(self):
        self.asked, self.alive = True, False
        FakeApart.active.remove(self)

    kill = ask_to_stop


def outcome(finished):
    return Outcome(finished, 3, 60.0, 61.0, 1, 10.0, "eager")


@pytest.fixture
def crew(tmp_path, monkeypatch):
    """Return a function that makes a crew of fakes for the rows of a table."""
    for name, value in vars(FakeApart).items():
        if isinstance(value, list | dict):
            monkeypatch.setattr(FakeApart, name, type(value)())
    FakeApart.crowd, Clock.now = 0, 100.0
    monkeypatch.setattr(_side_by_side, "Apart", FakeApart)
    monkeypatch.setattr(_side_by_side, "wait", lambda pipes, seconds: None)
    monkeypatch.setattr(queue.time, "monotonic", lambda: Clock.now)

    def make(rows, table="imagenette", seeds=(0,), size=2, **fields):
        plans = [Plan(get_recipe(f"{table}-{row}")) for row in rows]
        stored = fields.pop("stored", [])
        jobs = missing(plans, seeds, stored, tmp_path / "runs")
        out = io.StringIO()
        console = Console(file=out, width=200)
        where = tmp_path / "results"
        fields = {"complete": lambda job: job, **fields}
        device = torch.device("cpu")
        made = Crew(
            jobs,
            size,
            None,
            (),
            stored=stored,
            where=where,
            console=console,
            device=device,
            **fields,
        )
        return made, out

    return make


def test_as_soon_as_one_ends_the_next_begins(crew, tmp_path):
    rows = ("cnn-float", "cnn-bnn", "cnn-recu", "cnn-bnn-surge")
    FakeApart.turns.update({"cnn-float": 9, "cnn-bnn": 2, "cnn-recu": 2, "cnn-bnn-surge": 2})
    made, out = crew(rows, "digits")
    assert made.work() == 0
    assert FakeApart.begun == list(rows) and FakeApart.crowd == 2
    lines = [r.row for r in results.read(tmp_path / "results", "digits")]
    assert lines == [*rows[1:], rows[0]]
    assert [r.row for r in made.stored] == lines
    assert "cnn-float 0: epoch 1/" in out.getvalue()


def test_runs_wait_for_those_they_build_on(crew):
    FakeApart.turns.update({"onestage-bireal": 30})
    made, _ = crew(STAGES, size=4)
    assert made.work() == 0
    assert FakeApart.begun == [STAGES[0], STAGES[3], STAGES[1], STAGES[2]]
    assert FakeApart.crowd == 2


def test_what_builds_on_a_failed_run_fails_and_the_others_go_on(crew, tmp_path):
    FakeApart.ends[STAGES[1]] = Ended(error="Training diverged in epoch 3.", kind="DivergedError")
    made, out = crew(STAGES)
    assert made.work() == 2
    assert STAGES[2] not in FakeApart.begun
    assert "twostage-stage1 0: Training diverged in epoch 3." in out.getvalue()
    assert "twostage-reactnet 0: it builds on imagenette-twostage-stage1, seed 0" in out.getvalue()
    stored = {r.row for r in results.read(tmp_path / "results", "imagenette")}
    assert stored == {STAGES[0], STAGES[3]}


def test_run_that_lacks_its_teacher_is_named(crew):
    def lacking(job):
        if job.needs:
            raise CheckpointMismatchError(f"{job.recipe.name} lacks its teacher.")
        return job

    made, out = crew(STAGES[2:], complete=lacking)
    assert made.work() == 1
    assert FakeApart.begun == [STAGES[3]]
    assert "twostage-reactnet 0: imagenette-twostage-reactnet lacks its teacher." in out.getvalue()


def test_nothing_begins_after_the_deadline(crew, monkeypatch):
    made, _ = crew(("cnn-float", "cnn-bnn", "cnn-recu"), "digits", deadline=130.0)
    heard = FakeApart.heard

    def slow(self):
        Clock.now += 20.0
        return heard(self)

    monkeypatch.setattr(FakeApart, "heard", slow)
    assert made.work() == 0
    assert FakeApart.begun == ["cnn-float", "cnn-bnn"]


def test_nothing_begins_that_could_not_end_an_epoch_in_time(crew, monkeypatch):
    """The first epoch is over after 20 s; when the first run ends, 15 are left."""
    FakeApart.turns.update({"cnn-float": 3})
    heard = FakeApart.heard

    def slow(self):
        Clock.now += 20.0
        return heard(self)

    monkeypatch.setattr(FakeApart, "heard", slow)
    made, _ = crew(("cnn-float", "cnn-bnn"), "digits", size=1, deadline=175.0)
    assert made.work() == 0
    assert FakeApart.begun == ["cnn-float"]
    made, _ = crew(("cnn-bnn", "cnn-recu"), "digits", size=1, deadline=245.0)
    assert made.work() == 0
    assert FakeApart.begun == ["cnn-float", "cnn-bnn", "cnn-recu"]


def test_run_that_is_known_to_be_too_long_beside_others_is_passed_over(crew, monkeypatch):
    monkeypatch.setattr(_side_by_side, "hardware", lambda device: "H200")
    rows = ("resnet20-bnn", "resnet20-recu")
    stored = [result(rows[0], 7, seconds=900.0, side_by_side=2)]
    stored += [result(rows[1], 7, seconds=900.0, side_by_side=3)]
    made, _ = crew(rows, "cifar10", stored=stored, deadline=700.0)
    assert made.work() == 0
    assert FakeApart.begun == [rows[1]]


def test_missing_data_stop_all(crew):
    FakeApart.ends["cnn-float"] = Ended(error="no such folder", kind="DataNotFoundError")
    FakeApart.turns["cnn-bnn"] = 10**6
    made, _ = crew(("cnn-float", "cnn-bnn", "cnn-recu"), "digits")
    with pytest.raises(DataNotFoundError, match="no such folder"):
        made.work()
    assert FakeApart.begun == ["cnn-float", "cnn-bnn"] and FakeApart.active == []


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signals_let_runs_stop_and_begin_no_more(crew, monkeypatch, number, error):
    monkeypatch.setattr(_side_by_side, "wait", lambda pipes, seconds: os.kill(os.getpid(), number))
    FakeApart.turns.update({"cnn-float": 10**6, "cnn-bnn": 10**6})
    made, out = crew(("cnn-float", "cnn-bnn", "cnn-recu"), "digits")
    before = signal.getsignal(number)
    with pytest.raises(error):
        made.work()
    assert signal.getsignal(number) == before
    assert FakeApart.begun == ["cnn-float", "cnn-bnn"] and FakeApart.active == []
    assert "stopping: runs end their epoch" in out.getvalue()
    assert out.getvalue().count("Stopped after epoch 3") == 2


def test_lines_of_a_run_are_seconds_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(_run_lines.time, "monotonic", lambda: Clock.now)
    recipe = get_recipe("digits-cnn-recu")
    one, other = missing([Plan(recipe)], (0, 1), [], tmp_path)
    out = io.StringIO()
    with run_lines(Console(file=out, width=200)) as lines:
        lines.begin(one)
        lines.begin(other)
        for done in range(1, 6):
            Clock.now += 9.0
            lines.epoch(one, done, f"top1 {done}.00")
        lines.epoch(other, 1, "top1 8.00")
        lines.end(one)
    assert out.getvalue().splitlines() == [
        "cnn-recu 0: begins",
        "cnn-recu 1: begins",
        f"cnn-recu 0: epoch 1/{recipe.train.epochs} top1 1.00",
        f"cnn-recu 0: epoch 4/{recipe.train.epochs} top1 4.00",
        f"cnn-recu 1: epoch 1/{recipe.train.epochs} top1 8.00",
    ]


def test_terminal_has_a_bar_for_every_active_run(tmp_path):
    recipe = get_recipe("digits-cnn-recu")
    one, other = missing([Plan(recipe)], (0, 1), [], tmp_path)
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with run_lines(console) as lines:
        lines.begin(one)
        lines.begin(other)
        lines.epoch(one, 3, "top1 55.50")
        lines.bars.refresh()
        shown = out.getvalue()
        assert f"3/{recipe.train.epochs}" in shown and "top1 55.50" in shown
        assert "cnn-recu 0" in shown and "cnn-recu 1" in shown and "is built" in shown
        lines.end(one)
        assert [task.description for task in lines.bars.tasks] == ["cnn-recu 1"]


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for name in _side_by_side.THREADS:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    with share_of_cores(5):
        assert [os.environ[name] for name in _side_by_side.THREADS] == ["3", "3"]
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    assert not any(name in os.environ for name in _side_by_side.THREADS)
    with share_of_cores(40):
        assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with share_of_cores(5):
        assert [os.environ[name] for name in _side_by_side.THREADS] == ["7", "3"]
        assert torch.get_num_threads() == before
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_mps_is_seen_by_its_process_or_its_pipe(tmp_path, monkeypatch):
    pipes, processes = tmp_path / "pipes", tmp_path / "proc"
    pipes.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    for number, name in (("1", "init\n"), ("20", "python\n")):
        (processes / number).mkdir(parents=True)
        (processes / number / "comm").write_text(name)
    assert not mps_runs(processes)
    (processes / "20" / "comm").write_text("nvidia-cuda-mps\n")
    assert mps_runs(processes)
    (processes / "20" / "comm").write_text("python\n")
    (pipes / "control").touch()
    assert mps_runs(processes)


@pytest.mark.parametrize("given, runs, expected", [(3, 4, 3), (None, 1, None), (None, 4, 2)])
def test_runs_side_by_side_share_the_cores_to_decode_with(monkeypatch, given, runs, expected):
    monkeypatch.setattr(_side_by_side, "worker_count", lambda runs: 8 // runs)
    command = ReproduceCommand("imagenet", workers=given)
    assert _side_by_side.workers_of(command, runs) == expected
