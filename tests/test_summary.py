import dataclasses
import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

from surge import BinaryConv2d, BinaryLinear, RPReLU, binarize_, compensate_
from surge.errors import ConfigError, NoLayersMatchedError, SurgeWarning, UnsupportedLayerError
from surge.layers.attention import two_level_product
from surge.models.bert import BertClassifier
from surge.summary import Summary, summary
from tests.architectures import resnet18, small_resnet18

pytest.importorskip("hypothesis")  # a GPU machine's own interpreter may lack both
pytest.importorskip("transformers")

from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import BertConfig, BertForSequenceClassification

from tests.berts import tiny_bert, tokens

# ResNet-18 at 224 px, from recipes.md 6.2 and engine-notes.md 5.
STEM, BODY, SHORTCUTS, HEAD = 118_013_952, 1_676_279_808, 19_267_584, 512_000
REAL_MACS = STEM + SHORTCUTS + HEAD


def quietly(model, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        binarize_(model, method, **options)
    return model


def imagenet_resnet18(method=None, skip=("*downsample*",), **options):
    """ResNet-18 without storage: sizes and shapes are all that counts."""
    with torch.device("meta"):
        model = resnet18()
    return quietly(model, method, skip=skip, **options) if method else model


IMAGE = torch.zeros(1, 3, 224, 224, device="meta")


def only(result):
    """Return the single row of a summary."""
    (row,) = result.rows
    return row


# The figures of the papers


def test_resnet18_macs_of_every_part():
    result = summary(imagenet_resnet18(), IMAGE)
    macs = {row.name: row.macs for row in result.rows}
    downsample = sum(count for name, count in macs.items() if "downsample" in name)
    body = sum(count for name, count in macs.items() if name[-6:-1] == ".conv")
    assert (macs["conv1"], body, downsample, macs["fc"]) == (STEM, BODY, SHORTCUTS, HEAD)
    assert result.macs == result.ops == 1_814_073_344
    assert result.bops == 0


def test_resnet18_macs_with_norms_and_pools_are_the_published_18_19():
    result = summary(imagenet_resnet18(), IMAGE)
    assert result.macs_with_norms_and_pools == 1_819_066_368
    assert result.elementwise == 2 * 2_483_712 + 25_600


@pytest.mark.parametrize("method", ["bnn", "xnor", "bireal", "irnet", "recu", "reactnet"])
def test_resnet18_binary_ops_are_the_published_1_63(method):
    result = summary(imagenet_resnet18(method), IMAGE)
    assert result.ops == REAL_MACS + BODY / 64
    assert result.macs == 1_814_073_344
    assert result.bops == BODY
    without_head = summary(imagenet_resnet18(method), IMAGE, exclude="fc")
    assert 1.63e8 < without_head.ops < result.ops < 1.64e8


@pytest.mark.parametrize(
    ("weight_bits", "input_bits", "published"), [(1, 4, 2.43e8), (1, 2, 1.90e8), (4, 4, 5.57e8)]
)
def test_resnet18_few_bit_ops(weight_bits, input_bits, published):
    model = imagenet_resnet18("dorefa", weight_bits=weight_bits, input_bits=input_bits)
    result = summary(model, IMAGE)
    assert result.ops == REAL_MACS + weight_bits * input_bits * BODY / 64
    assert result.ops == pytest.approx(published, abs=0.005e8)
    assert result.few_bit == (0 if weight_bits == 1 else 10_985_472)


def test_resnet18_float_size():
    result = summary(imagenet_resnet18(), IMAGE)
    assert result.parameters == result.real == 11_689_512
    assert result.bytes == result.float_bytes == 46_758_048
    # The paper's 42.7 MB: MiB without fc, BatchNorm statistics included.
    without_head = summary(imagenet_resnet18(), IMAGE, exclude="fc")
    statistics = 2 * 4_800 * 4
    assert without_head.bytes + statistics == 44_744_448


@pytest.mark.parametrize(
    ("rest", "exclude", "size"),
    [
        ("fp32", (), 4_189_344),
        ("fp16", (), 2_802_464),
        ("int8", (), 2_109_024),
        ("fp32", "fc", 2_137_344),
        ("fp16", "fc", 1_774_464),
        ("int8", "fc", 1_593_024),
    ],
)
@pytest.mark.parametrize("method", ["bnn", "recu"])
def test_resnet18_packed_size(method, rest, exclude, size):
    result = summary(imagenet_resnet18(method), IMAGE, rest=rest, exclude=exclude)
    # The notes leave out int8 scales. BatchNorms take over all of them but those of fc.
    assert result.bytes - result.scale_bytes == size
    assert result.scale_bytes == (4 * 1000 if rest == "int8" and not exclude else 0)
    assert result.binary == 10_985_472


def test_resnet18_packed_size_with_binary_shortcuts():
    result = summary(imagenet_resnet18("bireal", skip=()), IMAGE, exclude="fc")
    assert result.bytes == 1_470_720
    assert result.ops == STEM + (BODY + SHORTCUTS) / 64


def test_reactnet_thresholds_are_counted_and_take_4_bytes_each():
    plain = summary(imagenet_resnet18("bireal"), IMAGE)
    shifted = summary(imagenet_resnet18("reactnet"), IMAGE)
    channels = 5 * 64 + 4 * 128 + 4 * 256 + 3 * 512
    assert shifted.bytes - plain.bytes == 4 * channels
    assert shifted.parameters - plain.parameters == channels


def bert_base():
    """BERT-base without memory, and 128 tokens."""
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig(num_labels=2))
    return model, {"input_ids": torch.zeros(1, 128, dtype=torch.long, device="meta")}


