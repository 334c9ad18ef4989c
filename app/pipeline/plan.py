"""What a request asks for, checked, before its pictures are looked at."""

from collections.abc import Sequence
from dataclasses import dataclass

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.computation import Computation, Explain
from seewhy.app.pipeline.jobs import Deadline, Outcome
from seewhy.app.pipeline.option_table import DRAWING
from seewhy.app.pipeline.options import DrawingOptions, ExplainOptions, HeatmapOptions
from seewhy.app.pipeline.record import current
from seewhy.app.settings import Settings
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import TargetError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.classification import contrasted_with_itself
from seewhy.models import LoadedModel

Methods = tuple[tuple[Method, Explainer], ...]
"""Methods of the catalogue, each with its options."""


_PLAIN = Style()


@dataclass(frozen=True)
class Plan:
    """What a model is to do with a picture, whatever the picture is.

    Attributes:
        model: which model.
        computation: what it does; plans with equal computations share batches.
        asks: what is asked first, each of one picture (N = 1).
        deadline: when to give up.
        stage: what the time it takes is called in answers and metrics.
        top: how many of the most probable classes to explain; 1 where classes are named.
        methods: which methods, where something is explained.
        style: how to draw the answer.
    """

    model: LoadedModel
    computation: Computation
    asks: tuple[Ask, ...]
    deadline: Deadline
    stage: str
    top: int = 1
    methods: Methods = ()
    style: Style = _PLAIN

    @property
    def count(self) -> int:
        """How many classes are explained of a picture, at most."""
        return max(self.top, len(self.asks))

    @property
    def signed(self) -> bool:
        """Whether negative values of the first method mean evidence against the class."""
        return self.methods[0][1].sign == "signed"

    def others(self, first: Outcome) -> list[Ask]:
        """Return what to ask after the most probable class, now that this is explained."""
        if self.top == 1:
            return []
        (ask,) = self.asks
        against = None if ask.against is None else int(ask.against)
        _, *others = self.model.task.describe(first.result[0].outputs[0], top=self.top)
        return [Ask.single(other.index, against) for other in others if other.index != against]


def build_explainers(names: Sequence[str], options: HeatmapOptions, settings: Settings) -> Methods:
    """Return methods by name with the options of a request; of several methods each takes the options that it has.

    Raises:
        OptionError: an unknown method, an option that none of them has, or a value out of bounds.
        FieldError: too many layers, or a layer for methods that take none.
    """
    methods = [get_method(name) for name in names]
    current().method = methods[0].name if len(methods) == 1 else "several"
    method_options = options.method_options
    if "layers" in method_options:
        raise FieldError("There is no option 'layers'. Near matches: layer.", field="layers")
    if options.layer:
        if not any(method.takes_layers for method in methods):
            which = f"Method {methods[0].name!r} uses no" if len(methods) == 1 else "None of these methods uses a"
            raise FieldError(f"{which} layer; leave the option out.", field="layer")
        if len(options.layer) > settings.max_layers:
            raise FieldError(f"At most {settings.max_layers} layers can be given.", field="layer")
        method_options = {**method_options, "layers": tuple(options.layer)}
    return tuple(zip(methods, build_methods(methods, method_options, type(options).model_fields), strict=True))


def explain_methods(options: ExplainOptions, settings: Settings) -> Methods:
    """Return the methods of a request, once it is known to ask for no more classes and maps than it may.

    Raises:
        FieldError: more of either; or what `build_explainers` raises.
    """
    classes = max(options.top or 1, len(options.target))
    if classes > settings.max_targets:
        raise FieldError(
            f"At most {settings.max_targets} classes can be explained in one request.",
            field="top" if options.top else "target",
        )
    if options.top is not None and options.target:
        raise FieldError("Give either target or top, not both.", field="top")
    methods = build_explainers(options.method, options, settings)
    maps = len(methods) * classes
    if maps > settings.max_targets:
        raise FieldError(
            f"{maps} maps are more than the {settings.max_targets} that one request may ask for.", field="method"
        )
    return methods


def drawing_style(options: DrawingOptions, settings: Settings) -> Style:
    """Return how the answer is to be drawn.

    Raises:
        OptionError: a bad value.
    """
    return Style(**{name: getattr(options, name) for name in DRAWING}, max_side=settings.max_side)


def explain_plan(
    options: ExplainOptions, methods: Methods, style: Style, model: LoadedModel, deadline: Deadline
) -> Plan:
    """Return the plan of an explanation.

    Raises:
        LayerError, TargetError: a layer or class that the model lacks.
        FieldError: a class contrasted with itself.
    """
    if options.layer:
        module_paths(model.module, tuple(options.layer))
    against = None if options.against is None else _contrast(options.against, model)
    targets = [model.task.target(target) for target in options.target]
    if against is not None and against in targets:
        raise FieldError(str(contrasted_with_itself(against, len(model.labels))), field="against")
    return Plan(
        model=model,
        computation=Explain(tuple(explainer for _, explainer in methods)),
        asks=tuple(Ask.single(target, against) for target in dict.fromkeys(targets) or (None,)),
        deadline=deadline,
        stage="explain",
        top=min(options.top or 1, len(model.labels)),
        methods=methods,
        style=style,
    )


def _contrast(against: int | str, model: LoadedModel) -> int:
    try:
        return model.task.target(against)
    except TargetError as error:
        raise FieldError(str(error), field="against") from error
