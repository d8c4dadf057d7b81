"""Samples of unit variance: by rows in compiled steps, as torch would have them elsewhere."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import surge
from surge.functional import unit_variance, unit_variance_by_row
from surge.layers import BinaryConv2d

ALL = (1, 2, 3)
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def images(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_samples_by_row_are_those_of_torch(centred, shift, dtype):
    x = (images(2, 4, 5, 6) + shift).to(dtype).to(memory_format=torch.channels_last)
    found, exact = (
        unit_variance_by_row(x, centred)[0],
        unit_variance(x.double(), ALL, centred=centred),
    )
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("centred", [False, True])
def test_samples_by_row_pass_gradcheck(centred):
    x = images(2, 3, 2, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: unit_variance_by_row(x, centred)[0], x)


@pytest.mark.parametrize("method", ["recu", "rbnn"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_input_is_prepared_as_the_eager_one(method, layout):
    prepare = BinaryConv2d(4, 4, 3, method=method).method.prepare_input
    compiled = torch.compile(prepare, backend="aot_eager", fullgraph=True)
    found = []
    for function in (prepare, compiled):
        x = images(2, 4, 5, 6).to(memory_format=layout).requires_grad_()
        z = function(x)
        assert z.is_contiguous(memory_format=layout)
        found += [(z, *torch.autograd.grad(z.square().sin().sum(), x))]
    for eager, other in zip(*found, strict=True):
        torch.testing.assert_close(other, eager)


def sums_of(layout, exporting=False, device="cpu"):
    """Return what is summed, by shape and dimensions, forward and backward."""
    summed = set()

    def note(graph, _):
        for node in graph.graph.nodes:
            name = getattr(node.target, "_opname", "")
            if name in ("sum", "mean", "var", "var_mean"):
                value, dims = node.args[:2]
                shape, dims = tuple(value.meta["val"].shape), tuple(d % 4 for d in dims)
                summed.add((name, shape, dims))
        return make_boxed_func(graph)

    def divided(x):
        return unit_variance(x, ALL)

    x = images(2, 4, 5, 6).to(device, memory_format=layout).requires_grad_()
    if exporting:
        program = torch.export.export(nn.Sequential(Wrapped(divided)), (x,))
        note(program.graph_module, ())
        return summed
    compiled = torch.compile(divided, backend=aot_autograd(fw_compiler=note, bw_compiler=note))
    compiled(x).square().sum().backward()
    return summed


class Wrapped(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


WHOLE, ROWS = ((2, 4, 5, 6), (1, 3)), ((2, 1, 5, 1), (2,))
BY_ROW = {("var_mean", *WHOLE), ("mean", *ROWS), ("sum", *WHOLE), ("sum", *ROWS)}
"""Channels of a row, which are neighbours, come first: forward, then backward."""


def test_compiled_sums_follow_the_memory_of_an_image():
    assert sums_of(torch.channels_last) == BY_ROW
    assert ("sum", (2, 4, 5, 6), ALL) in sums_of(torch.contiguous_format)


@pytest.mark.parametrize("centred", [False, True])
def test_half_precision_is_widened_where_it_is_read(centred):
    """A wide tensor with two readers would be stored by the compiler."""
    readers = []

    def note(graph, _):
        for node in graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.numel() == 240:
                readers.append((value.dtype, len(node.users)))
        return make_boxed_func(graph)

    compiled = torch.compile(
        lambda x: unit_variance(nn.functional.hardtanh(x), ALL, centred=centred),
        backend=aot_autograd(fw_compiler=note),
    )
    x = images(2, 4, 5, 6).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    compiled(x).sum()
    assert (torch.float32, 1) in readers and (torch.float32, 2) not in readers


@pytest.mark.gpu
def test_compiled_sums_follow_memory_on_a_gpu_too():
    assert sums_of(torch.channels_last, device="cuda") == BY_ROW


def test_exports_see_the_plain_moments():
    assert sums_of(torch.channels_last, exporting=True) == {("var", (2, 4, 5, 6), ALL)}


@pytest.mark.parametrize("method", ["recu", "rbnn"])
def test_empty_batches_and_vmap_work_in_any_layout(method):
    layer = BinaryConv2d(4, 4, 3, method=method)
    x = images(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert layer(x[:0]).shape == (0, 4, 3, 4)
    each = torch.func.vmap(lambda one: layer.method.prepare_input(one.unsqueeze(0)))(x)
    torch.testing.assert_close(each[:, 0], layer.method.prepare_input(x))


def test_model_that_standardizes_its_inputs_packs_in_any_layout(tmp_path):
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )
    surge.binarize_(model, "rbnn")
    model.eval().to(memory_format=torch.channels_last)
    x = images(2, 3, 8, 8).to(memory_format=torch.channels_last)
    surge.pack(model, x, tmp_path / "model.surge")
    assert (tmp_path / "model.surge").stat().st_size > 0
