"""The catalogue of metrics by name. The decorator `metric` enters a metric's class."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform, get_args

from pydantic import TypeAdapter, ValidationError

from seewhy.explainers.core.costs import evaluate
from seewhy.explainers.errors import OptionError, near_matches, plain_fault
from seewhy.explainers.methods.catalogue import equation_of, parameters, summary_of
from seewhy.explainers.papers import PAPERS, Paper
from seewhy.explainers.trust.choices import Aspect, Better
from seewhy.explainers.trust.metrics.base import Metric
from seewhy.explainers.unknown_names import unknown_metric

Class = TypeVar("Class", bound=type[Any])


@dataclass(frozen=True)
class MetricEntry:
    """One entry of the catalogue.

    Attributes:
        name: as users type it.
        aspect: the aspect of a map that it measures.
        metric: the frozen dataclass; its fields are the options.
        summary: one line.
        paper: its publication.
        better: which values are better.
        columns: names of its values.
        forwards: forward passes per picture and method, a number or an expression of the options; see
            `seewhy.explainers.core.costs.evaluate`.
        explanations: additional explanations per picture and method, likewise.
    """

    name: str
    aspect: Aspect
    metric: type[Metric]
    summary: str
    paper: Paper
    better: Better
    columns: tuple[str, ...]
    forwards: str
    explanations: str

    @cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """JSON schema of each option: type, default, bounds, description."""
        return dict(self._adapter.json_schema().get("properties", {}))

    @property
    def needs(self) -> tuple[str, ...]:
        """Its requirements: ``truth`` for boxes or masks, ``pictures`` for several pictures."""
        needs = {"truth": self.metric.needs_truth, "pictures": self.metric.over_pictures}
        return tuple(name for name, is_needed in needs.items() if is_needed)

    @property
    def equation(self) -> str:
        """The metric's equation in LaTeX, from its docstring."""
        return equation_of(self.metric)

    def build(self, options: Mapping[str, Any]) -> Metric:
        """Return the metric with these options, checked.

        Raises:
            OptionError: an option that the metric lacks, or an invalid value.
        """
        for option in options:
            if option not in self.options:
                hint = near_matches(option, self.options)
                hint = hint or f"It takes {', '.join(self.options) or 'no options'}."
                raise OptionError(f"Metric {self.name!r} has no option {option!r}. {hint}", f"{self.name}.{option}")
        try:
            metric: Metric = self._adapter.validate_python(dict(options))
        except ValidationError as error:
            first = error.errors()[0]
            option, fault = str(first["loc"][0]) if first["loc"] else "options", plain_fault(first)
            message = f"Option {option!r} of metric {self.name!r}: {fault}"
            raise OptionError(message, f"{self.name}.{option}", fault) from error
        return metric

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.metric)


_metrics: dict[str, MetricEntry] = {}

METRICS: Mapping[str, MetricEntry] = MappingProxyType(_metrics)
"""All metrics by name."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def metric(
    name: str,
    *,
    aspect: Aspect,
    better: Better,
    columns: tuple[str, ...] = (),
    forwards: str = "0",
    explanations: str = "0",
) -> Callable[[Class], Class]:
    """Return a decorator that makes a class the frozen dataclass of its options, and adds it to the catalogue.

    The arguments are the attributes of `MetricEntry`, except for the paper, which is in `papers.csv`, and the summary,
    which is the first sentence of the docstring, after the name and a colon.

    Raises:
        ValueError: the name is taken.
    """

    def enter(kind: Class) -> Class:
        if name in _metrics:
            raise ValueError(f"Two metrics are named {name!r}.")
        kind = parameters(kind)
        _metrics[name] = MetricEntry(
            name, aspect, kind, summary_of(kind), PAPERS[name], better, columns or (name,), forwards, explanations
        )
        return kind

    return enter


def list_metrics() -> list[str]:
    """Return the names of all metrics, aspect by aspect."""
    order = get_args(Aspect)
    return sorted(METRICS, key=lambda name: (order.index(METRICS[name].aspect), name))


def get_metric(name: str) -> MetricEntry:
    """Return a metric by name, case ignored.

    Raises:
        OptionError: no metric has that name; the message lists near matches.
    """
    entry = METRICS.get(name.lower()) if isinstance(name, str) else None
    if entry is None:
        raise unknown_metric(name, list_metrics())
    return entry


def build_metrics(metrics: str | Metric | Sequence[str | Metric], options: Mapping[str, Any]) -> dict[str, Metric]:
    """Return metrics by name.

    Args:
        metrics: names, or metrics with their parameters, or one of them.
        options: options of metrics given by name, such as ``road.imputation``.

    Raises:
        OptionError: a metric is unknown or given twice, an option belongs to none of them, or a value is invalid.
    """
    metrics = [metrics] if isinstance(metrics, str | Metric) else metrics
    if not metrics:
        raise OptionError(f"No metric is given; name some of {', '.join(list_metrics())}.", "metrics")
    names = [get_metric(metric).name if isinstance(metric, str) else entry_of(metric).name for metric in metrics]
    for option in options:
        owner = option.partition(".")[0]
        if owner not in names:
            hint = near_matches(owner, names) or f"The metrics here are {', '.join(names)}."
            raise OptionError(f"The option {option!r} belongs to a metric that is not measured. {hint}", option)
    result: dict[str, Metric] = {}
    for name, metric in zip(names, metrics, strict=True):
        if name in result:
            raise OptionError(f"The metric {name!r} is given twice.", "metrics")
        own = {option.partition(".")[2]: value for option, value in options.items() if option.startswith(f"{name}.")}
        result[name] = get_metric(name).build(own) if isinstance(metric, str) else metric
    return result


def entry_of(metric: Metric) -> MetricEntry:
    """Return the entry of a metric's class.

    Raises:
        OptionError: the class has no entry.
    """
    entry = next((entry for entry in METRICS.values() if entry.metric is type(metric)), None)
    if entry is None:
        raise OptionError(f"{type(metric).__name__} is not a metric of the catalogue; see `list_metrics()`.", "metrics")
    return entry


def passes_of(metric: Metric) -> tuple[int, int]:
    """Return the forward passes and the further explanations that a metric needs for a picture and a method."""
    entry = entry_of(metric)
    quantities = {field.name: getattr(metric, field.name) for field in fields(metric)} | metric.quantities()
    forwards, explanations = (evaluate(text, quantities) for text in (entry.forwards, entry.explanations))
    if forwards is None or explanations is None:
        raise ValueError(f"The costs of metric {entry.name!r} name an unknown quantity.")
    return forwards, explanations
