"""What cannot be packed is refused by name, and nothing is written."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.errors import ExportError, MissingDependencyError
from surge.export import load_packed, pack
from tests.export.packing import Applies
from tests.nets import cnn, mlp


def refusal(model, x, path):
    with pytest.raises(ExportError) as caught:
        pack(model, x, path)
    assert not path.exists()
    return str(caught.value)


def _seen_before_a_change(y):
    rows = y.flatten(1)
    y.relu_()
    return rows


HOW_MANY = "depends on how many samples a batch holds"
IMAGES = torch.zeros(1, 4, 6, 6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.sin, "aten.sin.default"),
        (lambda x: _seen_before_a_change(2 * x), "of which a view is read later"),
        (lambda x: x @ x.transpose(2, 3), "moves dimensions"),
        (lambda x: F.pad(x, (1, 1, 1, 1, 0, 1)), "both pixels and channels"),
        (lambda x: F.pad(x, (1, 1), value=2.0), "other values than zero"),
        (lambda x: x[:, :, 1::2], "every n-th row or column"),
        (lambda x: x[:1], "pads or slices samples"),
        (lambda x: x[:, 4:], "makes a tensor of shape (2, 0, 6, 6)"),
        (lambda x: x.reshape(x.shape[0], 6, 24), "reshapes"),
        (lambda x: x.flatten(1, 2), "reshapes"),
        (lambda x: F.group_norm(x, 2), "norms 2 groups"),
        (lambda x: x.norm(dim=1, keepdim=True), "measures dimensions"),
        (lambda x: x.mean(3, keepdim=True).squeeze(3), "averages dimensions"),
        (lambda x: x.mean((2, 3), keepdim=True).squeeze(), "drops the batch"),
        (lambda x: x.mean((2, 3), keepdim=True).squeeze((0, 2, 3)), "drops the batch"),
        (lambda x: x[:, 0], "selects from dimension 1"),
        (lambda x: x[0], "selects from dimension 0"),
        (lambda x: x.reshape(2, -1), HOW_MANY),
        (lambda x: x[None], "adds dimension 0"),
        (lambda x: x.flatten(1).mean(1, keepdim=True).squeeze(1), "reshapes"),
        (lambda x: torch.add(x, x, alpha=2), "or with a factor"),
        (lambda x: x.mean((2, 3), keepdim=True) - x, "sizes do not fit"),
        (lambda x: torch.cat([x, x], 2), "another dimension than the channels"),
        (lambda x: x.mean(1), "averages dimensions"),
        (lambda x: F.avg_pool2d(x, 4, 3, 1, ceil_mode=True), "a part of the border"),
        (lambda x: x.unflatten(1, (2, 2)).permute(0, 1, 3, 2, 4), "than a shuffle"),
        (lambda x: x.unflatten(1, (2, 2)).flatten(1, 2), "than shuffled"),
        (lambda x: x.unflatten(1, (2, 2)).relu(), "for groups of channels"),
        (lambda x: x.unflatten(1, (2, 2)), "returns heads"),
        (lambda x: F.max_pool2d(x, 3, 1, 1, 2), "both dilation and padding"),
        (lambda x: F.adaptive_avg_pool2d(x, 4), "different sizes"),
        (lambda x: x + torch.arange(6.0), "not per channel"),
        (lambda x: x.mean(None, keepdim=True), "averages dimensions"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=-3), "divides by -3"),
        (lambda x: F.dropout(x), "drops values in evaluation"),
        (lambda x: F.dropout(x + 1, inplace=True), "drops values in evaluation"),
        (lambda x: x.half().float(), "rounds to float16"),
        (lambda x: x * torch.rand(1), "draws random numbers"),
        (lambda x: x[x > 0], "aten.gt.Scalar"),
        (lambda x: x.eq(0) + x.eq(0), "adds truth values"),
        (lambda x: F.avg_pool2d(x, 1, 2**17), "a stride of 131072; the most is 65536"),
        (lambda x: x / x.shape[0], "aten.div.Tensor"),
        (lambda x: x * torch.tensor(float(x.shape[0])), HOW_MANY),
        (lambda x: x * torch.full((1,), x.numel()), HOW_MANY),
        (lambda x: F.avg_pool2d(x, len(x)), HOW_MANY),
        (lambda x: 2 * x if len(x) > 2 else x, HOW_MANY),
        (lambda x: torch.cat([x, torch.zeros(2, 1, 6, 6)], 1), "joins a constant"),
        (lambda x: (x, x), "returns 2 values, not one tensor"),
        (lambda x: {"logits": x, "loss": None}, "returns 2 values, not one tensor"),
        (lambda x: None, "returns None, not one tensor"),
        (lambda x: 3, "returns 3, not one tensor"),
        (lambda x: torch.ones(2, 3), "does not depend on its input"),
    ],
)
def test_unknown_operator_is_named_with_its_module(tmp_path, function, words):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), Applies(function))
    message = refusal(model, IMAGES, tmp_path / "m.surge")
    assert words in message
    if "aten." in message:
        assert 'in module "1"' in message


def test_compensated_model_must_be_stripped(tmp_path):
    net = cnn("recu")
    surge.compensate_(net)
    assert "surge.strip_(model)" in refusal(net, torch.zeros(1, 2, 6, 6), tmp_path / "m.surge")
    surge.strip_(net)
    pack(net, torch.zeros(1, 2, 6, 6), tmp_path / "m.surge")


def test_weights_of_other_values_are_refused_by_name(tmp_path):
    layer = surge.BinaryConv2d(4, 4, 3, method="binarybert", method_options={"ternary": True})
    message = refusal(nn.Sequential(layer), IMAGES, tmp_path / "m.surge")
    assert "neither odd numbers nor two values per filter" in message and '"0"' in message


def test_embedding_of_real_numbers_is_refused_by_name(tmp_path):
    layer = nn.Sequential(surge.BinaryEmbedding(4, 4))
    assert '"0" (BinaryEmbedding' in refusal(layer, torch.zeros(1, 4), tmp_path / "m.surge")


def test_constant_that_changes_is_refused_and_left_as_it_was(tmp_path):
    model = nn.Sequential(nn.BatchNorm2d(4))
    mean = model[0].running_mean
    model.append(Applies(lambda x: x + mean[:, None, None].add_(1)))
    model[1].register_buffer("mean", mean)
    assert "changes a parameter or a buffer" in refusal(model, IMAGES, tmp_path / "m.surge")
    assert not mean.any()


def test_control_flow_on_values_is_refused(tmp_path):
    model = Applies(lambda x: x if x.sum() > 0 else -x)
    assert "torch.export cannot trace" in refusal(model, IMAGES, tmp_path / "m.surge")


@pytest.mark.parametrize("example", [torch.zeros(4), torch.zeros(2, 4, dtype=torch.long), "x"])
def test_example_must_be_a_batch_of_numbers(tmp_path, example):
    assert "example_input" in refusal(nn.Linear(4, 4), example, tmp_path / "m.surge")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    layer = nn.Linear(4, 4)
    layer.weight.data[0, 0] = float("nan")
    assert "not finite" in refusal(layer, torch.zeros(1, 4), tmp_path / "m.surge")
    layer.weight.data[0, 0] = 1e6
    with pytest.raises(ExportError, match='use rest="fp32"'):
        pack(layer, torch.zeros(1, 4), tmp_path / "m.surge", rest="fp16")


def test_failed_trace_leaves_the_layers_as_they_were(tmp_path):
    net = mlp("recu")
    x = torch.randn(2, 6)
    before = net.eval()(x)
    refusal(nn.Sequential(net, Applies(torch.sin)), x, tmp_path / "m.surge")
    assert torch.equal(net(x), before)


def test_load_packed_without_the_engine_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "surge_runtime", None)
    with pytest.raises(MissingDependencyError, match="pip install surge-runtime"):
        load_packed("m.surge")


def test_load_packed_returns_a_callable_model(engine, tmp_path):
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    pack(model, x, tmp_path / "m.surge", rest="fp32")
    loaded = load_packed(tmp_path / "m.surge", threads=2)
    torch.testing.assert_close(torch.from_numpy(loaded(x.numpy())), model(x).detach())


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_model_of_another_precision_is_refused_with_its_name(tmp_path, kind):
    net = cnn("recu").to(getattr(torch, kind))
    example = torch.zeros(1, 2, 6, 6, dtype=getattr(torch, kind))
    message = refusal(net, example, tmp_path / "m.surge")
    assert kind in message and "model.float()" in message
    pack(net.float(), example, tmp_path / "m.surge")
