"""Writes a page of the site for each method, docs/methods/NAME.md, from the catalogue."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from docs.advice import ADVICE
from docs.methods import (
    FAMILIES,
    ROOT,
    advice,
    alternative,
    anchor,
    equations,
    file_of,
    is_photographed,
    notes,
    options,
    papers,
    subject,
)
from seewhy.explainers.core.costs import evaluate
from seewhy.explainers.methods.catalogue import METHODS, Method, list_methods

FOLDER = ROOT / "docs" / "methods"
NUMBERS = tuple(ROOT / "docs" / "trust" / f"efficientnet_lite0{few}.json" for few in ("", "-4"))
"""Measurements of the methods; the second file has those with many passes."""

NEEDS = {
    "layer": "a layer whose output is a grid over the picture",
    "gradient": "gradients",
    "attention": "attention of all tokens of the picture with each other",
    "region": "a region as target, so a segmenter",
    "boxes": "a detector",
}

EXAMPLES = {
    "transformer": ("vit_b_16", "tabby"),
    "boxes": ("fasterrcnn_resnet50_fpn", "box:0"),
    "region": ("deeplabv3_resnet50", "pixel:320,330"),
}
"""A model and a target for methods that the default model does not suit."""


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {f"{anchor(name)}.md": page(METHODS[name]) for name in list_methods()}


def page(method: Method) -> str:
    """Return the text of the page of a method."""
    title, _ = notes(method.explainer)
    lines = [f"# {title.partition(':')[0]} (`{method.name}`)", "", method.summary, ""]
    lines += [f"![{alternative(method)}](../images/methods/{file_of(method)})", "", _caption(method), ""]
    lines += [*advice(method, "{}.md"), *_facts(method), "", *_calls(method)]
    lines += ["## Equation", "", *equations(method), *papers(method)]
    lines += ["## Options", "", *options(method, method.options), ""]
    lines += ["## Related methods", ""]
    for name in ADVICE[method.name].related:
        lines.append(f"- [`{name}`]({anchor(name)}.md): {METHODS[name].summary}")
    lines += ["", "See also [all methods](../methods.md) and [which method?](../which-method.md)."]
    return "\n".join(lines) + "\n"


def _facts(method: Method) -> list[str]:
    family, _ = FAMILIES[method.family]
    grid = "a value for each pixel of the model's input" if method.fine else "coarser than the pixels"
    sign = "positive and negative" if method.signed else "not negative by default"
    classes = "depends on the class" if method.discriminates else "does not depend on the class, or hardly"
    rows = {
        "Cost": f"{_passes(method.forwards, 'forward', method)}, {_passes(method.backwards, 'backward', method)}, for "
        "each picture and class",
        "Needs": "; ".join(NEEDS[need] for need in method.needs) or "scores alone, so it works with every model",
        "Map": f"{grid}; {sign}; {classes}",
        "Family": f"[{family}](../methods.md#{family.lower().replace(' ', '-')})",
    }
    if measured := _measured(method):
        rows["Measured"] = measured
    return [f"| {name} | {text} |" for name, text in rows.items()]


def _passes(expression: str, kind: str, method: Method) -> str:
    default = {name: schema.get("default") for name, schema in method.options.items()}
    count = evaluate(expression, default)
    if expression.isdigit():
        return f"{expression} {kind} pass{'' if expression == '1' else 'es'}"
    return f"`{expression}` {kind} passes" + (f" ({count:,} by default)" if count is not None else "")


def _measured(method: Method) -> str:
    for file in NUMBERS:
        numbers = json.loads(file.read_text(encoding="utf-8"))
        if entry := numbers["methods"].get(method.name):
            return (
                f"on {numbers['model']} and {numbers['pictures']} photographs, {_mean(entry, 'gridpg'):.0%} of the map "
                "lies on the right one of four pictures (chance 25%; GridPG), and its rank correlation with the map of "
                f"an unlikely class is {entry['sanity']['same_for_an_unlikely_class']:.2f} (near 1: it hardly depends "
                "on the class). [Comparison](../trust.md)"
            )
    return ""


def _mean(entry: Mapping[str, Any], metric: str) -> float:
    return fmean(value for value in entry["values"][metric] if value is not None)


def _calls(method: Method) -> list[str]:
    kind = "transformer" if method.family == "transformer" else method.needs[-1] if method.needs else ""
    name, target = EXAMPLES.get(kind, ("efficientnet_lite0", "tabby"))
    return [
        "```python",
        "from seewhy import explain, load_model",
        "",
        f'model = load_model("{name}")',
        f'explain(model, "photo.jpg", "{method.name}", target="{target}").save("heatmap.png")',
        "```",
        "",
        "```console",
        f"seewhy explain photo.jpg --model {name} --method {method.name} --target {target} -o heatmap.png",
        f"curl -F image=@photo.jpg -F model={name} -F method={method.name} -F target={target} \\",
        "    http://127.0.0.1:8000/explain -o heatmap.png",
        "```",
        "",
        f"On tensors: `seewhy.{method.explainer.__name__}(...).explain(module, images, targets)`. See [Python "
        "API](../python.md), [command line](../cli.md) and [HTTP API](../http.md).",
        "",
    ]


def _caption(method: Method) -> str:
    if is_photographed(method):
        return "A cat above a cup of coffee, explained by EfficientNet-Lite0 for *tabby* and for *espresso*."
    model, _ = subject(method)
    return (
        "A disc, a triangle and a cross on a textured ground, explained by a small "
        f"{'vision ' if model == 'transformer' else ''}{model} that was trained on "
        "[such drawings](../which-method.md#drawing)."
    )


def write(folder: Path) -> None:
    """Write all pages into a folder, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.md"):
        file.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
