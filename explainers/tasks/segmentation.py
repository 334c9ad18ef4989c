"""Segmentation: a logit for each class at each position; a class's mean logit over a region is explained."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.ask import MOST_PROBABLE, NO_CONTRAST, Ask, Targets
from seewhy.explainers.core.attribution import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.errors import ModelOutputError, TargetError
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.tasks.classification import class_index

Part = Literal["region", "border", "picture"]
"""Where logits are averaged: over the region that the model gives the class, over its border, or everywhere."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Region:
    """What is asked of a segmenter about one picture: a class, and where its logits are averaged.

    Attributes:
        label: class index; None for the one that the model gives the pixel, or most of the mask.
        part: of the predicted region; without effect on a mask.
        pixel: x and y in pixels of the picture, or, once placed, as fractions of the model's input: the region is the
            connected one there. None for the whole region of the class.
        mask: (h, w), the region, over the picture, or, once placed, over the model's input; None to predict it.
        name: as users name it.
    """

    label: int | None
    part: Part = "region"
    pixel: tuple[float, float] | None = None
    mask: Mask | None = None
    name: int | str = ""

    @property
    def is_plural(self) -> bool:
        """Return no: it is one region."""
        return False

    def placed(self, geometry: Geometry) -> Self:
        """Return the target with its pixel and mask in the model's input.

        Raises:
            TargetError: the model does not see the pixel, or nothing of the mask.
        """
        left, top, right, bottom = geometry.box
        if self.pixel is not None:
            x, y = ((self.pixel[0] + 0.5 - left) / (right - left), (self.pixel[1] + 0.5 - top) / (bottom - top))
            if not (0 <= x < 1 and 0 <= y < 1 and self.pixel[0] < geometry.width and self.pixel[1] < geometry.height):
                raise TargetError(
                    f"The model does not see pixel {self.name}: it sees x from {max(left, 0):.0f} to "
                    f"{min(right, geometry.width) - 1:.0f} and y from {max(top, 0):.0f} to "
                    f"{min(bottom, geometry.height) - 1:.0f} of this picture."
                )
            return replace(self, pixel=(x, y))
        if self.mask is not None:
            return replace(self, mask=_seen(self.mask, geometry))
        return self

    def mirrored(self) -> Self:
        """Return the target of the mirrored picture."""
        pixel = None if self.pixel is None else (1 - self.pixel[0], self.pixel[1])
        return replace(self, pixel=pixel, mask=None if self.mask is None else self.mask[:, ::-1].copy())


