"""Deep feature factorisation: the regions that a layer takes for alike, and what the model makes of each."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from explainers.base import Question, asked
from explainers.cam import collect, grid_of
from explainers.errors import LayerError, OptionError
from explainers.explanation import Model
from explainers.geometry import Geometry
from explainers.goals import Goal
from explainers.hooks import HookSession
from explainers.passes import pass_size, passes
from explainers.picture import PictureSource, read_picture
from explainers.registry import get_method
from explainers.render import Style, View
from explainers.targets import Prediction, best, class_index, predictions

MOST = 64
"""Most regions of a factorisation."""

TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Parts:
    """The activations of a layer as a sum of regions times concepts.

    Attributes:
        goal: what is explained.
        logits: (N, K) float32.
        layer: its path.
        regions: (N, k, h, w) float32, not negative: how strong each concept is at each position.
        concepts: (N, k, C) float32, not negative, of length 1.
    """

    goal: Goal
    logits: Tensor
    layer: str
    regions: Tensor
    concepts: Tensor

    @property
    def everywhere(self) -> Tensor:
        """(N, k, h, w): regions that fill the layer, each as strong as its concept is where it is, on the average."""
        sums, squares = (self.regions.pow(power).sum(dim=(2, 3), keepdim=True) for power in (1, 2))
        return (squares / sums.clamp_min(TINY)).expand_as(self.regions)


@dataclass(frozen=True, eq=False)
class Factors:
    """Regions of a picture that a layer takes for alike, that which speaks most for the target first.

    Attributes:
        picture: the upright upload, RGB.
        geometry: which part of it the model saw.
        maps: (k, h, w) float32, not negative: how strong each concept is at each position of the layer.
        concepts: (k, C) float32: the features of each concept, of length 1.
        classes: of each concept, the most probable classes when it alone fills the layer.
        contributions: (k,) float32: the target's logit with nothing in the layer but this region, less that with
            nothing at all.
        target: the explained class.
        layer: its path.
    """

    picture: Image.Image
    geometry: Geometry
    maps: NDArray[np.float32]
    concepts: NDArray[np.float32]
    classes: tuple[tuple[Prediction, ...], ...]
    contributions: NDArray[np.float32]
    target: Prediction
    layer: str

    def panel(
        self,
        view: View = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: tuple[float, float] | None = None,
        max_side: int | None = None,
    ) -> Image.Image:
        """Return the regions, each drawn to its own maximum and labelled with its best class; see `Style`.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        from explainers.sheets import factor_sheet  # which draws much else

        return factor_sheet(self, Style(view, colormap, alpha, scale, max_side))

    def save(self, path: str | os.PathLike[str], **style: Any) -> Path:
        """Write `panel(**style)` to a file whose suffix names the format; return its path."""
        self.panel(**style).save(path)
        return Path(path)

    def _repr_png_(self) -> bytes:
        """Show the panel in a notebook."""
        png = io.BytesIO()
        self.panel(max_side=1200).save(png, "PNG")
        return png.getvalue()

    def __repr__(self) -> str:
        labels = ", ".join(found[0].label for found in self.classes)
        return f"Factors({len(self.maps)} regions of {self.layer}: {labels})"


def factorize(
    model: Model,
    picture: PictureSource,
    concepts: int = 5,
    layer: str | None = None,
    target: int | str | None = None,
    classes: int = 3,
    iterations: int = 200,
    seed: int = 0,
) -> Factors:
    """Cut a picture into regions that a layer of the model takes for alike, and say what the model makes of each.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        concepts: how many regions.
        layer: dotted path; None for the model's default.
        target: class index or label that the contributions are to; None for the most probable class.
        classes: how many classes to name for each concept.
        iterations, seed: of the factorisation.

    Raises:
        PictureError: the picture cannot be read.
        OptionError: a number out of bounds.
        LayerError, TargetError: a layer or class that the model lacks; or a layer that cannot be factorised.
    """
    if not 1 <= classes <= 1000:
        raise OptionError(f"classes is {classes}; it must lie between 1 and 1000.", field="classes")
    options = {"concepts": concepts, "iterations": iterations, "seed": seed}
    explainer: Any = get_method("dff").build(options if layer is None else {**options, "layers": (layer,)})
    upright = read_picture(picture)
    images = model.preprocess(upright)[None].to(model.device)
    targets = None if target is None else torch.tensor([class_index(target, model.labels)], device=model.device)
    with asked(model, images, targets) as question:
        parts = factorized(question, explainer.layers_of(question), concepts, iterations, seed)
        nothing = torch.zeros_like(parts.regions[:, :1])
        regions = torch.cat([nothing, parts.regions, parts.everywhere], dim=1)
        among = torch.cat([parts.concepts[:, :1], parts.concepts, parts.concepts], dim=1)
        logits = continued(question, parts.layer, regions, among)[0]
    scores = parts.goal.rows(torch.zeros(len(logits), dtype=torch.int64, device=logits.device)).scores(logits)
    gains = (scores[1 : concepts + 1] - scores[0]).cpu()
    order = gains.argsort(descending=True, stable=True)
    whole = parts.logits[0].cpu().numpy()
    index = int(parts.goal.targets[0])
    named = logits[concepts + 1 :].cpu()[order].numpy()
    return Factors(
        picture=upright,
        geometry=model.preprocess.geometry(upright.width, upright.height),
        maps=parts.regions[0].cpu()[order].numpy(),
        concepts=parts.concepts[0].cpu()[order].numpy(),
        classes=tuple(predictions(one, model.labels, best(one, classes)) for one in named),
        contributions=gains[order].numpy(),
        target=predictions(whole, model.labels, [index])[0],
        layer=parts.layer,
    )


