"""Claims about cost, size and speed: held against what is stored or counted."""

import json
from dataclasses import replace

import pytest

from surge.study.bench import latency
from surge.study.bench.training_speed import Row
from surge.study.findings import cost_findings
from surge.study.findings.cost_claims import COUNTED, THEOREM
from surge.study.findings.findings import NOT, OPEN, REPRODUCED, Stored
from surge.study.results import append
from tests.study.stored import result

PLAIN = Row("resnet20", "plain", "captured", 8, 2.0, 4.0, 100, 1, 1, None, "X", "2", None)


def verdicts(findings, tmp_path):
    return {f.claim: f.measure(Stored(tmp_path, [])).verdict for f in findings}


@pytest.mark.parametrize(
    ("measure", "variant"),
    [(cost_findings.step_cost, "surge"), (cost_findings.pointwise_cost, "1x1")],
)
@pytest.mark.parametrize("field", ["step_ms", "peak_bytes"])
def test_cost_of_a_step_is_held_against_the_plain_one(tmp_path, measure, variant, field):
    held = measure("resnet20", 1.25, field)
    assert held(Stored(tmp_path, ())).verdict == OPEN
    for ratio, verdict in ((1.2, REPRODUCED), (1.3, NOT)):
        costly = replace(PLAIN, variant=variant, **{field: ratio * getattr(PLAIN, field)})
        text = "".join(json.dumps(row.as_dict()) + "\n" for row in (PLAIN, costly))
        (tmp_path / "training.jsonl").write_text(text)
        found = held(Stored(tmp_path, ()))
        assert found.verdict == verdict
        assert found.words == f"{variant}, captured: {ratio:.3f}"


def test_memory_that_was_not_measured_is_open(tmp_path):
    rows = [replace(PLAIN, variant=name, peak_bytes=None) for name in ("plain", "surge")]
    text = "".join(json.dumps(row.as_dict()) + "\n" for row in rows)
    (tmp_path / "training.jsonl").write_text(text)
    stored = Stored(tmp_path, ())
    assert cost_findings.step_cost("resnet20", 1.25, "peak_bytes")(stored).verdict == OPEN
    assert cost_findings.step_cost("resnet20", 1.25)(stored).verdict == REPRODUCED


def test_cost_on_glue_is_the_mean_over_tasks_of_the_newest_lines(tmp_path):
    measure = cost_findings.glue_cost("memory_ratio", 1.223)
    assert measure(Stored(tmp_path, ())).verdict == OPEN
    shares = (("cola-bit-surge", 9.0), ("cola-bit-surge", 1.2), ("rte-bit-surge", 1.24))
    lines = [
        {"row": row, "model": "mini", "steps": "captured", "memory_ratio": share}
        for row, share in (*shares, ("rte-bit-surge-tied", 3.0), ("rte-bit", 1.0))
    ]
    (tmp_path / "glue_overhead.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = measure(Stored(tmp_path, ()))
    assert found.words == "1.220, mean of 2 tasks, mini, captured"
    assert found.verdict == REPRODUCED
    assert cost_findings.glue_cost("memory_ratio", 1.21)(Stored(tmp_path, ())).verdict == NOT


def test_ten_epochs_are_those_of_the_table_of_costs(tmp_path):
    changed = {"epochs": 10, "size": 224, "batch": 256}
    for row, last in (("onestage-rbonn", 66.0), ("onestage-reactnet-surge", 66.6)):
        for seed in range(3):
            fields = {"table": "imagenette", "data": "imagenette, test set, 224 px"}
            one = result(row, seed, last + 0.01 * seed * last, overrides=changed, **fields)
            append(tmp_path, one)
    measure = cost_findings.ten_epochs("onestage-reactnet-surge", "onestage-rbonn")
    found = measure(Stored(tmp_path, []))
    assert found.verdict == REPRODUCED and found.words.startswith("+0.606 points [")
    other = cost_findings.ten_epochs("onestage-reactnet-surge-1x1", "onestage-rbonn")
    assert other(Stored(tmp_path, [])).verdict == OPEN


def test_the_slowest_machine_decides_about_speed(tmp_path):
    measure = cost_findings.faster("resnet18-224", 4.1)
    assert measure(Stored(tmp_path, [])).verdict == OPEN

    def store(hardware, milliseconds, **fields):
        ours = latency.Row("resnet18-224", latency.OURS, 1, 2.0, 2.0, 1, hardware=hardware)
        base = replace(ours, engine=latency.BASE, median_ms=milliseconds, **fields)
        latency.append(tmp_path, [ours, base])
        return measure(Stored(tmp_path, []))

    assert store("Xeon", 9.0).words == "4.50 times onnxruntime fp32 on one thread, Xeon"
    assert store("Xeon", 9.0).verdict == REPRODUCED
    assert store("an ARM board", 8.0).verdict == NOT


def test_counts_are_those_of_the_summary(tmp_path):
    stored = Stored(tmp_path, [])
    found = cost_findings.resnet18_size(1.7)(stored)
    assert found.verdict == NOT and found.words.startswith("2.04 MiB with real layers in fp32")
    assert cost_findings.resnet18_size(2.04)(stored).verdict == REPRODUCED
    assert cost_findings.counted("resnet18-224").ops == pytest.approx(1.64e8, rel=1e-3)
    assert cost_findings.count(1.63, "", lambda: 1.64)(stored).verdict == REPRODUCED
    assert cost_findings.count(1.63, "", lambda: 1.66)(stored).verdict == NOT


def test_counted_claims_have_their_verdicts_without_results(tmp_path):
    pytest.importorskip("transformers")
    found = verdicts(COUNTED, tmp_path)
    assert [claim for claim, verdict in found.items() if verdict == NOT] == [
        "ResNet-18 takes 1.7 MB, its last layer left out (42.7 in float)",
        "A binary BERT-base takes 13.4 MB",
        "The same detector takes 16.61 MB",
    ]


def test_closed_form_is_wrong_where_both_gradients_share_g(tmp_path):
    assert list(verdicts(THEOREM, tmp_path).values()) == [REPRODUCED, NOT]
    words = THEOREM[1].measure(Stored(tmp_path, [])).words
    assert "shared-aligned" in words and "corollary" not in words
