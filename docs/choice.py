"""Writes docs/which-method.md and draws its chart: `make methods`. Tests hold both to what this writes."""

import json
from html import escape

from docs.methods import (
    ACCURACIES,
    DRAWING,
    FAMILIES,
    ROOT,
    alternative,
    anchor,
    file_of,
    is_photographed,
    link,
)
from seewhy.explainers.methods.catalogue import METHODS, Method, list_methods

PAGE = ROOT / "docs" / "which-method.md"
CHART = ROOT / "docs" / "images" / "which-method.svg"

CHOICES: dict[str, tuple[tuple[str, tuple[str, ...], str], ...]] = {
    "Classifier": (
        ("Where is the evidence for the class?", ("gradcam",), "fast, and works with every CNN; coarse"),
        (
            "The same, but finer",
            ("votes-detail", "lrp"),
            "`votes-detail` keeps more of its map on the class, but needs a linear head after pooling; `lrp` is as "
            "fine as the pixels",
        ),
        (
            "What distinguishes it from a similar class?",
            ("finercam",),
            "compares with the nearest classes; most methods compare with a class that you name in `against`",
        ),
        (
            "Which pixels raise the score?",
            ("integrated-gradients", "smoothgrad"),
            "`integrated-gradients` sums to the change of the score since a baseline; `smoothgrad` shows sensitivity",
        ),
        (
            "What happens if parts are hidden?",
            ("occlusion", "rise"),
            "measured, without gradients or layers; many passes",
        ),
        ("How much does each part contribute?", ("kernel-shap", "lime"), "one number for each segment; many passes"),
        ("Which concepts does a layer separate?", ("dff",), "regions, each with the classes that it speaks for"),
    ),
    "Vision transformer": (
        (
            "Where is the evidence for the class?",
            ("legrad", "attnlrp"),
            "`legrad` is coarse, `attnlrp` fine; no layer to choose",
        ),
    ),
    "Detector": (
        ("Why this box?", ("odam",), "distinguishes boxes of the same class; two passes"),
        ("What happens if parts are hidden?", ("drise",), "without gradients; many passes"),
    ),
    "Segmenter": (
        ("Why this region?", ("hirescam",), "the default method for segmenters; two passes"),
        (
            "What outside the region matters?",
            ("grid-saliency",),
            "the smallest context that keeps the prediction; many passes",
        ),
    ),
}
"""What readers have, what they ask, and the methods that answer, with the reasons."""

COLUMNS = 3
ROW, GAP, TOP = 44, 16, 44
LEFT, MIDDLE, RIGHT, WIDTH = 16, 236, 620, 980
SIDE, CENTRE = 184, 344


def page() -> str:
    """Return the text of the page."""
    lines = [
        "# Which method?",
        "",
        "Start with your model and your question.",
        "",
        f"![{_sentence()}](images/{CHART.name})",
        "",
        "| model | question | method | why |",
        "| --- | --- | --- | --- |",
    ]
    for model, questions in CHOICES.items():
        for question, names, reason in questions:
            lines.append(f"| {model} | {question} | {', '.join(map(link, names))} | {reason} |")
    lines += [
        "",
        "To compare two pictures by their embeddings, use [`similar`](python.md#similarity-of-two-pictures).",
        "",
        "Then check the heatmap. A [proof](proofs.md) tests a single one, and [metrics](metrics.md) compare methods "
        "with controls over many pictures. On the [networks that we measured](trust.md), `layercam`, `gradcam++`, "
        "`fullgrad`, `guided-backprop` and `eigencam` draw nearly the same map for an unlikely class, so they do not "
        "tell you why the model chose this one.",
        "",
        "## Gallery",
        "",
        "All methods on one picture, a cat above a cup of coffee, for *tabby* (left) and *espresso* (right). A good "
        "map of one class leaves out the other. The model is EfficientNet-Lite0; methods that it does not suit explain "
        "[a drawing](#drawing). Click a picture for the equation, the paper and the options.",
        "",
    ]
    for family, (title, _) in FAMILIES.items():
        methods = [METHODS[name] for name in list_methods() if METHODS[name].family == family]
        cells = [_cell(method) for method in methods]
        lines += [f"### {title}", "", f"|{' |' * COLUMNS}", f"|{' --- |' * COLUMNS}"]
        rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
        lines += [f"| {' | '.join(row + [''] * (COLUMNS - len(row)))} |" for row in rows]
        lines.append("")
    others = [name for name in list_methods() if not is_photographed(METHODS[name])]
    shares = {name: f"{share:.1%}" for name, share in json.loads(ACCURACIES.read_text(encoding="utf-8")).items()}
    lines += [
        "### Drawing",
        "",
        f"{', '.join(map(link, others))} need attention, boxes or regions, which EfficientNet-Lite0 does not have. "
        "They explain this drawing:",
        "",
        f"![A disc, a triangle and a cross on a textured ground](images/{DRAWING.name})",
        "",
        "The networks are small ones that `python -m docs.drawn` trains on such drawings. They were measured on 512 "
        "drawings that they had not seen:",
        "",
        f"- A vision transformer says which of the three shapes are in a drawing. In {shares['transformer']} of the "
        "drawings, it is right about all three. `attention-rollout` draws the same map for every class. `chefer` "
        "and `legrad` are strongest at the shape that they explain, but show others too.",
        f"- A detector finds exactly the shapes in a drawing, each with its class, in {shares['detector']} of the "
        "drawings.",
        "- A segmenter also says whether a cross has a disc in its drawing, and a triangle a cross, so it needs the "
        f"context that `grid-saliency` shows. It is right about {shares['segmenter']} of the pixels of shapes.",
    ]
    return "\n".join(lines) + "\n"


