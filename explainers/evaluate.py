"""Evaluation: the metrics of several methods over many pictures, beside the controls."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import MaskError, OptionError, PictureError, reason_of
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.explain import Layers, Target, ask_of, explainers_of
from seewhy.explainers.imaging.geometry import Box, Geometry
from seewhy.explainers.many import Pair, one_by_one
from seewhy.explainers.methods.catalogue import METHODS, get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.evaluation import Column, Evaluation
from seewhy.explainers.tasks.pose import named_ask
from seewhy.explainers.tasks.regions import Mask, Region, checked, resized
from seewhy.explainers.trust.choices import CONTROLS, DEFAULT_METRICS
from seewhy.explainers.trust.metrics.base import Metric
from seewhy.explainers.trust.metrics.catalogue import build_metrics, entry_of
from seewhy.explainers.trust.metrics.measure import check_truth, is_control, measure
from seewhy.explainers.view import ViewSource, check_series, prepare

Boxes: TypeAlias = Box | Sequence[Box] | None
"""Left, top, right and bottom in pixels of the picture, or several such boxes."""


def evaluate(
    model: Model,
    pictures: Iterable[ViewSource | Pair],
    methods: str | Explainer | Sequence[str | Explainer] | Mapping[str, str | Explainer] | None = None,
    metrics: str | Metric | Sequence[str | Metric] = DEFAULT_METRICS,
    target: Target | None = None,
    layer: Layers | None = None,
    *,
    boxes: Sequence[Boxes] | None = None,
    masks: Sequence[Mask | None] | None = None,
    controls: bool = True,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    seed: int = 0,
    **options: Any,
) -> Evaluation:
    """Measure how good the maps of several methods are, over many pictures.

    All methods explain the same targets, and are measured on the same altered pictures.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left unchanged.
        pictures: pictures as for `explain`, or pairs of a picture and its own target, as for `explain_many`.
        methods: one or several names from `list_methods()` or explainers; or a mapping from any names to these. None
            for the model's default method.
        metrics: names of `list_metrics()`, or metrics with their parameters, such as ``ROAD(imputation="exact")``.
        target: target for all pictures without one of their own; None for the most probable class.
        layer: layer for the methods that look at layers; None for the model's default.
        boxes: for each picture, the box or boxes in which its target lies, in pixels of the picture; None for pictures
            where it is not known.
        masks: for each picture, where its target lies, (H, W) bool in its pixels, instead of boxes.
        controls: whether `random`, `edges` and `centre` are measured too; those that the model does not allow are left
            out.
        batch_size: pictures that are explained at once, at least 1.
        progress: whether to show a bar with the rate and the remaining time.
        on_error: ``raise`` the exception of a picture that cannot be read, or ``skip`` it, see `Evaluation.failures`.
        seed: seed of the bootstrap.
        options: options of the methods (each gets its own) and of metrics, such as ``**{"road.imputation": "exact"}``.

    Returns:
        A table of methods and metrics, with the value of each picture. Where a metric cannot measure a method, or these
        pictures, or the method has no rule for an operation of the model, the cell is empty and has the reason.

    Raises:
        OptionError: an unknown method, metric or option; a metric needs something that is not given; or no cell has a
            value.
        LayerError, TargetError: a layer or class that the model lacks; or a method does not suit the model.
        PictureError, OSError: a picture cannot be read, with ``on_error="raise"``.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    check_series(model, pictures, batch_size, on_error, "skip")
    if boxes is not None and masks is not None:
        raise OptionError("Give boxes or masks, not both.", field="masks")
    explainers, measures = prepare_evaluation(model, methods, metrics, layer, options, controls)
    places = [_box_mask(box) for box in boxes] if boxes is not None else masks
    check_truth(measures, places is not None)
    series = _Series(model, explainers, measures, ask_of(model, target), places, on_error == "skip")
    sources = list(one_by_one(pictures))
    if places is not None and len(places) != len(sources):
        counts = f"The number of pictures is {len(sources)}, but the number of boxes or masks is {len(places)}"
        raise OptionError(f"{counts}; give one for each picture.", "boxes")
    with _bar(len(sources), progress) as bar:
        series.run(sources, batch_size, bar)
    return series.evaluation(seed)


def prepare_evaluation(
    model: Model,
    methods: str | Explainer | Sequence[str | Explainer] | Mapping[str, str | Explainer] | None,
    metrics: str | Metric | Sequence[str | Metric],
    layer: Layers | None,
    options: Mapping[str, Any],
    controls: bool = True,
) -> tuple[dict[str, Explainer], dict[str, Metric]]:
    """Return the explainers, controls last, and the metrics, by name; arguments and errors are those of `evaluate`."""
    measures = build_metrics(metrics, {name: value for name, value in options.items() if "." in name})
    own = {name: value for name, value in options.items() if "." not in name}
    methods = [model.task.default_method] if methods is None else methods
    entries = methods if isinstance(methods, Mapping) else _by_name(methods)
    if not entries:
        raise OptionError("The list of methods is empty; name one or more.", field="methods")
    explainers = _explainers(entries, layer, own, model.module)
    if controls:
        # Options are the methods' own: a control keeps its defaults, but for the layer.
        # A model may have no layer for a control that reads one.
        has_layers = bool(layer or model.default_layers)
        suitable = [name for name in CONTROLS if has_layers or not METHODS[name].takes_layers]
        names = [name for name in suitable if name not in explainers]
        explainers |= _explainers(
            {name: name for name in names}, layer if "random" in names else None, {}, model.module
        )
    return explainers, measures


