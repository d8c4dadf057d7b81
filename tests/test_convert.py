import copy
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from surge import BinaryConv2d, BinaryEmbedding, BinaryLinear, binarize_, list_methods
from surge.errors import (
    ConfigError,
    NoLayersMatchedError,
    SurgeError,
    SurgeWarning,
    UnsupportedLayerError,
)
from surge.layers import BinaryConv1d, BinaryLayer
from surge.method import get_method
from surge.methods.bireal import BiReal
from surge.models import build_model, list_models
from tests.architectures import small_resnet18

pytest.importorskip("transformers")  # a GPU machine's own interpreter may lack it

from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification


def proper():
    """A small net that meets no pitfall: only ``body`` becomes binary."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 8, 3, padding=1),
            norm1=nn.BatchNorm2d(8),
            act1=nn.Hardtanh(),
            body=nn.Conv2d(8, 8, 3, padding=1, bias=False),
            norm2=nn.BatchNorm2d(8),
            act2=nn.Hardtanh(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(8, 4),
        )
    )


def between(*layers):
    """The given layers, named ``a``, ``b``, ..., between a stem and a head that stay float."""
    named = {"abcdef"[i]: layer for i, layer in enumerate(layers)}
    return nn.Sequential(OrderedDict(stem=nn.Linear(4, 4), **named, head=nn.Linear(4, 2)))


def tiny_bert(kind=BertForSequenceClassification, **options):
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        **options,
    )
    return kind(config)


def binary_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, BinaryLayer)]


@pytest.fixture
def quietly():
    """Convert without warnings, for nets whose pitfalls are beside the point."""

    def convert(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SurgeWarning)
            return binarize_(*args, **kwargs)

    return convert


# What becomes binary


def test_binarize_keeps_first_and_last_by_default():
    model = proper()
    report = binarize_(model, "bireal")
    assert binary_names(model) == ["body"]
    assert report.binary == ("body",)
    assert type(model.body) is BinaryConv2d
    assert model.body.method.name == "bireal"
    assert [row.verdict for row in report.rows] == [
        "float: first layer",
        "binary",
        "float: last layer",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep_first": False}, ["stem", "body"]),
        ({"keep_last": False}, ["body", "head"]),
        ({"keep_first": False, "keep_last": False}, ["stem", "body", "head"]),
        ({"keep_first": False, "skip": "body"}, ["stem"]),
        ({"keep_first": False, "only": "stem"}, ["stem"]),
        ({"keep_last": False, "only": ("b*", "head"), "skip": ("bod*",)}, None),
        ({"only": ["b*"]}, ["body"]),
    ],
)
def test_binarize_options_choose_layers(options, expected, quietly):
    model = proper()
    if expected is None:
        with pytest.raises(NoLayersMatchedError, match=r'for only="b\*": body \(float: in skip=\)'):
            binarize_(model, "bnn", **options)
    else:
        quietly(model, "bnn", **options)
        assert binary_names(model) == expected


def test_binarize_resnet18_with_real_shortcuts(quietly):
    model = small_resnet18()
    report = quietly(model, "recu", skip=("*downsample*",))
    expected = [
        f"layer{stage}.{block}.conv{conv}"
        for stage in (1, 2, 3, 4)
        for block in (0, 1)
        for conv in (1, 2)
    ]
    assert binary_names(model) == expected
    reasons = {row.name: row.verdict for row in report.rows if row.verdict != "binary"}
    assert reasons == {
        "conv1": "float: first layer",
        **{f"layer{stage}.0.downsample.0": "float: in skip=" for stage in (2, 3, 4)},
        "fc": "float: last layer",
    }
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)


FLOAT_ONLY = ("resnet18", "resnet34")
"""Teachers with torchvision's names: ReLUs before their convolutions deserve a word."""


@pytest.mark.parametrize("name", [name for name in list_models() if name not in FLOAT_ONLY])
def test_binarize_every_shipped_model_without_warning(name):
    model = build_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = binarize_(model, "bireal")
    assert len(report.binary) == len(report.rows) - 2


@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_models_made_for_relus_are_warned_about(name):
    with pytest.warns(SurgeWarning, match="ReLU"):
        binarize_(build_model(name), "bireal")


