import os
import pickle
import random

import numpy as np
import pytest

from surge.data import DamagedDataError
from surge.data.pickled import read_pickled_records
from tests.data.pickles import batch_pickle

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 1]
RECORDS = b"".join(
    bytes([label]) + row.tobytes() for label, row in zip(LABELS, PIXELS, strict=True)
)


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "data_batch_1"
        path.write_bytes(content)
        return path

    return write


def test_pickle_of_python_2_becomes_records(write):
    assert read_pickled_records(write(batch_pickle(LABELS, PIXELS.tobytes()))) == RECORDS


def test_pickle_writer_of_these_tests_is_understood_by_numpy():
    batch = pickle.loads(batch_pickle(LABELS, PIXELS.tobytes()), encoding="bytes")
    assert np.array_equal(batch[b"data"], PIXELS)
    assert batch[b"labels"] == LABELS


def test_pickle_with_the_new_name_of_numpys_module_is_read(write):
    content = batch_pickle(LABELS, PIXELS.tobytes(), module=b"numpy._core.multiarray")
    assert read_pickled_records(write(content)) == RECORDS


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_calls_a_function_is_refused_and_not_run(write, tmp_path, protocol):
    marker = tmp_path / "was-run"
    content = pickle.dumps({"data": Malicious(marker), "labels": []}, protocol=protocol)
    with pytest.raises(DamagedDataError, match=r"data_batch_1.*mkdir, which is not allowed"):
        read_pickled_records(write(content))
    assert not marker.exists()


@pytest.mark.parametrize(
    "name",
    ["builtins\neval", "builtins\ngetattr", "numpy\nload", "numpy\nmemmap", "numpy\nfromfile"],
)
def test_pickle_naming_anything_but_an_array_is_refused(write, name):
    with pytest.raises(DamagedDataError, match="not allowed"):
        read_pickled_records(write(f"c{name}\n.".encode()))


def test_pickle_cannot_change_the_stand_ins(write):
    attack = b"cnumpy\nndarray\n(N}U\x08__init__Nstb."
    with pytest.raises(DamagedDataError):
        read_pickled_records(write(attack))
    assert read_pickled_records(write(batch_pickle(LABELS, PIXELS.tobytes()))) == RECORDS


def test_pickle_with_outside_references_is_refused(write):
    with pytest.raises(DamagedDataError, match="outside the file"):
        read_pickled_records(write(b"Psomething\n."))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a CIFAR-10 batch"),
        (b"this is text", "not a CIFAR-10 batch"),
        (pickle.dumps([1, 2]), "holds a list, expected a dictionary"),
        (pickle.dumps({}), '"data" is not an array'),
        (pickle.dumps({"data": 5, "labels": []}), '"data" is not an array'),
        (batch_pickle([1], bytes(3073), width=3073), '"data" is not an array'),
        (batch_pickle([1], bytes(3072), kind=b"i1"), '"data" is not an array'),
        (batch_pickle([1, 2], bytes(3072)), "1 images but 2 labels"),
        (batch_pickle([1, 10], bytes(6144)), "record 1 has label 10"),
        (batch_pickle([-1, 1], bytes(6144)), "record 0 has label -1"),
        (batch_pickle([1, b"x"], bytes(6144)), "record 1 has label b'x'"),
        (batch_pickle([1], bytes(3072)).replace(b"labels", b"labelz"), '"labels" is not a list'),
    ],
)
def test_pickle_that_is_no_batch_is_named_with_the_reason(write, content, message):
    with pytest.raises(DamagedDataError, match=message) as caught:
        read_pickled_records(write(content))
    assert "data_batch_1" in str(caught.value)


def test_pickle_cut_or_altered_anywhere_is_an_error_or_the_right_size(write):
    whole = batch_pickle(LABELS, PIXELS.tobytes())
    chance = random.Random(0)
    for _ in range(300):
        content = bytearray(
            whole[: chance.randrange(len(whole))] if chance.random() < 0.3 else whole
        )
        for _ in range(3):
            # Most of the file is pixels; the structure lies in the first and last bytes.
            place = chance.choice([chance.randrange(200), chance.randrange(len(whole))])
            if place < len(content):
                content[place] = chance.randrange(256)
        try:
            records = read_pickled_records(write(bytes(content)))
        except DamagedDataError:
            continue
        assert len(records) % 3073 == 0
