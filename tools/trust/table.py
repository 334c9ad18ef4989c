"""Compare methods on networks with real weights: ``python -m tools.trust.table FOLDER --write``, `make trust`.

The folder contains photographs, which are not part of the repository. Methods with many passes are measured on fewer
pictures, next to some others on the same pictures. The tables of docs/trust.md are made from the numbers in
docs/trust/, one file for each network and number of pictures, so networks and methods can be measured one by one.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from seewhy import GridPG, LoadedModel, evaluate, load_model
from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.evaluate import CONTROLS
from seewhy.explainers.methods.catalogue import METHODS, get_method, passes_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.evaluation import CONFIDENCE, RESAMPLES
from seewhy.explainers.sanity import networks_of, sanity_of
from seewhy.explainers.tasks.pose import predict
from seewhy.explainers.view import prepare
from tools.tables import write_tables
from tools.trust.photographs import photographs

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
NUMBERS = PAGE.with_suffix("")

NETWORKS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "mobilenet_v2")
"""Networks whose weights come with packages."""

SURE = 0.5
"""Minimum probability of a picture's class in a mosaic; few photographs reach more."""

MOST_PASSES = 100
"""Maximum number of passes per picture of a method that is measured on all pictures."""

FEW = 4
"""Number of pictures on which methods with more passes are measured: the most confident of each network."""

BESIDE = ("votes", "votes-detail", "gradcam", "recipro-cam", *CONTROLS)
"""Methods that are measured on the few pictures too, for comparison."""

CHEAPER = {"iscam": "iscam:samples=3", "sscam": "sscam:samples=2"}
"""Methods that would take more than 10,000 passes per picture, and the options that they are measured with."""

SANE_SHARE = 0.5
"""Share of the pictures on which sanity is measured."""

COLUMNS = {
    "gridpg": "GridPG",
    "gridpg-top": "top",
    "insertion": "ins",
    "deletion": "del",
    "road": "ROAD",
}
"""The columns of an evaluation, and their headings in the tables."""

DESCENDING = {"deletion"}
"""The columns in which lower is better."""

SANITY = {
    "same_with_random_head": "random head",
    "same_with_random_model": "random network",
    "same_for_an_unlikely_class": "unlikely class",
}

UNFIT = {"region", "boxes", "attention"}
"""Needs of methods that no network here meets."""

PAIR = ("votes-detail", "gradcam")
"""The methods that are compared picture by picture."""


def methods_of(model: LoadedModel) -> dict[str, Explainer]:
    """Return the methods that suit a classifier, in the options that they are measured with."""
    suiting = [name for name, method in METHODS.items() if not UNFIT & {*method.needs}]
    return {text: explainer_of(text) for text in (CHEAPER.get(name, name) for name in suiting)}


def explainer_of(text: str) -> Explainer:
    """Return a method with options, written as in ``sscam:samples=4``."""
    name, _, options = text.partition(":")
    return get_method(name).build(dict(option.partition("=")[::2] for option in options.split(",") if option))


def is_quick(model: LoadedModel, explainer: Explainer) -> bool:
    """Return whether a method is measured on all pictures."""
    passes = passes_of(explainer, model, model.spec.image_shape)
    return passes is not None and passes.total <= MOST_PASSES


def shares(model: LoadedModel, methods: Mapping[str, Explainer]) -> dict[int | None, dict[str, Explainer]]:
    """Return the methods to measure on all pictures (None), and those to measure on the few, by number of pictures."""
    quick = {text: explainer for text, explainer in methods.items() if is_quick(model, explainer)}
    few = {text: explainer for text, explainer in methods.items() if text not in quick or text in BESIDE}
    return {None: quick, FEW: few}


def surest(model: LoadedModel, pictures: Sequence[Image.Image], count: int | None) -> list[Image.Image]:
    """Return the `count` pictures with the most confident predictions, in their order; all pictures without a count."""
    images = torch.stack([prepare(model, picture).image for picture in pictures])
    sure = predict(model, images).softmax(dim=1).amax(dim=1)
    best = sure.argsort(descending=True, stable=True)[:count].sort().values
    return [pictures[number] for number in best.tolist()]


def file_of(name: str, count: int | None) -> Path:
    """Return the file with the numbers of a network for `count` pictures, or for all."""
    return NUMBERS / (f"{name}.json" if count is None else f"{name}-{count}.json")


def measure(model: LoadedModel, pictures: Sequence[Image.Image], methods: Mapping[str, Explainer], file: Path) -> None:
    """Measure methods on a network, and add the numbers of each to the file as soon as they are known."""
    name = model.name
    head = {"model": name, "sha256": model.sha256, "pictures": len(pictures), "sure": SURE}
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    numbers = {**head, "methods": old["methods"] if {**old, "methods": {}} == {**head, "methods": {}} else {}}
    models = networks_of(model)
    sane = [prepare(model, picture).image for picture in pictures[: round(SANE_SHARE * len(pictures))]]
    for method, explainer in methods.items():
        start = time.perf_counter()
        try:
            metrics = ["insertion", "deletion", "road", GridPG(sure=SURE)]
            evaluation = evaluate(model, pictures, {method: explainer}, metrics, controls=False)
            sanity = asdict(sanity_of(explainer, models, torch.stack(sane)))
        except ExplainerError as error:  # the method does not suit the network
            print(f"{name} {method}: {type(error).__name__}: {error}", flush=True)
            continue
        passes = passes_of(explainer, model, model.spec.image_shape)
        numbers["methods"][method] = {
            "values": {column: _rounded(evaluation.values[method, column]) for column in COLUMNS},
            "sanity": sanity,
            "passes": None if passes is None else passes.total,
        }
        file.write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")
        means = {column: round(float(np.nanmean(evaluation.values[method, column])), 3) for column in COLUMNS}
        print(f"{name} {method}: {means}, {time.perf_counter() - start:.0f} s", flush=True)


