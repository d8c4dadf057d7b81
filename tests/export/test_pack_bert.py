"""A binary BERT in the engine: every method, head size and length, against torch."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import surge
from surge.errors import ExportError
from surge.export import pack
from surge.layers.elastic import elastic_unsigned, initialize_
from surge.summary import summary
from tests.berts import tiny_bert, tokens
from tests.export.berts import METHODS, binary_bert, some_tokens
from tests.export.packing import assert_close, expected, packed_output, run_every_tier
from tests.export.test_pack_errors import Applies, refusal

each = pytest.mark.parametrize("method", METHODS)
SIZES = {
    "8 x 12": (2, 8, 12),
    "20 x 17": (4, 20, 17),
    "32 x 33": (2, 32, 33),
    "64 x 70": (2, 64, 70),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@each
def test_packed_bert_gives_torchs_logits(engine, tmp_path, method, sizes):
    model, x = binary_bert(method, *sizes), some_tokens(7, sizes[2])
    wanted = expected(model, x)
    assert wanted.std(axis=0).min() > 0.05, "all samples alike would prove nothing"
    actual = packed_output(engine, model, x, tmp_path / "m.surge")
    assert_close(actual, wanted)
    alone = run_every_tier(engine, tmp_path / "m.surge", x[3:4])
    assert alone.tobytes() == actual[3:4].tobytes()


@each
def test_hidden_words_do_not_count(engine, tmp_path, method):
    model, x = binary_bert(method), some_tokens(7, 12)
    packed = packed_output(engine, model, x, tmp_path / "m.surge")
    other = x.clone()
    other[:, 0] = torch.where(x[:, 2] == 1, x[:, 0], (x[:, 0] + 1) % 50)
    assert not torch.equal(other, x)
    assert np.array_equal(run_every_tier(engine, tmp_path / "m.surge", other), packed)


@pytest.mark.parametrize("rest", ["fp32", "fp16", "int8"])
@each
def test_size_is_what_summary_says(tmp_path, method, rest):
    model, x = binary_bert(method), some_tokens(1, 12)
    packed = pack(model, x, tmp_path / "m.surge", rest=rest)
    assert packed.tensor_bytes == summary(model, x, rest=rest).bytes


@pytest.mark.parametrize("rest", ["fp16", "int8"])
def test_real_tables_may_be_narrow(engine, tmp_path, rest):
    model, x = binary_bert("bit", 2, 32, 33), some_tokens(7, 33)
    exact = packed_output(engine, model, x, tmp_path / "m.surge")
    narrow = packed_output(engine, model, x, tmp_path / "n.surge", rest=rest)
    assert np.abs(narrow - exact).max() > 0
    assert np.corrcoef(narrow[:, 0], exact[:, 0])[0, 1] > 0.9


def test_stock_classifier_packs_with_what_its_tokenizer_returns(engine, tmp_path):
    model, batch = tiny_bert(), tokens(4)
    surge.binarize_(model, "bit")
    initialize_(model, **batch)
    pack(model, batch, tmp_path / "m.surge")
    loaded = engine.load(tmp_path / "m.surge")
    assert loaded.input_shape == (3, 12)
    rows = (batch["input_ids"], torch.zeros(4, 12), batch["attention_mask"])
    actual = loaded.run(*(row.numpy() for row in rows))
    with torch.no_grad():
        assert_close(actual, model.eval()(**batch).logits.numpy())


@pytest.mark.parametrize("number", [50, -1, 0.5, float("nan"), 1e30])
def test_word_that_no_row_has_is_an_error_and_the_next_run_works(engine, tmp_path, number):
    model, x = binary_bert("bit"), some_tokens(3, 12)
    wanted = packed_output(engine, model, x, tmp_path / "m.surge")
    loaded = engine.load(tmp_path / "m.surge", threads=2)
    bad = x.numpy().astype(np.float32)
    bad[1, 0, 5] = number
    for call in (loaded.run, loaded.profile):
        with pytest.raises(ValueError, match=r'word_embeddings" has no row'):
            call(bad)
    assert np.array_equal(loaded.run(x.numpy()), wanted)


@pytest.mark.parametrize("level", [1.0, 0.3, 1.9999999, 1e-5, 7.7e8])
def test_limit_of_two_levels_is_torchs(engine, tmp_path, level):
    at = torch.tensor(level)
    half = at / 2
    near = [half, torch.nextafter(half, at), torch.nextafter(half, torch.tensor(-1.0)), 1.01 * half]
    x = torch.stack([*near, at, -at, 0 * at, 3 * at])[None]
    model = Applies(lambda value: elastic_unsigned(value, at) * 1)
    actual = packed_output(engine, model, x.repeat(2, 1), tmp_path / "m.surge")
    assert np.array_equal(actual, expected(model, x.repeat(2, 1)))


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 5, 6))
        self.norm = nn.LayerNorm(6, elementwise_affine=False)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        y = self.norm(self.place + x)
        y = torch.tanh(nn.functional.gelu(self.out(y)))
        return y.softmax(dim=2)[:, -1]


def test_tokens_of_other_networks_pack_too(engine, tmp_path):
    torch.manual_seed(0)
    model, x = Positions().eval(), 3 * torch.randn(7, 5, 6)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


def test_smooth_functions_are_torchs(engine, tmp_path):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e-30, 60.0])])[None]
    smooth = (torch.tanh, nn.functional.gelu, torch.sigmoid, nn.functional.silu)
    for function in (*smooth, lambda t: (6 * t).softmax(1)):
        model = Applies(function)
        actual = packed_output(engine, model, x, tmp_path / "m.surge")
        np.testing.assert_allclose(actual, expected(model, x), rtol=0, atol=3e-6)


HEADS = torch.zeros(1, 6, 8)


def heads(x):
    return x.view(x.shape[0], 6, 2, 4).transpose(1, 2)


def attend(x, **options):
    mixed = nn.functional.scaled_dot_product_attention(*[heads(x)] * 3, **options)
    return mixed.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: heads(x).mean(2), "for the heads of an attention"),
        (lambda x: heads(x).flatten(2), "joins heads in another order"),
        (lambda x: x @ x.transpose(1, 2), "other than the heads of an attention"),
        (lambda x: x.transpose(0, 1), "moves dimensions"),
        (lambda x: heads(x)[:, 0], "selects from the heads"),
        (lambda x: heads(x) * torch.ones(4), "for the heads of an attention"),
        (lambda x: attend(x, attn_mask=torch.eye(6)), "masks them"),
        (lambda x: attend(x, is_causal=True), "masks them"),
        (lambda x: heads(x), "returns heads"),
        (lambda x: x.softmax(1), "acts on dimension 1"),
        (lambda x: x.long().float(), "turns real numbers into whole ones"),
        (lambda x: nn.functional.layer_norm(x, [6, 8]), "norms dimensions"),
        (lambda x: x[0], "selects from dimension 0"),
    ],
)
def test_what_no_operator_can_do_is_refused(tmp_path, function, words):
    assert words in refusal(Applies(function), HEADS, tmp_path / "m.surge")


def test_ternary_stage_is_refused_by_name(tmp_path):
    model = tiny_bert()
    surge.binarize_(model, "binarybert", ternary=True)
    with pytest.raises(ExportError, match=r'embeddings\.word_embeddings".*not \+-1'):
        pack(model, tokens(), tmp_path / "m.surge")


@pytest.mark.parametrize(
    "example",
    [{"words": torch.zeros(1, 4)}, {"input_ids": torch.zeros(4)}, {**tokens(), "labels": 1}],
)
def test_example_by_name_must_be_tokens(tmp_path, example):
    with pytest.raises(ExportError, match="input_ids"):
        pack(tiny_bert(), example, tmp_path / "m.surge")
    with pytest.raises(ExportError, match="BertForSequenceClassification"):
        pack(nn.Linear(4, 4), example, tmp_path / "m.surge")


@pytest.mark.slow
def test_file_of_bert_base_has_the_size_of_the_tables(engine, tmp_path):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    surge.binarize_(model, "bnn", transformer=True)
    words = torch.randint(1000, 30_000, (1, 128))
    packed = pack(model, {"input_ids": words}, tmp_path / "m.surge")
    said = summary(model, {"input_ids": words})
    assert packed.tensor_bytes == said.bytes
    assert (packed.tensor_bytes - said.scale_bytes) / 2**20 == pytest.approx(14.97, abs=0.005)
    actual = engine.load(tmp_path / "m.surge").run(words, 0 * words, 0 * words + 1)
    with torch.no_grad():
        assert_close(actual, model(input_ids=words).logits.numpy())
