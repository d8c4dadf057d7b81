import pytest
import torch

import surge.models as models
from surge.errors import ConfigError
from surge.models import build_model, list_models


@pytest.mark.parametrize("name", list_models())
def test_build_model_equals_the_function_of_that_name(name):
    torch.manual_seed(1)
    direct = getattr(models, name)(classes=3)
    torch.manual_seed(1)
    built = build_model(name, classes=3)
    assert type(built) is type(direct)
    for key, value in direct.state_dict().items():
        assert torch.equal(built.state_dict()[key], value)


def test_build_model_passes_options_on():
    assert build_model("cnn_digits", width=8).fc.in_features == 16


def test_build_model_names_the_near_miss_of_a_name():
    with pytest.raises(
        ConfigError, match=r"no model 'resnet2'.*Did you mean .*Known models: bireal"
    ):
        build_model("resnet2")


def test_build_model_names_the_near_miss_of_an_option():
    with pytest.raises(ConfigError, match=r"'vgg_small' has no option 'clases'.*\"classes\""):
        build_model("vgg_small", clases=3)


def test_list_models_is_sorted():
    assert list(list_models()) == sorted(list_models())
    assert "resnet20" in list_models()
