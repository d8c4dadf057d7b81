"""Run in a process of its own: feed damaged and hostile files to the engine.

Usage: damage.py MODE COUNT FILE, with SURGE_RUNTIME_LIBRARY set. Prints how many files were
refused, and how many there were.
"""

import copy
import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import surge_runtime
from safetensors import safe_open
from safetensors.numpy import load, save

HOSTILE = (0, -1, 1, 2, 3, 7, 64, 2**16, 2**28, 2**31, 2**40, 2**63, 1e300, 0.5, "x", [], None)
LARGEST_RUN = 2**22


def refused(content):
    """Load a file; what loads must also run."""
    try:
        model = surge_runtime.load(content)
    except surge_runtime.PackedFileError as error:
        assert str(error), "an error must say what is wrong"
        return 1
    size = int(np.prod(model.input_shape))
    if size < LARGEST_RUN and model.workspace_bytes < LARGEST_RUN:
        try:
            model.run(np.zeros((2, *model.input_shape), dtype=np.float32))
        except surge_runtime.PackedFileError as error:
            assert "has no row" in str(error), error
    return 0


def truncations(content, _count):
    for length in range(len(content)):
        yield content[:length]
    yield content + b"\0"


def flips(content, count):
    choose = random.Random(0)
    for _ in range(count):
        damaged = bytearray(content)
        damaged[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
        yield bytes(damaged)


def graphs(content, count):
    """Files with a right checksum whose graph was changed at one place."""
    arrays = load(content)
    with safe_open(sys.argv[3], "numpy") as file:
        graph = json.loads(file.metadata()["graph"])
    choose = random.Random(0)
    for _ in range(count):
        changed = copy.deepcopy(graph)
        places = list(leaves(changed))
        holder, key = choose.choice(places)
        match choose.randrange(4):
            case 0:
                del holder[key]
            case 1:
                other, other_key = choose.choice(places)
                holder[key] = copy.deepcopy(other[other_key])
            case _:
                holder[key] = choose.choice(HOSTILE)
        yield sealed(changed, arrays)


def sealed(graph, arrays):
    """Write a file with a right checksum, without the help of the package under test."""
    blank = "0" * 64
    metadata = {"format": "surge", "version": "1", "checksum": blank, "graph": json.dumps(graph)}
    content = save(arrays, metadata)
    assert content.count(blank.encode()) == 1
    return content.replace(blank.encode(), hashlib.sha256(content).hexdigest().encode())


def leaves(value):
    """Yield (container, key) of everything inside nested lists and objects."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from leaves(item)


if __name__ == "__main__":
    mode, count, path = sys.argv[1:]
    original = Path(path).read_bytes()
    assert refused(original) == 0
    kinds = {"truncations": truncations, "flips": flips, "graphs": graphs}
    results = [refused(content) for content in kinds[mode](original, int(count))]
    print(sum(results), len(results))
