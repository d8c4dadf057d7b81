"""Cost as a count: products computed, and bytes kept for the backward."""

import copy

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import surge
from surge.layers.hooks import binary_layers
from surge.models import build_model
from tests.nets import COMPENSABLE, REPRESENTATIVES, Case, all_methods, pair

CASES = {
    "conv2d": Case(surge.BinaryConv2d, (16, 32, 3), (8, 16, 12, 12), {"padding": 1}),
    "conv2d-stride2": Case(
        surge.BinaryConv2d, (16, 32, 3), (8, 16, 14, 14), {"padding": 1, "stride": 2}
    ),
    "conv1d": Case(surge.BinaryConv1d, (16, 32, 3), (8, 16, 64), {"padding": 1}),
    "linear": Case(surge.BinaryLinear, (32, 48), (64, 32)),
    "linear-3d": Case(surge.BinaryLinear, (32, 48), (8, 16, 32)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())

every_cost = pytest.mark.parametrize(
    ("method", "case"),
    [
        pytest.param(method, case, id=f"{method}-{name}")
        for method in COMPENSABLE
        for name, case in CASES.items()
        if method in REPRESENTATIVES or name in ("conv2d", "linear")
    ],
)


def forward_flops(layer, x):
    with FlopCounterMode(display=False) as counter:
        layer(x.requires_grad_())
    return counter.get_total_flops()


def step_flops(layer, x):
    with FlopCounterMode(display=False) as counter:
        y = layer(x.requires_grad_())
        y.backward(torch.ones_like(y))
    return counter.get_total_flops()


def product_flops(layer, x):
    """Two per multiplication of the layer's own product, by hand."""
    return 2 * layer(x).numel() * layer.weight[0].numel()


@every_cost
def test_forward_costs_what_the_plain_one_costs(method, case):
    plain, compensated, _ = pair(case, method)
    assert forward_flops(compensated, case.batch()) == forward_flops(plain, case.batch())


@each_case
def test_low_rank_costs_small_products_alone(case):
    """Right three times (forward, both gradients), left twice: it needs no forward."""
    rank = 3
    plain, compensated, _ = pair(case, auxiliary="low_rank", rank=rank)
    more = step_flops(compensated, case.batch()) - step_flops(plain, case.batch())
    out, inner = plain.weight.flatten(1).shape
    places = plain(case.batch()).numel() // out
    assert more == 2 * places * rank * (3 * inner + 2 * out)


@every_cost
def test_step_has_two_more_products(method, case):
    plain, compensated, _ = pair(case, method)
    more = step_flops(compensated, case.batch()) - step_flops(plain, case.batch())
    assert more == 2 * product_flops(plain, case.batch())


@every_cost
def test_tied_step_has_one_more_product(method, case):
    plain, compensated, _ = pair(case, method, auxiliary="tied")
    more = step_flops(compensated, case.batch()) - step_flops(plain, case.batch())
    assert more == product_flops(plain, case.batch())


@pytest.mark.parametrize(
    ("auxiliary", "ratio"), [("independent", 5 / 3), ("copied", 5 / 3), ("tied", 4 / 3)]
)
@each_case
def test_step_of_the_plain_method_grows_by_its_ratio(case, auxiliary, ratio):
    plain, compensated, _ = pair(case, auxiliary=auxiliary)
    assert step_flops(compensated, case.batch()) / step_flops(plain, case.batch()) == pytest.approx(
        ratio
    )


@every_cost
def test_leaky_tail_costs_no_product(method, case):
    plain, compensated, _ = pair(case, method, auxiliary="leaky_tail")
    assert step_flops(compensated, case.batch()) == step_flops(plain, case.batch())


def test_pointwise_step_costs_a_ninth_of_the_full_one():
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case, auxiliary="pointwise")
    more = step_flops(compensated, case.batch()) - step_flops(plain, case.batch())
    assert more == 2 * product_flops(plain, case.batch()) / 9


