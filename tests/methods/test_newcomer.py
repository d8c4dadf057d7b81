"""A method that is new takes its file and a test: all else finds it by itself."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import surge
import surge.methods
from surge import method
from surge.errors import ConfigError
from surge.recipes import common, digits, get_recipe, list_recipes
from tests.methods.reference import make, run
from tests.nets import binarized

ROOT = Path(__file__).parents[2]

OUTSIDER = '''"""Outsider: mean magnitude, and a clip that narrows."""

import torch

from surge import functional
from surge.method import Method, mean_magnitude, register_method


@register_method("outsider", bits=(1, 1), reference="Nobody, Nowhere 2030")
class Outsider(Method):
    """Outsider (Nobody 2030).

    Weights   w_b = mean(abs(w)) sign(w); gradient passes where abs(w) <= width
    Schedule  width = 1 - (1 - ``last``) e/E.
    Paper vs here: identical.
    """

    dropped = ("width",)

    def __init__(self, geometry, weight, *, last=0.5):
        super().__init__(geometry, weight)
        self.last = last
        self.register_buffer("width", torch.ones(()))

    def binarize_weight(self, weight):
        bits = functional.sign_clipped(weight / self.width)
        return mean_magnitude(weight).detach() * bits

    def scales_signs(self):
        return True

    def on_epoch(self, epoch, epochs):
        self.width.fill_(1 - (1 - self.last) * epoch / epochs)
'''


def renew_recipes():
    """Make the rows of all methods anew."""
    importlib.reload(common)
    importlib.reload(digits)


@pytest.fixture
def outsider(tmp_path, monkeypatch):
    """A method in a file of its own, found as those of the package are, and then forgotten."""
    (tmp_path / "outsider.py").write_text(OUTSIDER)
    surge.list_methods()
    with monkeypatch.context() as patch:
        patch.setattr(method, "_registry", dict(method._registry))
        patch.setattr(surge.methods, "__path__", [*surge.methods.__path__, str(tmp_path)])
        renew_recipes()
        yield "outsider"
    del sys.modules["surge.methods.outsider"], surge.methods.outsider
    renew_recipes()
    assert "outsider" not in surge.list_methods()


@pytest.mark.parametrize("row", ["common-resnet20-outsider", "digits-cnn-outsider"])
def test_a_new_method_is_found_by_its_file_alone(outsider, row):
    assert outsider in surge.list_methods()
    rows = [name for name in list_recipes(row.partition("-")[0]) if outsider in name]
    assert rows == [row, f"{row}-surge"]
    plain, surged = map(get_recipe, rows)
    assert plain.method == surged.method and plain.method.name == outsider
    assert plain.surge is None and surged.surge is not None


def test_a_new_method_binarises_with_its_option_and_keeps_its_buffer(outsider):
    net = nn.Sequential(nn.Linear(6, 8), nn.Hardtanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    with pytest.raises(ConfigError, match='no option "lost". Did you mean "last"'):
        surge.binarize_(net, outsider, lost=0.2)
    binarized(net, outsider, last=0.2)
    surge.on_epoch(net, 3, 4)
    assert net[2].method.describe() == "outsider (1/1 bit)"
    assert net.state_dict()["2.method.width"].item() == pytest.approx(0.4)
    assert set(net[2].packed_weight()[0].unique().tolist()) == {-1.0, 1.0}


def test_a_new_method_composes_with_compensation(outsider):
    layer, x = make("linear", outsider)
    plain, input_grad, grad = run(layer, x)
    compensation = surge.compensate_(layer, fixed_scale=2.0)
    output, both, _ = run(layer, x)
    (auxiliary,) = compensation.parameters()
    assert torch.equal(output, plain)
    torch.testing.assert_close(both - input_grad, 2 * grad @ auxiliary.detach())
    torch.testing.assert_close(auxiliary.grad, 2 * grad.T @ x)
    surge.strip_(layer)
    assert torch.equal(layer(x), plain)


ASKED = (
    "methods/test_quirks.py",
    "methods/test_state.py",
    "methods/test_training.py",
    "contract/test_ties.py",
    "train/test_golden.py",
    "test_readme.py",
)
"""Tests that know methods by name, or hold stored files against all of them."""
LISTS = ("published", "every_method", "every_recipe", "other_methods", "results_say")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (ASKED, f"({' or '.join(('outsider', *LISTS))}) and not ranks"),
        pytest.param(("",), "outsider", marks=pytest.mark.slow),
    ],
    ids=["lists", "all"],
)
def test_a_new_method_passes_the_tests_of_all_methods(tmp_path, files, words):
    """In other processes, which find its file in a folder of its own."""
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "outsider.py").write_text(OUTSIDER)
    (tmp_path / "sitecustomize.py").write_text(
        f"import surge.methods\nsurge.methods.__path__.append({str(tmp_path / 'methods')!r})\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", words]
        + [str(ROOT / "tests" / file) for file in files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "[outsider]" in done.stdout
