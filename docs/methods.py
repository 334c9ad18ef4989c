"""Writes docs/methods.md and draws its pictures from the catalogue: `make methods`. Tests hold both to what it says."""

import re
import sys
from collections.abc import Iterable
from inspect import cleandoc
from pathlib import Path
from typing import Any

from PIL import Image

from seewhy.explainers import explain
from seewhy.explainers.imaging.render import panel
from seewhy.explainers.methods.catalogue import COMMON, METHODS, Method, list_methods
from seewhy.models import LoadedModel, load_model

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
IMAGES = ROOT / "docs" / "images" / "methods"
FAMILIES = {
    "cam": ("Class activation maps", "made of the feature maps of a layer; coarse, and placed where the layer looks."),
    "gradient": ("Gradients", "made of gradients of the class's score by the pixels; fine, and noisy where alone."),
    "rule": ("Other rules for the backward pass", "that go back layer by layer by other rules than the derivative."),
    "transformer": ("Transformers", "for models that compute attention."),
    "perturbation": ("Perturbations", "that change the picture and watch the score; no gradient, many passes."),
    "concept": ("Concepts", "that a layer tells apart."),
    "control": ("Controls", "that know no class: a method that [metrics](metrics.md) find no better shows nothing."),
}
CHEAPER: dict[str, dict[str, Any]] = {
    "sscam": {"layer": "blocks.6", "samples": 4, "std": 0.5},
    "iscam": {"layer": "blocks.6", "samples": 4},
}
"""Options of the pictures of methods that would take many minutes otherwise."""

TARGETS = ("tabby", "espresso")


def picture() -> Image.Image:
    """Return the picture of the page: the cat above, the cup of coffee below, RGB, 448 by 448."""
    sheet = Image.new("RGB", (448, 448))
    for top, name in ((0, "cat.png"), (224, "coffee.png")):
        with Image.open(ROOT / "examples" / name) as image:
            upright = image.convert("RGB")
        height = round(upright.height * 448 / upright.width)
        resized = upright.resize((448, height), Image.Resampling.LANCZOS)
        start = (height - 224) // 2
        sheet.paste(resized.crop((0, start, 448, start + 224)), (0, top))
    return sheet


def drawing(model: LoadedModel, method: Method) -> Image.Image:
    """Return the heatmaps of a method for both classes of the picture, beside each other."""
    options = CHEAPER.get(method.name, {})
    explanations = [explain(model, picture(), method.name, target, **options) for target in TARGETS]
    captions = [f"{method.name}: {explanation.target.label}" for explanation in explanations]
    if explanations[0].regions:
        return panel([explanation.overlay(max_side=600) for explanation in explanations], captions, columns=1)
    # Of maps as fine as the pixels a few are extreme.
    fine = {"scale": "robust", "alpha": 0.75} if method.fine else {}
    return panel([explanation.overlay(max_side=300, **fine) for explanation in explanations], captions, columns=2)


def page() -> str:
    """Return the text of the page."""
    lines = [
        "# Methods",
        "",
        "Made by `make methods` from the catalogue that also answers `GET /methods` and `seewhy methods`. Every method "
        "takes the same arguments, and each picture shows the same photographs, a cat above a cup of coffee, explained "
        f"by EfficientNet-Lite0 for *{TARGETS[0]}* and for *{TARGETS[1]}* with the options left alone (fine maps are "
        "drawn with `scale=robust`); methods that read attention or boxes, which it lacks, have no picture. "
        "Costs are "
        "forward and backward passes per picture and class; `channels` are those of the layer. "
        "[Peers](peers.md) compares the maps with those of other libraries, and a page says how to "
        "[add one](add-a-method.md).",
        "",
        "These options go with every method (where one has no effect, or another meaning, the method's own table says "
        "so). A method is signed where its map, left alone, has negative values for evidence against the class.",
        "",
        *_options(METHODS["gradcam"], (*COMMON, "layers")),
        "",
        "`sign` and `smooth` go with all of them, `layer` with those that look at layers. So do `against`, which "
        "contrasts the class with another (*why tabby rather than tiger cat*), several `target`s, and several methods "
        "in one request: `method=gradcam,layercam,hirescam` costs one forward and one backward pass, and the JSON "
        "answer says "
        "how much the maps agree.",
        "",
    ]
    for family, (title, summary) in FAMILIES.items():
        methods = [METHODS[name] for name in list_methods() if METHODS[name].family == family]
        if not methods:
            continue
        lines += [f"## {title}", "", f"Methods {summary}" if family != "concept" else f"Regions {summary}", ""]
        lines += ["| method | shows | forwards | backwards | signed |", "| --- | --- | --- | --- | --- |"]
        for method in methods:
            signed = "yes" if method.signed else "no"
            lines.append(
                f"| [`{method.name}`](#{_anchor(method.name)}) | {method.summary} | {method.forwards} | "
                f"{method.backwards} | {signed} |"
            )
        lines.append("")
        for method in methods:
            lines += _section(method)
    return "\n".join(lines).rstrip() + "\n"


