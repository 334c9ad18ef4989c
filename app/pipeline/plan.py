"""Plan of a request: its validated options, before its pictures are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.computation import Computation, ExplainComputation
from seewhy.app.pipeline.jobs import Deadline, Outcome
from seewhy.app.pipeline.null_scores import NullScores
from seewhy.app.pipeline.options import ExplainOptions, MethodOptions
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.validation import check_methods
from seewhy.app.settings import Settings
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import TargetError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method, option_names
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.detection import Detection
from seewhy.explainers.tasks.pose import each_ask, must_have_boxes, named_ask, named_target
from seewhy.explainers.tasks.regions import Mask
from seewhy.explainers.tasks.segmentation import Segmentation
from seewhy.explainers.trust.trial import trial_of
from seewhy.models import LoadedModel

Methods = tuple[tuple[Method, Explainer], ...]
"""Methods of the catalogue, each with its explainer."""


_PLAIN = Style()


@dataclass(frozen=True)
class Plan:
    """The work of a model for a picture, independent of the picture.

    Attributes:
        computation: the computation; plans with equal computations share batches.
        asks: the first questions, each about one picture (N = 1).
        stage: name of the computation's stage in answers and metrics.
        top: number of most probable classes to explain, or of the boxes of a class; 1 if single targets are given.
        attribute: the explained attribute of each box of a detector; None for its score.
    """

    model: LoadedModel
    computation: Computation
    asks: tuple[Ask, ...]
    deadline: Deadline
    stage: str
    top: int = 1
    attribute: str | None = None
    methods: Methods = ()
    style: Style = _PLAIN

    @property
    def count(self) -> int:
        """Maximum number of explained classes per picture."""
        return max(self.top, len(self.asks))

    @property
    def is_proved(self) -> bool:
        """Whether its maps have proofs."""
        return isinstance(self.computation, ExplainComputation) and self.computation.trial is not None

    @property
    def signed(self) -> bool:
        """Whether negative values of the first method are evidence against the class."""
        return self.methods[0][1].sign == "signed"

    def further_asks(self, first: Outcome) -> list[Ask]:
        """Return the questions after the first ones, given the outcome of the very first.

        They are about the most probable classes after the first, or about the boxes of a class after its best.
        """
        if self.top == 1:
            return []
        task, outputs = self.model.task, first.result[0].outputs[0]
        if any(ask.is_plural for ask in self.asks):
            boxes = [part for ask in self.asks for part in each_ask(task, outputs, ask)[1:]]
            return boxes[: self.top - len(self.asks)]
        (ask,) = self.asks
        runners_up = task.describe(outputs, top=self.top)[1:]
        targets = [named_target(task, row.name, self.attribute) for row in runners_up if row.index != ask.contrast]
        return [Ask.single(target, ask.contrast) for target in targets]


def build_explainers(names: Sequence[str], options: MethodOptions, settings: Settings) -> Methods:
    """Return methods by name with the options of a request; each of several methods takes the options it has.

    Raises:
        OptionError: a method is unknown, an option belongs to none of them, or a value is out of bounds.
        FieldError: there are too many layers, or a layer is given for methods that take none.
    """
    methods = [get_method(name) for name in names]
    current().method = methods[0].name if len(methods) == 1 else "several"
    own = {method.name: method.options for method in methods}
    method_options = check_methods(options, own, option_names, settings)
    return tuple(zip(methods, build_methods(methods, method_options), strict=True))


def explain_plan(
    options: ExplainOptions,
    methods: Methods,
    style: Style,
    model: LoadedModel,
    deadline: Deadline,
    most: int,
    mask: Mask | None = None,
    null: NullScores | None = None,
) -> Plan:
    """Return the plan of an explanation; `most` is the maximum number of classes and boxes; see `ExplainComputation`.

    Raises:
        LayerError, TargetError: the model has no such layer or class, or the mask is empty.
        FieldError: a target is contrasted with itself, or the model has no regions.
    """
    if options.layer:
        module_paths(model.module, tuple(options.layer))
    against = None if options.against is None else _contrast(options.against, model)
    targets = _targets(options, model, mask)
    if against is not None and against in targets:
        way_out = "name another target" if len(model.labels) > 1 else "the model has one output only"
        raise FieldError(f"{options.against!r} is contrasted with itself; {way_out}.", field="against")
    asks = tuple(Ask.single(target, against) for target in targets)
    boxes = isinstance(model.task, Detection)
    return Plan(
        model=model,
        computation=ExplainComputation(
            tuple(explainer for _, explainer in methods),
            trial_of(options.proof, options.proof_area, options.proof_fill),
            null,
        ),
        asks=asks,
        deadline=deadline,
        stage="explain",
        top=most if any(ask.is_plural for ask in asks) else min(options.top or 1, most if boxes else len(model.labels)),
        attribute=options.attribute,
        methods=methods,
        style=style,
    )


def _targets(options: ExplainOptions, model: LoadedModel, mask: Mask | None) -> list[Any]:
    """Return the targets of a request; a mask or a part of a region alone belongs to the class that the model sees
    there."""
    field = "region" if mask is None else "mask"
    box_options = options.attribute, options.label
    if options.region is None and mask is None:
        names: list[int | str | None] = list(options.target) or [None]
        return [named_target(model.task, target, *box_options) for target in names]
    must_have_boxes(model.task, *box_options)
    if not isinstance(model.task, Segmentation):
        raise FieldError(f"{model.name!r} has no regions; leave {field!r} out, or name a segmenter.", field=field)
    if options.top is not None:
        raise FieldError(f"Give either {field} or top, not both.", field="top")
    part = "" if options.region is None else f":{options.region}"
    return [model.task.target(f"{target}{part}", mask) for target in options.target or [""]]


def _contrast(against: int | str, model: LoadedModel) -> int | None:
    try:
        return named_ask(model.task, None, against).contrast
    except TargetError as error:
        raise FieldError(str(error), field="against") from error
