"""torch.export of models in evaluation mode."""

import pytest
import torch

import surge
from tests.contract.subjects import every_subject, subject
from tests.nets import REPRESENTATIVES, cnn, images


@every_subject
def test_layer_exports_in_evaluation_mode(method, case, mode):
    layer = subject(method, case, mode).eval()
    x = case.batch()
    with torch.no_grad():
        exported = torch.export.export(layer, (x,)).module()
        assert torch.equal(exported(x), layer(x))


@pytest.mark.parametrize("method", REPRESENTATIVES)
def test_stripped_network_exports_with_a_free_batch_size(method):
    net = cnn(method)
    surge.compensate_(net)
    surge.strip_(net)
    net.eval()
    x, _ = images(count=4)
    batch = {0: torch.export.Dim("batch")}
    with torch.no_grad():
        exported = torch.export.export(net, (x,), dynamic_shapes=(batch,)).module()
        more, _ = images(count=7)
        torch.testing.assert_close(exported(more), net(more))