def _section(method: Method) -> list[str]:
    paper = method.paper
    title, text = notes(method.explainer)
    picture = f"![{method.name} for {TARGETS[0]} and for {TARGETS[1]}](images/methods/{_file(method)})"
    lines = [f"### `{method.name}`", "", title, "", *([picture, ""] if is_drawn(method) else [])]
    for equation in re.split(r"\n\s*\n", method.equation):
        lines += ["```math", equation, "```", ""]
    if options := CHEAPER.get(method.name):
        settings = ", ".join(f"`{name}={value}`" for name, value in options.items())
        lines += [f"The picture is drawn with {settings}, for time's sake.", ""]
    lines += [text, ""] if text else []
    if method.rounding:
        lines += [f"Rounding can decide {method.rounding}; answers say so (`rounding-decides`).", ""]
    lines += [f"{paper.authors}: [{paper.title}]({paper.url}), {paper.year}.", ""] if paper else []
    shared = METHODS["gradcam"].options
    own = [name for name, schema in method.options.items() if schema != shared.get(name)]
    return [*lines, *_options(method, own), ""] if own else lines


def notes(kind: type[Any]) -> tuple[str, str]:
    """Return the first sentence of a class's docstring, and what it says around the equation, in Markdown."""
    text = cleandoc(kind.__doc__ or "")
    text = re.sub(r"^\.\. math::(.*?)(?=^\S|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\nAttributes:\n(?:[ \t]+.*\n?|\n)*", "\n", text)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"``([^`]*)``", r"`\1`", text)
    title, _, rest = text.partition("\n\n")
    return " ".join(title.split()), re.sub(r"\n{3,}", "\n\n", rest).strip()


def _options(method: Method, names: Iterable[str]) -> list[str]:
    lines = ["| option | meaning | values | default |", "| --- | --- | --- | --- |"]
    for name in names:
        schema = method.options[name]
        label = "layer" if name == "layers" else name
        default = schema.get("default")
        text = "the model's own" if name == "layers" else f"`{default}`"
        if method is METHODS["gradcam"] and name == "sign":
            text = "`positive`, or as the method's own table has it"
        lines.append(f"| `{label}` | {schema['description']} | {values_of(schema)} | {text} |")
    return lines


def values_of(schema: dict[str, Any]) -> str:
    """Return what an option may be, by its schema, in Markdown."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(values_of(variant) for variant in schema["anyOf"])
    kind = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}
    noun = kind.get(schema.get("type", ""), "repeatable" if schema.get("type") == "array" else schema.get("type", ""))
    bounds = [("minimum", "from"), ("exclusiveMinimum", "over"), ("maximum", "to"), ("exclusiveMaximum", "under")]
    limits = [f"{word} {_number(schema[bound])}" for bound, word in bounds if bound in schema]
    return " ".join([noun, *limits])


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", name)


def _file(method: Method) -> str:
    return f"{method.name.replace('+', 'p')}.jpg"


def is_drawn(method: Method) -> bool:
    """Whether the page has a picture of a method: the model of the pictures is a classifier without attention."""
    return not {"attention", "region", "boxes"}.intersection(method.needs)


def main(names: list[str]) -> None:
    """Write the page, and draw the pictures of these methods, or of all."""
    PAGE.write_text(page(), encoding="utf-8")
    IMAGES.mkdir(parents=True, exist_ok=True)
    model = load_model("efficientnet_lite0")
    for method in METHODS.values():
        if is_drawn(method) and (not names or method.name in names):
            drawing(model, method).save(IMAGES / _file(method), quality=85, optimize=True)
            print(method.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
