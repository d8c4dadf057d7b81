"""A whole training step inside a CUDA graph: no host synchronisation anywhere."""

import pytest
import torch

import surge
from tests.nets import VARIANTS, all_methods, assert_near, cnn, images

pytestmark = pytest.mark.gpu
STEPS = 4


def build(method, options):
    net = cnn(method).cuda()
    surge.on_epoch(net, 3, 10)
    x, labels = (tensor.cuda() for tensor in images(count=8))
    compensation = surge.compensate_(net, example_input=x, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    compensation.follow(optimizer)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        (loss + surge.extra_loss(net)).backward()
        optimizer.step()
        surge.on_step(net)

    return step, compensation, net


def captured(step):
    """Warm up on a side stream, as CUDA graphs want it, then capture one step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def trained(method, options, *, graphed):
    """Train some steps; return the scales and the state."""
    torch.manual_seed(0)
    step, compensation, net = build(method, options)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True):
        if graphed:
            graph = captured(step)
            for _ in range(STEPS - 1):
                graph.replay()
        else:
            for _ in range(STEPS):
                step()
    assert all(p.isfinite().all() for p in net.parameters())
    return compensation.scales(), net.state_dict()


def compare(method, options):
    expected, held = trained(method, options, graphed=False)
    scales, state = trained(method, options, graphed=True)
    assert scales == pytest.approx(expected, rel=1e-3)
    assert list(state) == list(held)
    for name, tensor in held.items():
        assert_near(state[name], tensor, rtol=1e-3)


@all_methods
def test_captured_step_equals_eager(method):
    compare(method, {})


@pytest.mark.parametrize("name", [n for n in VARIANTS if n != "independent"])
def test_captured_step_equals_eager_for_every_variant(name):
    compare("recu", VARIANTS[name])
