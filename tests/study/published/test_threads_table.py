"""The cost of a second thread, from stored timings."""

import json

from surge.study.published import threads_table


def test_the_newest_times_of_a_place_stand_in_one_row(tmp_path):
    timings = ((1, "alone", 9.0), (1, "alone", 4.0), (2, "alone", 3.0))
    rows = [{"network": "net", "threads": n, "where": w, "median_ms": ms} for n, w, ms in timings]
    (tmp_path / "threads.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert threads_table.section(tmp_path).splitlines()[2:] == [
        "| net | alone | 4.00 | 3.00 | 0.75 |"
    ]


def test_without_timings_the_table_is_empty(tmp_path):
    assert len(threads_table.section(tmp_path).splitlines()) == 2
