import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge import binarize_
from surge.errors import SurgeWarning
from surge.pitfalls import find, trace
from tests.architectures import small_resnet18

RELU = (
    '"body" is fed by a ReLU, whose outputs are all >= 0: every input bit would be +1. '
    "Use Hardtanh or PReLU instead, or put a norm between."
)
FOLD = (
    '"body" is fed by a GELU or a Hardswish, which makes -0 of far negative values: their bit is '
    "+1, like that of positive ones. Use Hardtanh or PReLU instead, or put a norm between."
)
NO_NORM = (
    '"body" is not followed by a normalisation: sums of +-1 grow with the fan-in and training is '
    "likely to stall. Add a BatchNorm after it."
)


def net(*before, after=None):
    """Stem, whatever stands before the binary ``body``, the body, whatever follows, a head."""
    after = (nn.BatchNorm2d(4),) if after is None else after
    parts = [("stem", nn.Conv2d(3, 4, 3))]
    parts += [(f"before{i}", part) for i, part in enumerate(before)]
    parts += [("body", nn.Conv2d(4, 4, 1))]
    parts += [(f"after{i}", part) for i, part in enumerate(after)]
    parts += [("pool", nn.AdaptiveMaxPool2d(1)), ("flat", nn.Flatten()), ("head", nn.Linear(4, 2))]
    return nn.Sequential(OrderedDict(parts))


class Functional(nn.Module):
    """A net whose activations, pools and norms are calls; ``before`` and ``after`` the body."""

    def __init__(self, before, after=lambda y: y, *, norm=None):
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 2)
        self.before, self.after, self.norm = before, after, norm or nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.after(self.body(self.before(self.stem(x))))
        return self.head(self.norm(y).mean((2, 3)))


