"""Tables of plain STE with large doses."""

from surge.study.findings.large_doses import EXPLORED, TRIALS, explored, section
from surge.study.results import append
from tests.study.stored import result

ROW = {"table": "digits", "data": "digits, test set", "precision": "fp32"}


def lines_of(text, title):
    return text.partition(f"{title}:")[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()


def test_trials_count_the_seeds_that_were_named_for_them(tmp_path):
    for trial in TRIALS:
        setting = dict([trial.setting.split("=")]) if trial.setting else {}
        kind = {**ROW, "epochs": trial.epochs, "overrides": setting}
        for seed, gain in ((0, 1.0), (trial.seeds - 1, 2.0), (trial.seeds, 50.0)):
            append(tmp_path, result("cnn-bnn", seed, 90.0, **kind))
            append(tmp_path, result("cnn-bnn-surge-leaky-eta1", seed, 90.0 + gain, **kind))
    for trial in TRIALS:
        assert lines_of(section(tmp_path), trial.title)[-1 - bool(trial.faster)] == (
            "| cnn-bnn-surge-leaky-eta1 | 91.50 +- 0.71 | "
            "+1.50 [-4.85, +7.85] (2 pairs) | open | - |"
        )


def test_a_larger_rate_of_plain_training_is_a_control_of_its_own(tmp_path):
    kind = {**ROW, "epochs": 20}
    for seed in range(3):
        append(tmp_path, result("cnn-bnn", seed, 90.0, **kind))
        append(tmp_path, result("cnn-bnn", seed, 93.0 + seed, **kind, overrides={"lr": 0.1}))
    lines = lines_of(section(tmp_path), TRIALS[0].title)
    assert lines[2].startswith("| cnn-bnn | 90.00 +- 0.00 | - |")
    assert lines[-1].startswith(
        "| cnn-bnn, lr=0.1 | 94.00 +- 1.00 | +4.00 [+1.52, +6.48] (3 pairs) |"
    )


def test_explored_rates_and_forms_are_those_of_the_seeds_that_named_them(tmp_path):
    kind = {**ROW, "epochs": 20}
    for seed, last in ((EXPLORED[0], 90.0), (EXPLORED[-1], 92.0), (EXPLORED[0] - 1, 10.0)):
        append(tmp_path, result("cnn-bnn-surge-eta0.3", seed, last, **kind))
        append(tmp_path, result("cnn-bnn", seed, last + 5, **kind, overrides={"lr": 1.6}))
        append(tmp_path, result("cnn-recu", seed, last, **kind))
    assert explored(tmp_path).splitlines()[2:] == [
        "| cnn-bnn-surge-eta0.3 | 0.05 | 91.00 +- 1.41 |",
        "| cnn-bnn | 1.6 | 96.00 +- 1.41 |",
    ]
