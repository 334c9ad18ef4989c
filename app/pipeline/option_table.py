"""What each option means, and its default: the schemas of requests and the commands are made from this table.

Without PyTorch and pydantic: the help and the completion of commands read it. Texts that name a route stand in the
schemas, those that name a command beside the command.
"""

from typing import Any, NamedTuple

from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL


class Option(NamedTuple):
    """An option.

    Attributes:
        text: what it means.
        default: None where the text says what is done without it.
    """

    text: str
    default: Any = None


METHOD = "gradcam"
"""The method that explains by default."""

SOURCE = Option("List only the models of one source.")

DRAWING = {
    "view": Option("The map over the picture, alone, or beside it.", "overlay"),
    "colormap": Option(f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps."),
    "alpha": Option("Strength of the overlay.", 0.5),
    "scale": Option(
        "`image` divides each map by its own maximum; `robust` by its 99th percentile, for fine maps with a few "
        "extreme pixels; `lo,hi` are fixed ends, so that pictures compare.",
        "image",
    ),
}

HEATMAP = {
    "layer": Option("Dotted module path or glob, repeatable (fused); by default the model's own.", []),
    "values": Option("Include the heatmap's numbers in a JSON answer.", False),
}

EXPLAIN = {
    "against": Option("Class index or label to contrast the explained class with: why this rather than that."),
    "target": Option("Class index or label, repeatable; by default the most probable class.", []),
    "top": Option("Explain the N most probable classes instead of `target`."),
}

PREDICT = {"top": Option("How many of the most probable classes to return.", 5)}

TRACE = {
    "target": Option("Class index or label; by default the most probable class."),
    "layer": Option("Dotted module path or glob, repeatable; by default all modules without submodules.", []),
}

CAPTURE = {
    "layer": Option("Dotted module path or glob, repeatable."),
    "kind": Option("What to capture, repeatable.", ["output"]),
    "target": Option("Class whose gradients; by default the most probable class."),
    "top": Option("How many feature maps a contact sheet shows.", 16),
    "rank": Option(
        "Rank the maps of a contact sheet by mean magnitude, or by that of the sum of output times gradient, an "
        "estimate of what the map does to the target's logit.",
        "activation",
    ),
}

INTERVENE = {
    "each_channel": Option(
        "Make a sweep: apply the only edit, of one layer's input or output, to each channel by itself, and rank the "
        "channels by what that does to the target.",
        False,
    ),
    "target": Option("Class index or label; by default the most probable one before the edits."),
    "top": Option("How many channels a drawn sweep shows.", 16),
}
