"""Explanations: a map with its picture, its class and its diagnostics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.task import Prediction, Task
from seewhy.explainers.correlations import rank_correlation
from seewhy.explainers.errors import OptionError, listed
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.png import data_url, encode_png
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.colours import meaning_of
from seewhy.explainers.results.map_drawing import MapDrawing
from seewhy.explainers.results.map_panel import raw_maps
from seewhy.explainers.results.origin import VERSIONS, Origin, options_of
from seewhy.explainers.results.predictions import ranked, target_of
from seewhy.explainers.results.report import record_of, repeating_command, report_page
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.tasks.detected import BoxPrediction, located
from seewhy.explainers.tasks.regions import Region as Target
from seewhy.explainers.tasks.regions import share_outside
from seewhy.explainers.tasks.segmentation import RegionPrediction
from seewhy.explainers.trust.calibration import is_leading
from seewhy.explainers.trust.embedded import calibration_of, sanity_of
from seewhy.explainers.trust.proof import Proof, proof_of
from seewhy.explainers.trust.proof_files import proof_arrays
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import subject_of

_NAMED = 4
"""Maximum number of branches that are named."""

_MAX_SIDE = 2048
"""Longest side of the drawings in documents, in pixels; the default of the command line and of the service."""


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a picture with similar features at a layer.

    Attributes:
        map: (h, w) float32, not negative: how much each position belongs to the region.
        gain: the score with the region alone in the layer, minus the score with an empty layer.
        predictions: the five most probable classes when the region's concept alone fills the layer.
    """

    map: NDArray[np.float32]
    gain: float
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(MapDrawing):
    """The explanation of a model's prediction for a picture.

    `save` writes ``.json``, the `document`; ``.npz``, the `arrays`; ``.html``, a report; and pictures.

    Attributes:
        picture: the upright upload, RGB, or a smaller copy to draw on.
        geometry: the part of the upload that the model saw.
        map: (h, w) float32, the explainer's raw map.
        signed: whether negative values speak against the class.
        target: the explained class.
        predictions: the five most probable classes.
        method: the method's name.
        layers: paths of the layers used; empty for methods that use none.
        against: the class that the target is contrasted with; None without a contrast.
        regions: regions of methods that segment the picture, the largest gain first; empty for all others.
        notes: diagnostics from the method itself.
        remarks: diagnostics of the target's score, from the model's task, and of the picture.
        outside: share of the map's magnitude that lies outside the region of a segmenter, in [0, 1]; None for other
            targets, and for a map that is zero everywhere.
        proof: how far the map can be relied on; None unless requested.
        origin: the model, the options of the method, and the picture's file; None if read from a batch.
    """

    picture: Image.Image
    geometry: Geometry
    map: NDArray[np.float32]
    signed: bool
    target: Prediction
    predictions: tuple[Prediction, ...]
    method: str
    layers: tuple[str, ...]
    against: Prediction | None = None
    regions: tuple[Region, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    remarks: tuple[Diagnostic, ...] = ()
    outside: float | None = None
    proof: Proof | None = None
    origin: Origin | None = None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:  # type: ignore[override]  # computed when it is read
        """Remarks about this map for its reader, such as why it is blank."""
        diagnostics = list(self.notes)
        if not np.any(self.map) and not any(note.code == "blank-map" for note in self.notes):
            is_best = all(self.target.index == best.index for best in self.predictions[:1])
            is_class = self.target.probability is not None
            remedies = ", another layer, or a more probable class" if is_class and not is_best else " or another layer"
            diagnostics.append(
                Diagnostic(
                    "blank-map",
                    f"The map is zero everywhere: without negative evidence, nothing at this layer {self.target.verb} "
                    f"{self.target.label!r}. Try sign=signed{remedies}.",
                )
            )
        return *diagnostics, *self.remarks

    def draw(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in a style, RGB; a labelled panel of the regions if there are any."""
        if self.regions:
            return region_sheet(self, style)
        return self.draw_map(style)

    def _preview(self) -> Image.Image:
        # Regions are labelled, and each has a scale of its own.
        return self.draw(render.Style(max_side=800)) if self.regions else super()._preview()

    def part(
        self,
        style: render.Style,
        overlay: bytes,
        options: Mapping[str, Any],
        numbers: Literal["values", "map"] | None = None,
    ) -> dict[str, Any]:
        """Return the part of a document about this map.

        Args:
            style: style of the overlay.
            overlay: the drawing, a PNG.
            options: of the method.
            numbers: the values to include: those of the heatmap, an array (H, W), or those of the raw map, in rows.
        """
        raw = self.geometry.scaled(*self.picture.size).lay_back(self.map)
        low, high = render.value_range(raw, self.signed, render.ends(self.map, style.scale))
        return {
            "method": self.method,
            "target": target_of(self.target),
            "against": None if self.against is None else target_of(self.against),
            "heatmap": {
                "shape": [self.geometry.height, self.geometry.width],
                "min": float(raw.min()),
                "max": float(raw.max()),
                "signed": self.signed,
                "box": list(self.geometry.box),
                **({"map": self.geometry.covering(self.map).tolist()} if numbers == "map" else {}),
                **({"values": self.heatmap} if numbers == "values" else {}),
            },
            "drawn": {
                "colormap": style.colormap or render.default_colormap(self.signed),
                "low": low,
                "high": high,
                "meaning": meaning_of(self, METHODS.get(self.method), options),
            },
            "overlay": data_url(overlay),
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
            "regions": [{"gain": region.gain, "predictions": ranked(region.predictions)} for region in self.regions],
            **({} if self.outside is None else {"outside": self.outside}),
            **({} if self.proof is None else {"proof": asdict(self.proof)}),
        }

    def document(self) -> dict[str, Any]:
        """Return the JSON of the command line and of the service, with the heatmap's values; without their times."""
        return document_of([self])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz; see `arrays_of`."""
        return arrays_of([self], self.heatmap[None], self.origin.outputs if self.origin else None)

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {**super()._number_files, ".html": lambda: [report_of([self])]}


def arrays_of(
    explanations: Sequence[Explanation], heatmaps: NDArray[np.float32], outputs: NDArray[np.float32] | None
) -> dict[str, NDArray[Any]]:
    """Return explanations of one picture as arrays: heatmaps (T, H, W), maps (T, h, w), targets and methods (T).

    With them are the logits (K, ...), or the boxes (T, 4) of a detector. If maps have several shapes, they are
    maps_0, maps_1 and so on; a method that divides the picture into regions adds regions (T, k, h, w).

    Args:
        heatmaps: (T, H, W) float32.
        outputs: outputs of the model, (K, ...); None if unknown.
    """
    boxes = [target.box for explanation in explanations if isinstance(target := explanation.target, BoxPrediction)]
    regions = [np.array([region.map for region in explanation.regions]) for explanation in explanations]
    has_regions = regions[0].size > 0 and len({array.shape for array in regions}) == 1
    logits = {} if outputs is None else {"logits": outputs}
    return {
        "heatmaps": heatmaps,
        **raw_maps(explanations),
        **({"regions": np.stack(regions)} if has_regions else {}),
        "targets": np.array([explanation.target.name for explanation in explanations]),
        "methods": np.array([explanation.method for explanation in explanations]),
        **proof_arrays(explanation.proof for explanation in explanations),
        **({"boxes": np.array(boxes, dtype=np.float32)} if boxes else logits),
    }


def members_of(
    explanations: Sequence[Explanation], methods: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the members of a document of explanations, besides its model and versions.

    Args:
        methods: name and options of each.
        parts: parts of the explanations, see `Explanation.part`.
    """
    return {
        "method": methods[0],
        "methods": list(methods),
        "agreement": [
            {"target": first.target.name, "methods": [first.method, second.method], "rank_correlation": value}
            for first, second, value in agreeing(explanations)
        ],
        "layers": [*dict.fromkeys(layer for explanation in explanations for layer in explanation.layers)],
        "predictions": ranked(explanations[0].predictions),
        "explanations": list(parts),
    }


def agreeing(explanations: Sequence[Explanation]) -> Iterator[tuple[Explanation, Explanation, float | None]]:
    """Yield each pair of different methods' explanations of one target, with the rank correlation of their maps."""
    unique = {(row.target.name, row.method): row for row in explanations}
    for first, second in combinations(unique.values(), 2):
        if first.target.name == second.target.name:
            yield first, second, rank_correlation(first.map, second.map)


def document_of(explanations: Sequence[Explanation], *, values: bool = True) -> dict[str, Any]:
    """Return the document of explanations of one picture, with the heatmaps' `values` in rows.

    Explanations that were read from a batch have no `model`, `versions` or options.
    """
    origin = explanations[0].origin
    style = render.Style(max_side=_MAX_SIDE)
    options = {row.method: row.origin.options if row.origin else {} for row in explanations}
    parts = []
    for explanation in explanations:
        part = explanation.part(style, encode_png(explanation.draw(style)), options[explanation.method])
        if values:
            part["heatmap"]["values"] = explanation.heatmap.tolist()
        parts.append(part)
    methods = [{"name": name, "options": own} for name, own in options.items()]
    head = {"model": asdict(origin.model), "versions": VERSIONS} if origin else {}
    return {**head, **members_of(explanations, methods, parts)}


def report_of(explanations: Sequence[Explanation]) -> bytes:
    """Return the report of explanations of one picture, HTML as UTF-8.

    Raises:
        OptionError: they were read from a batch, which does not name the weights.
    """
    first = explanations[0]
    origin = first.origin
    if origin is None:
        message = "A report needs the model and the options, which this explanation does not have; explain the picture."
        raise OptionError(message, field="path")
    document = document_of(explanations, values=False)
    width, height = first.geometry.width, first.geometry.height
    repeats = origin.repeats and not isinstance(first.target, RegionPrediction)
    record = record_of(
        document,
        {"picture": {**(origin.file.document() if origin.file else {}), "width": width, "height": height}},
        (origin.device, origin.model.precision, origin.accelerator),
        _command(explanations, origin) if repeats else None,
    )
    methods = [METHODS[name] for name in dict.fromkeys(row.method for row in explanations) if name in METHODS]
    return report_page(record, document, explanations, methods, _MAX_SIDE)


def _command(explanations: Sequence[Explanation], origin: Origin) -> str:
    """Return the command that repeats explanations."""
    first = explanations[0]
    proof = first.proof
    faithfulness = proof.faithfulness if proof else None
    layers = {row.layers for row in explanations if row.layers}  # some methods have none
    fields = {
        "model": origin.model.name,
        "method": [*dict.fromkeys(row.method for row in explanations)],
        "target": [*dict.fromkeys(row.target.name for row in explanations)],
        "layer": [*layers.pop()] if len(layers) == 1 else [],
        **({"against": first.against.name} if first.against else {}),
        **({"proof": "full" if proof.copies else "true"} if proof else {}),
        **({"proof_area": faithfulness.area, "proof_fill": faithfulness.fill} if faithfulness else {}),
    }
    options = {name: value for row in explanations for name, value in _chosen_options(row).items()}
    device = origin.device.partition(":")[0]
    return repeating_command(fields, options, device, origin.model.precision, environment=origin.environment)


def _chosen_options(explanation: Explanation) -> dict[str, Any]:
    """Return the options of a method that are not its defaults."""
    options = explanation.origin.options if explanation.origin else {}
    defaults = options_of(METHODS[explanation.method].build({}))
    return {name: value for name, value in options.items() if value != defaults[name]}


def region_sheet(explanation: Explanation, style: render.Style) -> Image.Image:
    """Draw the regions of an explanation, each with its best class and its gain."""
    captions = [
        f"{rank}. {region.predictions[0].label} {region.predictions[0].text}: {region.gain:+z.2f}"
        for rank, region in enumerate(explanation.regions, start=1)
    ]
    maps = [region.map for region in explanation.regions]
    subject = f"regions by their contribution to {explanation.target.label}, and their best classes"
    title = f"{explanation.layers[0]}: {subject}"
    return sheet(maps, captions, title, explanation.picture, explanation.geometry, style)


def explanations(
    model: Model,
    method: str,
    picture: Image.Image,
    geometry: Geometry,
    attribution: Attribution,
    task: Task | None = None,
    calibration: Calibration | None = None,
    explainer: Explainer | None = None,
    sanity: Sanity | None = None,
    remarks: Sequence[Diagnostic] = (),
) -> list[Explanation]:
    """Return the explanation of each map of an attribution, all of the same picture.

    Args:
        model: its labels name the classes.
        method: the method's name.
        picture: the upright upload, or a smaller copy to draw on.
        geometry: geometry of the upload itself.
        attribution: one map per explained class.
        task: the task that the outputs were read by; None for the model's own.
        calibration: scores that proofs are compared with; None for those included with the model's weights.
        explainer: the method with its options, for its included sanity.
        sanity: measured sanity of the method on the model; None for the included one.
        remarks: remarks about the picture for the reader.
    """
    task = task or model.task
    maps = attribution.maps.cpu().numpy()
    geometry = replace(geometry, reach=model.survey.reach(attribution.layers, (maps.shape[1], maps.shape[2])))
    outputs = attribution.outputs.cpu()
    contrasts = [] if attribution.against is None else attribution.against.tolist()
    rows = []
    targets = attribution.targets if isinstance(attribution.targets, tuple) else attribution.targets.tolist()
    for row, target in enumerate(targets):
        contrast = [number for number in contrasts[row : row + 1] if number != NO_CONTRAST]
        (description, *rest) = located(task.describe(outputs[row], [target, *contrast]), geometry)
        rows.append(
            Explanation(
                picture=picture,
                geometry=geometry,
                map=maps[row],
                signed=attribution.signed,
                target=description,
                predictions=tuple(rest[len(contrast) :]),
                method=method,
                layers=attribution.layers,
                against=rest[0] if contrast else None,
                regions=_regions(attribution, row, model),
                notes=(*_notes(attribution, row, method), *_other_branches(attribution.layers, model)),
                remarks=(*task.remarks(outputs[row], target), *remarks),
                outside=share_outside(target, maps[row], geometry.reach) if isinstance(target, Target) else None,
            )
        )
    if attribution.faithfulness is None:
        return rows
    parts = attribution.faithfulness.rows()
    return [
        replace(row, proof=_proof(row, part, model, calibration, explainer, sanity))
        for row, part in zip(rows, parts, strict=True)
    ]


def _proof(
    explanation: Explanation,
    part: Faithfulness,
    model: Model,
    calibration: Calibration | None,
    explainer: Explainer | None,
    sanity: Sanity | None,
) -> Proof:
    """Return the proof of an explanation, given the faithfulness (N = 1) of its map."""
    entry = METHODS.get(explanation.method)
    is_usual = explainer is not None and entry is not None and explainer == entry.build({})
    area, fill = part.area, part.fill
    calibration = calibration.trials[area, fill] if calibration else calibration_of(model, area, fill)
    is_contrast = explanation.against is not None and isinstance(model.task, Classification)
    is_compared = not is_contrast or is_leading(explanation.target, explanation.predictions[0])
    if is_contrast and is_compared and calibration:
        calibration = calibration.of_contrasts or calibration
    return proof_of(
        part,
        explanation.map,
        explanation.geometry,
        subject_of(explanation.target, explanation.against, is_compared),
        [diagnostic.code for diagnostic in explanation.diagnostics],
        calibration,
        sanity or (sanity_of(model.sha256, model.preprocess.size, explanation.method) if is_usual else None),
        discriminates=entry is None or entry.discriminates,
    )


def _notes(attribution: Attribution, row: int, method: str) -> tuple[Diagnostic, ...]:
    notes = attribution.diagnostics[row] if attribution.diagnostics else ()
    if attribution.change is not None and attribution.is_faint(row):
        change = float(attribution.change[row])
        message = f"Hiding parts of the picture changes the score by only {change:.1e} of it"
        notes = *notes, Diagnostic("faint-map", f"{message}, so rounding errors are visible in the map.")
    entry = METHODS.get(method)
    if entry is None or not entry.rounding:
        return notes
    message = f"Another processor, number of threads or batch may give another map: rounding decides {entry.rounding}."
    return *notes, Diagnostic("rounding-decides", message)


def _other_branches(layers: tuple[str, ...], model: Model) -> Iterator[Diagnostic]:
    """Yield a diagnostic about the evidence that a map of the default layer misses."""
    survey = model.survey
    if survey.branches and layers == survey.default_layers:
        named, rest = survey.branches[:_NAMED], len(survey.branches) - _NAMED
        further = f" and {rest} more" if rest > 0 else ""
        message = (
            f"The map shows the evidence in layer {listed(layers)}. Evidence in the parallel {listed(named)}{further} "
            "is missing; choose these layers to see it."
        )
        yield Diagnostic("other-branches", message)


def _regions(attribution: Attribution, row: int, model: Model) -> tuple[Region, ...]:
    regions = attribution.regions
    if regions is None:
        return ()
    parts = zip(regions.maps[row].cpu().numpy(), regions.gains[row].tolist(), regions.outputs[row], strict=True)
    return tuple(Region(values, gain, tuple(model.task.describe(outputs))) for values, gain, outputs in parts)