def _explainers(
    methods: Mapping[str, str | Explainer], layer: Layers | None, options: Mapping[str, Any], module: nn.Module
) -> dict[str, Explainer]:
    """Return the explainers of methods by the same names; layers and options are for those that are given by name.

    Raises:
        OptionError: an unknown method, or an option that none of these has.
    """
    entries = {name: get_method(method) for name, method in methods.items() if not isinstance(method, Explainer)}
    if options and not entries:
        raise OptionError(
            f"{', '.join(options)} can only be used with methods given by name; pass options to the "
            "explainers instead.",
            next(iter(options)),
        )
    explainers = explainers_of(list(entries.values()), layer, options, module, evaluate) if entries else ()
    by_name = dict(zip(entries, explainers, strict=True))
    return {name: method if isinstance(method, Explainer) else by_name[name] for name, method in methods.items()}


def _by_name(methods: str | Explainer | Sequence[str | Explainer]) -> dict[str, str | Explainer]:
    """Return methods by their names in the catalogue.

    Raises:
        OptionError: a method is given twice.
    """
    result: dict[str, str | Explainer] = {}
    for method in [methods] if isinstance(methods, str | Explainer) else methods:
        name = get_method(method).name if isinstance(method, str) else _name_of(method)
        if name in result:
            raise OptionError(f"The method {name!r} is given twice; give a mapping from names to methods.", "methods")
        result[name] = method
    return result


def _name_of(explainer: Explainer) -> str:
    if not isinstance(explainer, Explainer):
        raise OptionError(f"A method is a name or an explainer, not {type(explainer).__name__}.", field="methods")
    names = [name for name, entry in METHODS.items() if entry.explainer is type(explainer)]
    return names[0] if names else type(explainer).__name__


@dataclass(eq=False)
class _Series:
    """A running evaluation.

    Attributes:
        model, explainers, metrics: as for `measure`.
        ask: the question about each picture without a target of its own.
        places: for each picture, the place of its target, or a function that returns it for a geometry; None if
            unknown.
        skips: whether pictures that cannot be read are left out.
        names: names of the pictures so far.
        failures: failures of the pictures that were left out.
        values: by method and column, a tensor for each batch.
        reasons: by method and metric, why there are no values.
        left_out: by column, which values do not count, a tensor for each batch.
        unsuitable: by method, why it has no rule for the model.
        pool: the pictures and questions that metrics of several pictures wait for.
    """

    model: Model
    explainers: dict[str, Explainer]
    metrics: dict[str, Metric]
    ask: Ask
    places: Sequence[Any] | None
    skips: bool
    names: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, str], list[Tensor]] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: dict[str, list[Tensor]] = field(default_factory=dict)
    unsuitable: dict[str, str] = field(default_factory=dict)
    pool: list[tuple[Tensor, Ask]] = field(default_factory=list)

    def run(self, sources: Sequence[tuple[Any, Any]], batch_size: int, bar: Callable[[int], Progress]) -> None:
        """Measure batch by batch, and finally the metrics that compare pictures."""
        alone = {name: metric for name, metric in self.metrics.items() if not metric.over_pictures}
        joint = {name: metric for name, metric in self.metrics.items() if metric.over_pictures}
        numbered = iter(enumerate(sources))
        while batch := list(islice(numbered, batch_size)):
            rows = [row for number, source in batch if (row := self._prepared(number, *source)) is not None]
            if rows and alone:
                images, asks, truths = zip(*rows, strict=True)
                truth = None if self.places is None else torch.stack(truths)
                self._measure(torch.stack(images), Ask.stacked(asks), alone, truth, bar(len(batch)))
            if joint:
                self.pool += [(image, ask) for image, ask, _ in rows]
        if not self.names:
            raise OptionError("There are no pictures to measure methods on.", field="pictures")
        if joint:
            images, asks = zip(*self.pool, strict=True)
            self._measure(torch.stack(images), Ask.stacked(asks), joint, None, bar(0))
        if all((method, metric) in self.reasons for method in self.explainers for metric in self.metrics):
            raise OptionError(next(iter(self.reasons.values())), "metrics")

    def _prepared(self, number: int, picture: Any, target: Any) -> tuple[Tensor, Ask, Tensor] | None:
        """Return the model's input, the question, and where the target lies; None for a picture that is left out."""
        name = os.fspath(picture) if isinstance(picture, str | os.PathLike) else f"picture {number + 1}"
        try:
            view = prepare(self.model, picture)
            place = None if self.places is None else self.places[number]
            truth = truth_of(place, view.geometry, view.image)
        except (MaskError, PictureError, OSError) as error:
            if not self.skips:
                raise
            self.failures[str(name)] = reason_of(error)
            return None
        ask = self.ask if target is None else replace(self.ask, targets=named_ask(self.model.task, target).targets)
        self.names.append(str(name))
        return view.image, ask.placed(view.geometry), truth

    def _measure(
        self, images: Tensor, ask: Ask, metrics: Mapping[str, Metric], truth: Tensor | None, progress: Progress
    ) -> None:
        images = images.to(self.model.device)
        truth = None if truth is None else truth.to(images.device)
        measurement = measure(self.model, images, self.explainers, metrics, ask, truth, progress, self.unsuitable)
        for method, columns in measurement.values.items():
            for column, values in columns.items():
                self.values.setdefault((method, column), []).append(values)
            for metric, reason in measurement.reasons[method].items():
                self.reasons.setdefault((method, metric), reason)
        for column, rows in measurement.left_out.items():
            self.left_out.setdefault(column, []).append(rows)

    def evaluation(self, seed: int) -> Evaluation:
        """Return the table."""
        columns = columns_of(self.metrics)
        return Evaluation(
            model=getattr(self.model, "name", type(self.model.module).__name__),
            pictures=tuple(self.names),
            methods=tuple(self.explainers),
            controls=tuple(name for name, explainer in self.explainers.items() if is_control(explainer)),
            columns=columns,
            values={key: torch.cat(parts).double().numpy() for key, parts in self.values.items()},
            failures=self.failures,
            reasons=self.reasons,
            left_out={column: torch.cat(rows).numpy() for column, rows in self.left_out.items()},
            seed=seed,
        )


