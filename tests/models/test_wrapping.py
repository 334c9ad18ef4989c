"""A module in memory as a model."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v3_small

from seewhy.explainers import capture, explain, explain_many, intervene, sweep_channels, trace
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.models import ModelError, load_model, wrap_model
from seewhy.models.errors import UnknownModelError
from tests import nets
from tests.app.conftest import EXAMPLES

CAT = EXAMPLES / "cat.png"


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, stride=4)
        self.drop = nn.Dropout(0.9)
        self.head = nn.Linear(6, 2)

    def forward(self, images):
        return self.head(self.drop(self.conv(images).relu()).mean(dim=(2, 3)))


@pytest.fixture
def module():
    return nets.seeded(Small)


def test_a_module_explains_pictures_and_is_left_as_it_was(module, untouched):
    untouched(module.train())
    model = wrap_model(module, ["healthy", "ill"], input_size=64)
    assert model.default_layers == ("conv",)
    assert repr(model) == "LoadedModel(Small, 64x64, 2 classes, mean 0.485 0.456 0.406, std 0.229 0.224 0.225)"
    explanation = explain(model, CAT, target="ill")
    assert module.training
    assert (explanation.target.label, explanation.map.shape, explanation.heatmap.shape) == ("ill", (16, 16), (300, 451))
    assert [result.target.label for result in explain_many(model, [CAT, CAT], target=1)] == ["ill", "ill"]
    assert (explain(wrap_model(deepcopy(module).eval(), input_size=64), CAT, target=1).map == explanation.map).all()


def test_a_module_that_was_trained_on_answers_as_it_is_now(module):
    model = wrap_model(module, input_size=64)
    before = explain(model, CAT)
    assert before.target.label in ("class 0", "class 1")
    with torch.no_grad():
        module.head.bias += torch.tensor([0.0, 50.0])
    assert explain(model, CAT).target.index == 1


def test_a_module_that_returns_probabilities_is_warned_of(module):
    normalised = nn.Sequential(module, nn.Softmax(dim=1))
    with pytest.warns(UserWarning, match=r"^Sequential returns probabilities.*Return the logits before the softmax"):
        wrap_model(normalised, input_size=64)
    wrap_model(normalised, input_size=64, head="value")  # shares may be what a network was trained to return


def test_logits_may_stand_in_a_dictionary(module):
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, images):
            return {"logits": self.inner(images), "loss": None}

    model = wrap_model(Told(), input_size=64, name="told")
    assert (model.name, model.labels, model.default_layers) == ("told", ("class 0", "class 1"), ("inner.conv",))
    assert explain(model, CAT).map.shape == (16, 16)


def test_the_wrapped_module_is_as_the_loaded_one():
    loaded = load_model("mobilenet_v3_small", weights=None)
    module = mobilenet_v3_small()
    module.load_state_dict(loaded.module.state_dict())
    size, resized = loaded.preprocess.size, loaded.preprocess.scale_size[0]
    wrapped = wrap_model(module, loaded.labels, size, resized)
    assert wrapped.default_layers == loaded.default_layers
    first, second = (explain(model, CAT, target="tabby") for model in (loaded, wrapped))
    assert abs(first.map - second.map).max() <= 1e-4 * abs(first.map).max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["one"]}, "2 classes, but 1 label is given"),
        ({"labels": "ab"}, "labels is 'ab'; give a list with a name for each of the 2 classes"),
        ({"labels": 3}, "labels is 3; give a list"),
        ({"mean": (124.0, 116.0, 104.0), "std": (0.5,) * 3}, "mean and std must be for levels from 0 to 1"),
        ({"mean": (0.5,) * 3, "std": (58.0,) * 3}, "divide those for levels up to 255 by 255"),
        ({"input_size": "64"}, "input_size is '64'; give the side"),
        ({"input_size": 64, "resize": (96, 0)}, r"resize is \(96, 0\); give the side"),
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "mean has 1 number and std 2; give one of each for every channel"),
        ({"mean": 0.5}, r"mean is 0.5; give a number for each channel, such as mean=\(0.5,\)"),
        ({"input_size": 2, "default_layers": ["head"]}, "'head' is not a layer with a grid"),
    ],
)
def test_what_does_not_fit_is_said(module, options, message):
    with pytest.raises(ModelError, match=message):
        wrap_model(module, **{"input_size": 64, **options})


def test_size_mean_and_standard_deviation_may_be_lists(module):
    model = wrap_model(module, input_size=[64, 64], mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
    assert repr(model) == "LoadedModel(Small, 64x64, 2 classes, mean 0.5 0.4 0.3, std 0.2 0.3 0.4)"
    assert explain(model, CAT).map.shape == (16, 16)


def test_what_is_no_classifier_is_said():
    with pytest.raises(ModelError, match="Expected logits of shape"):
        wrap_model(nn.Conv2d(3, 4, 3), input_size=16)
    with pytest.raises(ModelError, match="raised RuntimeError on a picture"):
        wrap_model(nn.Linear(3, 4), input_size=16)
    with pytest.raises(ModelError, match=r"\. Its first convolution takes 1 channel, not 3: give `mean` and"):
        wrap_model(nn.Conv2d(1, 4, 3), input_size=16)
    with pytest.raises(ModelError, match=r"found \(1,\); one logit is returned as \(N, 1\)"):
        wrap_model(nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(0)), input_size=16)
    with pytest.raises(ModelError, match="`load_model` takes names"):
        wrap_model("resnet18")
    with pytest.raises(UnknownModelError, match="`wrap_model`"):
        load_model(nn.Identity())


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: explain(model, CAT),
        lambda model: explain_many(model, [CAT]),
        lambda model: intervene(model, CAT, [{"layer": "conv", "op": "zero"}]),
        lambda model: sweep_channels(model, CAT, {"layer": "conv", "op": "zero"}),
        lambda model: trace(model, CAT),
        lambda model: capture(model, CAT, "conv"),
    ],
)
@pytest.mark.parametrize(
    ("factory", "message"), [(Small, "wrap_model"), (lambda: "resnet18", "load_model"), (dict, "Expected a model")]
)
def test_what_knows_nothing_of_pictures_is_told_how(ask, factory, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        ask(factory())
