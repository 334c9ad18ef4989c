"""The path of requests that measure methods on one picture, compared with controls."""

from collections.abc import Mapping

from torch import Tensor

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.computation import SoloComputation
from seewhy.app.pipeline.options import EvaluateOptions
from seewhy.app.pipeline.plan import Plan, build_explainers
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import EvaluateResult
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import MaskError, OptionError, at_fault
from seewhy.explainers.evaluate import columns_of, prepare_evaluation, truth_of
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.pose import named_ask
from seewhy.explainers.trust.metrics.base import Metric
from seewhy.explainers.trust.metrics.catalogue import build_metrics
from seewhy.explainers.trust.metrics.measure import Measurement, check_truth, measure, passes
from seewhy.models import LoadedModel


def evaluate(service: Service, upload: bytes, truth: bytes | None, options: EvaluateOptions) -> EvaluateResult:
    """Measure methods on a picture.

    Args:
        truth: the bytes of a picture that marks where the target lies, as large as the upload.

    Raises:
        OptionError: an unknown method, metric or option, or a metric needs something that is not given.
        MaskError, PictureError: the truth is not a mask of the picture; `field` is ``truth``.
        Exception: errors as in `Service.explain`.
    """
    names = options.method or [service.default_method(options.model)]
    if len(names) > service.settings.max_targets:
        raise FieldError(f"At most {service.settings.max_targets} methods can be measured.", field="method")
    methods = build_explainers(names, options, service.settings)
    _check_metrics(build_metrics(options.metrics, options.metric_options), truth is not None)
    deadline, timings = service.deadline(), current().timed()
    model = service.models.model(options.model, deadline)
    if options.layer:
        module_paths(model.module, tuple(options.layer))
    explainers, metrics = prepare_evaluation(
        model,
        {method.name: explainer for method, explainer in methods},
        options.metrics,
        tuple(options.layer) or None,
        options.metric_options,
        options.controls,
    )
    ask = named_ask(model.task, options.target)
    place = None if truth is None else service.mask(truth, deadline, "truth")
    picture = service.decode(upload, model, timings, deadline, drawn=False)
    with at_fault("truth", MaskError):
        region = None if place is None else truth_of(place, picture.geometry, picture.image)

    def run(model: LoadedModel, images: Tensor, ask: Ask, progress: Progress) -> Measurement:
        mask = None if region is None else region[None].to(images.device)
        return measure(model, images, explainers, metrics, ask, mask, progress)

    computation = SoloComputation(
        run,
        passes(model, model.spec.image_shape, explainers, metrics),
        lambda measurement: [measurement.outputs],
        all(explainer.runs_whole for explainer in explainers.values()),
    )
    service.spend(model, computation, 1, deadline, [method for method, _ in methods], "fewer metrics")
    measurement: Measurement = service.run(Plan(model, computation, (ask,), deadline, "evaluate"), picture, timings)
    (target,) = located(model.task.describe(measurement.outputs[0], [measurement.targets[0]], top=0), picture.geometry)
    return EvaluateResult(
        model,
        timings,
        target,
        explainers,
        columns_of(metrics),
        measurement.values,
        measurement.reasons,
        measurement.left_out,
    )


def _check_metrics(metrics: Mapping[str, Metric], truth_is_known: bool) -> None:
    """Refuse metrics that one picture cannot have."""
    several = [name for name, metric in metrics.items() if metric.over_pictures]
    if several:
        raise FieldError(
            f"{', '.join(several)}: this metric needs several pictures; use `seewhy evaluate FOLDER` or "
            "`seewhy.evaluate`.",
            field="metrics",
        )
    with at_fault("truth", OptionError):
        check_truth(metrics, truth_is_known)