def sentences(model, method="bnn", **options):
    """Convert, and return the warnings, which must be those of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = binarize_(model, method, **options)
    assert tuple(str(w.message) for w in caught) == report.warnings
    assert all(w.category is SurgeWarning and w.filename == __file__ for w in caught)
    return list(report.warnings)


@pytest.mark.parametrize(
    "before",
    [
        (nn.BatchNorm2d(4), nn.ReLU()),
        (nn.ReLU6(),),
        (nn.ReLU(inplace=True),),
        (nn.ReLU(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Dropout2d(), nn.Identity()),
    ],
)
def test_relu_module_before_a_binary_layer_warns(before):
    assert sentences(net(*before)) == [RELU]


@pytest.mark.parametrize(
    "before",
    [
        F.relu,
        torch.relu,
        F.relu6,
        lambda x: x.relu(),
        lambda x: F.relu(x, inplace=True),
        lambda x: F.max_pool2d(F.relu(x), 2),
        lambda x: F.dropout(F.avg_pool2d(torch.relu_(x), 2)),
        lambda x: F.adaptive_avg_pool2d(x.relu_(), 2).contiguous(),
    ],
)
def test_relu_call_before_a_binary_layer_warns(before):
    assert sentences(Functional(before)) == [RELU]


def test_relu_before_a_flattened_linear_layer_warns():
    model = nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 4, 3),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(2),
            flat=nn.Flatten(),
            body=nn.Linear(16, 4),
            norm=nn.BatchNorm1d(4),
            head=nn.Linear(4, 2),
        )
    )
    assert sentences(model) == [RELU]


def test_relu_warns_for_an_input_given_by_name():
    class Named(Functional):
        def forward(self, x):
            y = self.body(input=F.max_pool2d(input=F.relu(self.stem(x)), kernel_size=2))
            return self.head(self.norm(y).mean((2, 3)))

    assert sentences(Named(None)) == [RELU]


@pytest.mark.parametrize(
    "model",
    [
        net(nn.GELU()),
        net(nn.Hardswish(), nn.MaxPool2d(2)),
        Functional(F.gelu),
        Functional(lambda x: F.dropout(F.hardswish(x))),
    ],
    ids=["gelu", "hardswish", "call", "hardswish-call"],
)
def test_gelu_before_a_binary_layer_warns(model):
    assert sentences(model) == [FOLD]


@pytest.mark.parametrize("activation", [F.gelu, F.hardswish])
def test_far_negative_values_have_the_bit_of_positive_ones_behind_a_gelu(activation):
    values = activation(torch.tensor([-9.0, -1.0, 1.0]))
    assert surge.functional.sign(values).tolist() == [1.0, -1.0, 1.0]


def test_example_finds_a_gelu_that_no_trace_can_see():
    class Untraceable(Functional):
        def forward(self, x):
            return super().forward(x) if x.sum() < 1e9 else x

    class OwnGELU(nn.Module):
        def forward(self, x):
            return F.gelu(x)

    example = {"example_input": torch.randn(2, 3, 5, 5)}
    assert sentences(Untraceable(OwnGELU()), **example) == [FOLD]
    assert sentences(Untraceable(nn.GELU()), method="binaryconnect", **example) == []
    assert sentences(Untraceable(nn.Tanh()), **example) == []
    assert sentences(Untraceable(nn.GELU())) == []


@pytest.mark.parametrize(
    "before",
    [
        (),
        (nn.GELU(), nn.BatchNorm2d(4)),
        (nn.SiLU(),),
        (nn.Hardtanh(),),
        (nn.PReLU(),),
        (nn.ReLU(), nn.BatchNorm2d(4)),
        (nn.LeakyReLU(),),
        (nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2)),
    ],
)
def test_no_relu_warning_where_signs_differ(before):
    assert sentences(net(*before)) == []


def test_no_relu_warning_for_an_argument_called_relu():
    class Argument(Functional):
        def forward(self, relu):
            return self.head(self.norm(self.body(relu)).mean((2, 3)))

    assert sentences(Argument(None)) == []


def test_no_relu_warning_for_a_residual_sum():
    assert sentences(Functional(lambda x: F.relu(x) + x)) == []


@pytest.mark.parametrize(
    "options", [{"input_bits": 4}, {"input_bits": 32}, {"unit_inputs": True}], ids=str
)
def test_no_relu_warning_where_inputs_are_steps_from_zero(options):
    assert sentences(net(nn.ReLU()), "dorefa", **options) == []
    assert sentences(net(nn.ReLU()), "dorefa") == [RELU]


def test_no_relu_warning_where_inputs_are_zero_or_a_level():
    assert sentences(net(nn.ReLU()), "bit", unsigned=True) == []
    assert sentences(net(nn.ReLU()), "bit") == [RELU]


@pytest.mark.parametrize("after", [(), (nn.Hardtanh(),), (nn.ReLU(), nn.BatchNorm2d(4))])
def test_no_norm_after_a_binary_layer_warns(after):
    assert sentences(net(after=after)) == [NO_NORM]


@pytest.mark.parametrize(
    "after",
    [
        (nn.BatchNorm2d(4),),
        (nn.GroupNorm(2, 4),),
        (nn.MaxPool2d(2), nn.BatchNorm2d(4)),
        (nn.PReLU(), nn.Dropout2d(), nn.InstanceNorm2d(4)),
        (nn.LayerNorm(8),),
    ],
)
def test_no_warning_with_a_norm_after(after):
    assert sentences(net(after=after)) == []


@pytest.mark.parametrize(
    "after",
    [
        lambda y: F.layer_norm(y, y.shape[1:]),
        lambda y: F.group_norm(F.max_pool2d(y, 2), 2),
        lambda y: F.batch_norm(y + 1, None, None, training=True),
        lambda y: F.batch_norm(y.add_(1), None, None, training=True),
    ],
)
def test_no_warning_with_a_norm_call_after(after):
    assert sentences(Functional(lambda x: x, after, norm=nn.Identity())) == []


def test_layers_with_the_same_pitfall_share_one_warning():
    found = sentences(small_resnet18(), skip="*downsample*")
    assert found == [RELU.replace('"body" is', '"layer1.0.conv1" and 15 other layers are')]
    both = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    assert sentences(both) == [NO_NORM.replace('"body" is', '"1" and 1 other layer are')]


def test_a_layer_used_twice_is_named_once():
    class Twice(Functional):
        def forward(self, x):
            y = self.body(F.relu(self.body(F.relu(self.stem(x)))))
            return self.head(y.mean((2, 3)))

    assert sentences(Twice(None)) == [RELU, NO_NORM]


def test_binary_first_and_last_layers_warn():
    found = sentences(net(nn.Hardtanh()), keep_first=False, keep_last=False, only=("stem", "head"))
    ends = [text for text in found if "usually costs" in text]
    assert ends == [
        'The first layer "stem" is binary, which usually costs several points of accuracy; '
        "keep_first=True keeps it float.",
        'The last layer "head" is binary, which usually costs several points of accuracy; '
        "keep_last=True keeps it float.",
    ]


def test_a_proper_net_gives_no_warning():
    assert sentences(small_resnet18(activation=nn.Hardtanh), skip="*downsample*") == []


class Untraceable(Functional):
    def forward(self, x):
        y = self.body(F.relu(self.stem(x)))
        return self.head(y.mean((2, 3)) if y.sum() > 0 else y.amax((2, 3)))


def test_an_untraceable_model_is_converted_and_its_report_says_what_was_not_looked_for():
    model = Untraceable(None)
    assert trace(model) is None
    report = binarize_(model, "bireal")
    assert report.warnings == () and "cannot be traced" in str(report).splitlines()[-1]
    assert model(torch.randn(2, 3, 10, 10)).shape == (2, 2)


def test_an_example_finds_what_no_trace_shows():
    model, example = Untraceable(None), torch.randn(2, 3, 10, 10)
    (sentence,) = sentences(model, example_input=example)
    assert sentence.startswith('"body" is fed by values that are all >= 0 in the example')


def test_an_example_says_nothing_twice():
    model, example = net(nn.ReLU()), torch.randn(2, 3, 10, 10)
    assert sentences(net(nn.ReLU())) == sentences(model, example_input=example)


def test_an_example_leaves_the_model_as_it_was():
    model = Untraceable(None).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert sentences(model, example_input=(torch.randn(2, 3, 10, 10),))
    after = model.state_dict()
    assert model.training and all(torch.equal(after[name], before[name]) for name in before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_find_says_nothing_about_layers_that_stay_float():
    risks = find(net(nn.ReLU(), after=()), {"stem"})
    assert not risks.fed_by_relu
    assert risks.not_normed == ["stem"]


class Remembering(Functional):
    """Keeps what it sees in every way a module can, and fails when asked to."""

    def __init__(self, fails):
        super().__init__(lambda x: x)
        self.fails = fails
        self.calls, self.seen, self.by_name = 0, [], {"inner": [1]}
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.last = x
        self.seen.append(x)
        self.by_name["x"] = x
        self.steps += 1
        if self.fails:
            raise RuntimeError("not today")
        return super().forward(x)


@pytest.mark.parametrize("fails", [True, False])
def test_tracing_leaves_no_trace_in_the_model(fails):
    model = Remembering(fails)
    held = model.seen, model.by_name
    assert (trace(model) is None) is fails
    assert (model.seen, model.by_name, model.calls) == ([], {"inner": [1]}, 0)
    assert (model.seen, model.by_name) == held
    assert model.seen is held[0]
    assert not hasattr(model, "last")
    assert model.steps == 0
    assert [name for name, _ in model.named_children()] == ["stem", "body", "head", "norm"]


def test_warnings_of_user_code_stay_inside_the_trace():
    class Loud(Functional):
        def forward(self, x):
            warnings.warn("mind the symbols", stacklevel=1)
            return super().forward(x)

    assert sentences(Loud(lambda x: x)) == []


class Direct(nn.Module):
    """A layer whose weight is used by its parent."""

    def __init__(self, *, split=False):
        super().__init__()
        self.stem, self.body, self.head = (nn.Linear(4, 4) for _ in range(3))
        self.norm, self.split = nn.LayerNorm(4), split

    def forward(self, x):
        if self.split and x.sum() > 0:  # no trace follows that
            x = x + 1
        return self.head(self.norm(F.linear(self.stem(x), self.body.weight)))


def test_layer_that_nobody_calls_warns():
    found = '"body" is not called: whatever multiplies with the weight itself goes on'
    (sentence,) = sentences(Direct())
    assert sentence.startswith(found)
    assert sentences(Direct(split=True)) == []
    (sentence,) = sentences(Direct(split=True), example_input=torch.randn(2, 4))
    assert sentence.startswith(found)