@pytest.mark.parametrize(
    "method", [name for name in list_methods() if not get_method(name).for_transformers]
)
def test_binarize_bert_for_classification(method):
    model = tiny_bert()
    report = binarize_(model, method)
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert list(report.binary) == linear[:-1] == binary_names(model)
    assert linear[-1] == "classifier"
    reasons = {row.verdict for row in report.rows if row.kind == "Embedding"}
    assert reasons == {"float: embedding (embeddings=True converts it)"}
    tokens = {"input_ids": torch.randint(50, (2, 7)), "labels": torch.tensor([0, 1])}
    model(**tokens).loss.backward()
    assert all(
        layer.weight.grad is not None
        for layer in model.bert.encoder.modules()
        if isinstance(layer, BinaryLinear)
    )


def test_binarize_bert_embeddings_on_request():
    model = tiny_bert()
    skip = ("*position_embeddings", "*token_type*")
    with pytest.warns(SurgeWarning, match=r'first layer "bert\.embeddings\.word_embeddings"'):
        report = binarize_(model, "bnn", embeddings=True, keep_first=False, skip=skip)
    assert type(model.bert.embeddings.word_embeddings) is BinaryEmbedding
    assert type(model.bert.embeddings.position_embeddings) is nn.Embedding
    assert report.binary[0] == "bert.embeddings.word_embeddings"


def test_binarize_other_kinds_of_layers(quietly):
    model = between(nn.Conv1d(4, 4, 3), nn.Linear(4, 4), nn.Embedding(7, 4))
    quietly(model, "bnn", embeddings=True)
    assert [type(part) for part in list(model)[1:4]] == [
        BinaryConv1d,
        BinaryLinear,
        BinaryEmbedding,
    ]


def test_binarize_reaches_into_nested_containers(quietly):
    inner = nn.ModuleDict({"x": nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))])})
    model = between(inner)
    quietly(model, "bnn")
    assert binary_names(model) == ["a.x.0", "a.x.1.0"]


def test_binarize_a_model_that_is_one_layer(quietly):
    model = nn.Linear(4, 3)
    weight = model.weight
    with pytest.raises(NoLayersMatchedError, match=r"\(model\) \(float: first layer\)"):
        binarize_(model, "bnn")
    report = quietly(model, "bnn", keep_first=False, keep_last=False)
    assert type(model) is BinaryLinear
    assert model.weight is weight
    assert report.binary == ("",)
    assert "(model)  Linear" in str(report)
    x = torch.randn(5, 4)
    expected = torch.where(x >= 0, 1.0, -1.0) @ torch.where(weight >= 0, 1.0, -1.0).T + model.bias
    torch.testing.assert_close(model(x), expected)


class Table(nn.Module):
    """A weight that is no layer of torch, as in transformers' Conv1D."""

    def __init__(self, *shape):
        super().__init__()
        self.table = nn.Parameter(torch.randn(*shape))

    def forward(self, x):
        return x @ self.table


def test_a_weight_outside_of_layers_is_reported_and_counted(quietly):
    model = nn.Sequential(Table(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    report = quietly(model, "bireal")
    assert [row.verdict for row in report.rows] == [
        "unsupported: Table has no binary form",
        "float: first layer",
        "binary",
        "float: last layer",
    ]
    assert "1 of 4 layers are binary (bireal): 16 of 64 weights" in str(report)


def test_norms_and_vectors_are_no_layers(quietly):
    inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((4, 4)), Table(4))
    assert len(quietly(inner, "bireal", keep_first=False, keep_last=False).rows) == 1


def test_binarize_takes_the_last_weighted_layer_of_any_kind(quietly):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 2, 2))
    report = quietly(model, "bnn")
    assert report.binary == ("1",)
    assert report.rows[-1].verdict == "unsupported: ConvTranspose2d has no binary form"


# What stays


def test_shared_module_is_converted_once_and_still_shared(quietly):
    shared = nn.Linear(4, 4)
    model = between(shared, nn.Linear(4, 4), shared)
    report = quietly(model, "recu")
    assert model.a is model.c is shared
    assert report.binary == ("a", "b")
    assert type(shared) is BinaryLinear


def test_tied_weights_stay_tied(quietly):
    model = between(nn.Linear(4, 4), nn.Linear(4, 4))
    model.b.weight = model.a.weight
    quietly(model, "bnn")
    assert model.b.weight is model.a.weight
    model(torch.randn(3, 4)).sum().backward()
    assert model.a.weight.grad is not None


