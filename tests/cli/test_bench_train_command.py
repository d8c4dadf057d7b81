"""``surge bench train`` through the command, on a CPU and in small."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from surge.cli import main
from surge.cli._bench_training import _turn
from surge.layers import BinaryConv2d, BinaryLayer, BinaryLinear
from surge.models import build_model
from surge.study.bench import training_speed
from surge.study.bench.ceilings import Ceilings
from surge.study.bench.training_networks import NETWORKS, Network
from surge.study.bench.training_speed import Prepared, Step, held_bytes, peak_bytes


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Know a network that takes no time."""

    def build(width=8):
        return build_model("cnn_digits", width=width)

    monkeypatch.setitem(NETWORKS, "small", Network(build, "recu", (1, 8, 8), 4, 10, channels=8))


def run(*arguments):
    return main(["bench", "train", "--device", "cpu", "--seconds", "0.01", *arguments])


def test_rows_picture_and_stored_results(tmp_path, capsys):
    code = run(
        *("--network", "small", "--variants", "plain", "literal", "surge"),
        *("--batch", "2", "4", "--json", str(tmp_path / "b.json"), "--out", str(tmp_path)),
        *("--results", str(tmp_path / "results"), "--commit", "abc"),
    )
    assert code == 0
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [(r["variant"], r["batch"]) for r in rows] == [
        (variant, batch) for batch in (2, 4) for variant in ("plain", "literal", "surge")
    ]
    for row in rows:
        assert row["network"] == "small" and row["mode"] == "eager" and row["commit"] == "abc"
        assert row["images_per_s"] == pytest.approx(1e3 * row["batch"] / row["step_ms"])
    plain, literal, surge = rows[:3]
    # Two products more per layer than plain; the literal form pays a forward on top.
    assert plain["flops"] < surge["flops"] < literal["flops"]
    assert surge["saved_bytes"] < 1.01 * plain["saved_bytes"] < literal["saved_bytes"]
    assert (tmp_path / "training.png").stat().st_size > 5_000
    stored = (tmp_path / "results" / "training.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in stored] == rows
    assert "time / plain" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["recu", "bireal"])
def test_products_inside_our_own_operators_are_counted(monkeypatch, method):
    """The counter sees an operator as a whole: a layer without one must count alike."""

    def flops():
        return Step("small", "plain", "eager", torch.device("cpu")).flops()

    monkeypatch.setitem(NETWORKS, "small", replace(NETWORKS["small"], method=method))
    found = flops()
    for kind in (BinaryConv2d, BinaryLinear):
        monkeypatch.setattr(kind, "product", kind.multiply)
        monkeypatch.setattr(kind, "operate", BinaryLayer.operate)
    assert found == flops() > 0


def test_literal_form_has_no_other_mode(tmp_path, capsys):
    arguments = ("--network", "small", "--variants", "literal", "--modes", "compiled")
    assert run(*arguments, "--out", str(tmp_path)) == 2
    assert "The literal form is eager" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_measured_is_said(tmp_path, capsys):
    """A network that only this process knows cannot be built in another."""
    arguments = ("--network", "small", "--variants", "tied", "plain", "--jobs", "2")
    assert run(*arguments, "--out", str(tmp_path)) == 2
    said = capsys.readouterr()
    assert "No step was measured" in said.err and "small tied eager is left out" in said.out
    assert not list(tmp_path.iterdir())


def test_steps_are_built_in_processes_of_their_own(tmp_path, capsys):
    """A network that only this process knows is left out there, and named."""
    code = run(
        *("--network", "resnet20", "small", "--variants", "tied", "--jobs", "2"),
        *("--batch", "2", "--json", str(tmp_path / "b.json"), "--out", str(tmp_path)),
    )
    assert code == 0
    (row,) = json.loads((tmp_path / "b.json").read_text())
    assert (row["network"], row["variant"], row["batch"]) == ("resnet20", "tied", 2)
    assert row["flops"] == Step("resnet20", "tied", "eager", torch.device("cpu"), 2).flops()
    assert "small tied eager is left out" in capsys.readouterr().out


def test_width_is_a_factor_on_the_channels(tmp_path, capsys):
    code = run(
        *("--network", "small", "--variants", "plain", "surge", "salient", "--width", "1", "2"),
        *("--batch", "4", "--json", str(tmp_path / "b.json"), "--out", str(tmp_path)),
    )
    assert code == 0
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [(r["width"], r["variant"]) for r in rows] == [
        (width, variant) for width in (1, 2) for variant in ("plain", "surge", "salient")
    ]
    plain, surge, salient, wide = rows[:4]
    # Two of the four layers see twice as many channels on both sides.
    assert 2 * plain["flops"] < wide["flops"] < 4 * plain["flops"]
    assert plain["flops"] < salient["flops"] < surge["flops"]
    assert (tmp_path / "training.png").stat().st_size > 5_000
    assert "width" in capsys.readouterr().out


