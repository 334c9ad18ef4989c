"""Likenesses: the similarity of two pictures to a network, and the contributions of their patches and pairs of
these."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.errors import counted
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.boxes import COLOURS, draw_boxes, draw_tag, tag_width
from seewhy.explainers.imaging.choices import Scale
from seewhy.explainers.imaging.geometry import Box, Geometry
from seewhy.explainers.results.display import Drawing
from seewhy.explainers.trust.proof_files import proof_arrays

if TYPE_CHECKING:
    from seewhy.explainers.trust.proof import Proof

_BAR = 24
"""Height of the title and of the list of pairs, in pixels."""

_GAP = 8
"""Pixels between the two pictures."""

_LEAST, _COMMON = 240, 1024
"""Small pictures are enlarged for their labels up to this height, in a drawing no wider than this."""


class Pair(NamedTuple):
    """A patch of each picture.

    Attributes:
        image, reference: left, top, right, bottom in pixels of the upload, without what lies beyond it.
        contribution: the pair's contribution to the score.
    """

    image: Box
    reference: Box
    contribution: float

    @property
    def boxes(self) -> tuple[Box, Box]:
        """Both patches."""
        return self.image, self.reference


@dataclass(frozen=True, eq=False)
class Likeness(Drawing):
    """Similarity of two pictures to a network, and the patches that contribute to it.

    `save` writes ``.json``, a `document`, ``.npz``, the `arrays`, and pictures.

    All pairs of attributes are those of the picture and of its reference.

    Attributes:
        score: the cosine of the embeddings, in [-1, 1].
        maps: each (h, w) float32: the contribution of each cell of the layer to the score.
        pairs: the pairs of patches that contribute most, the largest first.
        embedding: path of the layer whose input is the embedding; None if the model's outputs are.
        layer: path of the layer that has the cells.
        exact: whether all pairs, and each of the maps, sum to the score; otherwise they are estimated.
        pictures: the upright uploads, RGB, or smaller copies to draw on.
        geometries: the parts of the uploads that the model saw.
        proof: how far each map can be relied on; None unless requested.
    """

    score: float
    maps: tuple[NDArray[np.float32], NDArray[np.float32]]
    pairs: tuple[Pair, ...]
    embedding: str | None
    layer: str
    exact: bool
    pictures: tuple[Image.Image, Image.Image]
    geometries: tuple[Geometry, Geometry]
    proof: "tuple[Proof, Proof] | None" = None

    @property
    def signed(self) -> bool:
        """Whether some cells speak against the likeness."""
        return any(bool((values < 0).any()) for values in self.maps)

    @property
    def raw_heatmaps(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Each (H, W) float32: the maps in upload coordinates and their own units; zero outside the model's input."""
        first, second = (place.lay_back(values) for place, values in zip(self.geometries, self.maps, strict=True))
        return first, second

    @cached_property
    def heatmaps(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Each (H, W) float32 in upload coordinates, divided by the largest magnitude of both."""
        raw = self.raw_heatmaps
        ends = 0.0, max(map(render.magnitude, raw)) or 1.0
        return render.normalize(raw[0], self.signed, ends), render.normalize(raw[1], self.signed, ends)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Remarks for the reader of the maps."""
        remarks = []
        if not self.exact:
            remarks.append(
                Diagnostic(
                    "estimated-pairs",
                    f"The embedding is not an average of the cells of {self.layer!r}: the maps are gradient times "
                    "activation, and the pairs are estimated from them. The sum of either may differ from the score.",
                )
            )
        if not any(values.any() for values in self.maps):
            remarks.append(
                Diagnostic(
                    "blank-map", "The maps are zero everywhere: nothing at this layer makes the pictures similar."
                )
            )
        return tuple(remarks)

    @property
    def caption(self) -> str:
        """One line: the score, its embeddings, and the layer of the maps."""
        source = "the outputs" if self.embedding is None else f"the input of {self.embedding}"
        return f"cosine {self.score:z.3f} of {source}, {'' if self.exact else 'estimated '}by patches of {self.layer}"

    def draw(self, style: render.Style) -> Image.Image:
        """Return both pictures side by side with their heatmaps, to one scale, and the pairs as numbered boxes, RGB.

        The style's `max_side` is that of the whole drawing; None for twice that of the pictures.
        """
        sizes = self._tile_sizes(style)
        tiles = [self._tile(side, size, style) for side, size in enumerate(sizes)]
        width = sum(tile.width for tile in tiles) + _GAP
        whole = Image.new("RGB", (width, tiles[0].height + _BAR), "white")
        whole.paste(tiles[0], (0, 0))
        whole.paste(tiles[1], (width - tiles[1].width, 0))
        whole.paste(_legend([pair.contribution for pair in self.pairs], width), (0, tiles[0].height))
        return render.panel([whole], [self.caption], bar=_BAR)

    def drawn_size(self, style: render.Style) -> tuple[int, int]:
        """Return the width and the height of `draw`."""
        (first, height), (second, _) = self._tile_sizes(style)
        return style.across * (first + second) + _GAP, height + 2 * _BAR

    def document(self) -> dict[str, Any]:
        """Return everything but the pictures for JSON, with the maps in rows."""
        sides = [self._side(side) for side in (0, 1)]
        return {
            "score": self.score,
            "embedding": self.embedding,
            "layer": self.layer,
            "exact": self.exact,
            "image": sides[0],
            "reference": sides[1],
            "pairs": [pair._asdict() for pair in self.pairs],
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz: heatmap, map and boxes of each picture, and the numbers."""
        boxes = [np.array([pair.boxes[side] for pair in self.pairs], np.float32).reshape(-1, 4) for side in (0, 1)]
        return {
            "score": np.array(self.score),
            "image_heatmap": self.heatmaps[0],
            "reference_heatmap": self.heatmaps[1],
            "image_map": self.maps[0],
            "reference_map": self.maps[1],
            "image_boxes": boxes[0],
            "reference_boxes": boxes[1],
            "contributions": np.array([pair.contribution for pair in self.pairs]),
            **proof_arrays(self.proof or ()),
        }

    def _side(self, side: int) -> dict[str, Any]:
        """Return the map of one picture for JSON."""
        geometry, values = self.geometries[side], self.maps[side]
        raw = geometry.scaled(*self.pictures[side].size).lay_back(values)
        return {
            "shape": [geometry.height, geometry.width],
            "min": float(raw.min()),
            "max": float(raw.max()),
            "signed": self.signed,
            "box": list(geometry.box),
            "map": geometry.covering(values).tolist(),
            **({} if self.proof is None else {"proof": asdict(self.proof[side])}),
        }

    def _tile_sizes(self, style: render.Style) -> list[tuple[int, int]]:
        """Return the size of each picture in a drawing: both of one height, as large as the style allows."""
        sizes = [picture.size for picture in self.pictures]
        longest = style.max_side or max(_COMMON, 2 * max(max(size) for size in sizes))
        slope = style.across * sum(width / height for width, height in sizes)
        height = max(height for _, height in sizes)
        if height < _LEAST:
            height = max(height, min(_LEAST, int((_COMMON - _GAP) / slope)))
        height = max(1, min(height, int((longest - _GAP) / slope), longest - 2 * _BAR))
        return [(max(1, int(height * width / upright)), height) for width, upright in sizes]

    def _tile(self, side: int, size: tuple[int, int], style: render.Style) -> Image.Image:
        """Return one picture with its heatmap and its boxes."""
        small = self.pictures[side].resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
        geometry = self.geometries[side]
        placement = geometry.scaled(*size)
        heatmap = render.normalize(placement.lay(self.maps[side]), self.signed, self._ends(style.scale))
        tile = render.draw(small, heatmap, placement, self.signed, style)
        across, down = size[0] / geometry.width, size[1] / geometry.height
        start = tile.width - size[0]  # beside the bare picture
        boxes = [pair.boxes[side] for pair in self.pairs]
        draw_boxes(
            tile,
            [
                (start + left * across, top * down, start + right * across, bottom * down)
                for left, top, right, bottom in boxes
            ],
        )
        return tile

    def _ends(self, scale: Scale) -> tuple[float, float]:
        """Return the values of the first and the last colour, the same for both maps."""
        if isinstance(scale, tuple):
            return scale
        return 0.0, max(render.magnitude(values, scale) for values in self.maps) or 1.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.caption}; {counted(len(self.pairs), 'pair')})"


def _legend(contributions: list[float], width: int) -> Image.Image:
    """Draw the numbers of pairs with their contributions, as many as there is room for."""
    bar = Image.new("RGB", (width, _BAR), "white")
    pen = ImageDraw.Draw(bar)
    left = _GAP // 2
    for number, contribution in enumerate(contributions, start=1):
        tag, text = str(number), f"{contribution:+.3g}"
        font = render.font_for(text, _BAR * 0.55)
        end = left + tag_width(tag) + 5 + int(font.getlength(text))
        if end > width:
            break
        draw_tag(pen, left, 4, tag, COLOURS[(number - 1) % len(COLOURS)])
        pen.text((left + tag_width(tag) + 5, _BAR / 2), text, "black", font, "lm")
        left = end + 2 * _GAP
    return bar
