"""Variants tried again with new seeds: those that named them do not count."""

from surge.study.findings.new_seeds import FIRST, cause, leads, losses, variants
from surge.study.results import append
from tests.study.stored import result

ROW = {"table": "digits", "data": "digits, test set", "precision": "fp32", "epochs": 20}


def test_seeds_that_named_a_variant_do_not_count(tmp_path):
    for seed, gain in ((0, 50.0), (FIRST, 1.0), (FIRST + 1, 2.0), (FIRST + 2, 3.0)):
        append(tmp_path, result("cnn-recu", seed, 90.0, **ROW))
        append(tmp_path, result("cnn-recu-surge-tied", seed, 90.0 + gain, **ROW))
        append(tmp_path, result("cnn-recu-surge-noise", seed, 91.0, **ROW))
    cells = {line.split(" | ")[0].strip("| "): line for line in variants(tmp_path).splitlines()}
    assert cells["cnn-recu-surge-tied"] == (
        "| cnn-recu-surge-tied | 92.00 +- 1.00 | +2.00 [-0.48, +4.48] (3 pairs) | "
        "+1.00 [-1.48, +3.48] (3 pairs) | open |"
    )
    assert cells["cnn-recu"].startswith("| cnn-recu | 90.00 +- 0.00 | - | -1.00 ")
    assert cells["cnn-recu-surge-salient"].count("open") == 4


def test_seeds_that_named_a_loss_stand_apart_from_new_ones(tmp_path):
    for seed, gain in ((0, -3.0), (23, -2.0), (24, 1.0)):
        append(tmp_path, result("cnn-bonn", seed, 90.0, **ROW))
        append(tmp_path, result("cnn-bonn-surge", seed, 90.0 + gain, **ROW))
    assert losses(tmp_path).splitlines()[2:] == [
        "| cnn-bonn-surge | -2.50 [-8.85, +3.85] (2 pairs) | +1.00 (1 pair) |",
        "| cnn-dorefa-surge | open | open |",
    ]


def test_cause_of_a_loss_counts_new_seeds_alone(tmp_path):
    for seed, loss, noise in ((23, 9.0, 0.0), (24, 1.0, 1.0), (25, 2.0, 1.0)):
        append(tmp_path, result("cnn-bonn", seed, 90.0, **ROW))
        append(tmp_path, result("cnn-bonn-surge", seed, 90.0 - loss, **ROW))
        append(tmp_path, result("cnn-bonn-surge-noise", seed, 90.0 - noise, **ROW))
    lines = cause(tmp_path).splitlines()
    assert lines[0] == "| row | accuracy | minus plain, 95 % | minus noise, 95 % |"
    assert lines[3] == (
        "| cnn-bonn-surge | 88.50 +- 0.71 | -1.50 [-7.85, +4.85] (2 pairs) | "
        "-0.50 [-6.85, +5.85] (2 pairs) |"
    )


def test_leads_on_cifar10_are_those_of_the_one_protocol(tmp_path):
    common = {**ROW, "table": "common", "data": "cifar10, test set"}
    for seed, gain in ((0, 3.0), (1, 1.0), (2, 2.0)):
        append(tmp_path, result("resnet20-bnn", seed, 70.0, **common))
        append(tmp_path, result("resnet20-bnn-surge", seed, 70.0 + gain, **common))
    assert leads(tmp_path).splitlines()[-1] == (
        "| resnet20-bnn-surge | +3.00 (1 pair) | +1.50 [-4.85, +7.85] (2 pairs) |"
    )
