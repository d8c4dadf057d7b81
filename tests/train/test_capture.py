"""The logic of captured steps, with a stand-in for CUDA graphs: what it restores and replays.

``test_gpu.py`` has the real ones.
"""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from surge.data import EpochPlan
from surge.train.capture import WARMUPS, Captured
from tests.nets import assert_same_tensors
from tests.train.small import make_trainer, small_recipe, small_sets, weights


class Stream:
    def wait_stream(self, other):
        pass


class Graph:
    """Remembers what was called while it was recorded, and calls it again."""

    recording = None

    def __init__(self):
        self.calls = []

    def pool(self):
        return "pool"

    def replay(self):
        for call in self.calls:
            call()


@pytest.fixture
def graphs(monkeypatch):
    """Replace the parts of torch.cuda that capturing uses; return the graphs that are made."""
    made = []

    def new():
        made.append(Graph())
        return made[-1]

    @contextmanager
    def record(graph, pool, stream, capture_error_mode):
        # Runs side by side: a scratch buffer belongs to a stream, and others go on meanwhile.
        assert capture_error_mode == "thread_local"
        graph.shared, graph.stream = pool, stream
        Graph.recording = graph
        yield
        Graph.recording = None

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "current_stream", Stream)
    monkeypatch.setattr(cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cuda, "CUDAGraph", new)
    monkeypatch.setattr(cuda, "graph", record)
    monkeypatch.setattr(cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
    return made


def captured(trainer):
    """Wrap the trainer's step; while a graph records, a step is noted and not done."""
    eager = trainer.train_step

    def step(part, *numbers):
        if Graph.recording is not None:
            Graph.recording.calls.append(lambda: eager(part, *numbers))
        else:
            eager(part, *numbers)

    trainer.step = Captured(step, trainer.train_step.state)
    return trainer


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("row", ["cnn-recu", "cnn-recu-surge", "cnn-recu-surge-noise"])
def test_replays_equal_eager_steps_bit_for_bit(tmp_path, graphs, row, optimizer):
    """Two epochs, each with a partial batch at its end."""
    recipe = small_recipe(row, epochs=2, optimizer=optimizer, lr=0.01)
    sets = small_sets(train=75)
    eager = make_trainer(tmp_path / "eager", recipe, sets)
    eager.run()
    replayed = captured(make_trainer(tmp_path / "graph", recipe, sets))
    replayed.run()
    assert_same_tensors(weights(replayed), weights(eager))
    assert set(replayed.step.graphs) == {(32, 1.0), (11, 1.0)}
    assert [graph.shared for graph in graphs] == [None, "pool"]


def test_warm_up_leaves_no_trace(tmp_path, graphs):
    trainer = captured(make_trainer(tmp_path))
    trainer.begin_epoch()
    before, random = weights(trainer), torch.get_rng_state()
    part, weight = next(trainer.batches())
    trainer.step._capture(part, (weight,))
    assert_same_tensors(weights(trainer), before)
    states = trainer.parts.optimizer.state.values()
    assert states and not any(state["momentum_buffer"].any() for state in states)
    assert not trainer.train_step.sums.values.any()
    assert torch.equal(torch.get_rng_state(), random)


def test_warm_up_comes_before_the_recording(graphs):
    seen = []
    total = torch.zeros(())

    def step(part, *numbers):
        seen.append((Graph.recording is not None, *numbers))
        total.add_(1)

    part = EpochPlan(torch.arange(4), torch.zeros(4, 2).long(), torch.zeros(4).bool())
    graphed = Captured(step, lambda: [total])
    graphed(part, 0.5)
    graphed(part, 0.5)
    assert seen == [(False, 0.5)] * WARMUPS + [(True, 0.5)]
    assert float(total) == 0  # the stand-in replays nothing here


def test_calls_of_another_weight_have_their_own_graph(graphs):
    part = EpochPlan(torch.arange(4), torch.zeros(4, 2).long(), torch.zeros(4).bool())
    graphed = Captured(lambda part, *numbers: None, list)
    for weight in (1.0, 4 / 3, 1.0):
        graphed(part, weight)
    assert len(graphs) == 2


def test_plan_is_copied_to_where_the_graph_reads_it(graphs):
    def plan(start):
        return EpochPlan(
            torch.arange(start, start + 3),
            torch.full((3, 2), start),
            torch.tensor([True, False, start > 0]),
        )

    graphed = Captured(lambda part: None, list)
    for start in (0, 5):
        graphed(plan(start))
    _, static = graphed.graphs[(3,)]
    assert static.permutation.tolist() == [5, 6, 7]
    assert static.offsets.tolist() == [[5, 5]] * 3
    assert static.flips.tolist() == [True, False, True]


def test_every_captured_step_has_a_stream_of_its_own(graphs, tmp_path):
    sets = small_sets(train=75)
    trainers = [captured(make_trainer(tmp_path / str(i), small_recipe(), sets)) for i in (0, 1)]
    for trainer in trainers:
        trainer.begin_epoch()
        for part, weight in trainer.batches():
            trainer.step(part, weight)
    streams = {id(graph.stream) for graph in graphs}
    assert len(graphs) > 2 and len(streams) == 2
