"""The state of methods (RBONN's last gradient, RBNN's rotations, temperatures) is never lost."""

import io
import time

import pytest
import torch
import torch.multiprocessing

import surge
from tests.methods import ranks
from tests.nets import METHODS, assert_same_tensors, cnn, images, train

EPOCHS = 6


def start(method):
    net = cnn(method)
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)


def go_on(net, optimizer, epochs):
    """One step per epoch."""
    for epoch in epochs:
        surge.on_epoch(net, epoch, EPOCHS)
        train(net, optimizer, [images(seed=epoch)])


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_training_continues_bit_for_bit(method):
    whole, optimizer = start(method)
    fresh = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    go_on(whole, optimizer, range(4))
    file = io.BytesIO()
    torch.save([whole.state_dict(), optimizer.state_dict()], file)
    stopped = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    go_on(whole, optimizer, range(4, EPOCHS))

    resumed, other = start(method)
    torch.manual_seed(123)
    for parameter in resumed.parameters():  # nothing may come from the same start by chance
        torch.nn.init.normal_(parameter)
    file.seek(0)
    for target, state in zip((resumed, other), torch.load(file, weights_only=True), strict=True):
        target.load_state_dict(state)
    go_on(resumed, other, range(4, EPOCHS))
    assert_same_tensors(dict(resumed.state_dict()), dict(whole.state_dict()))
    for name in whole[2].method.state_dict(prefix="2.method."):
        if fresh[name].dtype != torch.bool:  # a switch may turn near the end, or once for all
            assert not torch.equal(stopped[name], fresh[name]), f"{name} never moves: no state"


@pytest.fixture(scope="module", autouse=True)
def second(tmp_path_factory):
    """The second rank, which begins while the first tests run; it is ended with the last."""
    folder = tmp_path_factory.mktemp("ranks")
    spawned = torch.multiprocessing.spawn(ranks.second, args=(folder,), nprocs=1, join=False)
    yield folder, spawned
    for process in spawned.processes:
        process.kill()
        process.join()


@pytest.fixture(scope="module")
def states(second):
    """The state of both ranks; this process is the first. None is waited for without end."""
    folder, spawned = second
    ranks.work(0, folder)
    deadline = time.monotonic() + ranks.PATIENCE
    while not spawned.join(timeout=1):
        if time.monotonic() > deadline:
            pytest.fail(f"the second rank did not finish within {ranks.PATIENCE} s")
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks.WORLD)]


def compare(actual, expected, tolerance=1e-5):
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            actual[name],
            tensor,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("method", METHODS)
def test_state_is_the_same_on_all_ranks_and_that_of_one_process(states, method):
    first, second = (state[method] for state in states)
    assert_same_tensors(second, first)
    parts = ranks.WORLD if method in ranks.IN_PARTS else 1
    # Sums of another order may turn a sign on some machine.
    compare(first, ranks.trained(method, parts=parts), tolerance=5e-4)


@pytest.mark.parametrize("method", ranks.IN_PARTS)
def test_state_of_these_methods_knows_that_the_batch_came_in_parts(states, method):
    with pytest.raises(AssertionError):
        compare(states[0][method], ranks.trained(method))


def test_norms_of_two_ranks_are_those_of_all_batches(states):
    first, second = (state["norms"] for state in states)
    assert_same_tensors(second, first)
    for name, tensor in ranks.statistics().items():
        torch.testing.assert_close(first[name], tensor)
