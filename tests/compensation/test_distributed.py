"""Two processes under DistributedDataParallel, in one spawn for all cases."""

import json
import time

import pytest
import torch.multiprocessing

from tests.compensation import ranks

TIMEOUT = 180


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each rank wrote; a rank that hangs is ended, not waited for."""
    folder = tmp_path_factory.mktemp("ranks")
    spawned = torch.multiprocessing.spawn(
        ranks.work, args=(folder,), nprocs=ranks.WORLD, join=False
    )
    deadline = time.monotonic() + TIMEOUT
    while not spawned.join(timeout=1):
        if time.monotonic() > deadline:
            for process in spawned.processes:
                process.kill()
            pytest.fail(f"the ranks did not finish within {TIMEOUT} s")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks.WORLD)]


@pytest.mark.parametrize("name", ranks.RUNS)
def test_ranks_agree_on_every_scale(results, name):
    first, second = (result[name] for result in results)
    assert first == second


# Noise of two ranks is not that of one.
@pytest.mark.parametrize("name", [n for n in ranks.RUNS if n != "recu-noise"])
def test_scales_are_those_of_one_process_with_the_whole_batch(results, name):
    assert results[0][name] == pytest.approx(ranks.final_scales(*ranks.RUNS[name]), rel=1e-5)


def test_overflow_on_one_rank_keeps_the_scale_on_all(results):
    assert [result["overflow"] for result in results] == [{"kept": True}] * ranks.WORLD


@pytest.mark.parametrize("name", ranks.REFERENCES)
def test_what_the_reference_teaches_is_that_of_one_process_with_the_whole_batch(results, name):
    first, second = (result[name] for result in results)
    assert first == second
    alone = ranks.with_reference(*ranks.REFERENCES[name])
    for key, value in alone.items():
        assert first[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_noise_of_every_rank_is_its_own(results):
    first, second = (result["noise"] for result in results)
    assert first["eager"] != second["eager"]
    for found in (first, second):
        assert found["compiled"] == pytest.approx(found["eager"], rel=1e-4, abs=1e-5)