@dataclass(frozen=True)
class Segmentation:
    """Tells which class each position of a picture belongs to.

    Outputs are logits (N, K, H, W). Without a target, the class of the largest region is explained.

    Attributes:
        labels: one per class; empty for ``class 0``, ``class 1`` and so on.
    """

    labels: Sequence[str] = ()

    def outputs(self, raw: Any) -> Tensor:
        """Return the logits (N, K, H, W) in the module's result: itself, ``["out"]``, or the only such tensor.

        Raises:
            ModelOutputError: there are none.
        """
        logits = raw.get("out") if isinstance(raw, dict) else getattr(raw, "logits", None)
        tensors = [logits] if isinstance(logits, Tensor) else tree_flatten(raw)[0]
        grids = [value for value in tensors if isinstance(value, Tensor) and value.ndim == 4]
        if len(grids) != 1 or not grids[0].is_floating_point() or 0 in grids[0].shape:
            raise ModelOutputError(
                f"Expected logits of shape (N, K, H, W) from the model, found {len(grids)} such tensors in its "
                f"{type(raw).__name__}; wrap the model so that it returns them, alone or as ['out']."
            )
        return grids[0]

    def objective(self, outputs: Tensor, ask: Ask) -> "RegionObjective":
        """Return the checked regions to explain.

        Raises:
            TargetError: the model predicts no such region, or a class is contrasted with itself.
        """
        predicted = outputs.detach().argmax(dim=1)
        regions = ask.targets if isinstance(ask.targets, tuple) else _of_classes(ask.targets, len(outputs))
        pairs = [self._resolved(region, classes) for region, classes in zip(regions, predicted, strict=True)]
        weights = torch.stack([mask / mask.sum() for _, mask in pairs]).to(torch.float32)
        targets = torch.tensor([label for label, _ in pairs], device=outputs.device)
        against = None
        if ask.against is not None:
            against = ask.against.to(outputs.device, torch.int64)
            same = (against != NO_CONTRAST) & (against == targets)
            require(~same.any(), lambda: TargetError("A class is contrasted with itself; name two classes."))
        return RegionObjective(targets, against, weights=weights)

    def _resolved(self, region: Any, predicted: Tensor) -> tuple[int, Tensor]:
        """Return the class of a target and its mask (H, W), given the predicted classes (H, W)."""
        if region is None:
            region = Region(int(predicted.flatten().bincount().argmax()))
        if region.mask is not None:
            mask = _resized(region.mask, predicted)
            label = region.label
            return int(predicted[mask].bincount().argmax()) if label is None else label, mask
        if region.pixel is not None:
            return _around(region, predicted)
        label = int(region.label or 0)
        if region.part == "picture":
            return label, torch.ones_like(predicted, dtype=torch.bool)
        mask = predicted == label
        if not mask.any():
            present = ", ".join(repr(self._label(index)) for index in sorted(set(predicted.flatten().tolist())))
            raise TargetError(
                f"The model gives no position of this picture to {self._label(label)!r}, only to {present}; ask about "
                "one of these, or add :picture for the mean over all positions."
            )
        return label, _border(mask) if region.part == "border" else mask

    def target(self, target: Any) -> Region:
        """Return the region that a user names.

        A label or an index (``label:NAME`` too), ``pixel:X,Y`` in pixels of the picture, or a mask, an array (H, W) of
        the picture's size, true in the region; ``:border`` and ``:picture`` after a class say where it is averaged.

        Raises:
            TargetError: there is no such class, or it is none of these.
        """
        if isinstance(target, Region):
            return target
        if isinstance(target, np.ndarray | Tensor):
            return _masked(np.asarray(target))
        if not isinstance(target, str):
            return Region(class_index(target, self.labels), name=target)
        name = target.strip()
        if name.startswith("pixel:"):
            return _at_pixel(name)
        part: Part = "border" if name.endswith(":border") else "picture" if name.endswith(":picture") else "region"
        name = name.removesuffix(f":{part}")
        return Region(class_index(name.removeprefix("label:"), self.labels), part, name=target)

    def describe(self, outputs: Tensor, targets: Sequence[Any] = (), top: int = 5) -> "tuple[RegionPrediction, ...]":
        """Return the targets of a picture with logits (K, H, W), and then the `top` classes of the largest regions."""
        logits = outputs.detach().float()
        predicted = logits.argmax(dim=0)
        areas = predicted.flatten().bincount(minlength=len(logits)).double() / predicted.numel()
        largest = [int(index) for index in areas.argsort(descending=True, stable=True)[:top] if areas[index] > 0]
        rows = [
            self._resolved(target if isinstance(target, Region) else Region(int(target)), predicted)
            for target in targets
        ]
        rows += [(index, predicted == index) for index in largest]
        return tuple(
            RegionPrediction(index, self._label(index), float(mask.double().mean()), float(logits[index][mask].mean()))
            for index, mask in rows
        )

    def remarks(self, outputs: Tensor, target: Any) -> tuple[Diagnostic, ...]:
        """Return nothing: that of the map is told by `Explanation`."""
        return ()

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether logits (N, K, H, W) look like the result of a softmax."""
        values = outputs.float()
        return bool(((values >= 0) & (values <= 1)).all()) and bool((values.sum(dim=1) - 1).abs().max() < 1e-2)

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"class {index}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RegionObjective(Objective):
    """For each picture the mean logit of a class over a region, or its lead over that of another class there.

    Attributes:
        weights: (N, H, W) float32, of each position; they sum to one.
    """

    weights: Tensor

    @property
    def asked(self) -> Targets:
        """The same classes over the same regions."""
        masks = (self.weights > 0).cpu().numpy()
        return tuple(Region(label, mask=mask) for label, mask in zip(self.targets.tolist(), masks, strict=True))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the mean logit of each target in its region, less that of its contrast."""
        scores = self._means(outputs, self.targets)
        if self.against is None:
            return scores
        return scores - torch.where(self.is_contrasted, self._means(outputs, self.against.clamp_min(0)), 0)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (N, K, H, W) of logits (N, K, H, W)."""
        return outputs.float().softmax(dim=1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of `probabilities`."""
        return outputs.float().log_softmax(dim=1)

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,): the mean, over the region, of the `count` other classes whose means are nearest to the target's.

        Raises:
            TargetError: the model has one class.
        """
        if outputs.shape[1] < 2:
            raise TargetError("The model has one class, and the method compares classes; use gradcam.")
        means = torch.einsum("nkhw,nhw->nk", outputs.float(), self.weights)
        distances = (means - means.gather(1, self.targets[:, None])).detach().abs()
        distances = distances.scatter(1, self.targets[:, None], torch.inf)
        indices = distances.topk(min(count, means.shape[1] - 1), dim=1, largest=False).indices
        return means.gather(1, indices).mean(dim=1)

    def _means(self, outputs: Tensor, classes: Tensor) -> Tensor:
        rows = torch.arange(len(outputs), device=outputs.device)
        return (outputs[rows, classes].float() * self.weights).sum(dim=(1, 2))


@dataclass(frozen=True)
class RegionPrediction:
    """One class, and where it is.

    Attributes:
        index: class index.
        label: class label.
        area: share of the model's input that the region covers, in [0, 1].
        logit: mean over the region.
    """

    index: int
    label: str
    area: float
    logit: float

    @property
    def name(self) -> int:
        """The index."""
        return self.index

    @property
    def score(self) -> float:
        """The mean logit."""
        return self.logit

    @property
    def probability(self) -> None:
        """None: each position has its own."""
        return None

    @property
    def text(self) -> str:
        """The area in percent."""
        return f"on {self.area:.1%}" if self.area >= 0.001 else "on <0.1%"

    def change(self, before: Self) -> str:
        """Return the change of the mean logit."""
        return f"{self.logit - before.logit:+.3g}"


def _of_classes(classes: Tensor | None, count: int) -> tuple[Region | None, ...]:
    """Return the whole regions of classes (N,), or of the largest one where none is named."""
    numbers = [MOST_PROBABLE] * count if classes is None else classes.tolist()
    return tuple(None if number == MOST_PROBABLE else Region(number) for number in numbers)


def _at_pixel(name: str) -> Region:
    match = re.fullmatch(r"pixel:(\d{1,6}),(\d{1,6})", name)
    if match is None:
        raise TargetError(f"{name!r} is no pixel of the picture; give pixel:X,Y with two whole numbers.")
    return Region(None, pixel=(float(match[1]), float(match[2])), name=name)


def _masked(mask: NDArray[Any]) -> Region:
    if mask.ndim != 2 or mask.dtype != np.bool_ or not mask.any():
        kind = "empty" if mask.ndim == 2 and mask.dtype == np.bool_ else f"of shape {mask.shape}, {mask.dtype}"
        raise TargetError(f"A mask is an array (H, W) of bool, true in the region; this one is {kind}.")
    return Region(None, mask=mask, name="mask")


def _seen(mask: Mask, geometry: Geometry) -> Mask:
    """Return the part of a mask of the picture that the model sees."""
    if mask.shape != (geometry.height, geometry.width):
        raise TargetError(
            f"The mask has {mask.shape[1]}x{mask.shape[0]} pixels, the upright picture "
            f"{geometry.width}x{geometry.height}; give one of the same size."
        )
    left, top, right, bottom = geometry.box
    columns, rows = np.arange(round(left), round(right)), np.arange(round(top), round(bottom))
    inside = np.ix_(rows.clip(0, len(mask) - 1), columns.clip(0, mask.shape[1] - 1))
    beyond = ((rows < 0) | (rows >= len(mask)))[:, None] | ((columns < 0) | (columns >= mask.shape[1]))[None]
    seen: Mask = mask[inside] & ~beyond
    if not seen.any():
        raise TargetError("The model sees nothing of the mask: its preprocessing cuts this part of the picture away.")
    return seen


def _resized(mask: Mask, like: Tensor) -> Tensor:
    """Return a mask over the model's input on the positions (H, W) of its outputs, at least one of them true."""
    whole = torch.from_numpy(mask)[None, None].to(like.device, torch.float32)
    share = functional.interpolate(whole, size=like.shape, mode="area")[0, 0]
    return share >= min(0.5, float(share.max()))


def _around(region: Region, predicted: Tensor) -> tuple[int, Tensor]:
    """Return the class at a pixel, and the connected region (H, W) of it there."""
    from skimage.measure import label  # slow to import

    x, y = region.pixel or (0.0, 0.0)
    height, width = predicted.shape
    row, column = min(int(y * height), height - 1), min(int(x * width), width - 1)
    index = int(predicted[row, column])
    islands = label((predicted == index).cpu().numpy(), connectivity=1)  # type: ignore[no-untyped-call]
    mask = torch.from_numpy(islands == islands[row, column]).to(predicted.device)
    return index, _border(mask) if region.part == "border" else mask


def _border(mask: Tensor) -> Tensor:
    """Return the positions of a mask (H, W) with a neighbour outside it, of eight, in the picture.

    Raises:
        TargetError: there is none.
    """
    outside = functional.pad((~mask).float()[None, None], (1, 1, 1, 1))
    border = mask & (functional.max_pool2d(outside, 3, stride=1)[0, 0] > 0)
    if not border.any():
        raise TargetError("The region covers all that the model sees and has no border; ask about the region itself.")
    return border
