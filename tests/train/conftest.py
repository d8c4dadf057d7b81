"""What tests of training share."""

import pytest
import torch


@pytest.fixture
def exact():
    """No algorithm is chosen by timing: fast steps differ from eager ones by the order of sums."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False):
        yield
    torch._dynamo.reset()
