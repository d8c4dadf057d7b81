"""benchmarks/recount.py, and that what is stored agrees with today's counter."""

import json
from pathlib import Path

import pytest

from benchmarks.recount import operations, recount
from surge.study.bench.speed_table import everything

RESULTS = Path(__file__).parents[2] / "results"
ROW = {"mode": "captured", "batch": 4, "hardware": "a GPU", "step_ms": 2.0}


@pytest.mark.parametrize("network", ["resnet18-224", "reactnet-224", "rbonn-224", "resnet20"])
@pytest.mark.parametrize("variant", ["plain", "surge", "literal"])
def test_stored_operations_are_those_of_the_counter(network, variant):
    rows = [r for r in everything(RESULTS) if (r.network, r.variant) == (network, variant)]
    for row in rows:
        assert row.flops == operations(network, variant, row.width) * row.batch


def test_no_stored_step_is_faster_than_its_floor():
    assert all(row.floor_ms < row.step_ms for row in everything(RESULTS) if row.floor_ms)


def test_recount_adds_what_was_not_seen_and_lifts_floors(tmp_path):
    """Another network's step says how fast the device is: 1e9 operations in a millisecond."""
    today = operations("resnet20", "plain") * 4
    rows = [
        {**ROW, "network": "resnet20", "variant": "plain", "flops": today - 100, "floor_ms": 1e6},
        {**ROW, "network": "resnet20", "variant": "surge", "flops": 1000, "floor_ms": 1e-6},
        {**ROW, "network": "vggsmall", "variant": "plain", "flops": 10**9, "floor_ms": 1.0},
    ]
    path = tmp_path / "training.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recount(path, ["resnet20"]) == 2
    plain, surge, other = (json.loads(line) for line in path.read_text().splitlines())
    assert plain == {**rows[0], "flops": today}
    assert surge == {**rows[1], "flops": 1100, "floor_ms": pytest.approx(1.1e-6)}
    assert other == rows[2]
    assert recount(path, ["resnet20"]) == 0
