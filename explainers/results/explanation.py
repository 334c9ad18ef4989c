"""Explanations: a map with its picture, its class and its diagnostics."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.core.attribution import Attribution, Diagnostic
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.task import Prediction, Task
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.map_drawing import MapDrawing
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.regions import Region as Target
from seewhy.explainers.tasks.regions import share_outside
from seewhy.explainers.trust.calibration import Calibration
from seewhy.explainers.trust.embedded import calibration_of, sanity_of
from seewhy.explainers.trust.proof import Proof, proof_arrays, proof_of
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import subject_of


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a picture with similar features at a layer.

    Attributes:
        map: (h, w) float32, not negative: how much each position belongs to the region.
        gain: the score with the region alone in the layer, less the score with an empty layer.
        predictions: the five most probable classes when the region's concept alone fills the layer.
    """

    map: NDArray[np.float32]
    gain: float
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(MapDrawing):
    """Why a model gave a picture a class; `save` writes ``.json``, a `document`, ``.npz``, the `arrays`, and pictures.

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
        regions: of methods that segment the picture, the largest gain first; empty for all others.
        notes: diagnostics by the method itself.
        remarks: diagnostics of the target's score, by the model's task.
        outside: of a segmenter's region, the share of the map's magnitude that lies outside it, in [0, 1]; None for
            other targets, and of a map that is zero everywhere.
        proof: how far the map can be relied on; None unless it was asked for.
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

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Remarks about this map for its reader, such as why it is blank."""
        diagnostics = list(self.notes)
        if not np.any(self.map) and not any(note.code == "blank-map" for note in self.notes):
            diagnostics.append(
                Diagnostic(
                    "blank-map",
                    "The map is zero everywhere: without negative evidence, nothing at this layer speaks for the "
                    "class. Try sign=signed, another layer, or a more probable class.",
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

    def document(self) -> dict[str, Any]:
        """Return everything but the picture for JSON, with the heatmap's values in rows."""
        height, width = self.heatmap.shape
        raw = self.raw_heatmap
        return {
            "method": self.method,
            "layers": list(self.layers),
            "target": vars(self.target),
            "against": None if self.against is None else vars(self.against),
            "predictions": [vars(prediction) for prediction in self.predictions],
            "heatmap": {
                "shape": [height, width],
                "min": float(raw.min()),
                "max": float(raw.max()),
                "signed": self.signed,
                "box": list(self.geometry.box),
                "values": self.heatmap.tolist(),
            },
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
            **({} if self.outside is None else {"outside": self.outside}),
            **({} if self.proof is None else {"proof": asdict(self.proof)}),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz, for one map: heatmaps (1, H, W), maps (1, h, w), targets."""
        return {**super().arrays(), **proof_arrays([self.proof])}


def region_sheet(explanation: Explanation, style: render.Style) -> Image.Image:
    """Draw the regions of an explanation, each with its best class and its gain."""
    captions = [
        f"{rank}. {region.predictions[0].label} {region.predictions[0].text}: {region.gain:+.2f}"
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
) -> list[Explanation]:
    """Return the explanation of each map of an attribution, all of the same picture.

    Args:
        model: its labels name the classes.
        method: the method's name.
        picture: the upright upload, or a smaller copy to draw on.
        geometry: of the upload itself.
        attribution: one map per explained class.
        task: what was asked of the model; None for its own.
        calibration: what proofs are compared with; None for what ships with the model's weights.
        explainer: the method with its options, for what is known of its sanity.
        sanity: of the method on the model, where it was measured; None for what ships.
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
                notes=_notes(attribution, row, method),
                remarks=tuple(task.remarks(outputs[row], target)),
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
    return proof_of(
        part,
        explanation.map,
        explanation.geometry,
        subject_of(explanation.target, explanation.against),
        [diagnostic.code for diagnostic in explanation.diagnostics],
        calibration or calibration_of(model.sha256, model.preprocess.size, part.area, part.fill),
        sanity or (sanity_of(model.sha256, model.preprocess.size, explanation.method) if is_usual else None),
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
    message = f"Rounding, which differs between processors, threads and batches, can decide {entry.rounding}."
    return *notes, Diagnostic("rounding-decides", message)


def _regions(attribution: Attribution, row: int, model: Model) -> tuple[Region, ...]:
    regions = attribution.regions
    if regions is None:
        return ()
    parts = zip(regions.maps[row].cpu().numpy(), regions.gains[row].tolist(), regions.outputs[row], strict=True)
    return tuple(Region(values, gain, tuple(model.task.describe(outputs))) for values, gain, outputs in parts)