def test_weight_side_costs_one_more_product():
    case = CASES["conv2d"]
    _, without, _ = pair(case)
    _, compensated, _ = pair(case, weight_side=0.1)
    more = step_flops(compensated, case.batch()) - step_flops(without, case.batch())
    assert more == product_flops(without, case.batch())


def test_evaluation_costs_what_the_plain_one_costs():
    case = CASES["conv2d"]
    plain, compensated, _ = pair(case)
    x = case.batch()
    assert step_flops(compensated.eval(), x) == step_flops(plain.eval(), x)


def saved_bytes(layer, x):
    """Bytes of all distinct storages that the backward keeps, parameters and buffers aside."""
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    kept = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        layer(x.requires_grad_())
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(size for place, size in storages.items() if place not in own)


BIG = {
    "conv2d": Case(surge.BinaryConv2d, (16, 16, 3), (16, 16, 16, 16), {"padding": 1}),
    "conv1d": Case(surge.BinaryConv1d, (16, 16, 3), (16, 16, 256), {"padding": 1}),
    "linear": Case(surge.BinaryLinear, (64, 64), (32, 32, 64)),
}


@pytest.mark.parametrize("auxiliary", ["independent", "leaky_tail"])
@pytest.mark.parametrize("case", BIG.values(), ids=BIG.keys())
@all_methods
def test_bytes_kept_for_the_backward_grow_by_three_percent_at_most(method, case, auxiliary):
    plain, compensated, _ = pair(case, method, auxiliary=auxiliary)
    allowed = 1.03 * saved_bytes(plain, case.batch())
    allowed += loss_on_the_input(plain, case.batch())
    assert saved_bytes(compensated, case.batch()) <= allowed


def loss_on_the_input(layer, x):
    """Bytes of z if the method's own loss (RAD's) keeps it: the path works on a copy of it."""
    layer(x.requires_grad_())
    term = layer.method.extra_loss(layer.weight)
    if term is None or not term.requires_grad:
        return 0
    (to_input,) = torch.autograd.grad(term, x, allow_unused=True)
    return 0 if to_input is None else 4 * x.numel()


@pytest.mark.parametrize("case", BIG.values(), ids=BIG.keys())
@all_methods
def test_tied_path_keeps_two_numbers_per_filter(method, case):
    plain, compensated, _ = pair(case, method, auxiliary="tied")
    more = saved_bytes(compensated, case.batch()) - saved_bytes(plain, case.batch())
    numbers = 2 * plain.weight.shape[0]
    assert more <= 4 * numbers + 64 + loss_on_the_input(plain, case.batch())


def test_counter_of_bytes_sees_the_real_input():
    case = BIG["conv2d"]
    assert saved_bytes(case.build(), case.batch()) >= 4 * case.batch().numel()


def kept_by_compiled_code(model, x):
    """Bytes that the forward half of a compiled step hands to its backward half."""
    kept = []

    def forward(graph, inputs):
        results = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        values = [node.meta["val"] for node in results[1:] if node.op != "placeholder"]
        kept.extend(v.nbytes for v in values if isinstance(v, torch.Tensor))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    torch.compile(lambda x: model(x).square().sum(), fullgraph=True, backend=backend)(x).backward()
    return sum(kept)


@pytest.mark.parametrize("options", [{"auxiliary": "tied"}, {"objective": "frozen"}], ids=str)
def test_compiled_paths_that_learn_nothing_keep_nothing_of_the_input(options):
    plain = build_model("cnn_digits")
    surge.binarize_(plain, "recu")
    compensated = copy.deepcopy(plain)
    surge.compensate_(compensated, **options)
    batch = torch.randn(64, 1, 8, 8)
    allowed = kept_by_compiled_code(plain, batch) + 16 * sum(
        layer.weight.shape[0] for _, layer in binary_layers(plain)
    )
    assert 0 < kept_by_compiled_code(compensated, batch) <= allowed