def columns_of(metrics: Mapping[str, Metric]) -> tuple[Column, ...]:
    """Return the columns of metrics, in their order."""
    entries = [entry_of(metric) for metric in metrics.values()]
    return tuple(Column(name, entry.name, entry.aspect, entry.better) for entry in entries for name in entry.columns)


def _box_mask(boxes: Boxes) -> Callable[[Geometry], Mask] | None:
    """Return a function that marks boxes in a picture, given its geometry; None for no box."""
    if boxes is None:
        return None
    rows: Sequence[Any] = boxes if all(hasattr(row, "__len__") for row in boxes) else [boxes]
    if any(len(row) != 4 for row in rows):
        raise OptionError(f"A box must be left, top, right and bottom, not {boxes!r}.", field="boxes")

    def mark(geometry: Geometry) -> Mask:
        mask: Mask = np.zeros((geometry.height, geometry.width), dtype=np.bool_)
        for left, top, right, bottom in rows:
            mask[max(0, round(top)) : max(0, round(bottom)), max(0, round(left)) : max(0, round(right))] = True
        if not mask.any():
            size = f"{geometry.width}x{geometry.height}"
            raise OptionError(
                f"No pixel of the picture of {size} is in {boxes!r}; boxes are left, top, right and bottom in its "
                "pixels.",
                field="boxes",
            )
        return mask

    return mark


def truth_of(place: Any, geometry: Geometry, image: Tensor) -> Tensor:
    """Return where a target lies in the model's input (C, H, W): (H, W) bool, all false where that is not known.

    Raises:
        MaskError: a mask is empty, of another size than the picture, or where the model sees nothing.
        OptionError: a box is empty.
    """
    nowhere = torch.zeros(image.shape[1:], dtype=torch.bool)
    if place is None:
        return nowhere
    mask: NDArray[Any] = place(geometry) if callable(place) else np.asarray(place)
    region = Region(None, mask=checked(mask)).placed(geometry)
    return nowhere if region.mask is None else resized(region.mask, nowhere)


@contextmanager
def _bar(total: int, is_shown: bool) -> Iterator[Callable[[int], Progress]]:
    """Yield a function that begins some pictures and returns their progress, which a bar shows."""
    if not is_shown:
        yield lambda count: SILENT
        return
    from tqdm.auto import tqdm  # asks whether this is a notebook

    # For a single picture, the bar shows the passes, and short ones show nothing.
    alone: dict[str, Any] = {
        "bar_format": "{percentage:3.0f}% {bar} {elapsed}<{remaining}",
        "delay": 1,
        "leave": False,
        "miniters": 0,
    }
    step = float if total == 1 else int
    with tqdm(total=total, unit="picture", **(alone if total == 1 else {})) as bar:
        done = 0

        def begin(count: int) -> Progress:
            nonlocal done
            start, done = done, done + count
            return Progress(lambda part, whole: bar.update(start + step(count * part / whole) - bar.n) and None)

        yield begin
        bar.update(total - bar.n)
