"""Draws the pictures of the documentation: `make pictures`. A test holds the committed ones to what this draws."""

import io
from pathlib import Path

from PIL import Image

from explainers import capture, explain, intervene, sweep_channels, trace
from explainers.capturing import strongest
from explainers.charts import draw_trace
from explainers.picture import read_picture
from explainers.render import Style, panel
from explainers.sheets import contact_sheet, intervention_panel
from models import LoadedModel, load_model

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


def pictures(model: LoadedModel) -> dict[str, Image.Image]:
    """Return every picture of the documentation by its file name."""
    cat, coffee = ROOT / "examples" / "cat.png", ROOT / "examples" / "coffee.png"
    targets = ("espresso", "cup")
    cups = [explain(model, coffee, target=target) for target in targets]
    upright = read_picture(cat)
    geometry = model.preprocess.geometry(upright.width, upright.height)
    captured = capture(model, cat, ["bn2"], ["output", "grad_output"], target="tabby")
    ranked = sweep_channels(model, cat, {"layer": "bn2", "op": "zero"}, target="tabby").channels
    ten = [effect.channel for effect in ranked[:10]]
    zeroed = intervene(model, cat, [{"layer": "bn2", "op": "zero", "channels": ten}], target="tabby")
    drawn = io.BytesIO(draw_trace(trace(model, cat, target="tabby"), "png", "efficientnet_lite0: tabby"))
    return {
        "trace.png": Image.open(drawn).convert("RGB"),
        "capture.png": contact_sheet(
            strongest(captured, 16, by_effect=True), upright, geometry, Style(max_side=1100), by_effect=True
        ),
        "intervene.png": intervention_panel(zeroed.before, zeroed.after, Style()),
        "heatmap.png": explain(model, cat).overlay(),
        "side-by-side.png": explain(model, cat).overlay(view="side-by-side"),
        "espresso-and-cup.png": panel(
            [cup.overlay() for cup in cups],
            [f"{cup.target.label} {cup.target.probability:.1%}" for cup in cups],
        ),
        "saliency.png": explain(model, cat, method="saliency").overlay(alpha=0.8),
    }


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures(load_model("efficientnet_lite0")).items():
        picture.save(IMAGES / name, optimize=True)
