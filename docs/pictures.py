"""Draws the pictures of the documentation: `make pictures`. A test holds the committed ones to what this draws."""

from pathlib import Path

from PIL import Image

from explainers import explain
from explainers.render import panel
from models import LoadedModel, load_model

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


def pictures(model: LoadedModel) -> dict[str, Image.Image]:
    """Return every picture of the documentation by its file name."""
    cat, coffee = ROOT / "examples" / "cat.png", ROOT / "examples" / "coffee.png"
    targets = ("espresso", "cup")
    cups = [explain(model, coffee, target=target) for target in targets]
    return {
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
