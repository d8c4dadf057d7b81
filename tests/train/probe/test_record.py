"""The probe against a computation by hand, and that a recorded run is the same run."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import surge
from surge.train.probe import recorder
from surge.train.probe.dose import DoseMeter
from surge.train.probe.record import GRADIENT_BINS, NEAR_ZERO, WEIGHT_BINS, Probe
from surge.train.probe.recorder import Recorder, read_records
from surge.train.run import RunFolder
from tests.nets import assert_same_tensors
from tests.train.probe.test_dose import loss_of, network
from tests.train.small import make_trainer, small_recipe, trained


def by_hand(net, x, labels):
    """Everything about layer 2 (BNN, behind a clamp), written out."""
    net.train()
    layer = net[2]
    c = net[1](net[0](x)).detach().requires_grad_()
    y = net[2](c)
    (g,) = torch.autograd.grad(F.cross_entropy(net[3:](y), labels), y)
    z, w = c.detach(), layer.weight.detach()
    main = (g @ torch.where(w < 0, -1.0, 1.0)) * (z.abs() <= 1)
    auxiliary = g @ layer.auxiliary.weight.detach()
    at_bits = g.T @ torch.where(z < 0, -1.0, 1.0)
    of_auxiliary = g.T @ z

    def cos(a, b):
        return float((a * b).sum() / (a.norm() * b.norm()))

    return {
        "main_norm": float(main.norm()),
        "auxiliary_norm": float(auxiliary.norm()),
        "input_cosine": cos(main, auxiliary),
        "weight_cosine_binary": cos(at_bits, of_auxiliary),
        "weight_cosine_latent": cos(at_bits * (w.abs() <= 1), of_auxiliary),
        "scale": 0.25,
        "clipped": float((z.abs() > 1).float().mean()),
        "near_zero": float((w.abs() < NEAR_ZERO * w.std()).float().mean()),
        "zeros": int((main == 0).sum()),
        "total": main + 0.25 * auxiliary,
        "weight": w,
    }


def test_record_equals_the_computation_by_hand():
    net, _, x, labels = network("bnn")
    expected = by_hand(net, x, labels)
    net, compensation, x, labels = network("bnn")
    meter = DoseMeter(net, compensation, x)
    found = Probe(net, meter).measure(loss_of(net, x, labels))[0]["2"]
    for key in (
        *("main_norm", "auxiliary_norm", "input_cosine", "weight_cosine_binary"),
        *("weight_cosine_latent", "scale", "clipped", "near_zero"),
    ):
        assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    assert found["delivered"] == pytest.approx(meter.measure(loss_of(net, x, labels))["2"])
    assert found["gradient_main"]["zeros"] == expected["zeros"]
    low, high, bins = GRADIENT_BINS
    sizes = expected["total"].abs()[expected["total"] != 0].log10().numpy()
    assert found["gradient_total"]["counts"] == np.histogram(sizes, bins, (low, high))[0].tolist()
    low, high, bins = WEIGHT_BINS
    values = (expected["weight"] / expected["weight"].std()).numpy()
    assert found["weights"] == np.histogram(values, bins, (low, high))[0].tolist()


def test_map_shows_the_clipped_places_without_and_with_surge():
    net, _, x, labels = network("bnn")
    expected = by_hand(net, x, labels)
    net, _, x, labels = network("bnn")
    probe = Probe(net)
    probe.mapped = "2"
    _, mapped = probe.measure(loss_of(net, x, labels))
    assert torch.allclose(mapped["with"], expected["total"].T, atol=1e-7)
    assert (mapped["without"] == 0).sum() == expected["zeros"]
    assert not torch.equal(mapped["without"], mapped["with"])


@pytest.mark.parametrize(
    "row",
    ["cnn-recu", "cnn-recu-surge", "cnn-bnn-surge-noise", "cnn-recu-surge-leaky", "cnn-float"],
)
def test_recording_does_not_change_the_run(row, tmp_path):
    plain, rows = trained(tmp_path / "plain", small_recipe(row))
    recorded, others = trained(
        tmp_path / "recorded", small_recipe(row), record_every=1, record_theorem=True
    )
    assert_same_tensors(plain, recorded)
    for before, after in zip(rows, others, strict=True):
        assert {**before, "seconds": 0} == {**after, "seconds": 0}
    records = read_records(RunFolder(tmp_path / "recorded"))
    assert len(records) == (0 if row == "cnn-float" else 3)


@pytest.mark.parametrize("row", ["cnn-recu-surge-above", "cnn-recu-surge-1x1", "cnn-bnn-surge"])
def test_records_of_all_paths_have_what_they_can_have(row, tmp_path):
    trained(tmp_path, small_recipe(row), record_every=2)
    first, last = read_records(RunFolder(tmp_path))
    assert (first["epoch"], last["epoch"]) == (0, 2)
    for layer in last["layers"].values():
        assert -1 <= layer["input_cosine"] <= 1
        assert 0 < layer["delivered"] < 1
        assert 0 <= layer["flips"] <= 100
        # A 1x1 weight has no partner in a 3x3 one.
        assert (layer["weight_cosine_latent"] is None) == row.endswith("1x1")


def test_theorem_measures_a_batch_before_it_asks_for_the_next(tmp_path, monkeypatch):
    """A loader that streams keeps one at a time."""
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu-surge"), record_every=1)
    held, order = trainer.recorder, []
    monkeypatch.setattr(
        held, "_parts", lambda _: (order.append(f"part {i}") or i for i in range(3))
    )
    monkeypatch.setattr(held, "_loss", lambda part: order.append(f"loss {part}"))
    monkeypatch.setattr(
        recorder, "measure_premises", lambda _model, _handle, losses: [loss() for loss in losses]
    )
    held._premises()
    assert order == [f"{word} {i}" for i in range(3) for word in ("part", "loss")]


def test_half_a_line_does_not_swallow_the_next_record(tmp_path):
    whole, half = '{"epoch": 0}\n', '{"epoch": 10, "lay'
    (tmp_path / "probe.jsonl").write_text(whole + half)
    recorder.keep_records(RunFolder(tmp_path), 9)
    assert (tmp_path / "probe.jsonl").read_text() == whole


def test_flips_of_layers_average_to_those_of_the_network(tmp_path):
    _, rows = trained(tmp_path, small_recipe("cnn-recu"), record_every=1)
    trainer = make_trainer(tmp_path / "other", small_recipe("cnn-recu"), record_every=1)
    sizes = {name: layer.weight.numel() for name, layer in trainer.recorder.probe.layers.items()}
    for row, record in zip(rows, read_records(RunFolder(tmp_path)), strict=True):
        flipped = sum(record["layers"][name]["flips"] * size for name, size in sizes.items())
        assert flipped / sum(sizes.values()) == pytest.approx(row["flips"], rel=1e-5)


def test_resumed_run_has_the_records_of_an_uninterrupted_one(tmp_path):
    recipe = small_recipe("cnn-recu-surge")
    trained(tmp_path / "whole", recipe, record_every=1)
    stopped = make_trainer(tmp_path / "torn", recipe, record_every=1, deadline=0.0)
    stopped.run()
    # A record of an epoch whose state was lost.
    with (tmp_path / "torn" / "probe.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": 1, "layers": {}}) + '\n{"epoch": 2, "la')
    resumed = make_trainer(tmp_path / "torn", recipe, record_every=1)
    resumed.resume()
    resumed.run()
    whole, torn = (read_records(RunFolder(tmp_path / name)) for name in ("whole", "torn"))
    assert [{**row, "seconds": 0} for row in torn] == [{**row, "seconds": 0} for row in whole]


def test_default_recording_is_cheap(tmp_path, monkeypatch):
    """The time inside the recorder, beside that of the same run's steps: 20 epochs of digits."""
    import time

    spent = []
    for name in ("begin_epoch", "end_epoch"):
        original = getattr(Recorder, name)

        def timed(self, original=original):
            begun = time.process_time()
            original(self)
            spent.append(time.process_time() - begun)

        monkeypatch.setattr(Recorder, name, timed)
    recipe = small_recipe("cnn-recu-surge", epochs=20, batch=64)
    sets = make_full_sets()
    trainer = make_trainer(tmp_path, recipe, sets, record_every=0, save_every=1e9)
    begun = time.process_time()
    trainer.run()
    whole = time.process_time() - begun
    assert sum(spent) / (whole - sum(spent)) < 0.02
    records = read_records(RunFolder(tmp_path))
    assert [record["epoch"] for record in records] in ([0, 10, 19], [0, 19])
    assert all(0 < record["seconds"] < whole for record in records)