def factorized(question: Question, layers: Sequence[str], count: int, iterations: int, seed: int) -> Parts:
    """Factorise the activations of a layer, each picture by itself; see `nonnegative_factors`.

    Raises:
        LayerError: several layers, or one that cannot carry a CAM, or whose activations are mostly negative.
    """
    evidence = collect(question, tuple(layers), None)
    if len(evidence.activations) != 1:
        raise LayerError(f"{', '.join(evidence.activations)} are several layers; choose one to factorise.")
    ((path, activations),) = evidence.activations.items()
    positive = activations.clamp_min(0)
    if bool((positive.square().sum(dim=(1, 2, 3)) < (activations - positive).square().sum(dim=(1, 2, 3))).any()):
        raise LayerError(
            f"The activations of layer {path!r} are mostly negative, and a non-negative factorisation would lose "
            "them; choose a layer after a rectifier (ReLU)."
        )
    height, width = activations.shape[2:]
    strengths, concepts = nonnegative_factors(positive.flatten(2).mT, count, iterations, seed)
    lengths = concepts.norm(dim=2).clamp_min(TINY)
    regions = (strengths * lengths[:, None]).mT.reshape(len(activations), count, height, width)
    return Parts(evidence.goal, evidence.logits, path, regions.float(), (concepts / lengths[:, :, None]).float())


def nonnegative_factors(values: Tensor, count: int, iterations: int, seed: int) -> tuple[Tensor, Tensor]:
    """Factorise non-negative matrices into non-negative factors, by hierarchical alternating least squares.

    Each column of the one and row of the other factor is set, in turn, to what makes the squared error smallest.
    All matrices start from the same random factors, scaled to each.

    Args:
        values: (N, P, C), not negative.
        count: rank of the factors.

    Returns:
        (N, P, count) and (N, count, C), float64.
    """
    values = values.double()
    generator = torch.Generator().manual_seed(seed)
    scale = (values.mean(dim=(1, 2), keepdim=True) / count).sqrt()
    left, right = (
        torch.rand(shape, generator=generator, dtype=torch.float64).to(values.device) * scale
        for shape in ((values.shape[1], count), (count, values.shape[2]))
    )
    for _ in range(iterations):
        right = _least_squares(left.mT @ left, left.mT @ values, right)
        left = _least_squares(right @ right.mT, right @ values.mT, left.mT).mT
    return left, right


def _least_squares(gram: Tensor, sides: Tensor, rows: Tensor) -> Tensor:
    """Return rows (N, k, M) after each was improved once, given the products (N, k, k) and (N, k, M)."""
    rows = rows.clone()
    for one in range(rows.shape[1]):
        change = sides[:, one] - (gram[:, one, None] @ rows)[:, 0]
        rows[:, one] = (rows[:, one] + change / gram[:, one, one, None].clamp_min(TINY)).clamp_min(0)
    return rows


def continued(question: Question, layer: str, regions: Tensor, concepts: Tensor) -> Tensor:
    """Return what the model says when a layer hands on nothing but a concept in a region.

    Args:
        question: whose pictures run through the model up to the layer.
        layer: its path; it runs once.
        regions: (N, R, h, w), how strong the concept is at each position.
        concepts: (N, R, C).

    Returns:
        Logits (N, R, K) float32.
    """
    images = question.images
    count, each = regions.shape[:2]
    regions, concepts = regions.flatten(0, 1), concepts.flatten(0, 1)
    owners = torch.arange(count, device=images.device).repeat_interleave(each)
    found = []
    for part in passes(len(owners), pass_size(question.module, images, backward=False), question.report):
        copies, features = images[owners[part]], torch.einsum("rhw,rc->rchw", regions[part], concepts[part])

        def replace_output(
            _module: nn.Module, _args: Any, output: Tensor, copies: Tensor = copies, features: Tensor = features
        ) -> Tensor:
            order = torch.tensor(grid_of(layer, [output], copies)).argsort().tolist()
            return features.permute(order).to(output.dtype).contiguous()

        with torch.no_grad(), HookSession(question.module) as hooks:
            hooks.after_forward(replace_output, layer)
            found.append(question.run(copies).float())
    return torch.cat(found).reshape(count, each, -1)
