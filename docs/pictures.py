"""Draws the pictures of the documentation: `make pictures`. A test holds the committed ones to what this draws."""

import copy
import io
import runpy
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file

from seewhy.explainers import capture, explain, intervene, similar, sweep_channels, trace
from seewhy.explainers.imaging.render import panel
from seewhy.explainers.inspection.trace_chart import draw_trace
from seewhy.models import LoadedModel, load_model, wrap_model

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = ("astronaut", "cat", "coffee", "rocket")


def pictures(model: LoadedModel) -> dict[str, Image.Image]:
    """Return every picture of the documentation by its file name."""
    astronaut, cat, coffee, rocket = (ROOT / "examples" / f"{name}.png" for name in EXAMPLES)
    targets = ("espresso", "cup")
    cups = [explain(model, coffee, target=target) for target in targets]
    captured = capture(model, cat, ["bn2"], ["output", "grad_output"], target="tabby")
    ranked = sweep_channels(model, cat, {"layer": "bn2", "op": "zero"}, target="tabby").channels
    ten = [effect.channel for effect in ranked[:10]]
    zeroed = intervene(model, cat, [{"layer": "bn2", "op": "zero", "channels": ten}], target="tabby")
    traced = trace(model, cat, target="tabby")
    chart = io.BytesIO(draw_trace(traced.events, traced.summary, "png", "efficientnet_lite0: tabby"))
    return {
        "trace.png": Image.open(chart).convert("RGB"),
        "capture.png": captured.sheet(rank="effect", max_side=1100),
        "intervene.png": zeroed.panel(),
        "alike.png": similar(model, astronaut, rocket).overlay(max_side=1000),
        "heatmap.png": explain(model, cat).overlay(),
        "side-by-side.png": explain(model, cat).overlay(view="side-by-side"),
        "espresso-and-cup.png": panel(
            [cup.overlay() for cup in cups],
            [f"{cup.target.label} {cup.target.probability:.1%}" for cup in cups],
        ),
        **_of_concepts(model, cat),
        "tutorial.png": _of_tutorial(),
    }


def _of_concepts(model: LoadedModel, cat: Path) -> dict[str, Image.Image]:
    """Return the pictures of the page about concepts."""
    layers = ("blocks.2", "blocks.4", "bn2")
    by_layer = [explain(model, cat, "layercam", "tabby", layer) for layer in layers]
    contrasts = [explain(model, cat, target="tabby", against=rival, sign="signed") for rival in (None, "tiger cat")]
    names, guessing = ("gradcam", "guided-backprop"), randomised(model, "classifier")
    explanations = {
        f"{name}{suffix}": explain(variant, cat, name, "tabby")
        for name in names
        for variant, suffix in ((model, ""), (guessing, ", random head"))
    }
    overlays = [explanation.overlay(max_side=360, scale="robust", alpha=0.75) for explanation in explanations.values()]
    return {
        "layers.png": panel(
            [cam.overlay(max_side=300) for cam in by_layer],
            [f"{layer}: {cam.map.shape[0]}x{cam.map.shape[1]}" for layer, cam in zip(layers, by_layer, strict=True)],
            columns=3,
        ),
        "contrast.png": panel(
            [cam.overlay(max_side=360) for cam in contrasts], ["tabby", "tabby rather than tiger cat"], columns=2
        ),
        "sanity.png": panel(overlays, list(explanations), columns=2),
    }


def _of_tutorial() -> Image.Image:
    """Return the heatmaps of both networks of the tutorial, for a scratch with a sticker."""
    cups = runpy.run_path(str(ROOT / "examples" / "cups.py"))
    overlays = []
    for name in ("cups", "cups-retrained"):
        module = cups["network"]().eval()
        module.load_state_dict(load_file(ROOT / "examples" / f"{name}.safetensors"))
        network = wrap_model(module, cups["LABELS"], input_size=64, mean=cups["MEAN"], std=cups["STD"])
        explanation = explain(network, cups["photograph"](2001, True, True).resize((320, 320)), target="scratched")
        overlays.append(explanation.overlay())
    return panel(overlays, ["first network", "retrained network"], columns=2)


def randomised(model: LoadedModel, *parts: str) -> LoadedModel:
    """Return a copy of a model in which modules whose paths begin so have random weights."""
    module = copy.deepcopy(model.module)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for path, part in module.named_modules():
            if path.startswith(parts) and hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return replace(model, module=module)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures(load_model("efficientnet_lite0")).items():
        picture.save(IMAGES / name, optimize=True)