def test_bars_for_one_batch(tmp_path):
    assert (
        run("--network", "small", "--variants", "plain", "--batch", "2", "--out", str(tmp_path))
        == 0
    )
    assert (tmp_path / "training.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--network", "resnet21"), 'Did you mean "resnet20"?'),
        (("--variants", "tide"), 'Did you mean "tied"?'),
        (("--modes", "captured"), "needs a CUDA GPU"),
        (("--modes", "lean"), "needs a CUDA GPU"),
        (("--modes", "eagre"), 'Did you mean "eager"?'),
        (("--profile",), "leave it out on a CPU"),
        (("--network", "vggsmall", "--width", "2"), "above 1 for resnet20"),
        (("--width", "0"), "at least 1"),
        (("--batch", "-3"), "--batch -3 is too small"),
        (("--batch", "0"), "--batch 0 is too small"),
        (("--batch", "16", "1"), "--batch 1 is too small"),
        (("--jobs", "0"), "--jobs 0 must be at least 1"),
        (("--seconds", "0"), "--seconds 0 must be more than 0"),
        (("--seconds", "nan"), "--seconds nan must be more than 0"),
        (("--device", "foo"), '--device "foo" is not known'),
    ],
)
def test_wrong_words_are_one_line(arguments, words, capsys):
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_said(capsys):
    assert main(["bench", "train", "--device", "cuda"]) == 2
    assert "torch sees no CUDA GPU" in capsys.readouterr().err.replace("\n", " ")


def test_literal_form_is_left_out_where_its_file_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_speed, "LITERAL", tmp_path / "literal.py")
    words = ("--network", "small", "--batch", "2", "--out", str(tmp_path))
    assert run(*words, "--json", str(tmp_path / "b.json")) == 0
    assert "The literal form is left out" in capsys.readouterr().out
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [row["variant"] for row in rows] == ["plain", "surge", "tied"]
    assert run(*words, "--variants", "literal") == 2


def test_tied_step_has_one_product_less(tmp_path):
    cpu = torch.device("cpu")
    steps = {v: Step("small", v, "eager", cpu, 2) for v in ("plain", "surge", "tied")}
    plain, surge, tied = (steps[v].flops() for v in ("plain", "surge", "tied"))
    assert surge - plain == 2 * (tied - plain)


def test_a_fourth_of_the_steps_costs_a_product_more():
    """A call does four steps: times and operations are those of one, on average."""
    cpu = torch.device("cpu")
    tied, surge, fourth = (Step("small", v, "eager", cpu, 2) for v in ("tied", "surge", "fourth"))
    assert (surge.cycle, fourth.cycle) == (1, 4)
    assert fourth.flops() == tied.flops() + (surge.flops() - tied.flops()) // 4
    weights = [path.weight for path in fourth.compensation.paths.values()]
    before = [weight.clone() for weight in weights]
    for number in (1, 2, 3):
        fourth.once(number)
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
    fourth.once(0)
    assert not any(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
    prepared = Prepared(fourth, None, 0, 0, 0)
    assert len(_turn(prepared)) >= 2 and fourth.compensation.steps % 4 == 0


def test_bert_shape_is_known():
    network = NETWORKS["bert-base"]
    assert network.shape == (3, 128) and network.batch == 32


def test_floor_is_the_larger_of_two_times():
    ceilings = Ceilings(flops=10.0, bytes=2.0)
    assert ceilings.floor(100, 4) == 10.0
    assert ceilings.floor(10, 40) == 20.0


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "compiled", "captured", "lean"])
def test_modes_on_a_gpu(mode, tmp_path):
    assert (
        main(
            [
                *("bench", "train", "--network", "resnet20", "--modes", mode, "--seconds", "0.2"),
                *("--batch", "64", "--json", str(tmp_path / "b.json"), "--out", str(tmp_path)),
            ]
        )
        == 0
    )
    rows = json.loads((tmp_path / "b.json").read_text())
    assert all(row["peak_bytes"] > row["saved_bytes"] / 4 for row in rows)
    assert all(row["step_ms"] > row["floor_ms"] for row in rows)


@pytest.mark.gpu
def test_memory_of_a_captured_step_does_not_depend_on_its_neighbours():
    cuda, living, peaks = torch.device("cuda"), [], []
    for variant in ("plain", "surge", "plain", "surge"):
        before = held_bytes(cuda)
        step = Step("resnet20", variant, "captured", cuda, 64)
        step()
        peaks.append(peak_bytes(step, before))
        living.append(step)
    assert peaks[:2] == pytest.approx(peaks[2:], rel=1e-3)
    assert 0 < peaks[0] < peaks[1] < 1.2 * peaks[0]
    for step in living:  # scratch that was freed is not theirs
        step()
        assert all(p.isfinite().all() for p in step.model.parameters())


def test_step_on_another_gpu_makes_it_the_current_one(monkeypatch):
    """Streams, graphs and Triton's kernels go to the current one."""

    class Seen(Exception):
        pass

    def set_device(device):
        raise Seen(device)

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    with pytest.raises(Seen, match="cuda:1"):
        Step("resnet20", "plain", "captured", torch.device("cuda:1"), 2)


def test_bench_without_matplotlib_is_said_before_the_work(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("--network", "small", "--variants", "plain") == 2
    captured = capsys.readouterr()
    assert "pip install 'surge-bnn[demo]'" in captured.err and captured.out == ""
