"""What each option means: the schemas of requests and the help of commands say it in these words.

Texts that name a route stand in the schemas, those that name a command beside the command.
"""

from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL

SOURCE = "List only the models of one source."

DRAWING = {
    "view": "The map over the picture, alone, or beside it.",
    "colormap": f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps.",
    "alpha": "Strength of the overlay.",
    "scale": "`image` divides each map by its own maximum; `robust` by its 99th percentile, for fine maps with "
    "a few extreme pixels; `lo,hi` are fixed ends, so that pictures compare.",
}

HEATMAP = {
    "layer": "Dotted module path or glob, repeatable (fused); by default the model's own.",
    "values": "Include the heatmap's numbers in a JSON answer.",
}

EXPLAIN = {
    "against": "Class index or label to contrast the explained class with: why this rather than that.",
    "target": "Class index or label, repeatable; by default the most probable class.",
    "top": "Explain the N most probable classes instead of `target`.",
}

PREDICT = {"top": "How many of the most probable classes to return."}

TRACE = {
    "target": "Class index or label; by default the most probable class.",
    "layer": "Dotted module path or glob, repeatable; by default all modules without submodules.",
}

CAPTURE = {
    "layer": "Dotted module path or glob, repeatable.",
    "kind": "What to capture, repeatable.",
    "target": "Class whose gradients; by default the most probable class.",
    "top": "How many feature maps a contact sheet shows.",
    "rank": "Rank the maps of a contact sheet by mean magnitude, or by that of the sum of output times "
    "gradient, an estimate of what the map does to the target's logit.",
}

INTERVENE = {
    "each_channel": "Make a sweep: apply the only edit, of one layer's input or output, to each channel by itself, and "
    "rank the channels by what that does to the target.",
    "target": "Class index or label; by default the most probable one before the edits.",
    "top": "How many channels a drawn sweep shows.",
}
