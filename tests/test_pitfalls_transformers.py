"""Models of transformers cannot be traced, but say themselves what they take."""

import warnings

import pytest
import torch

from surge import binarize_
from surge.errors import SurgeWarning
from surge.pitfalls import find, trace

pytest.importorskip("transformers")  # a GPU machine's own interpreter may lack it

from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from tests.berts import tiny_bert, tokens

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def tiny_vit(**options):
    return ViTForImageClassification(ViTConfig(**SIZES, image_size=8, patch_size=4, **options))


def tiny_t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, vocab_size=20, decoder_start_token_id=0))


def tiny_wav2vec():
    """Takes sounds, which it does not propose."""
    layers = {"conv_dim": (8, 8), "conv_stride": (2, 2), "conv_kernel": (3, 3)}
    place = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return Wav2Vec2Model(Wav2Vec2Config(**SIZES, **layers, **place, num_feat_extract_layers=2))


def report_of(model, method="bireal", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurgeWarning)
        return binarize_(model, method, **options)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (tiny_bert, '"bert.encoder.layer.0.output.dense" and 1 other layer are fed by a GELU'),
        (tiny_vit, '"vit.layers.0.mlp.fc2" and 1 other layer are fed by a GELU'),
        (tiny_t5, 'wo" and 3 other layers are fed by values that are all >= 0 in the example'),
    ],
)
def test_pitfalls_are_found_without_an_example(model, sentence):
    assert trace(model()) is None
    report = report_of(model())
    assert len(report.warnings) == 1 and sentence in report.warnings[0]
    assert report.remark == (
        "Its forward cannot be traced: a norm missing behind a layer was not looked for."
    )


@pytest.mark.parametrize("image_size", [(8, 12), [8, 12]])
def test_images_need_not_be_square(image_size):
    model = ViTForImageClassification(ViTConfig(**SIZES, image_size=image_size, patch_size=4))
    assert len(find(model, {"vit.layers.0.mlp.fc2"}).folded) == 1


def test_no_warning_where_nothing_is_wrong():
    assert report_of(tiny_vit(hidden_act="tanh")).warnings == ()


def test_word_numbers_are_no_inputs_of_ones():
    # An embedding takes whole numbers from 0 on, which nobody makes bits of.
    for options in ({}, {"example_input": tokens()}):
        assert report_of(tiny_bert(), "bit", **options).warnings == ()


def test_a_model_whose_proposal_fails_is_converted_with_the_old_remark():
    report = report_of(tiny_wav2vec())
    assert report.warnings == () and "or a ReLU or GELU before it" in report.remark
    assert len(report.binary) > 10


def test_an_example_of_the_user_is_the_only_one():
    model = tiny_bert()
    seen = []
    model.register_forward_pre_hook(lambda _m, _a, kwargs: seen.append(kwargs), with_kwargs=True)
    report_of(model, example_input=tokens())
    assert len(seen) == 1 and torch.equal(seen[0]["input_ids"], tokens()["input_ids"])


@pytest.mark.parametrize("fails", [True, False])
def test_looking_leaves_no_trace_in_the_model(fails):
    model = tiny_vit(hidden_dropout_prob=0.5).train()
    model.vit.layernorm.eval()
    model.register_buffer("steps", torch.zeros(()))

    def remember(module, _args, _output):
        module.last = torch.rand(())
        module.steps += 1
        if fails:
            raise RuntimeError("not today")

    model.register_forward_hook(remember)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    risks = find(model, {"vit.layers.0.mlp.fc2"})
    assert risks.ran is not fails and len(risks.folded) == (not fails)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert not hasattr(model, "last")
    assert len(model._forward_hooks) == 1
    assert not any(m._forward_pre_hooks for m in model.modules())