def test_bert_base_figures():
    model, tokens = bert_base()
    result = summary(model, tokens)
    assert result.parameters == 109_483_778
    assert result.bytes / 2**20 == pytest.approx(417.6, abs=0.05)
    scores = 12 * 2 * 128 * 128 * 768
    assert sum(r.macs for r in result.rows if r.name.endswith("attention.self")) == scores
    assert result.flops / 1e9 == pytest.approx(22.35, abs=0.005)

    quietly(model, "bnn", transformer=True)
    packed = summary(model, tokens)
    assert packed.macs == result.macs
    assert packed.flops_with_bits / 1e9 == pytest.approx(0.349, abs=0.0005)
    assert (packed.bytes - packed.scale_bytes) / 2**20 == pytest.approx(14.97, abs=0.005)
    assert packed.scale_bytes == 4 * (30_522 + 12 * (5 * 768 + 3072) + 768)


def test_bert_base_size_of_the_tables_leaves_out_positions_and_pooler():
    model, tokens = bert_base()
    quietly(model, "bnn", transformer=True)
    left = ("*position_embeddings", "*token_type_embeddings", "bert.pooler.dense")
    printed = summary(model, tokens, exclude=left)
    bias = 4 * 768  # of the pooler, whose bits the tables leave out
    assert (printed.bytes - printed.scale_bytes + bias) / 2**20 == pytest.approx(13.39, abs=0.005)


def test_bit_adds_its_shifts_and_its_levels_are_in_the_scales():
    sizes = {}
    for method in ("bnn", "bit"):
        model, tokens = bert_base()
        quietly(model, method, transformer=True)
        sizes[method] = summary(model, tokens).bytes
    shifts = 12 * (5 * 768 + 3072) + 768
    assert sizes["bit"] - sizes["bnn"] == 4 * shifts


# MACs


@given(
    dimensions=st.integers(1, 3),
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    size=st.integers(1, 7),
    bias=st.booleans(),
)
def test_macs_of_convolutions_are_half_of_torchs_flops(
    dimensions, batch, groups, channels, kernel, stride, padding, dilation, size, bias
):
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    build = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    inputs, outputs = (groups * count for count in channels)
    model = build(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=bias,
    )
    x = torch.zeros(batch, inputs, *(size,) * dimensions)
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert summary(model, x).macs == counter.get_total_flops() / 2 > 0


