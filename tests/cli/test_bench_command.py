"""``surge bench infer``, on a network small enough for a test."""

import json
import os

import pytest
import torch

import surge
from surge.cli import _bench_inference as bench
from surge.cli import discover, main
from surge.models import cnn_digits
from surge.study.bench import contenders, latency, unpacking, workloads
from surge.study.bench.contenders import ENGINES, Contender, trial
from surge.study.bench.latency import NEEDED
from tests.runtime.building import import_engine


@pytest.fixture(scope="module", autouse=True)
def engine():
    return import_engine()


def tiny():
    binary = cnn_digits(width=8)
    surge.binarize_(binary, "recu")
    return binary, cnn_digits(width=8, activation="relu")


@pytest.fixture
def tiny_network(monkeypatch):
    network = workloads.Network(tiny, (1, 8, 8), "a network of the tests", (8, 12))
    monkeypatch.setitem(workloads.NETWORKS, "tiny", network)


def test_bench_times_every_engine_and_writes_what_was_asked(tmp_path, capsys):
    path, out, engines = tmp_path / "mine.surge", tmp_path / "out", list(ENGINES)
    engines.remove("surge int8")  # the file says how its float layers are kept
    surge.pack(tiny()[0].eval(), torch.zeros(1, 1, 8, 8), path, rest="fp32")
    threads = torch.get_num_threads()
    words = [str(path), "--seconds", "0.1", "--batch", "2", "--out", str(out)]
    words += ["--json", str(tmp_path / "b.json"), "--results", str(tmp_path / "results")]
    assert main(["bench", "infer", *words]) == 0
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert "mine.surge, 1 thread, batch 2" in printed
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [row["engine"] for row in rows] == engines
    for row in rows:
        assert set(NEEDED) <= set(row) and row["network"] == "mine" and row["batch"] == 2
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["per_second"] == pytest.approx(2000 / row["median_ms"], rel=0.01)
        assert row["processor_ms"] > 0
        assert row["file_bytes"] > 0 and row["peak_bytes"] > 0 and row["runs"] >= 6
        assert row["engine"] in printed
    by_name = {row["engine"]: row for row in rows}
    # A fast wrong answer is none: these must compute what torch does.
    for name in ("surge", "onnxruntime fp32", "openvino fp32", "openvino binary"):
        assert by_name[name]["difference"] < 1e-4, name
    assert by_name["surge"]["file_bytes"] == path.stat().st_size
    assert by_name["surge"]["file_bytes"] < by_name["onnxruntime fp32"]["file_bytes"]
    assert by_name["surge"]["profile"] and "step by step" in printed
    assert "as fast as onnxruntime fp32" in printed
    assert (out / "mine-1t-b2.png").stat().st_size > 1000
    assert [row.engine for row in latency.read(tmp_path / "results")] == engines


def test_sweep_times_sizes_and_batches(tiny_network, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "BATCHES", (1, 2))
    monkeypatch.setattr(contenders, "ENGINES", ("surge",))
    monkeypatch.setattr(bench, "ENGINES", ("surge",))
    words = ["--network", "tiny", "--seconds", "0.05", "--out", str(tmp_path), "--sweep"]
    assert main(["bench", "infer", *words]) == 0
    assert "sweep 3/3 size 8, batch 2" in capsys.readouterr().out
    assert (tmp_path / "tiny-sweep.png").exists()


