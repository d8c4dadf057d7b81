import pytest
import torch

from surge.data import crop_flip
from tests.data.slow import slow_crop_flip

pytest.importorskip("hypothesis")  # a GPU machine's own interpreter may lack it

from hypothesis import given
from hypothesis import strategies as st


@given(
    count=st.integers(1, 5),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 4),
    data=st.data(),
)
def test_crop_flip_equals_slicing_one_image_at_a_time(
    count, channels, height, width, padding, data
):
    position = st.integers(0, 2 * padding)
    pairs = st.lists(st.tuples(position, position), min_size=count, max_size=count)
    mirrored = st.lists(st.booleans(), min_size=count, max_size=count)
    offsets = torch.tensor(data.draw(pairs))
    flips = torch.tensor(data.draw(mirrored))
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)
    out = crop_flip(images, offsets, flips, padding=padding)
    assert out.dtype == torch.uint8
    assert torch.equal(out, slow_crop_flip(images, offsets, flips, padding))
