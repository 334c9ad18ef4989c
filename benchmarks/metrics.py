"""Metrics compared with those of quantus, for the same maps and numbers of passes: `python -m benchmarks.metrics`."""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import page
from benchmarks.contestants import SEEWHY, Workload, load, workload
from benchmarks.machine import PACKAGES, description
from benchmarks.rounds import QUICK, Effort, Run, Times, interleaved, ratio
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.marking import resized
from seewhy.explainers.trust.metrics.base import Subject
from seewhy.explainers.trust.metrics.catalogue import METRICS
from seewhy.models import LoadedModel, wrap_model

QUANTUS = "quantus"
MODEL = "efficientnet_lite0"
BATCH = 2
BLOCKS = 7
"""Blocks along each side of a picture, which infidelity hides."""

STEPS = 28
"""Masks, steps and hidden parts."""

METHODS = 4
"""Methods of a table: one, and three controls."""

PASSES = 4
"""Passes of the network alone."""


def grey(model: LoadedModel) -> LoadedModel:
    """Return EfficientNet-Lite0 for grey pictures, compiled: its first layer sees each of them in all three channels.

    quantus counts each channel of a pixel as a separate feature, and its ROAD fails for several.
    """
    network = deepcopy(model.module)
    network.conv_stem.weight = nn.Parameter(network.conv_stem.weight.sum(dim=1, keepdim=True), requires_grad=False)
    size = model.spec.image_shape[1], model.spec.image_shape[2]
    wrapped = wrap_model(network, model.labels, size, mean=(0.0,), std=(1.0,), name=f"grey {MODEL}")
    wrapped.accelerated.warm()
    return wrapped


METHOD = get_method("gradcam").build({})


@dataclass(frozen=True)
class Case:
    """One row of the table: a metric of SeeWhy, and the class of quantus that does the same work.

    Attributes:
        metric: its name.
        options: options of SeeWhy's metric.
        peer: class of quantus.
        arguments: arguments of its constructor, given the side of the pictures.
        passes: forward passes of each picture, in words.
        truth: whether it is given the place of the target.
        explains: whether it explains pictures anew, by SeeWhy's Grad-CAM on either side.
        methods: number of methods measured in turn, as in a table; all have the same maps here.
    """

    metric: str
    options: Mapping[str, Any]
    peer: str
    arguments: Callable[[int], dict[str, Any]] = lambda _: {}
    passes: str = "none"
    truth: bool = False
    explains: bool = field(default=False, kw_only=True)
    methods: int = field(default=1, kw_only=True)


