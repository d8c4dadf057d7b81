"""Every example runs as it stands, learns, and has its scales renewed once per optimizer step."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
FRAMEWORKS = ("plain_loop.py", "with_accelerate.py", "with_lightning.py", "with_trainer.py")
LONGEST = 60
REPORT = "2 of 4 layers are binary (recu): 6,912 of 7,376 weights, 93.7 %.\n"
"""The frameworks train the same model."""

# Counts what the framework really does: steps of the optimizer against renewals of the scale.
DRIVER = """
import collections, json, runpy, sys
import torch, surge
from surge.layers import hooks

calls = collections.Counter()

def counted(owner, name, key):
    original = getattr(owner, name)
    def call(*args, **kwargs):
        calls[key] += 1
        return original(*args, **kwargs)
    setattr(owner, name, call)

def built(self, *args, build=torch.optim.Optimizer.__init__, **kwargs):
    build(self, *args, **kwargs)
    self.register_step_post_hook(lambda *_: calls.update(["steps"]))

torch.optim.Optimizer.__init__ = built
counted(surge.Compensation, "step", "renewals")
counted(hooks, "on_epoch", "epochs")
counted(hooks, "on_step", "hooks")
runpy.run_path(sys.argv[1], run_name="__main__")
print("calls", json.dumps(calls))
"""


def run(name, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(FOLDER / name)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_frameworks_are_all_there():
    assert set(EXAMPLES) == {*FRAMEWORKS, "binarize_transformer.py"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_short(name):
    assert len((FOLDER / name).read_text().splitlines()) < LONGEST


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_trains_with_its_scales_renewed(name, tmp_path):
    out = run(name, tmp_path)
    assert re.search(r"^\d+ of \d+ layers are binary \(\w+\): ", out, re.M), out
    assert (REPORT in out) == (name in FRAMEWORKS), out
    assert float(re.search(r"^accuracy ([\d.]+)%$", out, re.M)[1]) > 80, out
    scales = re.findall(r"^(\S+): scale (\S+) -> (\S+)$", out, re.M)
    assert scales, out
    for layer, first, last in scales:
        assert float(last) > 0 and first != last, layer
    calls = json.loads(re.search(r"^calls (.*)$", out, re.M)[1])
    assert calls["renewals"] == calls["steps"] > 0, calls
    assert calls["epochs"] == (10 if name in FRAMEWORKS else 5), calls
    # Accelerate's example accumulates two batches: the renewals must not follow the batches.
    batches = calls["hooks"] / calls["steps"]
    assert batches == 1 if name != "with_accelerate.py" else 1.9 < batches < 2, calls
    assert list(tmp_path.iterdir()) == []
