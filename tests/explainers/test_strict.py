"""No argument is dropped: explainers and all functions that take options refuse unknown ones."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy import explainers
from seewhy.explainers import CAM, GradCAM
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.gradient.input_gradient import SmoothGrad


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_explainer_refuses_an_argument_that_is_no_field(name):
    with pytest.raises(OptionError, match="has no option 'colour'"):
        METHODS[name].explainer(colour="red")
    with pytest.raises(TypeError):
        METHODS[name].explainer(colour="red")


def test_the_error_names_near_matches_and_the_argument():
    with pytest.raises(OptionError, match=r"GradCAM has no option 'layer'. Near matches: layers\.") as caught:
        GradCAM(layer="layer1")
    assert caught.value.field == "layer"
    with pytest.raises(OptionError, match=r"SmoothGrad has no option 'n_samples'. Near matches: samples\."):
        SmoothGrad(n_samples=500)
    with pytest.raises(OptionError, match=r"It takes layers, sign, smooth\."):
        GradCAM(colour="red")


def test_a_changed_copy_is_strict_too():
    assert replace(GradCAM(), sign="signed").sign == "signed"
    with pytest.raises(OptionError, match="'signs'"):
        replace(GradCAM(), signs="signed")


@dataclass(frozen=True, kw_only=True)
class Own(CAM):
    power: Annotated[float, Field(gt=0)] = 2.0

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return activations * gradients**self.power


def test_explainers_of_users_are_strict():
    assert Own(power=3).power == 3
    with pytest.raises(OptionError, match=r"Own has no option 'powr'. Near matches: power\."):
        Own(powr=3)


TAKING_OPTIONS = [
    name
    for name in explainers.__all__
    if inspect.isfunction(getattr(explainers, name))
    and any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(getattr(explainers, name)).parameters.values()
    )
]

CALLS: dict[str, Callable[..., Any]] = {
    "calibrate": lambda call, model, picture, **options: call(model, [picture], **options),
    "compare": lambda call, model, picture, **options: call(model, picture, ["gradcam", "saliency"], **options),
    "evaluate": lambda call, model, picture, **options: call(model, [picture], **options),
    "explain": lambda call, model, picture, **options: call(model, picture, **options),
    "explain_many": lambda call, model, picture, **options: call(model, [picture], **options),
    "intervene": lambda call, model, picture, **options: call(
        model, picture, [{"op": "zero", "layer": "bn2"}], **options
    ),
}


def test_every_public_function_with_options_has_a_case():
    assert sorted(TAKING_OPTIONS) == sorted(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_functions_refuse_options_that_nobody_reads(name, lite0):
    picture = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(OptionError, match="'n_samples'"):
        CALLS[name](getattr(explainers, name), lite0, picture, n_samples=5)


def test_results_refuse_styles_that_nobody_reads(lite0, tmp_path):
    result = explainers.explain(lite0, np.zeros((8, 8, 3), np.uint8))
    for call in (result.overlay, result.plot, lambda **style: result.save(tmp_path / "map.png", **style)):
        with pytest.raises(TypeError, match="colourmap"):
            call(colourmap="viridis")
    assert not list(tmp_path.iterdir())