def test_a_packed_file_that_cannot_be_rebuilt_is_timed_by_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(unpacking, "PLAIN", {})
    model = cnn_digits(width=8)
    surge.binarize_(model, "tbn")
    path = tmp_path / "ternary.surge"
    surge.pack(model.eval(), torch.zeros(1, 1, 8, 8), path, rest="fp32")
    assert main(["bench", "infer", str(path), "--seconds", "0.05", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "ternary.surge is timed by itself: the operator" in printed
    assert (tmp_path / "ternary-1t-b1.png").exists()


def test_engines_that_are_not_installed_are_named(tiny_network, tmp_path, capsys, monkeypatch):
    real = contenders._installed
    monkeypatch.setattr(
        contenders, "_installed", lambda name: name not in ("openvino", "onnx") and real(name)
    )
    words = ["--network", "tiny", "--seconds", "0.05", "--out", str(tmp_path)]
    assert main(["bench", "infer", *words, "--json", str(tmp_path / "b.json")]) == 0
    printed = capsys.readouterr().out
    for name in ENGINES[2:]:
        assert f"not installed: {name} (pip install" in printed
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [row["engine"] for row in rows] == ["surge", "surge int8"]
    assert rows[0]["network"] == "tiny" and rows[0]["difference"] < 1e-4
    assert rows[0]["file_bytes"] > rows[1]["file_bytes"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--network", "resnet2"], 'Did you mean "resnet20"'),
        (["--threads", "0"], "--threads 0 must be at least 1"),
        (["--batch", "0"], "--batch 0 must be at least 1"),
        (["--seconds", "0"], "--seconds 0 must be more than 0"),
        (["--seconds", "nan"], "--seconds nan must be more than 0"),
        (["--seconds", "inf"], "--seconds inf must be more than 0, and finite"),
        (["missing.surge"], "there is no packed file"),
    ],
)
def test_mistakes_are_one_sentence(words, message, capsys):
    assert main(["bench", "infer", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--network", "resnet20"], ["--size", "32"], ["--sweep"]], ids=lambda words: words[0]
)
def test_what_only_networks_by_name_can_take_is_refused_for_a_file(words, tmp_path, capsys):
    path = tmp_path / "mine.surge"
    path.touch()
    assert main(["bench", "infer", str(path), *words]) == 2
    assert f"{words[0]} is not for a packed file" in capsys.readouterr().err


def test_a_damaged_file_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "torn.surge"
    path.write_bytes(b"torn")
    assert main(["bench", "infer", str(path)]) == 2
    assert "torn.surge" in capsys.readouterr().err


def test_missing_engine_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(contenders, "_installed", lambda name: name != "surge_runtime")
    assert main(["bench", "infer", "--network", "resnet20"]) == 2
    assert "pip install surge-runtime" in capsys.readouterr().err


def test_bench_is_a_group_of_commands():
    assert "infer" in discover().under("bench")


def test_a_contender_that_dies_does_not_take_the_run_along(tmp_path, monkeypatch):
    path = tmp_path / "bad.surge"
    path.write_bytes(b"bad")
    found = trial(Contender("surge", path, binary=True), (1, 1, 8, 8), 1)
    assert found.peak_bytes is None and "PackedFileError" in found.failure
    killer = tmp_path / "killer.py"
    killer.write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setattr(contenders.starting, "__file__", str(killer))
    dead = trial(Contender("surge", path, binary=True), (1, 1, 8, 8), 1)
    assert dead.failure == "killed by SIGILL"


def test_openvino_gets_a_second_chance_without_amx(tmp_path, monkeypatch):
    picky = tmp_path / "picky.py"
    picky.write_text(
        "import os, signal\n"
        "if 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)\n"
        "print(123)\n"
    )
    monkeypatch.setattr(contenders.starting, "__file__", str(picky))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    contender = Contender("openvino int8", tmp_path / "x.xml", binary=False)
    monkeypatch.setattr(contenders, "_loaded", lambda library: True)
    late = trial(contender, (1,), 1)
    assert late.failure == "killed by SIGILL; ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 helps"
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    monkeypatch.setattr(contenders, "_loaded", lambda library: False)
    found = trial(contender, (1,), 1)
    assert found.peak_bytes == 123 and not found.failure
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == contenders.LIMIT["ONEDNN_MAX_CPU_ISA"]


def test_peak_memory_sees_what_a_network_needs(tmp_path):
    sizes = {}
    for width in (8, 512):
        path = tmp_path / f"{width}.surge"
        model = torch.nn.Sequential(torch.nn.Linear(width, 2048), torch.nn.Linear(2048, 2048))
        surge.pack(model.eval(), torch.zeros(1, width), path, rest="fp32")
        sizes[width] = trial(Contender("surge", path, binary=True), (1, width), 1).peak_bytes
    assert sizes[512] > sizes[8] > 2048 * 2048 * 4
