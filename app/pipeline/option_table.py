"""Help and default of each option, for the schemas of requests and for the commands.

Imports neither PyTorch nor pydantic: the help and completion of commands use it. Help that names a route is in the
schemas; help that names a command is beside the command.
"""

from typing import Any, NamedTuple

from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.explainers.tasks.choices import BOX_METHOD, DEFAULT_METHOD, REGION_METHOD
from seewhy.explainers.trust.choices import AREA, CONTROLS, DEFAULT_METRICS, FILLS


class Option(NamedTuple):
    """An option.

    Attributes:
        text: help.
        default: default value; None if the help describes the default.
    """

    text: str
    default: Any = None


METHOD = (
    f"By default that of SEEWHY_DEFAULT_METHOD, {DEFAULT_METHOD} unless it is set; {REGION_METHOD} of a segmenter, and "
    f"{BOX_METHOD} of a detector."
)
"""Help on the default method, which the model's task names."""

MASK = "For a segmenter: a picture as large as the upright one, not a JPEG, that is nonzero in the region to explain."

SOURCE = Option("List only the models of one source.")

DRAWING = {
    "view": Option("Draw the map over the picture, alone, or beside it.", "overlay"),
    "colormap": Option(f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps."),
    "alpha": Option("Opacity of the overlay, 0 to 1.", 0.5),
    "scale": Option(
        "`image` divides each map by its own maximum; `robust` by its 99th percentile, for fine maps with a few "
        "extreme pixels; `lo,hi` is a fixed range, so that pictures are comparable.",
        "image",
    ),
}

HEATMAP = {
    "layer": Option("Dotted module path or glob, repeatable (maps are fused); by default the model's own.", []),
    "values": Option("Include the heatmap's values in a JSON answer.", False),
}

_TARGET = (
    "Class index or label; of values `output:INDEX`, or `output:INDEX:down` for what lowers it; of a detector `box:N`, "
    "`box:X1,Y1,X2,Y2`, `label:NAME` for each of its boxes, or `region:X1,Y1,X2,Y2` for why there is none; of a "
    "segmenter also `pixel:X,Y`, the region there"
)

_DEFAULT = "by default the most probable class, the first value, the surest box, or the largest region"

EXPLAIN = {
    "against": Option("A second target to contrast the target with: why this class rather than that one."),
    "target": Option(f"{_TARGET}, repeatable; {_DEFAULT}.", []),
    "region": Option(
        "For a segmenter: average the logits over the target's `region`, its `border`, or the whole `picture`; by "
        "default over the region."
    ),
    "top": Option("Explain the N most probable classes instead of `target`."),
    "attribute": Option(
        "What of a detector's box is explained: `score`, an edge (`x1`, `y1`, `x2`, `y2`), `box` (width plus height), "
        "`objectness` or `mask`; by default `score`."
    ),
    "label": Option("Class of a box that `target` names by its place, such as `region:10,20,90,80`."),
}

PROOF = {
    "proof": Option(
        "How far the heatmap can be relied on, by two or three forward passes more: what the model says with the "
        "marked part alone, and without it. `full` tries the map's own turned and mirrored copies too, four passes "
        "more.",
        False,
    ),
    "proof_area": Option("Share of the model's input that the heatmap marks for the proof, 0.01 to 0.9.", AREA),
    "proof_fill": Option("What hides pixels for the proof: `blur`, or `mean`, the mean colour.", FILLS[0]),
}

PREDICT = {"top": Option("Number of most probable classes to return.", 5)}

SEGMENT = {
    "view": Option(
        "Draw the classes over the picture, above a legend; beside it too; or only the `mask`, a grey picture of class "
        "indices.",
        "overlay",
    ),
    "alpha": Option("Opacity of the colours, 0 to 1.", 0.5),
}

SIMILAR = {
    "scale": Option(
        "`image` divides both maps by the larger of their maxima; `robust` by that of their 99th percentiles; `lo,hi` "
        "is a fixed range.",
        "image",
    ),
    "top": Option("Number of the strongest pairs of patches.", 5),
}

EVALUATE = {
    "target": Option(f"{_TARGET}; {_DEFAULT}."),
    "controls": Option(f"Measure the controls, which know nothing of the class: {', '.join(CONTROLS)}.", True),
}

METRICS = Option("What is measured, repeated or separated by commas.", list(DEFAULT_METRICS))

TRUTH = "A picture as large as the upright one, not a JPEG, that is nonzero where the target lies."

TRACE = {
    "target": Option(f"{_TARGET}; {_DEFAULT}."),
    "layer": Option("Dotted module path or glob, repeatable; by default all modules without submodules.", []),
}

CAPTURE = {
    "layer": Option("Dotted module path or glob, repeatable."),
    "kind": Option("What to capture, repeatable.", ["output"]),
    "target": Option(f"What the gradients are of. {_TARGET}; {_DEFAULT}."),
    "top": Option("Number of feature maps on a contact sheet.", 16),
    "rank": Option(
        "Rank the maps of a contact sheet by mean magnitude, or by the magnitude of the sum of output times "
        "gradient, an estimate of the map's effect on the target's logit.",
        "activation",
    ),
}

INTERVENE = {
    "each_channel": Option(
        "Sweep: apply the only edit, of one layer's input or output, to each channel by itself, and rank the "
        "channels by its effect on the target.",
        False,
    ),
    "target": Option(f"{_TARGET}; {_DEFAULT} before the edits."),
    "top": Option("Number of channels in a drawn sweep.", 16),
}