def _rounded(values: Any) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]


def interval(values: Sequence[float | None]) -> tuple[float, float, float]:
    """Return the mean of the defined values, and the ends of its interval: percentiles over resampled pictures."""
    defined = np.array([value for value in values if value is not None], dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(defined), size=(RESAMPLES, len(defined)))
    low, high = np.quantile(defined[draws].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(defined.mean()), float(low), float(high)


def table(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of a network's methods, in the order of GridPG, the controls last."""
    heads = [*COLUMNS.values(), *SANITY.values(), "passes"]
    yield f"| {numbers['model']}, {numbers['pictures']} pictures | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(heads)}"
    rows = numbers["methods"]
    order = sorted(rows, key=lambda name: (name in CONTROLS, -interval(rows[name]["values"]["gridpg"])[0]))
    for name in order:
        row = rows[name]
        cells = [_cell(*interval(row["values"][column])) for column in COLUMNS]
        cells += [f"{row['sanity'][key]:.2f}" for key in SANITY]
        yield f"| {name}{' (control)' if name in CONTROLS else ''} | {' | '.join(cells)} | {row['passes']} |"


def differences(numbers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the mean difference of the two methods of `PAIR`, picture by picture, for each network."""
    yield f"| {PAIR[0]} minus {PAIR[1]} | {' | '.join(COLUMNS.values())} |"
    yield f"| --- |{' --- |' * len(COLUMNS)}"
    for network in numbers:
        intervals = (_difference(network, *PAIR, column) for column in COLUMNS)
        cells = (f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" for mean, low, high in intervals)
        yield f"| {network['model']} | {' | '.join(cells)} |"


def better(network: Mapping[str, Any]) -> str:
    """Return which methods are better than the first of `PAIR`, and in which columns: the interval excludes 0."""
    heads: dict[str, list[str]] = {}
    for name in sorted(network["methods"].keys() - {PAIR[0]}):
        for column, head in COLUMNS.items():
            _, low, high = _difference(network, name, PAIR[0], column)
            if high < 0 if column in DESCENDING else low > 0:
                heads.setdefault(name, []).append(head)
    named = [f"`{name}` ({', '.join(columns)})" for name, columns in heads.items()]
    return f"Better than `{PAIR[0]}`, as the interval of the difference excludes 0: {', '.join(named) or 'none'}."


def _difference(network: Mapping[str, Any], first: str, second: str, column: str) -> tuple[float, float, float]:
    """Return the interval of the difference of two methods, picture by picture."""
    values = (network["methods"][name]["values"][column] for name in (first, second))
    return interval([a - b for a, b in zip(*values, strict=True) if a is not None and b is not None])


def _cell(mean: float, low: float, high: float) -> str:
    return f"{mean:.2f} ±{(high - low) / 2:.2f}"


def kept() -> list[dict[str, Any]]:
    """Return the numbers of all networks, those with all pictures first."""
    files = [file_of(name, count) for count in (None, FEW) for name in NETWORKS]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def tables(numbers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of all tables; the differences are those with the most pictures."""
    yield from differences([network for network in numbers if network["pictures"] == numbers[0]["pictures"]])
    for network in numbers:
        yield from ("", *table(network), "", better(network))
    for sentence in left_out(numbers):
        yield from ("", sentence)


def left_out(numbers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the methods that are in no table, with the reason where it is known."""
    rows = {method.partition(":")[0] for network in numbers for method in network["methods"]}
    missing = [method for method in sorted(METHODS) if method not in rows]
    unfit = [method for method in missing if UNFIT & {*METHODS[method].needs}]
    if unfit:
        yield f"Not applicable to these networks, which have no attention, boxes or regions: {_listed(unfit)}."
    if others := [method for method in missing if method not in unfit]:
        yield f"Not measured: {_listed(others)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Measure networks, store the numbers and, with --write, update the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.trust.table", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="Photographs; without a folder, nothing is measured.")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="Measure these, and add them to the numbers. Options may follow, as in sscam:samples=4.",
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.folder is not None:
        pictures = photographs(options.folder)
        if len(pictures) <= FEW:
            parser.error(f"{options.folder} has {len(pictures)} photographs; give a folder of more than {FEW}")
        NUMBERS.mkdir(exist_ok=True)
        for model in map(load_model, options.networks):
            named = {text: explainer_of(text) for text in options.methods or ()}
            for count, methods in shares(model, named or methods_of(model)).items():
                file = file_of(model.name, count)
                if not named:  # numbers of other methods may be of other photographs
                    file.unlink(missing_ok=True)
                measure(model, surest(model, pictures, count), methods, file)
    if options.write:
        write_tables("tables", ["", *tables(kept()), ""], PAGE)


if __name__ == "__main__":
    main()
