"""Two processes under DistributedDataParallel against one with the same global batch."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
import torch.multiprocessing

from surge.train import evaluate
from surge.train.distributed import World, joined, wrapped
from surge.train.run import RunFolder
from tests.nets import assert_same_tensors
from tests.train import ranks
from tests.train.small import CPU

TIMEOUT = 180
MEASURED = ("train_loss", "train_top1", "test_loss", "test_top1", "flips")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    """What each rank computed; a rank that hangs is ended, not waited for."""
    spawned = torch.multiprocessing.spawn(
        ranks.work, args=(folder,), nprocs=ranks.WORLD, join=False
    )
    deadline = time.monotonic() + TIMEOUT
    while not spawned.join(timeout=1):
        if time.monotonic() > deadline:
            for process in spawned.processes:
                process.kill()
            pytest.fail(f"the ranks did not finish within {TIMEOUT} s")
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks.WORLD)]


@pytest.mark.parametrize("name", ranks.CASES)
def test_ranks_end_with_the_same_weights_and_scales(results, name):
    first, second = (result[name] for result in results)
    assert_same_tensors(second["weights"], first["weights"])
    assert second["scales"] == first["scales"]
    assert bool(first["scales"]) == (name != "plain")


@pytest.mark.parametrize("name", ["features", "compiled-features"])
def test_centres_of_features_are_learned_together(results, name):
    centres = [result[name]["weights"]["centre"] for result in results]
    assert torch.equal(*centres) and centres[0].any()


@pytest.mark.parametrize("name", ranks.CASES)
def test_two_processes_equal_one_with_the_same_global_batch(results, tmp_path, name):
    alone = ranks.finished(name, tmp_path)
    both = results[0][name]
    for key, tensor in alone["weights"].items():
        torch.testing.assert_close(both["weights"][key], tensor, rtol=1e-4, atol=1e-6, msg=key)
    assert both["scales"] == pytest.approx(alone["scales"], rel=1e-4)
    for row, expected in zip(both["rows"], alone["rows"], strict=True):
        for key in MEASURED:
            assert row[key] == pytest.approx(expected[key], rel=1e-4), key
    assert both["best"] == alone["best"]


def test_share_of_a_partial_batch_decides_its_weight(tmp_path):
    """5 and 6 of 11 images: without weights the first image of rank 0 would count for more."""
    shares = {}
    for rank in range(2):
        trainer = ranks.build("partial", tmp_path)
        trainer.world = World(rank, 2)
        trainer.train_loader.rank, trainer.train_loader.world = rank, 2
        shares[rank] = [(len(part), weight) for part, weight in trainer.batches()]
    assert shares[0] == [(16, 1.0), (5, 10 / 11)]
    assert shares[1] == [(16, 1.0), (6, 12 / 11)]


def test_deadline_of_one_rank_stops_all_and_they_resume_to_the_same_end(results):
    for result in results:
        assert result["stopped"]["epochs"] == [1, 2]
        assert result["stopped"]["finished"] == [False, True]
        assert_same_tensors(result["stopped"]["weights"], result["surge"]["weights"])


def test_every_rank_gets_its_random_numbers_back_inside_an_epoch(results):
    for result in results:
        found = result["interrupted"]
        assert found["noted"] == 4
        assert_same_tensors(found["weights"], found["whole"])


def test_ranks_that_find_different_checkpoints_all_refuse_to_go_on(results):
    for result in results:
        found = r"rank 0 that after epoch 2 \(.* s\), rank 1 that after epoch 1 \(.* s\)\. "
        assert re.search(found, result["parted"])
        assert "epoch-00002.pt is damaged" in result["parted"]


def test_only_the_first_rank_writes(results, folder):
    lines = (folder / "two-surge" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


def test_alone_is_a_world_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with joined(torch.device("cpu")) as world:
        assert world == World(0, 1)
        assert world.leads
        assert world.any(True, torch.device("cpu"))
        assert not world.any(False, torch.device("cpu"))
    model = torch.nn.Linear(2, 2)
    assert wrapped(model, World(), torch.device("cpu")) is model


def test_torchrun_trains_one_run_and_stores_one_result(tmp_path):
    """The command as README shows it; BatchNorm sees half a batch, so only the form is checked."""
    words = ["train", "digits-cnn-recu-surge", "--epochs", "2", "--limit", "64"]
    words += ["--out", str(tmp_path / "run"), "--results", str(tmp_path / "results")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "-m", "surge", *words, "--device", "cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("digits-cnn-recu-surge, seed 0") == 1
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [0, 1]
    assert len((tmp_path / "results" / "digits.jsonl").read_text().splitlines()) == 1
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("seed 0") == 1
    # All ranks are tested with the norms that the checkpoint has.
    trainer, _ = evaluate._at_newest(*RunFolder.open(tmp_path / "run"), tmp_path, CPU)
    stored = json.loads(rows[-1])
    assert trainer.evaluate() == pytest.approx((stored["test_top1"], stored["test_loss"]))