@given(
    inputs=st.integers(1, 6),
    outputs=st.integers(1, 6),
    shape=st.lists(st.integers(1, 4), max_size=3),
)
def test_macs_of_linear_layers_are_half_of_torchs_flops(inputs, outputs, shape):
    model, x = nn.Linear(inputs, outputs, bias=False), torch.zeros(*shape, 1, inputs)
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert summary(model, x).macs == counter.get_total_flops() / 2


@pytest.mark.parametrize("binary", [False, True])
def test_macs_of_a_grouped_convolution(binary):
    build = BinaryConv2d if binary else nn.Conv2d
    row = only(summary(build(4, 6, 3, groups=2, bias=False), torch.zeros(1, 4, 8, 8)))
    assert row.macs == 6 * 6 * 6 * 2 * 9
    assert row.bops == (row.macs if binary else 0)
    assert row.ops == (row.macs / 64 if binary else row.macs)


def test_macs_are_those_of_the_whole_batch():
    model = small_resnet18()
    one, five = (summary(model, torch.zeros(n, 3, 32, 32)).macs for n in (1, 5))
    assert five == 5 * one > 0


@pytest.mark.parametrize(
    ("weight_bits", "input_bits", "ops_per_mac"),
    [(1, 1, 1 / 64), (2, 3, 6 / 64), (8, 8, 1), (1, 32, 0.5), (4, 32, 1), (32, 4, 1), (32, 32, 1)],
)
def test_ops_of_any_bit_widths(weight_bits, input_bits, ops_per_mac):
    options = {"weight_bits": weight_bits, "input_bits": input_bits}
    model = BinaryLinear(8, 8, method="dorefa", method_options=options)
    row = only(summary(model, torch.zeros(1, 8)))
    assert row.macs == 64
    assert row.ops == 64 * ops_per_mac
    assert row.bits == (weight_bits, input_bits)
    assert row.bops == (64 * weight_bits * input_bits if weight_bits * input_bits <= 64 else 0)


@pytest.mark.parametrize(
    ("pool", "shape", "operations"),
    [
        (nn.AdaptiveAvgPool2d(1), (1, 5, 7, 7), 5 * (49 + 1)),
        (nn.AvgPool1d(2), (1, 3, 8), 3 * 4 * (2 + 1)),
        (nn.AvgPool2d(2), (1, 3, 8, 8), 3 * 16 * (4 + 1)),
        (nn.AvgPool2d((2, 4)), (1, 3, 8, 8), 3 * 8 * (8 + 1)),
        (nn.AvgPool3d(2), (1, 3, 4, 4, 4), 3 * 8 * (8 + 1)),
        (nn.BatchNorm2d(3), (2, 3, 4, 4), 2 * 96),
        (nn.LayerNorm(4), (2, 4), 2 * 8),
        (nn.MaxPool2d(2), (1, 3, 8, 8), 0),
    ],
    ids=repr,
)
def test_elementwise_operations(pool, shape, operations):
    result = summary(nn.Sequential(pool), torch.zeros(shape))
    assert result.elementwise == result.macs_with_norms_and_pools == operations
    assert result.macs == 0


# Bytes


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_weights_are_packed_without_gaps_and_rounded_up_once(bits):
    model = BinaryLinear(7, 3, bias=False, method="dorefa", method_options={"weight_bits": bits})
    row = only(summary(model, torch.zeros(1, 7)))
    assert row.bytes == (21 * bits + 7) // 8 + 3 * 4
    assert row.scale_bytes == 3 * 4
    assert row.parameters == 21
    assert (row.binary, row.few_bit, row.real) == ((21, 0, 0) if bits == 1 else (0, 21, 0))


def test_real_weights_of_a_method_are_stored_as_rest():
    options = {"weight_bits": 32, "input_bits": 1}
    model = BinaryLinear(8, 4, bias=False, method="dorefa", method_options=options)
    row = only(summary(model, torch.zeros(1, 8), rest="fp16"))
    assert (row.real, row.bytes, row.scale_bytes) == (32, 64, 0)


