"""Help and default of each option, for the schemas of requests and for the commands.

Imports neither PyTorch nor pydantic: the help and completion of commands use it. Help that names a route is in the
schemas; help that names a command is beside the command.
"""

from typing import Any, NamedTuple

from seewhy.explainers.core.choices import AREA, FILLS
from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.explainers.tasks.choices import BOX_METHOD, DEFAULT_METHOD, REGION_METHOD
from seewhy.explainers.trust.choices import CONTROLS, DEFAULT_METRICS


class Option(NamedTuple):
    """An option.

    Attributes:
        text: help.
        default: default value; None if the help describes the default.
    """

    text: str
    default: Any = None


METHOD = (
    f"The default is that of SEEWHY_DEFAULT_METHOD ({DEFAULT_METHOD} unless set), {REGION_METHOD} for segmenters and "
    f"{BOX_METHOD} for detectors."
)
"""Help on the default method, which the model's task names."""

MASK = (
    "For a segmenter, the region to explain: a picture of the same size (after EXIF rotation) with nonzero pixels "
    "there. Not a JPEG."
)

SOURCE = Option("List only the models of one source.")

DRAWING = {
    "view": Option(
        "Draw the map over the picture (overlay), alone (heatmap), or next to it (side-by-side).", "overlay"
    ),
    "colormap": Option(f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps."),
    "alpha": Option("Opacity of the overlay, 0 to 1.", 0.5),
    "scale": Option(
        "`image` divides each map by its own maximum; `robust` by its 99th percentile, for pixel-level maps with a "
        "few extreme pixels; `lo,hi` is a fixed range, to compare pictures.",
        "image",
    ),
}

HEATMAP = {
    "layer": Option(
        "Dotted module path or glob, repeatable to fuse the maps of several layers; by default the "
        "model's default layer.",
        [],
    ),
    "values": Option("Include the heatmap's values in JSON.", False),
}

_TARGET = (
    "Class index or label. For regression: `output:INDEX`, or `output:INDEX:down` to explain what lowers the value. "
    "For a detector: `box:N`, `box:X1,Y1,X2,Y2`, `label:NAME` for each box of a class, or `region:X1,Y1,X2,Y2` to "
    "explain why there is no box. For a segmenter: also `pixel:X,Y` for the region at a pixel."
)

_DEFAULT = "Default: the most probable class, the first value, the box with the highest score, or the largest region"

EXPLAIN = {
    "against": Option("A second target to contrast the target with: why this class rather than that one."),
    "target": Option(f"{_TARGET} Repeatable. {_DEFAULT}.", []),
    "region": Option(
        "For a segmenter: average the logits over the target's `region`, its `border`, or the whole `picture`; by "
        "default over the region."
    ),
    "top": Option("Explain the N most probable classes instead of `target`; all if the model has fewer."),
    "attribute": Option(
        "Property of a detector's box to explain: `score`, an edge (`x1`, `y1`, `x2`, `y2`), `box` (width plus "
        "height), `objectness` or `mask`; by default `score`."
    ),
    "label": Option("Class of a box that `target` names by its place, such as `region:10,20,90,80`."),
}

PROOF = {
    "proof": Option(
        "Test the heatmap on the model with two or three extra forward passes: on the marked part alone, and without "
        "it. `full` also tries rotated and mirrored copies of the map, with four more passes.",
        False,
    ),
    "proof_area": Option("Share of the model's input that the heatmap marks for the proof, 0.01 to 0.9.", AREA),
    "proof_fill": Option("What hides pixels in the proof: a `blur`, or the `mean` colour.", FILLS[0]),
}

PREDICT = {"top": Option("Number of most probable classes to return; all if the model has fewer.", 5)}

SEGMENT = {
    "view": Option(
        "`overlay`: the classes over the picture, with a legend. `side-by-side`: the picture beside it. `mask`: a "
        "grayscale picture of class indices.",
        "overlay",
    ),
    "alpha": Option("Opacity of the colours, 0 to 1.", 0.5),
}

SIMILAR = {
    "scale": Option(
        "`image` divides both maps by the larger of their maxima; `robust` by the larger of their 99th percentiles; "
        "`lo,hi` is a fixed range.",
        "image",
    ),
    "top": Option("Number of pairs of patches, the strongest first.", 5),
}

EVALUATE = {
    "target": Option(f"{_TARGET} {_DEFAULT}."),
    "controls": Option(f"Also measure the controls, which do not depend on the class: {', '.join(CONTROLS)}.", True),
}

METRICS = Option("Names of metrics, repeated or separated by commas.", list(DEFAULT_METRICS))

TRUTH = "Where the target is: a picture of the same size (after EXIF rotation) with nonzero pixels there. Not a JPEG."

TRACE = {
    "target": Option(f"{_TARGET} {_DEFAULT}."),
    "layer": Option("Dotted module path or glob, repeatable; by default all modules without submodules.", []),
}

CAPTURE = {
    "layer": Option("Dotted module path or glob, repeatable."),
    "kind": Option("What to capture, repeatable.", ["output"]),
    "target": Option(f"Target of the gradients. {_TARGET} {_DEFAULT}."),
    "top": Option("Number of feature maps on a contact sheet.", 16),
    "rank": Option(
        "Rank the maps of a contact sheet by mean magnitude, or by the magnitude of the sum of output times "
        "gradient, an estimate of the map's effect on the target's logit.",
        "activation",
    ),
}

INTERVENE = {
    "each_channel": Option(
        "Sweep: apply a single edit, of one layer's input or output, to each channel separately, and rank the "
        "channels by its effect on the target.",
        False,
    ),
    "target": Option(f"{_TARGET} {_DEFAULT} before the edits."),
    "top": Option("Number of channels in a drawn sweep.", 16),
}
