"""The methods by the names that users type. A new method is one entry in `METHODS`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from explainers.base import Explainer
from explainers.cam import GradCAM
from explainers.errors import OptionError, near_matches, plain_fault
from explainers.gradient import Saliency


@dataclass(frozen=True)
class Paper:
    """Where a method was published."""

    authors: str
    title: str
    year: int
    url: str


@dataclass(frozen=True)
class Method:
    """One entry of the catalogue.

    Attributes:
        name: as users type it.
        family: cam, gradient or perturbation.
        explainer: the frozen dataclass; its fields are the options.
        summary: one line.
        paper: where it was published.
        signed: whether the map's sign means something when the options are left alone.
        needs: what the model must offer: "layer", "gradient".
        forwards, backwards: passes per picture.
    """

    name: str
    family: str
    explainer: type[Explainer]
    summary: str
    paper: Paper
    signed: bool
    needs: tuple[str, ...]
    forwards: int
    backwards: int

    @cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """JSON schema of each option: type, default, bounds, description."""
        return dict(self._adapter.json_schema().get("properties", {}))

    @property
    def takes_layers(self) -> bool:
        """Whether the method has an option for layers."""
        return "layer" in self.needs

    def build(self, options: Mapping[str, Any]) -> Explainer:
        """Return the explainer with these options, checked.

        Args:
            options: values as Python or JSON gives them, or as text, as a form gives them.

        Raises:
            OptionError: an option that the method lacks, or a value that it cannot take.
        """
        for option in options:
            if option not in self.options:
                hint = near_matches(option, self.options) or f"It takes {', '.join(self.options) or 'no options'}."
                raise OptionError(f"Method {self.name!r} has no option {option!r}. {hint}", field=option)
        try:
            built: Explainer = self._adapter.validate_python(dict(options))
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else "options"
            message = f"Option {field!r} of method {self.name!r}: {plain_fault(first)}"
            raise OptionError(message, field=field) from error
        return built

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.explainer)


def _catalogue(*methods: Method) -> Mapping[str, Method]:
    by_name: dict[str, Method] = {}
    for method in methods:
        if method.name in by_name:
            raise ValueError(f"Two methods are named {method.name!r}.")
        by_name[method.name] = method
    return MappingProxyType(by_name)


METHODS = _catalogue(
    Method(
        name="gradcam",
        family="cam",
        explainer=GradCAM,
        summary="Feature maps of a layer, weighted by their averaged gradients.",
        paper=Paper(
            "Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra",
            "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
            2017,
            "https://arxiv.org/abs/1610.02391",
        ),
        signed=False,
        needs=("layer", "gradient"),
        forwards=1,
        backwards=1,
    ),
    Method(
        name="saliency",
        family="gradient",
        explainer=Saliency,
        summary="Largest gradient of the class score over the colour channels of each pixel.",
        paper=Paper(
            "Simonyan, Vedaldi, Zisserman",
            "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
            2013,
            "https://arxiv.org/abs/1312.6034",
        ),
        signed=False,
        needs=("gradient",),
        forwards=1,
        backwards=1,
    ),
)


def list_methods() -> list[str]:
    """Return the names of all methods."""
    return list(METHODS)


def get_method(name: str) -> Method:
    """Return a method by name, case ignored.

    Raises:
        OptionError: no method has that name; the message lists near matches.
    """
    method = METHODS.get(name.lower())
    if method is None:
        hint = near_matches(name, METHODS) or f"Choose from {', '.join(METHODS)}."
        raise OptionError(f"There is no method {name!r}. {hint}", field="method")
    return method