CASES = (
    Case("sparseness", {}, "Sparseness"),
    Case("complexity", {}, "Complexity"),
    Case("pointing-game", {}, "PointingGame", truth=True),
    Case("energy-in-box", {}, "RelevanceMassAccuracy", truth=True),
    Case(
        "deletion",
        {"steps": STEPS, "fill": "zero"},
        "PixelFlipping",
        lambda side: {"features_in_step": side * side // STEPS, "perturb_baseline": 0.0},
        f"{STEPS + 1}, {STEPS}",
    ),
    Case("road", {"imputation": "exact"}, "ROAD", lambda _: {"percentages": [20, 40, 60, 80]}, "8, 4"),
    Case("road", {"imputation": "fast"}, "ROAD", lambda _: {"percentages": [20, 40, 60, 80]}, "8, 4"),
    Case(
        "sensitivity-n",
        {"masks": STEPS},
        "FaithfulnessCorrelation",
        lambda side: {"nr_runs": STEPS, "subset_size": side * side // 4, "perturb_baseline": 0.0},
        f"{STEPS}, {STEPS + 1}",
    ),
    Case(
        "sensitivity-n",
        {"masks": STEPS},
        "FaithfulnessCorrelation",
        lambda side: {"nr_runs": STEPS, "subset_size": side * side // 4, "perturb_baseline": 0.0},
        f"{STEPS}, {METHODS} × {STEPS + 1}",
        methods=METHODS,
    ),
    Case(
        "infidelity",
        {"masks": BLOCKS**2},
        "Infidelity",
        lambda side: {"perturb_patch_sizes": [side // BLOCKS], "n_perturb_samples": 1, "perturb_baseline": 0.0},
        f"{BLOCKS**2}, {BLOCKS**2 + 1}",
    ),
    Case(
        "max-sensitivity",
        {"samples": 4},
        "MaxSensitivity",
        lambda _: {"nr_samples": 4, "lower_bound": 0.1},
        "4 explanations",
        explains=True,
    ),
    Case("efficient-mprt", {}, "EfficientMPRT", lambda _: {}, "1 explanation, 3", explains=True),
)
"""The metrics; where numbers of passes differ, SeeWhy's come first."""


def seewhy(case: Case, work: Workload, raw: Tensor, truth: Tensor) -> Run:
    """Return SeeWhy's metric, ready to run."""
    metric = METRICS[case.metric].build(case.options)
    with pose(work.model, work.images, Ask(work.targets)) as question:
        plain = question.plain()

    def run() -> list[Tensor]:
        with pose(work.model, work.images, Ask(work.targets)) as question:
            subject = Subject(question, METHOD, raw, plain, truth)
            return [metric.score(replace(subject)) for _ in range(case.methods)]

    return run


def quantus(case: Case, work: Workload, maps: Tensor, truth: Tensor) -> Run:
    """Return the metric of quantus, ready to run."""
    import quantus as library

    settings = case.arguments(work.images.shape[2])
    metric = getattr(library, case.peer)(disable_warnings=True, display_progressbar=False, **settings)
    network = work.network().eval()
    images, targets = work.images.numpy(), work.targets.numpy()
    extra: dict[str, Any] = {"s_batch": truth[:, None].numpy()} if case.truth else {}
    if case.explains:
        extra["explain_func"] = _explained
    attributions = maps[:, None].numpy()

    def run() -> Any:
        for _ in range(case.methods):
            copies = images.copy(), targets.copy(), attributions.copy()  # copies, because quantus changes them
            metric(network, *copies, device="cpu", batch_size=len(images), **extra)

    return run


def _explained(model: Any, inputs: NDArray[Any], targets: NDArray[Any], **_: Any) -> NDArray[Any]:
    images = torch.as_tensor(inputs, dtype=torch.float32)
    maps = METHOD.explain(model, images, torch.as_tensor(targets)).maps
    return resized(maps, (images.shape[2], images.shape[3]))[:, None].numpy()


def network(model: LoadedModel, effort: Effort, side: int | None = None) -> Times:
    """Return the times of both sides' passes alone, which bound those of metrics that need many."""
    with ExitStack() as stack:
        work = workload(model, BATCH, stack, side)
        plain, many = work.network().eval(), work.images.repeat(PASSES, 1, 1, 1)

        def ours() -> Tensor:
            with pose(work.model, many) as question:
                return question.predict(many)

        def theirs() -> list[Tensor]:
            with torch.no_grad():
                return [plain(work.images) for _ in range(PASSES)]

        return interleaved({SEEWHY: ours, QUANTUS: theirs}, effort)


def timed(case: Case, model: Any, effort: Effort, side: int | None = None) -> Times:
    """Return the times of both sides of a case."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of quantus
        work = workload(model, BATCH, stack, side)
        raw = METHOD.explain(model, work.images, work.targets).maps
        maps = resized(raw, (work.images.shape[2], work.images.shape[3]))
        truth = torch.zeros(maps.shape, dtype=torch.bool)
        truth[:, maps.shape[1] // 4 : maps.shape[1] // 2, maps.shape[2] // 4 : maps.shape[2] // 2] = True
        with np.errstate(all="ignore"):
            return interleaved(
                {SEEWHY: seewhy(case, work, raw, truth), QUANTUS: quantus(case, work, maps, truth)}, effort
            )


HEAD = ("metric", "options", "of quantus", "passes", f"{SEEWHY}, ms", "quantus, ms", "quantus / SeeWhy")


def row(case: Case, times: Times) -> list[str]:
    """Return the row of a case."""
    options = ", ".join(f"{name}={value}" for name, value in case.options.items())
    metric = f"`{case.metric}`" if case.methods == 1 else f"`{case.metric}` of {case.methods} methods"
    return [metric, options, f"`{case.peer}`", case.passes, *cells(times)]


def cells(times: Times) -> list[str]:
    """Return the cells of the times and their ratio."""
    milliseconds = [f"{median(times[name]) * 1000:,.1f}" for name in (SEEWHY, QUANTUS)]
    return [*milliseconds, f"**{page.times(ratio(times, QUANTUS, SEEWHY))}**"]


def tables(rows: Iterable[Sequence[str]]) -> str:
    """Return the part of the page."""
    return f"{description((*PACKAGES, 'quantus'))}\n\n{page.table(HEAD, rows)}"


def main() -> None:
    """Print the table and write the results. With --quick, one round of small pictures, and nothing is written."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=Effort.seconds, help="time for each case; at least 3 rounds")
    arguments = parser.parse_args()
    effort, side = (QUICK, 56) if arguments.quick else (Effort(arguments.seconds), None)
    model, rows = grey(load(MODEL)), []
    for case in CASES:
        rows.append(row(case, timed(case, model, effort, side)))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    rows.append(["the network alone", "", "", f"{PASSES}", *cells(network(model, effort, side))])
    page.publish("metrics", {"machine": description(), "tables": tables(rows)}, arguments.quick)


if __name__ == "__main__":
    main()