@pytest.mark.parametrize(("rest", "size"), [("fp32", 4), ("fp16", 2), ("int8", 1)])
def test_rest_is_the_precision_of_matrices_only(rest, size):
    row = only(summary(nn.Linear(8, 4), torch.zeros(1, 8), rest=rest))
    scales = 4 * 4 if rest == "int8" else 0
    assert row.bytes == 32 * size + 4 * 4 + scales
    assert row.scale_bytes == scales
    assert only(summary(nn.LayerNorm(8), torch.zeros(1, 8), rest=rest)).bytes == 2 * 8 * 4


def sequence(*layers):
    return nn.Sequential(*layers)


def stored(model, shape=(2, 6), **options):
    return [row.bytes for row in summary(model, torch.zeros(shape), **options).rows]


def test_batchnorm_takes_over_scale_and_bias():
    bits = 6 * 6 // 8 + 1
    assert stored(sequence(BinaryLinear(6, 6), nn.BatchNorm1d(6))) == [bits, 48]
    assert stored(sequence(BinaryLinear(6, 6), nn.PReLU())) == [bits + 24 + 24, 4]
    assert stored(sequence(BinaryLinear(6, 6), nn.LayerNorm(6))) == [bits + 24 + 24, 48]
    assert stored(sequence(nn.Linear(6, 6), nn.BatchNorm1d(6)), rest="int8") == [36, 48]
    assert stored(sequence(nn.Linear(6, 6)), rest="int8") == [36 + 24 + 24]


@pytest.mark.parametrize(
    "between", [nn.Hardtanh(), nn.ReLU(inplace=True), nn.Dropout(), nn.Unflatten(1, (6, 1))]
)
def test_batchnorm_behind_something_else_takes_over_nothing(between):
    # Dropout hands its input on in eval mode, so there the BatchNorm does follow directly.
    bits, scale_and_bias = 5, 0 if isinstance(between, nn.Dropout) else 48
    model = sequence(BinaryLinear(6, 6), between, nn.BatchNorm1d(6))
    assert stored(model) == [bits + scale_and_bias, 48]


def test_batchnorm_is_two_values_per_channel():
    assert stored(nn.BatchNorm1d(6)) == [48]
    assert stored(nn.BatchNorm1d(6, affine=False)) == [48]
    assert summary(nn.BatchNorm1d(6, affine=False), torch.zeros(2, 6)).parameters == 0


def test_batchnorm_without_statistics_folds_nothing():
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    assert stored(sequence(BinaryLinear(6, 6), norm)) == [5 + 48, 48]