def test_tied_bert_decoder_stays_tied_when_binary(quietly):
    model = tiny_bert(BertForMaskedLM)
    quietly(model, "bnn", keep_last=False)
    decoder = model.cls.predictions.decoder
    assert type(decoder) is BinaryLinear
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert type(model.bert.embeddings.word_embeddings) is nn.Embedding


def test_parameters_keep_their_identity_and_optimizer(quietly):
    model = proper()
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(model, "bnn")
    assert all(dict(model.named_parameters())[name] is p for name, p in before.items())
    start = model.body.weight.detach().clone()
    model(torch.randn(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(start, model.body.weight)


def test_hooks_survive():
    model = proper()
    calls = []
    model.body.register_forward_hook(lambda *_: calls.append("forward"))
    model.body.register_forward_pre_hook(lambda *_: calls.append("before"))
    model.body.weight.register_hook(lambda grad: calls.append("gradient"))
    binarize_(model, "bnn")
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert calls == ["before", "forward", "gradient"]


@pytest.mark.parametrize("method", list_methods())
def test_float_state_dict_loads_strictly_after_conversion(method):
    source, model = proper(), proper()
    binarize_(model, method)
    model.load_state_dict(source.state_dict(), strict=True)
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_state_dict_of_a_converted_model_loads_strictly():
    source, model = proper(), proper()
    for net in (source, model):
        binarize_(net, "recu")
    model.load_state_dict(source.state_dict(), strict=True)
    assert torch.equal(model.body.method.alpha, source.body.method.alpha)


def test_modes_dtypes_and_frozen_weights_stay():
    model = proper().double()
    model.body.eval()
    model.body.weight.requires_grad_(False)
    binarize_(model, "recu")
    assert model.training
    assert not model.body.training
    assert not model.body.method.training
    assert model.body.weight.dtype == torch.float64
    assert not model.body.weight.requires_grad


# The report


def test_report_text():
    model = nn.Sequential(
        OrderedDict(
            embed=nn.Embedding(10, 4),
            stem=nn.Linear(4, 1000),
            body=nn.Linear(1000, 1000, bias=False),
            norm=nn.BatchNorm1d(1000),
            odd=nn.Conv2d(2, 2, 3, padding_mode="reflect"),
            up=nn.ConvTranspose1d(2, 2, 3),
            head=nn.Linear(1000, 2),
        )
    )
    report = binarize_(model, "xnor", skip="stem")
    assert str(report) == (
        "layer  kind                 weights  verdict\n"
        "embed  Embedding                 40  float: embedding (embeddings=True converts it)\n"
        "stem   Linear                 4,000  float: in skip=\n"
        "body   Linear             1,000,000  binary\n"
        'odd    Conv2d                    36  unsupported: padding_mode="reflect" is not '
        'supported; only "zeros" is.\n'
        "up     ConvTranspose1d           12  unsupported: ConvTranspose1d has no binary form\n"
        "head   Linear                 2,000  float: last layer\n"
        "1 of 6 layers are binary (xnor): 1,000,000 of 1,006,088 weights, 99.4 %."
    )
    assert report.warnings == ()


class Scaled(nn.Linear):
    pass


def replaced_forward():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x
    return layer


def pruned():
    return prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=0.5)


UNSUITABLE = {
    "reflect": (lambda: nn.Conv2d(4, 4, 3, padding_mode="reflect"), 'padding_mode="reflect"'),
    "uneven": (lambda: nn.Conv1d(4, 4, 2, padding="same"), 'padding="same" with kernel size'),
    "parametrised": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "parametrised"),
    "pruned": (pruned, "its weight is a Tensor of torch.float32"),
    "subclass": (lambda: Scaled(4, 4), "a subclass of Linear"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "Parameter of torch.complex64"),
    "replaced": (replaced_forward, "its forward was replaced"),
    "sparse": (lambda: nn.Embedding(4, 4, sparse=True), "sparse=True is not supported"),
    "max_norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "max_norm is not supported"),
    "transposed": (lambda: nn.ConvTranspose2d(4, 4, 3), "ConvTranspose2d has no binary form"),
    "recurrent": (lambda: nn.LSTM(4, 4), "LSTM has no binary form"),
    "attention": (lambda: nn.MultiheadAttention(4, 2), "MultiheadAttention has no binary form"),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_unsuitable_layer_stays_with_its_reason(case, quietly):
    build, reason = UNSUITABLE[case]
    model = between(build(), nn.Linear(4, 4))
    kind = type(model.a)
    report = quietly(model, "bnn", embeddings=True)
    rows = {row.name: row for row in report.rows}
    assert report.binary == ("b",)
    assert rows["a"].verdict.startswith("unsupported: ")
    assert reason in rows["a"].verdict
    assert rows["a"].parameters > 0
    assert type(model.a) is kind


def test_layers_whose_parent_reads_their_weight_stay_float(quietly):
    # In eval mode torch's fused encoder reads linear1.weight and would skip the binary forward.
    model = between(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 4)).eval()
    report = quietly(model, "bnn")
    verdicts = {row.name: row.verdict for row in report.rows}
    assert report.binary == ("b",)
    directly = "unsupported: {} uses its weight directly"
    assert verdicts["a.self_attn.out_proj"] == directly.format("MultiheadAttention")
    assert verdicts["a.linear1"] == directly.format("TransformerEncoderLayer")
    assert verdicts["a.linear2"] == directly.format("TransformerEncoderLayer")


