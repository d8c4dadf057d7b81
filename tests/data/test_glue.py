"""GLUE's files: the official layouts, and what is said about damaged ones."""

import pytest

from surge.data.glue import TASKS, find_file, get_task, read_examples
from surge.data.integrity import DamagedDataError
from surge.errors import ConfigError, DataNotFoundError
from tests.berts import ROWS, write_task

COUNTS = {
    "cola": (8551, 1043, [6023, 2528]),
    "sst2": (67349, 872, [37569, 29780]),
    "mrpc": (3668, 408, [2474, 1194]),
    "stsb": (5749, 1500, None),
    "rte": (2490, 277, [1249, 1241]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_files_have_the_official_rows(glue_dir, name):
    task = get_task(name)
    train, dev, classes = COUNTS[name]
    read = {part: read_examples(find_file(glue_dir, task, part), task) for part in ("train", "dev")}
    assert (len(read["train"]), len(read["dev"])) == (train, dev)
    assert read["train"].skipped == 0
    assert all(len(texts) == len(task.sentences) for texts in read["dev"].texts)
    labels = read["train"].labels
    if classes is None:
        assert sum(labels) / len(labels) == pytest.approx(2.70, abs=0.01)
    else:
        assert sorted((labels.count(0), labels.count(1)), reverse=True) == classes


def test_qnli_dev_is_read(glue_dir):
    task = get_task("qnli")
    examples = read_examples(find_file(glue_dir, task, "dev"), task)
    assert (len(examples), examples.labels.count(0)) == (5463, 2702)


def test_mrpc_row_is_what_the_file_says(glue_dir):
    task = get_task("mrpc")
    examples = read_examples(find_file(glue_dir, task, "dev"), task)
    assert examples.texts[0][0].startswith("He said the foodservice pie business doesn 't fit")
    assert examples.labels[:4] == (1, 0, 0, 1)


@pytest.mark.parametrize("name", ROWS)
def test_every_layout_gives_texts_and_labels(tmp_path, name):
    task = get_task(name)
    write_task(tmp_path, name)
    examples = read_examples(find_file(tmp_path, task, "dev"), task)
    assert len(examples) == 16
    assert len(set(examples.labels)) == 2
    assert all(any(w in " ".join(t) for w in ("good", "bad")) for t in examples.texts)


def test_mnli_has_two_dev_files_and_its_own_columns(tmp_path):
    task = get_task("mnli")
    parses = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
    names = f"index promptID pairID genre {parses} sentence1 sentence2 label1 label2 label3"
    header = f"{names} label4 label5 gold_label".replace(" ", "\t")
    row = "\t".join(["0", *"abcdefg", "one", "two", *"vwxyz", "neutral"])
    folder = tmp_path / "glue_data" / "MNLI"
    folder.mkdir(parents=True)
    for part in task.tests:
        (folder / f"{part}.tsv").write_text(f"{header}\n{row}\n")
        examples = read_examples(find_file(tmp_path, task, part), task)
        assert (examples.texts, examples.labels) == ((("one", "two"),), (2.0,))
    assert task.tests == ("dev_matched", "dev_mismatched")


def test_qqp_leaves_out_and_counts_rows_that_lack_columns(tmp_path):
    task = get_task("qqp")
    folder = tmp_path / "QQP"
    folder.mkdir()
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    (folder / "dev.tsv").write_text(f"{header}\n1\t2\t3\ta\tb\t1\n4\t5\t6\tbroken\n")
    examples = read_examples(find_file(tmp_path, task, "dev"), task)
    assert (len(examples), examples.skipped) == (1, 1)
    (folder / "dev.tsv").write_text(f"{header}\n4\t5\t6\tbroken\n")
    with pytest.raises(DamagedDataError, match="none of its 1 rows has 6 columns"):
        read_examples(find_file(tmp_path, task, "dev"), task)


def damaged(tmp_path, name, change):
    write_task(tmp_path, name)
    task = get_task(name)
    path = find_file(tmp_path, task, "dev")
    path.write_bytes(change(path.read_bytes()))
    return path, task


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("cola", lambda c: b"", "is empty"),
        ("mrpc", lambda c: c.split(b"\n")[0], "is empty: no row of mrpc"),
        ("rte", lambda c: c + b"1\tonly two\n", "line 18 has 2 columns, expected 4 .index, "),
        ("cola", lambda c: b"too\tmany\tfor\tthis\tfile\n", "line 1 has 5 columns, expected 4"),
        ("mrpc", lambda c: c.replace(b"Quality", b"Qualty"), 'no column "Quality". Did you mean'),
        ("rte", lambda c: c + b"9\ta\tb\tmaybe\n", 'label "maybe" of rte is none of entailment'),
        ("stsb", lambda c: c.replace(b"4.5", b"7.5"), 'score "7.5" is not a number from 0 to 5'),
        ("stsb", lambda c: c.replace(b"4.5", b"x"), 'score "x" is not a number'),
        ("sst2", lambda c: c + b"\xff\xfe\t1\n", "is not UTF-8"),
    ],
)
def test_damage_is_named(tmp_path, name, change, words):
    path, task = damaged(tmp_path, name, change)
    with pytest.raises(DamagedDataError, match=words) as caught:
        read_examples(path, task)
    assert str(path) in str(caught.value)


def test_windows_ends_of_lines_and_marks_are_read(tmp_path):
    path, task = damaged(tmp_path, "rte", lambda c: b"\xef\xbb\xbf" + c.replace(b"\n", b"\r\n"))
    assert len(read_examples(path, task)) == 16


def test_unicode_line_separators_stay_inside_a_sentence(tmp_path):
    path, task = damaged(tmp_path, "sst2", lambda c: c + "a\u2028b\t1\n".encode())
    assert read_examples(path, task).texts[-1] == ("a\u2028b",)


def test_unknown_task_names_the_near_miss():
    with pytest.raises(ConfigError, match='no task "mprc" here. Did you mean "mrpc"'):
        get_task("mprc")


def test_missing_file_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"RTE has no dev.tsv below .*--data"):
        find_file(tmp_path, get_task("rte"), "dev")


def test_tasks_are_named_as_recipes_are():
    assert list(TASKS) == ["cola", "sst2", "mrpc", "stsb", "rte", "qnli", "qqp", "mnli"]
    assert {task.outputs for task in TASKS.values()} == {1, 2, 3}
