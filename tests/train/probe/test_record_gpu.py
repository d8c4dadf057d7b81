"""A recorded run is the same run where steps are replayed from a CUDA graph, too."""

from dataclasses import replace

import pytest
import torch

from surge.train.probe.recorder import make_recorder, read_records
from surge.train.run import RunFolder
from tests.train.test_gpu import make, state

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact")]


@pytest.mark.parametrize(
    ("row", "measured"), [("resnet20-recu-surge", 18), ("resnet20-recu-surge-noise", 0)]
)
def test_recording_beside_captured_steps_changes_nothing(row, measured, tmp_path):
    ends = []
    for recorded in (False, True):
        trainer = make(tmp_path / str(recorded), f"cifar10-{row}", captured=True, count=512)
        if recorded:
            trainer.options = replace(trainer.options, record_every=1, record_theorem=True)
            trainer.recorder = make_recorder(trainer, synced=False)
        trainer.run()
        ends.append(state(trainer))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    records = read_records(RunFolder(tmp_path / "True"))
    assert [record["epoch"] for record in records] == [0, 1]
    assert len(records[0]["layers"]) == 18 and len(records[0]["theorem"]) == measured
