import pytest

from surge.errors import ConfigError, NoLayersMatchedError
from surge.patterns import as_patterns, matches, require_each_matches

NAMES = ["conv1", "layer1.0.conv1", "layer2.0.downsample.0", "fc"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, ()), ((), ()), ("fc", ("fc",)), (["a", "b*"], ("a", "b*")), (("a",), ("a",))],
)
def test_as_patterns_accepts_one_or_several(value, expected):
    assert as_patterns(value, "skip") == expected


@pytest.mark.parametrize("value", ["", ("fc", ""), ("fc", 3), [None], 3])
def test_as_patterns_refuses_anything_else(value):
    with pytest.raises(ConfigError, match="skip=.* must hold non-empty name patterns"):
        as_patterns(value, "skip")


@pytest.mark.parametrize(
    ("name", "patterns", "expected"),
    [
        ("layer2.0.downsample.0", ("*downsample*",), True),
        ("layer2.0.downsample.0", ("downsample",), False),
        ("layer2.0.conv1", ("fc", "layer2.*"), True),
        ("layer2.0.conv1", ("layer?.0.conv[12]",), True),
        ("FC", ("fc",), False),
        ("fc", (), False),
        ("", ("*",), True),
    ],
)
def test_matches_is_a_case_sensitive_glob_over_whole_names(name, patterns, expected):
    assert matches(name, patterns) is expected


def test_require_each_matches_accepts_patterns_that_all_match():
    require_each_matches(("fc", "*conv1"), NAMES, "skip")


@pytest.mark.parametrize(
    ("pattern", "suggestion"),
    [
        ("fcc", "fc"),
        ("layer1.0.conv2", "layer1.0.conv1"),
        ("downsample", "*downsample*"),
        ("layer2", "*layer2*"),
        ("*downsampel*", "*downsample*"),
        ("layer1.0.convolution1", "layer1.0.conv1"),
    ],
)
def test_require_each_matches_names_the_near_miss(pattern, suggestion):
    with pytest.raises(NoLayersMatchedError) as caught:
        require_each_matches(("conv1", pattern), NAMES, "skip")
    assert str(caught.value) == (
        f'skip: no layer matches "{pattern}". Did you mean "{suggestion}"? '
        "Layers: conv1, layer1.0.conv1, layer2.0.downsample.0, fc."
    )
    assert matches(suggestion, NAMES) or any(matches(name, (suggestion,)) for name in NAMES)


def test_require_each_matches_suggests_nothing_far_away():
    with pytest.raises(NoLayersMatchedError, match=r'matches "zzz"\. Layers: conv1, '):
        require_each_matches(("zzz",), NAMES, "only")


def test_require_each_matches_shortens_a_long_list():
    names = [f"layer{number}" for number in range(20)]
    with pytest.raises(NoLayersMatchedError, match=r"layer7, \.\.\.\.$"):
        require_each_matches(("zzz",), names, "only")


def test_require_each_matches_without_layers():
    with pytest.raises(NoLayersMatchedError, match=r"Layers: none\."):
        require_each_matches(("fc",), [], "only")