def test_decoder_layers_do_become_binary(quietly):
    model = between(nn.TransformerDecoderLayer(4, 2, 8))
    assert quietly(model, "bnn").binary == ("a.linear1", "a.linear2")


# Errors leave the model as it was


def state(model):
    """Everything a failed call could have changed."""
    return {
        "repr": repr(model),
        "types": [(name, type(module)) for name, module in model.named_modules()],
        "modes": [module.training for module in model.modules()],
        "parameters": [(name, id(p)) for name, p in model.named_parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
    }


def values(model):
    lazy = nn.parameter.UninitializedParameter
    return {
        name: value.clone()
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor) and not isinstance(value, lazy)
    }


def refuse(model, error, match, method="bnn", **options):
    """Check that the call fails in one sentence and changes nothing; return the message."""
    before, tensors = state(model), values(model)
    with pytest.raises(error, match=match) as caught:
        binarize_(model, method, **options)
    assert isinstance(caught.value, SurgeError | SurgeWarning)
    assert "\n" not in str(caught.value)
    assert state(model) == before
    assert values(model).keys() == tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in values(model).items())
    return str(caught.value)


def test_unknown_method_names_the_near_miss():
    refuse(proper(), ConfigError, r'Unknown method "recuu"\. Did you mean "recu"\?', "recuu")


@pytest.mark.parametrize("argument", ["skip", "only"])
def test_pattern_without_match_names_the_near_miss(argument):
    message = rf'{argument}: no layer matches "bdoy"\. Did you mean "body"\? Layers: stem, body, '
    refuse(proper(), NoLayersMatchedError, message, **{argument: ("stem", "bdoy")})


@pytest.mark.parametrize("argument", ["skip", "only"])
def test_pattern_that_is_no_text(argument):
    refuse(proper(), ConfigError, f"{argument}=.*non-empty name patterns", **{argument: (3,)})


def test_already_binary_model():
    model = proper()
    binarize_(model, "recu")
    refuse(model, ConfigError, r'"body" is binary already \(recu \(1/1 bit\)\)')


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.BatchNorm1d(4)], ids=repr)
def test_no_weighted_layer(model):
    refuse(model, NoLayersMatchedError, "found no Conv1d, Conv2d, Linear or Embedding")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skip": "*"}, r"stem \(float: in skip=\); body \(float: in skip=\)"),
        ({"only": ()}, r"stem \(float: not in only=\); body"),
        ({"only": "stem"}, r'for only="stem": stem \(float: first layer\)'),
        ({"only": ("body", "head")}, r'for only="head": head \(float: last layer\)'),
        ({"skip": "body"}, r"stem \(float: first layer\); body \(float: in skip=\); head"),
    ],
    ids=str,
)
def test_all_layers_excluded(options, reason):
    refuse(proper(), NoLayersMatchedError, rf"has no layer to convert.*{reason}", **options)


def test_only_unsuitable_layers_left():
    model = between(nn.MultiheadAttention(4, 2))
    text = r'for only="a\.out_proj": .*MultiheadAttention uses its weight directly'
    refuse(model, NoLayersMatchedError, text, only="a.out_proj")
    for case, (build, reason) in UNSUITABLE.items():
        message = refuse(between(build()), NoLayersMatchedError, "no layer to convert")
        assert reason in message, case


