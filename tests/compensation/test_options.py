"""Settings that are refused: one sentence that says what, and what is accepted."""

import math

import pytest

import surge
from surge.compensation import PathOptions
from surge.errors import ConfigError
from tests.nets import mlp

BAD_VALUES = {
    "eta-zero": ({"eta": 0}, "eta=0 must be a positive, finite number"),
    "eta-negative": ({"eta": -0.1}, "eta=-0.1 must be a positive"),
    "eta-nan": ({"eta": math.nan}, "eta=nan must be a positive"),
    "eta-infinite": ({"eta": math.inf}, "eta=inf must be a positive"),
    "eta-text": ({"eta": "0.1"}, "eta='0.1' must be a positive"),
    "eta-bool": ({"eta": True}, "eta=True must be a positive"),
    "eta-none": ({"eta": None}, "eta=None must be a positive"),
    "auxiliary": ({"auxiliary": "indepedent"}, 'Did you mean "independent"'),
    "scope": ({"scope": "cliped"}, 'Did you mean "clipped"'),
    "scope-far": ({"scope": "xyz"}, "Accepted: all, clipped, unclipped"),
    "aux_input": ({"aux_input": "sign"}, "Accepted: sign_input, layer_input, above_clamp"),
    "reading": ({"reading": "scald"}, 'Did you mean "scaled"'),
    "decay": ({"decay": "cosin"}, 'Did you mean "cosine"'),
    "dose": ({"dose": "even"}, "Accepted: uniform, clipped_share, delivered"),
    "objective": ({"objective": "folow"}, 'Did you mean "follow"'),
    "fixed_scale-negative": ({"fixed_scale": -1.0}, "fixed_scale=-1.0 must be a positive"),
    "fixed_scale-text": ({"fixed_scale": "first"}, "fixed_scale='first' must be a positive"),
    "weight_side": ({"weight_side": -0.5}, "weight_side=-0.5 must be a positive"),
    "align": ({"align": math.inf}, "align=inf must be a positive"),
    "rank-zero": ({"rank": 0}, "rank=0 must be a whole number, at least 1"),
    "rank-fraction": ({"rank": 2.5}, "rank=2.5 must be a whole number"),
    "rank-text": ({"rank": "4"}, "rank='4' must be a whole number"),
    "seed-text": ({"seed": "a"}, "seed='a' must be a whole number, at least 0"),
    "seed-negative": ({"seed": -1}, "seed=-1 must be a whole number"),
    "setting": ({"scopes": "all"}, 'no setting "scopes". Did you mean "scope"'),
    "setting-far": ({"zzz": 1}, 'no setting "zzz". Settings: eta, auxiliary, scope'),
}
BAD_TOGETHER = {
    "tied-align": ({"auxiliary": "tied", "align": 1.0}, "has no weight of its own"),
    "tied-bias": ({"auxiliary": "tied", "objective": "bias"}, "has no weight of its own"),
    "leaky-align": ({"auxiliary": "leaky_tail", "align": 1.0}, "has no weight of its own"),
    "leaky-scope": ({"auxiliary": "leaky_tail", "scope": "clipped"}, "combine with scope"),
    "leaky-entry": (
        {"auxiliary": "leaky_tail", "aux_input": "layer_input"},
        "combine with aux_input",
    ),
    "leaky-noise": ({"auxiliary": "leaky_tail", "noise": True}, "combine with noise"),
    "leaky-fixed": ({"auxiliary": "leaky_tail", "fixed_scale": 0.1}, "combine with fixed_scale"),
    "leaky-weight": ({"auxiliary": "leaky_tail", "weight_side": 0.1}, "combine with weight_side"),
    "leaky-dose": ({"auxiliary": "leaky_tail", "dose": "clipped_share"}, "combine with dose"),
    "leaky-reading": ({"auxiliary": "leaky_tail", "reading": "scaled"}, "combine with reading"),
    "signed-noise": ({"signed": True, "noise": True}, "does not combine with noise"),
    "signed-entry": ({"signed": True, "aux_input": "layer_input"}, "not combine with aux_input"),
    "signed-fixed": ({"signed": True, "fixed_scale": 0.1}, "signed= do not apply"),
    "signed-tail": ({"signed": True, "auxiliary": "leaky_tail"}, "does not combine with signed"),
    "signed-scaled": ({"signed": True, "reading": "scaled"}, "reading= does not apply"),
    "bias-scope": ({"objective": "bias", "scope": "clipped"}, "does not combine with scope"),
    "bias-dose": ({"objective": "bias", "dose": "clipped_share"}, "does not combine with dose"),
    "bias-noise": ({"objective": "bias", "noise": True}, "does not combine with noise"),
    "bias-low-rank": ({"objective": "bias", "auxiliary": "low_rank"}, 'auxiliary="low_rank"'),
    "above-delivered": ({"aux_input": "above_clamp", "dose": "delivered"}, "loses nothing"),
    "rank-unused": ({"rank": 8}, 'rank=8 is for auxiliary="low_rank" alone'),
    "fixed-decay": ({"fixed_scale": 0.1, "decay": "cosine"}, "fixed_scale= never changes"),
    "fixed-reading": ({"fixed_scale": 0.1, "reading": "scaled"}, "fixed_scale= never changes"),
}
BAD = BAD_VALUES | BAD_TOGETHER


@pytest.mark.parametrize(("options", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_setting_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(ConfigError) as error:
        surge.compensate_(mlp(), **options)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")


GOOD = {
    "defaults": {},
    "eta-int": {"eta": 1},
    "fixed-initial": {"fixed_scale": "initial"},
    "tied-decay": {"auxiliary": "tied", "decay": "cosine"},
    "leaky-decay": {"auxiliary": "leaky_tail", "decay": "cosine"},
    "weight-side-and-align": {"weight_side": 0.1, "align": 1.0},
    "low-rank-large": {"auxiliary": "low_rank", "rank": 100},
}


@pytest.mark.parametrize("options", GOOD.values(), ids=GOOD.keys())
def test_good_setting_is_accepted(options):
    assert surge.compensate_(mlp(), **options).paths


def test_options_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        PathOptions().eta = 0.5
