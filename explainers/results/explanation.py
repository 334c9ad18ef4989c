"""The one-call way in, `explain`, and its result: a map with its picture, its class and its diagnostics."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.attribution import Attribution, Diagnostic
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.objective import NO_CONTRAST
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import Scale, View
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.results.display import Shown
from seewhy.explainers.tasks.classification import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SATURATED = 0.9999
"""A softmax above this hardly moves with the logits."""


FAINT = 2.0**-9
"""A change of the score by less than this share of it holds roundings of more than 10^-4 of it."""


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a picture that a layer takes for alike.

    Attributes:
        map: (h, w) float32, not negative: how much each position belongs to it.
        gain: the score with nothing in the layer but the region, less that with nothing at all.
        predictions: the five most probable classes when its concept alone fills the layer.
    """

    map: NDArray[np.float32]
    gain: float
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, eq=False)
class Explanation(Shown):
    """Why a model gave a picture a class.

    Attributes:
        picture: the upright upload, RGB, or a smaller copy of it to draw on.
        geometry: which part of it the model saw.
        map: (h, w) float32, raw: as the explainer gave it.
        signed: whether negative values mean evidence against the class.
        target: the explained class.
        predictions: the five most probable classes.
        classes: how many classes the model tells apart.
        method: the method's name.
        layers: the layers used.
        against: the class that the target is contrasted with; None where there is no contrast.
        regions: of a method that cuts the picture into parts, that with the largest gain first; empty for all others.
        notes: the diagnostics of the method itself.
    """

    picture: Image.Image
    geometry: Geometry
    map: NDArray[np.float32]
    signed: bool
    target: Prediction
    predictions: tuple[Prediction, ...]
    classes: int
    method: str
    layers: tuple[str, ...]
    against: Prediction | None = None
    regions: tuple[Region, ...] = ()
    notes: tuple[Diagnostic, ...] = ()

    @property
    def raw_heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32: the map laid back onto the upload, in its own units; zero where unseen."""
        return self.geometry.lay_back(self.map)

    @cached_property
    def heatmap(self) -> NDArray[np.float32]:
        """(H, W) float32 in upload coordinates, divided by its maximum: [0, 1], or [-1, 1] when signed."""
        return render.normalize(self.raw_heatmap, self.signed)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What a reader should know about this map, such as why it is blank."""
        found = list(self.notes)
        if not np.any(self.map):
            found.append(
                Diagnostic(
                    "blank-map",
                    "The map is zero everywhere: nothing at this layer speaks for the class once negative "
                    "evidence is removed. Try sign=signed, another layer, or a more probable class.",
                )
            )
        if self.classes == 1:
            found.append(
                Diagnostic(
                    "one-logit",
                    "The model has one logit: the probability is its sigmoid, and the map shows what speaks for "
                    f"{self.target.label!r}. With sign=signed it shows what speaks against it too.",
                )
            )
        elif self.predictions[0].probability > SATURATED:
            found.append(
                Diagnostic(
                    "saturated-softmax",
                    f"The model is certain ({self.predictions[0].probability:.6f}): probabilities barely "
                    "react to the picture. The map explains the logit, which still does.",
                )
            )
        if self.target.probability < 1 / max(self.classes, 2):
            found.append(
                Diagnostic(
                    "improbable-target",
                    f"The model gives {self.target.label!r} a probability of {self.target.probability:.2g}, "
                    "less than chance: the map shows what little speaks for it, not that the class is there.",
                )
            )
        return tuple(found)

    def overlay(
        self,
        view: View = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = None,
    ) -> Image.Image:
        """Return the heatmap drawn over the picture, RGB, as large as the picture; see `render.Style`.

        A method that cuts the picture into regions has a labelled panel of these instead.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        return self.drawn(render.Style(view, colormap, alpha, scale, max_side))

    def drawn(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in this style; or the regions, where there are any."""
        if self.regions:
            return region_sheet(self, style)
        return self.drawn_map(style)

    def drawn_map(self, style: render.Style) -> Image.Image:
        """Return the heatmap drawn in this style, also where there are regions."""
        return draw_map(self.picture, self.geometry, self.map, self.signed, style)

    @property
    def caption(self) -> str:
        """The class, its probability, what it is contrasted with, and the method, in a line."""
        against = f" against {self.against.label}" if self.against else ""
        return f"{self.target.label} {self.target.probability:.1%}{against} by {self.method}"

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
        """Draw the heatmap with matplotlib, in pixels of the upload; the bar shows the map's own units.

        Args:
            ax: where to draw; its figure is changed, and pyplot is not even imported. None for a new figure of pyplot.
            colorbar: whether to draw a colour bar beside it.
            title: of the axes; None for `caption`.
            view: the heatmap over the picture, or alone.
            colormap, alpha, scale, max_side: see `render.Style`.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        from seewhy.explainers.results.figures import plot  # matplotlib takes long to import

        return plot(self, ax, colorbar, title, render.Style(view, colormap, alpha, scale, max_side))

    def _saved(self, **style: Any) -> Image.Image:
        return self.overlay(**style)

    def _shown(self) -> Image.Image:
        from seewhy.explainers.results.figures import captioned

        return captioned(self, render.Style(max_side=800))

    def __repr__(self) -> str:
        return f"Explanation({self.caption}, {self.geometry.width}x{self.geometry.height})"


def draw_map(
    picture: Image.Image, geometry: Geometry, found: NDArray[np.float32], signed: bool, style: render.Style
) -> Image.Image:
    """Return a raw map (h, w) drawn over a picture, or beside it; arguments as the attributes of `Explanation`."""
    small = render.fit(picture, style.max_side)
    laid = geometry.scaled(*small.size)
    heatmap = render.normalize(laid.lay(found), signed, render.ends(found, style.scale))
    return render.draw(small, heatmap, laid, signed, style)


def region_sheet(explanation: Explanation, style: render.Style) -> Image.Image:
    """Draw the regions of an explanation, each with its best class and what it adds to the score."""
    captions = [
        f"{rank}. {one.predictions[0].label} {one.predictions[0].probability:.0%}: {one.gain:+.2f}"
        for rank, one in enumerate(explanation.regions, start=1)
    ]
    maps = [one.map for one in explanation.regions]
    title = f"{explanation.layers[0]}: regions by what they add to {explanation.target.label}, and their best classes"
    return sheet(maps, captions, title, explanation.picture, explanation.geometry, style)


def explanations(
    model: Model, method: str, picture: Image.Image, geometry: Geometry, attribution: Attribution
) -> list[Explanation]:
    """Tie each map of an attribution to the one picture that all of them explain.

    Args:
        model: whose labels name the classes.
        method: the method's name.
        picture: the upright upload, or a smaller copy of it to draw on.
        geometry: of the upload itself.
        attribution: one map per explained class.
    """
    maps = attribution.maps.cpu().numpy()
    geometry = replace(geometry, reach=model.survey.reach(attribution.layers, (maps.shape[1], maps.shape[2])))
    outputs = attribution.outputs.cpu()
    contrasts = [] if attribution.against is None else attribution.against.tolist()
    rows = []
    for row, index in enumerate(attribution.targets.tolist()):
        contrast = [number for number in contrasts[row : row + 1] if number != NO_CONTRAST]
        (target, *others) = model.task.describe(outputs[row], [index, *contrast])
        rows.append(
            Explanation(
                picture=picture,
                geometry=geometry,
                map=maps[row],
                signed=attribution.signed,
                target=target,
                predictions=tuple(others[len(contrast) :]),
                classes=outputs.shape[1],
                method=method,
                layers=attribution.layers,
                against=others[0] if contrast else None,
                regions=_regions(attribution, row, model),
                notes=_notes(attribution, row, method),
            )
        )
    return rows


def _notes(attribution: Attribution, row: int, method: str) -> tuple[Diagnostic, ...]:
    found = attribution.diagnostics[row] if attribution.diagnostics else ()
    if attribution.change is not None and 0 < (change := float(attribution.change[row])) < FAINT:
        message = f"Whatever is hidden changes the score by {change:.1e} of it at most, which rounding shows in."
        found = *found, Diagnostic("faint-map", message)
    entry = METHODS.get(method)
    if entry is None or not entry.rounding:
        return found
    message = f"Rounding, which other processors, threads or batches do otherwise, can decide {entry.rounding}."
    return *found, Diagnostic("rounding-decides", message)


def _regions(attribution: Attribution, row: int, model: Model) -> tuple[Region, ...]:
    regions = attribution.regions
    if regions is None:
        return ()
    parts = zip(regions.maps[row].cpu().numpy(), regions.gains[row].tolist(), regions.outputs[row], strict=True)
    return tuple(Region(values, gain, tuple(model.task.describe(outputs))) for values, gain, outputs in parts)
