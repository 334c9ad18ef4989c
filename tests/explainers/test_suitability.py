"""Methods that can never explain a model: those that refuse it, with the same message."""

import pytest
import torch
from torch import nn

from seewhy import explain, wrap_model
from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.attention import AttentionSession
from seewhy.explainers.methods.catalogue import METHODS, unsuitable_methods
from seewhy.explainers.methods.transformer import attention
from tests import nets
from tests.explainers.detectors import SIDE, detector

ATTENTION = {name for name, method in METHODS.items() if "attention" in method.needs}
LAYERED = {name for name, method in METHODS.items() if method.takes_layers} - {"excitation-backprop"}  # of the picture
OPTIONS = {"samples": 2, "steps": 1, "masks": 2}

MODELS = {
    "classifier": (lambda: wrap_model(nets.seeded(nets.Net), input_size=32), ATTENTION | {"drise", "grid-saliency"}),
    "transformer": (lambda: wrap_model(nets.seeded(nets.Transformer), input_size=32), {"drise", "grid-saliency"}),
    "deep head": (
        lambda: wrap_model(
            nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)
            ).eval(),
            input_size=32,
        ),
        ATTENTION | {"drise", "grid-saliency", "cam"},
    ),
    "one logit": (
        lambda: wrap_model(nets.seeded(nets.OneLogit), input_size=32, head="sigmoid"),
        ATTENTION | {"drise", "grid-saliency", "finercam"},
    ),
    "layerless": (
        lambda: wrap_model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3)).eval(), input_size=32),
        LAYERED | ATTENTION | {"drise", "grid-saliency"},
    ),
    "values": (
        lambda: wrap_model(nets.seeded(nets.Net), input_size=32, head="value"),
        ATTENTION | {"drise", "grid-saliency", "finercam", "shapleycam"},
    ),
    "segmenter": (
        lambda: wrap_model(
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval(),
            input_size=32,
            head="segmentation",
        ),
        ATTENTION | {"drise", "cam"},
    ),
    "detector": (lambda: wrap_model(detector("SSD")), ATTENTION | {"grid-saliency", "cam"}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_methods_that_refuse_a_model_are_known_before_with_their_reasons(kind):
    build, names = MODELS[kind]
    model = build()
    side = SIDE if kind == "detector" else 32
    reasons = unsuitable_methods(model, (3, side, side))
    assert {*reasons} == names
    image = torch.randn(3, side, side, generator=torch.Generator().manual_seed(1))
    for name, reason in reasons.items():
        options = {option: value for option, value in OPTIONS.items() if option in METHODS[name].options}
        with pytest.raises(LayerError) as caught:
            explain(model, image, name, **options)
        # A single logit between 0 and 1 looks like a probability, and the error adds that.
        assert str(caught.value).partition(" (The model returns probabilities")[0] == reason


def test_what_suits_under_other_options_is_no_refusal():
    model = wrap_model(nets.seeded(nets.Net), input_size=32, head="value")
    image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert explain(model, image, "shapleycam", utility="logit").map.any()
    assert "compares class probabilities" in unsuitable_methods(model, (3, 32, 32))["shapleycam"]


def test_attention_of_many_tokens_is_not_searched(monkeypatch):
    model, searched = wrap_model(nets.seeded(nets.Transformer), input_size=32), []
    monkeypatch.setattr(attention, "blocks_of", searched.append)
    monkeypatch.setattr(attention, "MOST_TOKENS", 4)
    assert {*unsuitable_methods(model, (3, 32, 32))} == {"drise", "grid-saliency"}
    assert not searched
    monkeypatch.undo()
    monkeypatch.setattr(attention, "blocks_of", searched.append)
    unsuitable_methods(model, (3, 32, 32))
    assert len(searched) == 1


def test_a_method_that_fails_to_judge_is_offered(monkeypatch):
    def fail(explainer, question):
        raise ValueError("It is broken.")

    monkeypatch.setattr(METHODS["finercam"].explainer, "must_suit", fail)
    model = wrap_model(nets.seeded(nets.Net), input_size=32, head="value")
    assert {*unsuitable_methods(model, (3, 32, 32))} == ATTENTION | {"drise", "grid-saliency", "shapleycam"}


def test_a_session_may_keep_the_shapes_of_attention_alone():
    model = nets.seeded(nets.Transformer)
    calls = {}
    for values in (True, False):
        with torch.no_grad(), AttentionSession(model, values=values) as attention:
            model(torch.zeros(1, 3, 32, 32))
        calls[values] = [(call.path, call.probabilities.shape) for call in attention.calls]
        assert {call.probabilities.is_meta for call in attention.calls} == {not values}
    assert calls[True] == calls[False]
