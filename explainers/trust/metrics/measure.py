"""Values of metrics for the maps of several methods, for a batch of pictures."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask, Targets
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import (
    LayerError,
    OptionError,
    UnmeasurableError,
    UnsupportedModuleError,
    UnsupportedOperationError,
)
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.cam.shared_pass import explain_jointly
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.catalogue import passes_of as passes_of_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.choices import CONTROLS
from seewhy.explainers.trust.marking import WHOLE, reach_of
from seewhy.explainers.trust.metrics.base import Metric, Reach, Subject
from seewhy.explainers.trust.metrics.catalogue import entry_of
from seewhy.explainers.trust.metrics.catalogue import passes_of as passes_of_metric

_UNMEASURABLE = (LayerError, UnmeasurableError, UnsupportedModuleError, UnsupportedOperationError)
"""Errors of a metric, or of a method when a metric uses it for other pictures or another network."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """The values of metrics for several methods.

    Attributes:
        values: by method and column: (N,) float32 on the CPU, or (M,) for a metric over mosaics.
        targets: the explained target of each picture.
        outputs: (N, ...) float32 on the CPU, the model's outputs.
        reasons: by method and metric: why the metric cannot measure the method, or why the method cannot explain the
            model; the values are NaN.
        left_out: by column: (N,) bool on the CPU, which values do not count in means; absent if all do.
    """

    values: dict[str, dict[str, Tensor]]
    targets: Targets
    outputs: Tensor
    reasons: dict[str, dict[str, str]]
    left_out: dict[str, Tensor]


def measure(
    model: AnyModel,
    images: Tensor,
    explainers: Mapping[str, Explainer],
    metrics: Mapping[str, Metric],
    ask: Ask = DEFAULT_ASK,
    truth: Tensor | None = None,
    progress: Progress = SILENT,
    unsuitable: dict[str, str] | None = None,
) -> Measurement:
    """Explain the same targets of pictures by several methods, and measure the maps.

    Args:
        model, images: as for `Explainer.explain`.
        explainers: the methods, by any names.
        metrics: the metrics, by any names.
        ask: the targets; by default the most probable target of each picture.
        truth: (N, H, W) bool, the targets' places in the images; all false if unknown; None if all are unknown.
        progress: see `Progress`.
        unsuitable: by method, why it has no rule for the model, as far as other batches have shown; those of this
            batch are added.

    Raises:
        OptionError: a metric needs the targets' places, which are not given.
        UnsupportedOperationError: no method has rules for all operations of the model.
        ExplainerError, ValueError: as in `Explainer.explain` of the pictures.
    """
    check_truth(metrics, truth is not None)
    values: dict[str, dict[str, Tensor]] = {name: {} for name in explainers}
    reasons: dict[str, dict[str, str]] = {name: {} for name in explainers}
    left_out: dict[str, Tensor] = {}
    unsuitable = {} if unsuitable is None else unsuitable
    number = 0
    channels, height, width = images.shape[1:]
    rounds = [1] if progress is SILENT else _rounds(model, (channels, height, width), explainers, metrics)

    def report(done: int, total: int) -> None:
        progress.report(sum(rounds[:number]) * total + rounds[number] * done, sum(rounds) * total)

    reporting = progress if progress is SILENT else Progress(report, cancel=progress.cancel)
    with pose(model, images, ask, reporting) as question:
        plain = question.plain()
        if ask.function is None:
            question = replace(question, ask=replace(ask, targets=plain[0].ask_targets))
        explained = _explained(question, explainers, metrics, unsuitable)
        shared: dict[Hashable, Tensor] = {}
        for name, explainer in explainers.items():
            if name in unsuitable:
                number += len(metrics)
                columns_of_all = [column for metric in metrics.values() for column in entry_of(metric).columns]
                values[name] = {column: torch.full((len(images),), torch.nan) for column in columns_of_all}
                reasons[name] = dict.fromkeys(metrics, unsuitable[name])
                continue
            maps, reach = explained[name]
            subject = Subject(question, explainer, maps, plain, truth, reach, shared)
            for label, metric in metrics.items():
                number += 1
                columns = entry_of(metric).columns
                try:
                    scores = metric.score(subject).float().cpu()
                except _UNMEASURABLE as error:
                    scores = torch.full((len(images), len(columns)), torch.nan)
                    reasons[name][label] = str(error)
                values[name].update(zip(columns, scores.view(len(scores), -1).unbind(1), strict=True))
                if (rows := metric.left_out(subject)) is not None:
                    left_out.update(dict.fromkeys(columns, rows.cpu()))
    return Measurement(values, plain[0].ask_targets, plain[1].float().cpu(), reasons, left_out)


def _explained(
    question: Question,
    explainers: Mapping[str, Explainer],
    metrics: Mapping[str, Metric],
    unsuitable: dict[str, str],
) -> Mapping[str, tuple[Tensor, Reach]]:
    """Return each suitable method's maps (N, h, w), blank ones if no metric reads them, and the reach of their cells.

    Methods without a rule for the model are added to the unsuitable ones, unless no other one explains it.
    """
    suitable = {name: explainer for name, explainer in explainers.items() if name not in unsuitable}
    try:
        return _explained_by_all(question, suitable, metrics, question.progress)
    except UnsupportedOperationError:
        results: dict[str, tuple[Tensor, Reach]] = {}
        for name, explainer in suitable.items():
            try:
                results |= _explained_by_all(question, {name: explainer}, metrics, question.progress.unseen)
            except UnsupportedOperationError as error:
                unsuitable[name] = str(error)
        if all(name in unsuitable or is_control(explainer) for name, explainer in explainers.items()):
            raise
        return results


def _explained_by_all(
    question: Question, explainers: Mapping[str, Explainer], metrics: Mapping[str, Metric], progress: Progress
) -> dict[str, tuple[Tensor, Reach]]:
    model, images = question.model, question.images
    if all(metric.over_pictures for metric in metrics.values()):
        # An error in explaining one picture is a fault of the method, not of a metric.
        first = question.ask.rows(slice(1))
        explain_jointly(list(explainers.values()), model, images[:1], first, question.progress.unseen)
        blank = torch.zeros(len(images), 1, 1, device=images.device)
        return dict.fromkeys(explainers, (blank, WHOLE))
    attributions = explain_jointly(list(explainers.values()), model, images, question.ask, progress)
    return {
        name: (attribution.maps, reach_of(model, attribution.layers, attribution.maps))
        for name, attribution in zip(explainers, attributions, strict=True)
    }


def is_control(explainer: Explainer) -> bool:
    """Whether an explainer is a control."""
    return any(type(explainer) is METHODS[name].explainer for name in CONTROLS)


def _rounds(
    model: AnyModel,
    image_shape: tuple[int, int, int],
    explainers: Mapping[str, Explainer],
    metrics: Mapping[str, Metric],
) -> list[int]:
    """Return about how many passes each part of `measure` takes: the explanations, then each metric of each method."""
    counts = [passes_of_method(explainer, model, image_shape) for explainer in explainers.values()]
    totals = [1 if count is None else count.total for count in counts]
    rounds = [1 + sum(totals)]
    for place, total in enumerate(totals):
        for metric in metrics.values():
            forwards, again = passes_of_metric(metric)
            own = 0 if metric.shares_forwards and place else forwards
            rounds.append(max(1, own + again * total))
    return rounds


def passes(
    model: AnyModel,
    image_shape: tuple[int, int, int],
    explainers: Mapping[str, Explainer],
    metrics: Mapping[str, Metric],
) -> Passes | None:
    """Return the passes of `measure` for one picture; None if those of a method are unknown."""
    counts = [(metric.shares_forwards, *passes_of_metric(metric)) for metric in metrics.values()]
    shared = sum(forwards for is_shared, forwards, _ in counts if is_shared)
    forwards = sum(forwards for _, forwards, _ in counts) - shared
    again = sum(explanations for _, _, explanations in counts)
    total = Passes(1 + shared)
    for explainer in explainers.values():
        each = passes_of_method(explainer, model, image_shape)
        if each is None:
            return None
        total = total + each * (1 + again) + Passes(forwards)
    return total


def check_truth(metrics: Mapping[str, Metric], is_known: bool) -> None:
    """Raise OptionError if a metric needs the targets' places, and they are unknown."""
    needy = [name for name, metric in metrics.items() if metric.needs_truth]
    if needy and not is_known:
        raise OptionError(
            f"{', '.join(needy)}: this metric needs to know where the targets lie; give `boxes` or `masks`; over HTTP "
            "`truth`, with the command --boxes or --truth.",
            "boxes",
        )
