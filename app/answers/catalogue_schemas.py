"""Schemas of answers about models, layers, methods and colour maps, which also make the OpenAPI document."""

from typing import Any

from pydantic import BaseModel, Field

from seewhy.app.answers.schemas import HeadName
from seewhy.explainers.papers import Paper


class WeightsAnswer(BaseModel):
    """The weights of a model, or why they are not available."""

    name: str | None
    available: bool
    reason: str | None


class ModelAnswer(BaseModel):
    """One model."""

    name: str
    source: str
    licence: str
    input_size: tuple[int, int] | None = Field(
        description="Height and width; null for a detector that does not declare them, until it is loaded."
    )
    classes: int
    head: HeadName
    default_layers: list[str] | None = Field(description="Null in the list of models if the model is not loaded.")
    weights: WeightsAnswer
    loaded: bool


class ModelDetailAnswer(ModelAnswer):
    """One model with its labels."""

    no_default_layer: str | None = Field(description="Why `default_layers` is empty.")
    labels: list[str]


class ModelsAnswer(BaseModel):
    """Answer of GET /models."""

    models: list[ModelAnswer]


class TokensAnswer(BaseModel):
    """The tokens of a transformer, as a grid over the picture."""

    rows: int
    columns: int
    before: int = Field(description="Number of tokens before these, such as class and register tokens.")
    after: int = Field(description="Number of tokens after these.")


class LayerAnswer(BaseModel):
    """One module of a model."""

    path: str = Field(description="Dotted path; empty for the model itself.")
    type: str
    input_shape: list[int] | None
    output_shape: list[int] | None
    parameters: int
    calls: int = Field(description="Number of calls in one forward pass.")
    hooks: list[str] = Field(description="Tensors that hooks can record.")
    cam: bool = Field(description="Whether a CAM can use the module.")
    default: bool
    tokens: TokensAnswer | None = Field(
        description="Grid of the tokens, if the output (1, T, C) is tokens of the picture."
    )
    inputs: list[str] = Field(
        description="Paths of the modules whose outputs it reads, directly or through functions only; the empty path "
        "stands for the picture."
    )
    parts: list[str] = Field(
        description="Paths of the modules whose outputs it combines into its own, such as the summands of a "
        "residual block; empty if it contains no modules, or returns the output of a single one."
    )


class LayersAnswer(BaseModel):
    """Answer of GET /models/NAME/layers: every module in execution order."""

    model: str
    layers: list[LayerAnswer]


class MethodAnswer(BaseModel):
    """One method."""

    name: str
    family: str
    summary: str
    paper: Paper | None = Field(description="Its publication; null without one.")
    papers: tuple[Paper, ...] = Field(description="Its publication, then others that it draws on.")
    signed: bool
    needs: list[str]
    cost: dict[str, str] = Field(
        description="Forward and backward passes per picture and class: a number, or an expression of the options and "
        "the layer's channels."
    )
    partial: bool = Field(description="Whether each pass runs only the part of the model after the layer.")
    quantities: dict[str, int] | None = Field(
        description="Values of the names in `cost` that are not options, with default options; null while the model is "
        "not loaded."
    )
    seconds_per_pass: float | None = Field(
        description="Recent average on the model; null without a measurement. A `partial` method is measured by its "
        "own requests with the default layer, proofs included."
    )
    unsuitable: str | None = Field(
        description="Why the method can never explain the model; null if it may, and while the model is not loaded."
    )
    most_passes: int | None = Field(
        description="Passes per request above which it is refused (`too-much-work`), because they take longer than the "
        "`deadline` even without other load; null without a measurement, and for `partial` methods."
    )
    equation: str = Field(description="In LaTeX.")
    discriminates: bool = Field(description="Whether maps of two classes in one picture can be expected to differ.")
    fine: bool = Field(
        description="Whether the map has a value for each pixel of the model's input, with default options. "
        "`scale=robust` prevents a few extreme pixels from making all others pale."
    )
    rounding: str = Field(
        description="Step whose result can change with rounding, so that maps may differ between processors, threads "
        "and batches; empty if there is none."
    )
    options: dict[str, dict[str, Any]] = Field(description="JSON schema of each option: type, default, bounds.")


class MethodsAnswer(BaseModel):
    """Answer of GET /methods."""

    methods: list[MethodAnswer]
    model: str = Field(
        description="Model that the default and the costs refer to: the named one, or the service's default."
    )
    default: str = Field(description="Method for requests that do not name one.")
    recommended: str = Field(description="Method that the web page starts with.")
    deadline: float = Field(description="Seconds that a request may take.")


class ColormapAnswer(BaseModel):
    """One colour map: perceptually uniform, and safe for colour-blind eyes."""

    name: str
    diverging: bool = Field(description="Whether the colour map is for signed maps, with zero in the middle.")
    colors: list[str] = Field(description="256 colours from the lowest value to the highest, as #rrggbb.")


class ColormapsAnswer(BaseModel):
    """Answer of GET /colormaps."""

    colormaps: list[ColormapAnswer]