@pytest.mark.parametrize(("share", "recorded"), [(0.0, [0, 4]), (1e9, [0, 2, 4])])
def test_records_are_left_out_that_would_take_too_long(tmp_path, share, recorded, monkeypatch):
    monkeypatch.setattr("surge.train.probe.recorder.SHARE", share)
    monkeypatch.setattr("surge.train.probe.recorder.default_every", lambda epochs: 2)
    trainer = make_trainer(tmp_path, small_recipe("cnn-recu", epochs=5), record_every=0)
    trainer.run()
    assert [record["epoch"] for record in read_records(RunFolder(tmp_path))] == recorded


def make_full_sets():
    from surge.data import load_digits

    return load_digits("train"), load_digits("test")


def test_gradient_that_is_not_finite_is_recorded_as_missing():
    net, _, x, labels = network("bnn")
    x[0] = math.nan
    layers, _ = Probe(net).measure(loss_of(net, x, labels))
    json.dumps(layers, allow_nan=False)
    assert layers["2"]["main_norm"] is None


def test_probe_leaves_gradients_and_probes_alone():
    net, compensation, x, labels = network("recu")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.random.get_rng_state()
    Probe(net, DoseMeter(net, compensation, x)).measure(loss_of(net, x, labels))
    assert_same_tensors(before, net.state_dict())
    assert all(p.grad is None for p in net.parameters())
    assert compensation.injected() == 0
    assert torch.equal(state, torch.random.get_rng_state())
    assert surge.strip_(net)
