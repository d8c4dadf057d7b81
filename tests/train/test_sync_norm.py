"""BatchNorm over two processes against one process with the whole batch."""

import pytest
import torch
import torch.multiprocessing
from torch import nn

from surge.train.sync_norm import SyncBatchNorm1d, SyncBatchNorm2d, synchronize_norms_
from tests.nets import assert_same_tensors
from tests.train import sync_ranks
from tests.train.small import weights


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sync")
    torch.multiprocessing.spawn(sync_ranks.work, args=(folder,), nprocs=sync_ranks.WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(sync_ranks.WORLD)]


def test_one_norm_is_that_of_the_whole_batch(results):
    whole, parts = sync_ranks.one_norm(), [result["norm"] for result in results]
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), whole[key])
    torch.testing.assert_close(parts[0]["weight"] + parts[1]["weight"], whole["weight"])
    for part in parts:
        for key in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(part[key], whole[key])


def test_training_equals_one_process_with_the_same_global_batch(results, tmp_path):
    trainer, rows = sync_ranks.build(tmp_path), []
    trainer.run(rows.append)
    both = results[0]["synced"]
    assert both["mode"] == "eager"
    for key, tensor in weights(trainer).items():
        torch.testing.assert_close(both["weights"][key], tensor, rtol=1e-3, atol=1e-5, msg=key)
    for row, wanted in zip(both["rows"], rows, strict=True):
        assert row["train_loss"] == pytest.approx(wanted["train_loss"], rel=1e-4)
        assert row["test_loss"] == pytest.approx(wanted["test_loss"], rel=1e-4)


def test_without_it_every_process_has_statistics_of_its_own(results, tmp_path):
    """Else the test above would show nothing."""
    alone = results[0]["alone"]["rows"]
    synced = results[0]["synced"]["rows"]
    assert alone[1]["train_loss"] != pytest.approx(synced[1]["train_loss"], rel=1e-4)


def test_ranks_agree(results):
    assert_same_tensors(results[0]["synced"]["weights"], results[1]["synced"]["weights"])


def test_names_and_state_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4))
    names, x = list(model.state_dict()), torch.randn(5, 3, 3, 3)
    with torch.no_grad():
        expected = model.eval()(x)
    assert synchronize_norms_(model) == 2
    assert isinstance(model[1], SyncBatchNorm2d) and isinstance(model[3], SyncBatchNorm1d)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert list(model.state_dict()) == names
    with torch.no_grad():
        assert torch.equal(model(x), expected)


def test_two_processes_continue_inside_an_epoch(results):
    for result in results:
        assert result["interrupted"]["steps"] == 1
        assert_same_tensors(result["interrupted"]["weights"], result["synced"]["weights"])
        for row, wanted in zip(
            result["interrupted"]["rows"], result["synced"]["rows"], strict=True
        ):
            assert row["train_loss"] == pytest.approx(wanted["train_loss"], rel=1e-12)
            assert row["train_top1"] == wanted["train_top1"]