def _cell(method: Method) -> str:
    picture = f"![{alternative(method)}](images/methods/{file_of(method)})"
    return f"[{picture}](methods.md#{anchor(method.name)})<br>{link(method.name)} {method.summary}"


def _sentence() -> str:
    ways = [f"{model}: {', '.join(questions[0][1])}" for model, questions in CHOICES.items()]
    return f"From the model and the question to a method, as in the table below. {'; '.join(ways)}"


def chart() -> str:
    """Return the chart as SVG: models on the left, questions in the middle, methods on the right."""
    boxes, lines, top = list[str](), list[str](), TOP
    for model, questions in CHOICES.items():
        middle = top + ROW * len(questions) / 2
        boxes.append(_box(LEFT, middle, SIDE, model, "model"))
        for place, (question, names, _) in enumerate(questions):
            height = top + ROW * (place + 0.5)
            boxes.append(_box(MIDDLE, height, CENTRE, question, "question"))
            lines.append(_curve(LEFT + SIDE, middle, MIDDLE, height))
            lines.append(_curve(MIDDLE + CENTRE, height, RIGHT, height))
            boxes.append(_box(RIGHT, height, WIDTH - RIGHT - LEFT, "  or  ".join(names), "method"))
        top += ROW * len(questions) + GAP
    titles = zip((LEFT, MIDDLE, RIGHT), ("Your model", "Your question", "The method"), strict=True)
    heads = [f'<text class="head" x="{left}" y="26">{title}</text>' for left, title in titles]
    style = (
        "text{font:15px system-ui,sans-serif;fill:#1d1d1f}.head{font-weight:600;fill:#6b6375}"
        ".model rect{fill:#8a2a6b}.model text{fill:#fff;font-weight:600}.question rect{fill:#f4eef3;stroke:#d9c7d4}"
        ".method rect{fill:#fff3d6;stroke:#e0b44c}.method text{font-family:ui-monospace,monospace}"
        "path{fill:none;stroke:#b9a3b3;stroke-width:1.5}"
    )
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    body = "\n".join([*heads, *lines, *boxes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n'
        f'<rect width="{WIDTH}" height="{top}" rx="12" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _box(left: float, middle: float, width: float, text: str, kind: str) -> str:
    rectangle = f'<rect x="{left}" y="{middle - 16:g}" width="{width}" height="32" rx="8"/>'
    return f'<g class="{kind}">{rectangle}<text x="{left + 12}" y="{middle + 5:g}">{escape(text)}</text></g>'


def _curve(left: float, top: float, right: float, bottom: float) -> str:
    centre = (left + right) / 2
    return f'<path d="M{left:g} {top:g}C{centre:g} {top:g} {centre:g} {bottom:g} {right:g} {bottom:g}"/>'


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    CHART.write_text(chart(), encoding="utf-8")
