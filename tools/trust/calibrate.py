"""Measure the scores that proofs of embedded networks are compared with: ``python -m tools.trust.calibrate FOLDER``.

The folder contains photographs, which are not part of the repository. ``explainers/trust/embedded.json`` stores the
scores of maps that do not depend on the picture. docs/proofs.md lists the photographs of the included scores.
"""

import argparse
import json
import time
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from seewhy import LoadedModel, load_model
from seewhy.explainers.calibrate import calibration_of, contrast_scores, null_rows
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, FILLS, Fill
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.sanity import networks_of, sanity_of
from seewhy.explainers.trust.trial import Trial
from seewhy.explainers.view import prepare
from seewhy.models.zoo import EMBEDDED
from tools.trust.photographs import CROPS, crops, photographs

FILE = Path(__file__).parents[2] / "explainers" / "trust" / "embedded.json"

NULL_METHODS = ("gradcam", "votes-detail")
"""Methods whose maps, tried on other pictures, give the scores."""

MOST_PASSES = 8
"""Maximum number of passes of a method whose sanity is measured."""

SANE_PICTURES = 8

PARTS = ("calibrations", "sanity")


def calibration(model: LoadedModel, pictures: list[Image.Image], fill: Fill) -> Calibration:
    """Return the scores of maps that do not depend on the picture; the crops of one photograph form a group."""
    trial = Trial(AREA, fill, full=True)
    groups: dict[str, list[list[float]]] = {kind: [[] for _ in pictures] for kind in ("target", "contrast")}
    for name in (name for name in NULL_METHODS if name in METHODS):
        (rows,) = null_rows(model, METHODS[name].build({}), crops(pictures), [trial])
        for number, row in enumerate(rows):
            targets = row.target.null_scores if row.target.is_likely else ()
            for kind, scores in (("target", targets), ("contrast", row.contrast)):
                groups[kind][number % len(pictures)] += [round(score, 4) for score in scores]
    known = {kind: [group for group in parts if group] for kind, parts in groups.items()}
    return replace(calibration_of(model, trial, known["target"], True), contrast=contrast_scores(known["contrast"]))


def sanity(model: LoadedModel, pictures: list[Image.Image]) -> dict[str, Any]:
    """Return the sanity of each method with few passes, by name."""
    models = networks_of(model)
    images = torch.stack([prepare(model, picture).image for picture in pictures[:SANE_PICTURES]])
    rows: dict[str, Any] = {}
    for name, method in METHODS.items():
        explainer = method.build({})
        passes = method.passes(explainer, model, model.spec.image_shape)
        if {"region", "boxes", "attention"} & {*method.needs} or passes is None or passes.total > MOST_PASSES:
            continue
        start = time.perf_counter()
        try:
            rows[name] = asdict(sanity_of(explainer, models, images))
        except Exception as error:  # the method does not suit the network
            print(f"  {name}: {type(error).__name__}: {error}")
            continue
        print(f"  {name}: {rows[name]}, {time.perf_counter() - start:.0f} s", flush=True)
    return rows


def measure(name: str, pictures: list[Image.Image], parts: Collection[str]) -> None:
    """Measure parts of a network's entry, and update the file."""
    model, start = load_model(name), time.perf_counter()
    if "calibrations" in parts:
        rows = [calibration(model, pictures, fill) for fill in FILLS]
        _write(model, calibrations=[asdict(row) for row in rows])
        for row in [part for whole in rows for part in (whole, whole.of_contrasts) if part]:
            marks = [round(row.scores[round(share * (len(row.scores) - 1))], 2) for share in (0.5, 0.8, 0.95)]
            kind = "scores" if row.are_probabilities else "scores of contrasts"
            print(
                f"{name}, {row.fill}: {len(row.scores)} {kind} of {row.pictures} photographs; median, 80 and 95 "
                f"percent {marks}; false alarms {row.false_alarms_at_95}; {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    if "sanity" in parts:
        _write(model, sanity=sanity(model, pictures))


def _write(model: LoadedModel, **parts: Any) -> None:
    table = json.loads(FILE.read_text(encoding="utf-8"))
    table[model.sha256] = {**table.get(model.sha256, {}), "size": list(model.preprocess.size), **parts}
    FILE.write_text(json.dumps(table, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Measure networks, and update their entries in the file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="Photographs.")
    parser.add_argument("names", nargs="*", help="Networks; by default all that are embedded.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    pictures = photographs(options.folder)
    print(f"{len(pictures)} photographs in {len(CROPS)} crops each", flush=True)
    for name in options.names or list(EMBEDDED):
        measure(name, pictures, options.parts)


if __name__ == "__main__":
    main()