def test_embedding_without_its_option_says_so():
    model = between(nn.Embedding(4, 4))
    refuse(model, NoLayersMatchedError, "embeddings=True converts it", only="a")


@pytest.mark.parametrize("lazy", [nn.LazyLinear(4), nn.LazyConv2d(4, 3)], ids=repr)
def test_lazy_layer(lazy):
    model = between(nn.Linear(4, 4), lazy)
    refuse(model, UnsupportedLayerError, 'on "b": .*lazy, run the model once before; or .*skip=')


def test_lazy_layers_may_be_skipped_or_kept(quietly):
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4), nn.LazyLinear(4), nn.LazyLinear(2))
    assert quietly(model, "bnn", skip="2").binary == ("1",)
    model(torch.zeros(1, 3))
    assert type(model[0]) is nn.Linear


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_quantised_layer(quietly):
    from torch.ao.nn.quantized.dynamic import Linear as QuantizedLinear

    model = between(nn.Linear(4, 4), QuantizedLinear(4, 4))
    refuse(model, UnsupportedLayerError, 'on "b": unsupported: already quantised')
    report = quietly(model, "bnn", skip="b")
    assert report.binary == ("a",)
    assert [row.name for row in report.rows] == ["stem", "a", "b", "head"]


def test_user_module_from_a_package_called_quantized(quietly):
    class Mine(nn.Sequential):
        __module__ = "my_quantized_nets.resnet"

    model = Mine(*(nn.Linear(4, 4) for _ in range(3)))
    assert quietly(model, "bnn").binary == ("1",)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dorefa", {"weight_bit": 4}, 'no option "weight_bit". Did you mean "weight_bits"'),
        ("bnn", {"tau": 1}, 'Method "bnn" has no option "tau"'),
        ("dorefa", {"weight_bits": 0}, 'binarize_ on "body": .*weight_bits'),
        ("recu", {"tau_min": 2.0}, 'binarize_ on "body": .*tau_min'),
    ],
)
def test_bad_method_option(method, options, message):
    refuse(proper(), ConfigError, message, method, **options)


def late_refusal():
    """xnor can take ``a`` and ``b``, but not the depthwise ``c``."""
    return between(nn.Linear(4, 4), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4))


def test_method_that_refuses_a_late_layer():
    refuse(late_refusal(), ConfigError, 'binarize_ on "c": .*at least 2', "xnor")


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_method_that_crashes_on_a_late_layer(error, monkeypatch):
    create, built = BiReal.__init__, []

    def crash(self, geometry, weight):
        built.append(geometry)
        create(self, geometry, weight)
        if len(built) == 3:
            raise error("no more")

    monkeypatch.setattr(BiReal, "__init__", crash)
    model = late_refusal()
    before = state(model)
    with pytest.raises(error, match="no more"):
        binarize_(model, "bireal")
    assert len(built) == 3
    assert state(model) == before


def test_warnings_turned_into_errors():
    model = between(nn.Linear(4, 4), nn.Linear(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse(model, SurgeWarning, "not followed by a normalisation", "recu")


def test_data_parallel():
    refuse(nn.DataParallel(proper()), UnsupportedLayerError, "convert model.module first")


def test_distributed_data_parallel(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(proper())
        refuse(model, UnsupportedLayerError, "got a DistributedDataParallel; convert model.module")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "message"),
    [("FullyShardedDataParallel", "convert model.module"), ("FSDPModule", "fully_shard")],
)
def test_sharded_model(name, message):
    wrapper = type(name, (nn.Sequential,), {})
    refuse(wrapper(proper()), UnsupportedLayerError, message)


def test_failed_call_leaves_a_model_that_still_converts():
    model = late_refusal()
    x = torch.randn(2, 4)
    expected = model.a(x)
    refuse(model, ConfigError, 'on "c"', "xnor")
    assert torch.equal(model.a(x), expected)
    with pytest.warns(SurgeWarning):
        assert binarize_(model, "xnor", skip="c").binary == ("a", "b")


def test_copies_of_a_converted_model_are_independent():
    model = proper()
    binarize_(model, "recu")
    twin = copy.deepcopy(model)
    nn.init.constant_(twin.body.weight, 1.0)
    assert not torch.equal(model.body.weight, twin.body.weight)
    assert type(twin.body) is BinaryConv2d
