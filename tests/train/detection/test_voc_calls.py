"""A step of a detector does not call more operators than it did, and hardly waits for the device.

Counts are those of a batch of 16; a loop over images would add a hundred calls at least.
"""

import pytest

from tests.train.voc_calls import counted, load_few

MOST = {
    "voc-float": (1500, 760),
    "voc-backbone-lws": (5050, 1180),
    "voc-lws": (6400, 1450),
    "voc-backbone-ida-surge": (4050, 960),
    "voc-ida-surge": (5000, 1080),
}
"""Most calls of a step and of a test batch; rows begin with those before them."""
WAITS = 12


@pytest.fixture(scope="module")
def counts(torchvision, voc_dir, tmp_path_factory):
    folder, sets = tmp_path_factory.mktemp("calls"), load_few(voc_dir)
    return {name: counted(name, sets, folder) for name in MOST}


@pytest.mark.parametrize("name", MOST)
def test_calls_do_not_become_more(counts, name):
    found = [calls.total for calls in counts[name]]
    for count, most in zip(found, MOST[name], strict=True):
        assert 0.7 * most < count <= most


@pytest.mark.parametrize("name", MOST)
def test_host_waits_for_the_device_a_few_times(counts, name):
    found = [calls.waits for calls in counts[name]]
    assert all(0 < count <= WAITS for count in found)
