"""Explanations: a map with its picture, its class and its diagnostics."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from cmap import Colormap
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.core.attribution import Attribution, Diagnostic
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.task import Prediction, Task
from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import Scale
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.display import Drawing
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.regions import Region as Target
from seewhy.explainers.tasks.regions import share_outside
from seewhy.explainers.trust.calibration import Calibration
from seewhy.explainers.trust.embedded import calibration_of, sanity_of
from seewhy.explainers.trust.proof import Proof, proof_arrays, proof_of
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import subject_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE = 24
"""Height of a caption and of a colour bar, in pixels."""


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


@dataclass(frozen=True, eq=False)
class Explanation(Drawing):
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
    def raw_heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32: the map in upload coordinates and its own units; zero outside the model's input."""
        return self.geometry.lay_back(self.map)

    @cached_property
    def heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32 in upload coordinates, divided by its maximum: [0, 1], or [-1, 1] when signed."""
        return render.normalize(self.raw_heatmap, self.signed)

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

    def draw_map(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in a style, RGB, whether or not there are regions."""
        return draw_map(self.picture, self.geometry, self.map, self.signed, style)

    @property
    def caption(self) -> str:
        """One line: the target, its probability or value, its contrast, and the method."""
        against = f" against {self.against.label}" if self.against else ""
        return f"{self.target.label} {self.target.text}{against} by {self.method}"

    def plot(
        self,
        ax: "Axes | None" = None,
        colorbar: bool = True,
        *,
        title: str | None = None,
        view: Literal["overlay", "heatmap"] = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = 2048,
    ) -> "Axes":
        """Draw the heatmap with matplotlib, in pixels of the upload.

        Args:
            ax: where to draw, without importing pyplot; None for a new figure of pyplot.
            colorbar: whether to draw a colour bar, in the map's units, beside it.
            title: of the axes; None for `caption`.
            view: the heatmap over the picture, or alone.
            colormap, alpha, scale, max_side: see `render.Style`.

        Returns:
            The axes.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        style = render.Style(view, colormap, alpha, scale, max_side)
        if ax is None:
            from matplotlib import pyplot  # matplotlib takes long to import

            ax = pyplot.subplots()[1]
        if not hasattr(ax, "imshow"):
            raise OptionError(f"ax is a {type(ax).__name__}; give one Axes, such as axes[0].", "ax")
        width, height = self.geometry.width, self.geometry.height
        ax.imshow(self.draw_map(style), extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        ax.set_title(self.caption if title is None else title)
        ax.set_axis_off()
        if colorbar:
            from matplotlib.cm import ScalarMappable
            from matplotlib.colors import Normalize

            name = style.colormap or render.default_colormap(self.signed)
            colours = ScalarMappable(Normalize(*_ends(self, style)), Colormap(name).to_mpl())
            against = f" rather than {self.against.label}" if self.against else ""
            ax.figure.colorbar(colours, ax=ax, label=f"evidence for {self.target.label}{against}")
        return ax

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
        return {
            "heatmaps": self.heatmap[None],
            "maps": self.map[None],
            "targets": np.array([self.target.name]),
            "methods": np.array([self.method]),
            **proof_arrays([self.proof]),
        }

    def _preview(self) -> Image.Image:
        """Return the drawing under its caption and, where it is one map, above the colours' meaning."""
        style = render.Style(max_side=800)
        drawing = self.draw(style)
        if self.regions:  # these are labelled, and each has a scale of its own
            return drawing
        bar = _colour_bar(self, style, drawing.width)
        whole = Image.new("RGB", (drawing.width, drawing.height + _LINE), "white")
        whole.paste(drawing, (0, 0))
        whole.paste(bar, (0, drawing.height))
        return render.panel([whole], [self.caption], bar=_LINE)

    def __repr__(self) -> str:
        return f"Explanation({self.caption}, {self.geometry.width}x{self.geometry.height})"


def draw_map(
    picture: Image.Image, geometry: Geometry, values: NDArray[np.float32], signed: bool, style: render.Style
) -> Image.Image:
    """Return a raw map (h, w) drawn in a style, RGB; arguments as the attributes of `Explanation`."""
    small = render.fit(picture, style.max_side)
    placement = geometry.scaled(*small.size)
    heatmap = render.normalize(placement.lay(values), signed, render.ends(values, style.scale))
    return render.draw(small, heatmap, placement, signed, style)


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


def _ends(explanation: Explanation, style: render.Style) -> tuple[float, float]:
    """Return the values of the first and the last colour."""
    picture = render.fit(explanation.picture, style.max_side)
    values = explanation.geometry.scaled(*picture.size).lay(explanation.map)
    return render.value_range(values, explanation.signed, render.ends(explanation.map, style.scale))


def _colour_bar(explanation: Explanation, style: render.Style, width: int) -> Image.Image:
    low, high = (f"{value:.3g}" for value in _ends(explanation, style))
    bar = Image.new("RGB", (width, _LINE), "white")
    pen = ImageDraw.Draw(bar)
    font = render.font_for(low + high, _LINE * 0.62)
    margin = _LINE // 4
    left, right = margin, width - margin
    pen.text((left, _LINE / 2), low, "black", font, "lm")
    pen.text((right, _LINE / 2), high, "black", font, "rm")
    start, stop = left + int(font.getlength(low)) + margin, right - int(font.getlength(high)) - margin
    if stop > start:  # a picture of a few pixels has room for the numbers alone
        values = np.linspace(-1 if explanation.signed else 0, 1, stop - start, dtype=np.float32)
        strip = render.colour(np.tile(values, (_LINE // 2, 1)), explanation.signed, style.colormap)
        bar.paste(strip, (start, _LINE // 4))
    return bar