class Wired(nn.Module):
    """Two layers and two norms, connected as told."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b = BinaryLinear(6, 6), BinaryLinear(6, 6)
        self.norm, self.other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.wiring = forward

    def forward(self, x):
        return self.wiring(self, x)


@pytest.mark.parametrize(
    ("wiring", "expected"),
    [
        (lambda m, x: m.other(m.b(m.norm(m.a(x)))), [5, 5]),
        (lambda m, x: m.norm(m.b(m.norm(m.a(x)))), [5 + 48, 5 + 48]),
        (lambda m, x: m.other(m.a(m.norm(m.a(x)))), [5, 5 + 48]),
        (lambda m, x: m.b(m.a(m.norm(m.a(x)))), [5 + 48, 5 + 48]),
    ],
    ids=["each its own norm", "one norm for two layers", "one layer, two norms", "once without"],
)
def test_batchnorm_takes_over_only_what_is_its_own(wiring, expected):
    assert stored(Wired(wiring))[:2] == expected


def test_training_state_of_methods_is_not_counted():
    recu = only(summary(BinaryLinear(8, 4, bias=False, method="recu"), torch.zeros(1, 8)))
    irnet = only(summary(BinaryLinear(8, 4, bias=False, method="irnet"), torch.zeros(1, 8)))
    # ReCU's alpha is the stored scale itself; tau, k and t are schedules.
    assert recu.bytes == irnet.bytes == 4 + 4 * 4
    assert recu.parameters == irnet.parameters == 32


@pytest.mark.parametrize("auxiliary", ["independent", "tied", "low_rank", "pointwise"])
def test_auxiliary_path_is_never_counted(auxiliary):
    model = quietly(small_resnet18(activation=nn.Hardtanh), "recu", skip="*downsample*")
    x = torch.zeros(1, 3, 32, 32)
    before = summary(model, x)
    compensate_(model, auxiliary=auxiliary)
    assert summary(model, x) == before


def test_activations_with_vectors_are_stored_in_fp32():
    row = only(summary(RPReLU(6), torch.zeros(1, 6), rest="int8"))
    assert (row.real, row.bytes, row.note) == (18, 72, "")


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("index", torch.zeros(5, 2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(100), persistent=False)

    def forward(self, x):
        return x - self.mean


def test_persistent_buffers_take_space_but_are_no_parameters():
    row = only(summary(Buffered(), torch.zeros(1, 3), rest="int8"))
    assert (row.parameters, row.bytes, row.scale_bytes) == (0, 3 * 4 + 10 * 8, 0)


# Layers of all sorts


def test_shared_layer_has_its_parameters_once_and_its_macs_twice():
    shared = nn.Linear(4, 4, bias=False)
    result = summary(sequence(shared, nn.Tanh(), shared), torch.zeros(1, 4))
    row = only(result)
    assert (row.name, row.parameters, row.macs, row.note) == ("0", 16, 32, "ran 2 times")


def test_tied_weight_is_stored_once():
    model = sequence(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    first, second = summary(model, torch.zeros(1, 4)).rows
    assert (first.parameters, second.parameters) == (20, 4)
    assert (first.macs, second.macs) == (16, 16)
    # What is left out cannot store it for the others.
    assert summary(model, torch.zeros(1, 4), exclude="0").parameters == 20


def test_weight_tied_across_precisions_is_stored_in_both():
    model = sequence(nn.Linear(8, 8, bias=False), BinaryLinear(8, 8, bias=False))
    model[1].weight = model[0].weight
    assert stored(model, (1, 8)) == [256, 8 + 32]


def test_layer_that_did_not_run_says_so():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.used(x)

    used, idle, norm = summary(Idle(), torch.zeros(1, 4)).rows
    assert (used.macs, used.note) == (16, "")
    assert (idle.macs, idle.note, idle.parameters, idle.bytes) == (0, "did not run", 20, 80)
    assert (norm.elementwise, norm.note) == (0, "did not run")


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.LSTM(4, 3), (torch.zeros(2, 1, 4),)),
        (nn.Bilinear(4, 4, 3), (torch.zeros(1, 4), torch.zeros(1, 4))),
    ],
    ids=["LSTM", "Bilinear"],
)
def test_unknown_products_are_marked(layer, inputs):
    row = only(summary(layer, inputs))
    assert row.note == "MACs not counted"
    assert row.macs == 0
    assert row.parameters == sum(p.numel() for p in layer.parameters())
    assert row.bytes == 4 * row.parameters


@pytest.mark.parametrize(
    ("layer", "inputs", "macs"),
    [
        (nn.ConvTranspose1d(4, 6, 2, groups=2), (torch.zeros(1, 4, 5),), 5 * 4 * 3 * 2),
        (nn.ConvTranspose2d(4, 3, 2), (torch.zeros(1, 4, 5, 5),), 25 * 4 * 3 * 4),
        # Three projections in and one out, scores and context of two heads of two features.
        (nn.MultiheadAttention(4, 2), (torch.zeros(3, 1, 4),) * 3, 3 * 4 * 16 + 2 * (2 * 9 * 2)),
    ],
    ids=["ConvTranspose1d", "ConvTranspose2d", "MultiheadAttention"],
)
def test_products_without_a_layer_of_their_own_are_counted_as_they_run(layer, inputs, macs):
    row = only(summary(layer, inputs))
    assert (row.macs, row.ops, row.note) == (macs, macs, "")


class Attends(nn.Module):
    """Queries that are keys and values, through any product, and a matrix of its own."""

    def __init__(self, product):
        super().__init__()
        self.product, self.inner = product, nn.Linear(4, 4)
        self.own = nn.Parameter(torch.zeros(5, 4))

    def forward(self, x):
        return F.linear(self.product(self.inner(x)), self.own)


@pytest.mark.parametrize(
    "product",
    [
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
        lambda x: x @ x.transpose(1, 2) @ x,
        lambda x: torch.einsum("bij,bjk->bik", torch.einsum("bid,bjd->bij", x, x), x),
        lambda x: torch.baddbmm(x, torch.bmm(x, x.mT), x),
    ],
    ids=["attention", "heads", "matmul", "einsum", "baddbmm"],
)
def test_products_of_activations_are_counted_where_they_are_made(product):
    own, inner = summary(Attends(product), torch.zeros(2, 3, 4)).rows
    assert (own.name, inner.name) == ("", "inner")
    assert (inner.macs, inner.note) == (2 * 3 * 16, "")
    assert (own.macs, own.kind, own.note) == (2 * 2 * 9 * 4 + 2 * 3 * 20, "Attends", "")
    assert summary(Attends(product), torch.zeros(2, 3, 4), exclude="inner").macs == own.macs


@pytest.mark.parametrize("method", ["bnn", "bit", "bibert", "binarybert"])
@pytest.mark.parametrize("skip", [(), "*layer.0.attention.self"])
def test_products_of_bits_are_so_whichever_module_computes_them(method, skip):
    model = quietly(tiny_bert(), method, skip=skip, transformer=True)
    words = tokens(1)["input_ids"]
    inside = summary(model, words)
    # It runs its layers apart: what attention multiplies is multiplied in the model itself.
    outside = summary(BertClassifier(model), torch.stack([words, 0 * words, 0 * words + 1], 1))
    assert (outside.macs, outside.bops, outside.ops) == (inside.macs, inside.bops, inside.ops)
    assert outside.bytes == inside.bytes
    own = outside.rows[0]
    scores = 2 * 2 * words.numel() ** 2 * 16
    assert (own.name, own.macs, own.real) == ("", scores, 0)
    assert own.bops == (scores / 2 if skip else scores)
    assert own.bits == ((32, 32) if skip else (1, 1))


def test_a_weight_beside_products_of_bits_alone_is_real():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return two_level_product(x, x.mT) * self.weight

    row = only(summary(Scores(), torch.ones(4, 8)))
    assert (row.bits, row.bops, row.ops) == ((1, 1), 128, 2)
    assert (row.real, row.bytes) == (16, 64)


def small_transformers():
    from transformers import (
        DistilBertConfig,
        DistilBertModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48}
    words = torch.randint(50, (2, 7))
    yield ViTForImageClassification(ViTConfig(**sizes, image_size=16)), torch.zeros(2, 3, 16, 16)
    config = DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    yield DistilBertModel(config), words
    yield LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=50, num_key_value_heads=2)), words


@pytest.mark.parametrize("place", range(3), ids=["vit", "distilbert", "llama"])
def test_all_products_of_a_transformer_are_counted(place):
    model, example = list(small_transformers())[place]
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.eval()(example)
    assert 2 * summary(model, example).macs == counter.get_total_flops()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_model_has_the_macs_of_what_it_was_traced_from():
    model = sequence(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2))
    x = torch.zeros(1, 3, 5, 5)
    traced = summary(torch.jit.trace(model.eval(), x), x)
    assert (traced.macs, traced.parameters) == (27 * 4 * 9 + 72, 4 * 28 + 74)
    assert traced.rows[0].note == ""


def test_counting_leaves_no_hook_and_no_setting_behind():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    summary(model, torch.zeros(1, 3, 8))
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_loose_parameters_are_counted():
    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1, 6, 4))
            self.tokens = nn.ParameterList([torch.zeros(3, 4)])
            self.gains = nn.ParameterList([torch.zeros(4)])

        def forward(self, x):
            return (x + self.positions)[:, :3] * self.gains[0] + self.tokens[0]

    own, tokens, gains = summary(Loose(), torch.zeros(1, 6, 4)).rows
    assert (own.name, own.parameters, own.note) == ("", 24, "MACs not counted")
    assert (tokens.parameters, tokens.note) == (12, "MACs not counted")
    assert (gains.parameters, gains.note) == (4, "")


def test_parametrised_layer_is_one_row():
    row = only(summary(parametrizations.weight_norm(nn.Linear(4, 3)), torch.zeros(1, 4)))
    assert (row.macs, row.parameters, row.note) == (12, 12 + 3 + 3, "")


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_quantised_layer_is_marked():
    from torch.ao.nn.quantized.dynamic import Linear as QuantizedLinear

    row = only(summary(QuantizedLinear(4, 3), torch.zeros(1, 4)))
    assert (row.kind, row.note) == ("Linear", "quantised: not counted")


def test_embeddings_have_no_macs():
    model = sequence(nn.Embedding(10, 4), nn.Linear(4, 2))
    embedding, linear = summary(model, torch.zeros(1, 3, dtype=torch.long)).rows
    assert (embedding.parameters, embedding.macs, embedding.note) == (40, 0, "")
    assert linear.macs == 3 * 8


def test_encoder_runs_layer_by_layer_although_torch_could_fuse_it():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    rows = {row.name: row for row in summary(model, torch.zeros(1, 3, 8)).rows}
    assert rows["linear1"].macs == rows["linear2"].macs == 3 * 8 * 16
    assert rows["self_attn"].macs == 3 * 8 * 32 + 2 * 3 * 3 * 8
    assert "self_attn.out_proj" not in rows


# Calling the model


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, x, *, y):
        return {"sum": self.left(x) + self.right(y)}


class TwoPlaces(TwoInputs):
    def forward(self, x, y):
        return [super().forward(x, y=y)]


def test_example_may_be_a_dict_or_a_tuple():
    x, y = torch.zeros(1, 4), torch.zeros(1, 3)
    assert summary(TwoInputs(), {"x": x, "y": y}).macs == 14
    assert summary(TwoPlaces(), (x, y)).macs == 14
    assert summary(TwoPlaces(), [x, y]).macs == 14


def test_layers_may_be_called_by_keyword():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)
            self.pool = nn.AdaptiveAvgPool2d(1)

        def forward(self, x):
            return self.pool(input=self.norm(input=self.layer(input=x)))

    layer, norm, pool = summary(Keywords(), torch.zeros(1, 2, 3, 3), rest="int8").rows
    assert (layer.macs, layer.scale_bytes) == (36, 0)
    assert (norm.elementwise, pool.elementwise) == (36, 20)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        self.layer(self.norm(x))
        raise RuntimeError("no forward today")


def everything(model):
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [m.training for m in model.modules()], hooks, [p.grad for p in model.parameters()]


def test_summary_has_no_side_effects():
    model = quietly(small_resnet18(), "reactnet")
    model.layer2.eval()
    model.fc.eval()
    before, values = everything(model), {k: v.clone() for k, v in model.state_dict().items()}
    summary(model, torch.randn(2, 3, 32, 32))
    assert everything(model) == before
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    assert torch.is_grad_enabled()


def test_summary_restores_after_a_failing_forward():
    model = Failing()
    model.norm.eval()
    before = everything(model)
    with pytest.raises(RuntimeError, match="no forward today"):
        summary(model, torch.zeros(2, 4))
    assert everything(model) == before
    assert model.norm.num_batches_tracked == 0


def test_summary_leaves_the_random_state():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    model = Noisy(4, 4)
    state = torch.get_rng_state()
    summary(model, torch.zeros(1, 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_summary_works_under_inference_mode():
    model = sequence(BinaryLinear(6, 6), nn.BatchNorm1d(6))
    with torch.inference_mode():
        assert stored(model) == [5, 48]


def test_summary_of_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model, x = sequence(BinaryLinear(6, 6), nn.BatchNorm1d(6)), torch.zeros(2, 6)
        assert summary(model, x).bytes == 53
    assert summary(model, x).bytes == 53


# Errors and the table


def test_unknown_rest_names_the_near_miss():
    message = r'rest="fp61" is not known\. Did you mean "fp16"\? Accepted: fp32, fp16, int8\.'
    with pytest.raises(ConfigError, match=message):
        summary(nn.Linear(4, 4), torch.zeros(1, 4), rest="fp61")


def test_exclude_that_matches_nothing_names_the_near_miss():
    with pytest.raises(NoLayersMatchedError, match=r'exclude: .*"fcc"\. Did you mean "fc"\?'):
        summary(small_resnet18(), torch.zeros(1, 3, 32, 32), exclude=("conv1", "fcc"))


def test_exclude_is_by_pattern():
    result = summary(small_resnet18(), torch.zeros(1, 3, 32, 32), exclude=("layer*", "bn1"))
    assert [row.name for row in result.rows] == ["conv1", "avgpool", "fc"]
    assert result.excluded == ("layer*", "bn1")


def test_lazy_layer_is_refused_and_stays_lazy():
    model = sequence(nn.LazyLinear(4))
    with pytest.raises(UnsupportedLayerError, match='"0" is a lazy layer'):
        summary(model, torch.zeros(1, 4))
    assert isinstance(model[0], nn.LazyLinear)


def test_summary_is_frozen_and_compares_by_value():
    model, x = nn.Linear(4, 4), torch.zeros(1, 4)
    result = summary(model, x)
    assert isinstance(result, Summary)
    assert result == summary(model, x)
    assert result != summary(model, x, rest="fp16")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.bytes = 0


def test_totals_are_the_sums_of_the_rows():
    model = quietly(small_resnet18(), "dorefa", weight_bits=2, input_bits=2)
    result = summary(model, torch.zeros(1, 3, 32, 32), rest="int8")
    for name in ("binary", "few_bit", "real", "bytes", "scale_bytes", "macs", "bops", "ops"):
        assert getattr(result, name) == sum(getattr(row, name) for row in result.rows)
    assert result.parameters == sum(p.numel() for p in model.parameters())


def test_table_text():
    model = nn.Sequential(
        OrderedDict(
            stem=nn.Linear(4, 8),
            body=nn.Linear(8, 8, bias=False),
            norm=nn.BatchNorm1d(8),
            pool=nn.AvgPool1d(1),
            up=nn.ConvTranspose1d(8, 1000, 1, bias=False),
            head=nn.Linear(1, 2),
        )
    )
    quietly(model, "dorefa", weight_bits=4, input_bits=2)
    model.forward = lambda x: model.up(
        model.pool(model.norm(model.body(model.stem(x))).unsqueeze(2))
    )
    assert str(summary(model, torch.zeros(1, 4), exclude="stem")) == (
        "layer  kind             bits   parameters   bytes   MACs    OPs\n"
        "body   BinaryLinear     4/2            64      32     64      8\n"
        "norm   BatchNorm1d      32/32          16      64      0      0\n"
        "up     ConvTranspose1d  32/32       8,000  32,000  8,000  8,000\n"
        "head   Linear           32/32           4      16      0      0  did not run\n"
        "total                               8,084  32,112  8,064  8,008\n"
        "Parameters: 0 in 1 bit, 64 in few bits, 8,020 real, without stem.\n"
        "On disk: 32,112 bytes (0.03 MB, 0.03 MiB), real weights in fp32; 1.0 times smaller than "
        "all in fp32.\n"
        "OPs: 8,000 real MACs + 512 BOPs / 64 = 8,008."
    )


def test_table_of_a_model_that_is_one_layer():
    assert "\n(model)  Linear" in str(summary(nn.Linear(4, 2), torch.zeros(1, 4)))


def test_table_of_a_model_without_layers():
    result = summary(nn.ReLU(), torch.zeros(1, 4))
    assert (result.rows, result.bytes, result.ops) == ((), 0, 0)
    assert "On disk: 0 bytes" in str(result)
