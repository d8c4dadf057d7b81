"""The engines that are compared, on the network that the figures are about."""

import numpy as np
import pytest
import torch

from surge.study.contenders import ENGINES, missing_engines, prepare, start, trial
from surge.study.workloads import workload
from tests.runtime.building import import_engine


def test_nothing_is_missing_here():
    import_engine()
    assert missing_engines() == {}


@pytest.mark.slow
def test_every_engine_runs_resnet18_at_224_pixels(tmp_path):
    import_engine()
    work = workload("resnet18-224")
    batch = work.example.numpy()
    with torch.no_grad():
        wanted = {True: work.binary(work.example), False: work.floating(work.example)}
    sizes = {}
    for contender in prepare(work, tmp_path, ENGINES):
        assert not trial(contender, batch.shape, 1).failure
        found = start(contender, batch, 1)()
        truth = wanted[contender.binary].numpy()
        error = np.linalg.norm(found - truth) / np.linalg.norm(truth)
        if "int8" not in contender.engine:
            assert error < 1e-4, contender.engine
        elif not contender.binary:
            assert error < 0.1, contender.engine
        sizes[contender.engine] = contender.file_bytes
    assert sizes["surge int8"] <= 2_200_000 and sizes["surge"] < 4_300_000
    assert sizes["onnxruntime fp32"] > 46_000_000
