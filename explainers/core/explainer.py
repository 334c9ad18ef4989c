"""What every explainer is: its parameters, frozen, and one method that turns images into maps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from pydantic_core import ArgsKwargs
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from seewhy.explainers.core.objective import Goal, goal_of
from seewhy.explainers.errors import (
    ModelOutputError,
    NonFiniteError,
    TargetError,
    UnknownOptionError,
    UnsuitableModelError,
    UnsupportedModuleError,
    UnsupportedOperationError,
    near_matches,
)
from seewhy.explainers.execution.accelerated import Accelerated
from seewhy.explainers.execution.chunks import Report, Show, pass_size, unreported, unshown
from seewhy.explainers.execution.deferred_checks import deferred, require
from seewhy.explainers.hooks.evaluation import CHECKPOINTED, evaluation_mode, is_checkpointed
from seewhy.explainers.hooks.selection import as_module, logits_of

Sign = Literal["positive", "signed", "absolute"]
"""Which part of a signed attribution to keep: max(x, 0), x, or |x|."""

Smooth = Literal["none", "eigen", "tta"]

_PROBABILITIES = (
    "(The model returns probabilities: a softmax or sigmoid is its last step. Return the logits before it, which is "
    "what methods explain.)"
)
_BAD_MAP = "The map holds NaN or infinity; use a float32 model, or another layer or method."
_BAD_LOGITS = "The model's logits hold NaN or infinity; check its weights and its precision."

Seed = Annotated[int, Field(ge=0, lt=2**63, description="Of the random draws; the same seed gives the same map.")]

AUGMENTATIONS = tuple((flip, factor) for flip in (False, True) for factor in (1.0, 0.9, 1.1))
"""Of ``smooth="tta"``: mirrored or not, and what the pixels are multiplied by; the plain picture first."""


@dataclass(frozen=True, eq=False)
class Regions:
    """The parts into which a method cuts each picture of a batch, that with the largest gain first.

    Attributes:
        maps: (N, k, h, w) float32, not negative: how much each position belongs to each region.
        gains: (N, k) float32: the score with nothing in the layer but the region, less that with nothing at all.
        logits: (N, k, K) float32: what the model says when the region's concept alone fills the layer.
    """

    maps: Tensor
    gains: Tensor
    logits: Tensor

    def rows(self) -> list["Regions"]:
        """Return the regions of each picture by itself (N = 1), on the CPU."""
        whole = (self.maps.cpu(), self.gains.cpu(), self.logits.cpu())
        return [Regions(*(one[row : row + 1] for one in whole)) for row in range(len(self.maps))]


@dataclass(frozen=True)
class Diagnostic:
    """Something about a map that its reader should know.

    Attributes:
        code: what it is called, such as blank-map; docs/http.md lists them.
        message: what it means and what to try.
    """

    code: str
    message: str


@dataclass(frozen=True, eq=False)
class Attribution:
    """What an explainer found for a batch.

    Attributes:
        maps: (N, h, w) float32, raw: not resized, not normalised; on the images' device.
        targets: (N,) int64, the explained class of each image.
        logits: (N, K) float32.
        layers: the paths of the layers used, in the model's order; empty for methods that need none.
        signed: whether negative values mean evidence against the target.
        against: (N,) int64, the class that each target is contrasted with, or `NO_CONTRAST`; None where there is no
            contrast at all.
        regions: of methods that cut the pictures into parts; None for all others.
        diagnostics: what is to be known of each map, in a tuple for each; empty where there is nothing about any.
        change: (N,) of methods that watch the score while something is hidden: its largest change, as a share of the
            values that it is a difference of; None for all others.
    """

    maps: Tensor
    targets: Tensor
    logits: Tensor
    layers: tuple[str, ...]
    signed: bool
    against: Tensor | None = None
    regions: Regions | None = None
    diagnostics: tuple[tuple[Diagnostic, ...], ...] = ()
    change: Tensor | None = None

    def rows(self) -> list["Attribution"]:
        """Return the attribution of each image by itself (N = 1), on the CPU."""
        maps, targets, logits = self.maps.cpu(), self.targets.cpu(), self.logits.cpu()
        against = None if self.against is None else self.against.cpu()
        regions = None if self.regions is None else self.regions.rows()
        change = None if self.change is None else self.change.cpu()
        return [
            Attribution(
                maps=maps[row : row + 1],
                targets=targets[row : row + 1],
                logits=logits[row : row + 1],
                layers=self.layers,
                signed=self.signed,
                against=None if against is None else against[row : row + 1],
                regions=None if regions is None else regions[row],
                diagnostics=self.diagnostics[row : row + 1],
                change=None if change is None else change[row : row + 1],
            )
            for row in range(len(maps))
        ]


class Host(NamedTuple):
    """Where hooks on layers belong.

    Attributes:
        module: the model, or the part of it that begins with the first of the layers; paths are the same in both.
        run: returns the model's output for images (N, C, H, W), which stay as they are.
    """

    module: nn.Module
    run: Callable[[Tensor], Any]


@dataclass(frozen=True, eq=False)
class Question:
    """What an explainer is asked.

    Attributes:
        model: the module, or what carries it, such as a `LoadedModel`.
        module: in evaluation mode.
        images: (N, C, H, W) in the module's dtype; give the module a copy, for it may modify its input in place.
        targets, against: (N,) integers as given, still unchecked, or None.
        report: call it before each pass of many.
        show: call it after passes whose maps so far look like the final ones; their scale does not count.
    """

    model: Any
    module: nn.Module
    images: Tensor
    targets: Tensor | None
    against: Tensor | None
    report: Report = unreported
    show: Show = unshown

    def part(self, rows: slice) -> "Question":
        """Return the same question about some of the pictures."""
        targets, against = (None if one is None else one[rows] for one in (self.targets, self.against))
        return replace(self, images=self.images[rows], targets=targets, against=against)

    def run(self, images: Tensor) -> Tensor:
        """Return the logits (R, K) of pictures (R, C, H, W), which stay as they are, in the model's dtype.

        Raises:
            ModelOutputError: the model returns no logits, or NaN.
        """
        return checked_rows(checked_logits(self.run_copy(images)), images)

    def run_copy(self, images: Tensor) -> Any:
        """Return the model's output for pictures (R, C, H, W), which stay as they are."""
        return self.module(images.clone())

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits (R, K) of pictures (R, C, H, W), without a graph, in passes that memory allows.

        Raises:
            ModelOutputError: the model returns no logits, or NaN.
        """
        # Its first use counts activations outside inference mode. So what a model makes once and keeps, such as a grid
        # of positions, is of use to a later backward pass too.
        size = pass_size(self.module, images, backward=False)
        run = (self.accelerated.whole(images) if self.accelerated else None) or self.run_copy
        with torch.inference_mode():
            parts = (images[start : start + size] for start in range(0, len(images), size))
            found = [checked_rows(checked_logits(run(part)), part) for part in parts]
        with torch.no_grad():
            return torch.cat(found)  # a copy that autograd can keep

    @property
    def accelerated(self) -> Accelerated | None:
        """What parts of the model run on; None where they run in PyTorch only."""
        found = getattr(self.model, "accelerated", None)
        return found if isinstance(found, Accelerated) else None

    def host(self, layers: Sequence[str]) -> "Host":
        """Return where hooks on layers and what runs after them belong, and what runs the model there.

        Args:
            layers: dotted paths.
        """
        parts = self.accelerated.parts(layers, self.images) if self.accelerated else None
        return Host(parts.suffix, parts) if parts else Host(self.module, self.run_copy)

    def plain(self) -> tuple[Goal, Tensor]:
        """Return the goal, and the logits (N, K) of the pictures as they are; errors as `predict` and `goal`."""
        logits = self.predict(self.images)
        return self.goal(logits), logits

    def goal(self, logits: Tensor) -> Goal:
        """Return what is explained, now that the logits (N, K) of the images are known.

        Raises:
            TargetError: a class that the model lacks.
            ModelOutputError: the logits are not those of as many pictures.
        """
        return goal_of(checked_rows(logits, self.images), self.targets, self.against)


@validated(frozen=True, kw_only=True)
class Explainer(ABC):
    """An explainer is its parameters, checked when made: equal ones hash alike and can share a batch.

    An argument that is no field raises `UnknownOptionError`, in subclasses too.

    Attributes:
        sign: which part of a map to keep: evidence for the class, also that against it as negative values, or
            magnitudes.
        smooth: ``eigen`` replaces the sum over channels by the projection onto their first principal component;
            ``tta`` (test-time augmentation) averages the maps of the picture and its mirror image, each also a tenth
            darker and brighter (as the model's normalisation has it), for the class of the plain picture.
        runs_whole: whether each of its passes is one through the whole model, and not through a part of it.
    """

    runs_whole: ClassVar[bool] = True

    sign: Annotated[
        Sign, Field(description="Keep the evidence for the class, also that against it, or magnitudes.")
    ] = "positive"
    smooth: Annotated[
        Smooth,
        Field(
            description="`eigen`: first principal component over the channels instead of their sum. `tta`: average "
            "over mirror images and brightness."
        ),
    ] = "none"

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, arguments: Any) -> Any:
        names = [field.name for field in fields(cls)]
        keywords = arguments.kwargs if isinstance(arguments, ArgsKwargs) else arguments
        for name in keywords if isinstance(keywords, dict) else ():
            if name not in names:
                hint = near_matches(name, names) or f"It takes {', '.join(sorted(names))}."
                raise UnknownOptionError(f"{cls.__name__} has no option {name!r}. {hint}", field=name)
        return arguments

    @abstractmethod
    def attribute(self, question: Question) -> Attribution:
        """Compute the attribution; `explain` has checked the arguments and prepared the module."""

    def quantities(self, model: Any, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return what the number of passes depends on besides the options, by the names in the method's expressions.

        Args:
            model: a `LoadedModel`.
            image_shape: (C, H, W) of the model's input.
        """
        return {}

    def project(self, values: Tensor) -> Tensor:
        """Return the maps (N, h, w) of contributions (N, C, h, w), as `smooth` and `sign` have it."""
        return keep_sign(principal_component(values) if self.smooth == "eigen" else values.sum(dim=1), self.sign)

    def answer(self, maps: Tensor, goal: Goal, logits: Tensor, layers: tuple[str, ...] = ()) -> Attribution:
        """Return the attribution of finished maps (N, h, w)."""
        maps, logits = maps.detach().float(), logits.detach().float()
        return Attribution(maps, goal.targets, logits, layers, self.sign == "signed", goal.against)

    def explain(
        self,
        model: Any,
        images: Tensor,
        targets: Tensor | None = None,
        against: Tensor | None = None,
        report: Report = unreported,
        show: Show = unshown,
    ) -> Attribution:
        """Explain why the model gives each image its target class.

        The module is left as it was: no hook, no ``.grad``, no changed mode, flag or weight. It runs in
        evaluation mode whatever its mode is. It may be frozen, in half precision or channels-last, and the
        caller may be inside ``torch.no_grad()`` or ``torch.inference_mode()``.

        Args:
            model: an `nn.Module` that returns logits (N, K), or a `LoadedModel`.
            images: (N, C, H, W) floating, normalised as the model wants them, on the model's device;
                converted to the model's dtype.
            targets: (N,) int64 class indices, `objective.MOST_PROBABLE` for some of them, or None for
                the most probable class of each image.
            against: (N,) int64 class indices to contrast the targets with: what speaks for the one rather than the
                other, by the difference of their logits; `NO_CONTRAST` for some of them, or None.
            report: see `Report`.
            show: see `Show`.

        Raises:
            UnsupportedModuleError: a scripted, compiled or data-parallel module.
            LayerError: a layer that cannot carry this explanation.
            TargetError: a target out of range, or of the wrong shape.
            ModelOutputError: the model returns no logits, or NaN.
            ValueError: images of the wrong shape or dtype.
        """
        with asked(model, images, targets, against, report, show) as question:
            return checked_maps(self.attribution(question))

    def attribution(self, question: Question) -> Attribution:
        """Return the attribution; with ``smooth="tta"`` the mean of those of all `AUGMENTATIONS`."""
        if self.smooth != "tta":
            return self.attribute(question)
        rounds = len(AUGMENTATIONS)
        question.report(0, rounds)
        unseen = replace(question, show=unshown)  # some of its pictures are mirrored
        first = self.attribute(replace(unseen, report=part_of(question.report, 0, rounds)))
        total = first.maps
        for number, (flip, factor) in enumerate(AUGMENTATIONS[1:], start=1):
            question.report(number, rounds)
            images = (question.images.flip(3) if flip else question.images) * factor
            report = part_of(question.report, number, rounds)
            question.show(partial(torch.div, total, number))
            found = self.attribute(replace(unseen, images=images, targets=first.targets, report=report))
            total = total + (found.maps.flip(2) if flip else found.maps)
        return replace(first, maps=total / rounds)


def part_of(report: Report, number: int, rounds: int) -> Report:
    """Return what reports how far one of several rounds is as part of them all, each taken to be as long."""
    return lambda done, total: report(number * total + done, rounds * total)


def checked_maps(attribution: Attribution) -> Attribution:
    """Return the attribution if its maps are finite.

    Raises:
        NonFiniteError: they are not.
    """
    require_finite(attribution.maps)
    return attribution


def require_finite(maps: Tensor) -> None:
    """Raise `NonFiniteError` unless maps are finite; within `deferred` at its end."""
    require(torch.isfinite(maps).all(), lambda: NonFiniteError(_BAD_MAP))


@contextmanager
def asked(
    model: Any,
    images: Tensor,
    targets: Tensor | None = None,
    against: Tensor | None = None,
    report: Report = unreported,
    show: Show = unshown,
) -> Iterator[Question]:
    """Yield a question about images of a prepared module; arguments and errors are those of `Explainer.explain`."""
    for given in (targets, against):
        if given is not None and not isinstance(given, Tensor):
            raise TargetError(f"Expected a tensor of one integer per image, got {given!r}; give torch.tensor([281]).")
        if given is not None and (given.shape != images.shape[:1] or given.is_floating_point()):
            raise TargetError(f"Expected one integer target per image, {len(images)} in all, got {given!r}.")
    with deferred(), prepared(model, images) as (module, copies):
        question = Question(model, module, copies, targets, against, report, show)
        try:
            yield question
        except (UnsuitableModelError, UnsupportedOperationError) as error:
            if _returns_probabilities(question):
                error.args = (f"{error} {_PROBABILITIES}",)
            raise


def _returns_probabilities(question: Question) -> bool:
    """Whether what the model returns looks like the outcome of a softmax, or of the sigmoid of one logit."""
    try:
        with torch.no_grad():  # not inference mode: the model may keep what it makes
            values = logits_of(question.run_copy(question.images[:1])).float()
    except Exception:  # of whatever the model raises: the error at hand says more
        return False
    within = bool(((values >= 0) & (values <= 1)).all())
    return within and (values.shape[1] == 1 or bool((values.sum(dim=1) - 1).abs().max() < 1e-2))


@contextmanager
def prepared(model: Any, images: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield the module in evaluation mode, outside inference mode, and the images in its dtype.

    A model may modify its input in place: give it a copy.

    Raises:
        UnsupportedModuleError: a scripted, compiled or data-parallel module.
        ValueError: images of the wrong shape or dtype.
    """
    module = as_module(model)
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ValueError(
            f"Expected floating-point images of shape (N, C, H, W), got {tuple(images.shape)} {images.dtype}."
        )
    with torch.inference_mode(False), evaluation_mode(module):
        try:
            # A copy of an inference tensor is one that autograd can keep.
            yield module, images.detach().to(_dtype_of(module, images), copy=images.is_inference())
        except (RuntimeError, UnsupportedOperationError) as error:
            if is_checkpointed(error) or getattr(error, "operation", "") == CheckpointFunction.__name__:
                raise UnsupportedModuleError(CHECKPOINTED) from error
            raise


def _dtype_of(module: nn.Module, images: Tensor) -> torch.dtype:
    first = None
    for value in module.parameters():
        if value.dtype == images.dtype:
            return images.dtype
        if first is None and value.is_floating_point():
            first = value.dtype
    return first or images.dtype


def predict(model: Any, images: Tensor) -> Tensor:
    """Return the logits (N, K), float32, of a batch of images (N, C, H, W), without a graph.

    Raises:
        ModelOutputError: the model returns no logits, or NaN.
    """
    with asked(model, images) as question:
        return question.predict(question.images).float()


def checked_logits(output: Any) -> Tensor:
    """Return the logits in a model's output, in the model's dtype.

    Raises:
        ModelOutputError: there are none.
        NonFiniteError: they hold NaN or infinity.
    """
    logits = logits_of(output)
    if logits.shape[1] < 1:
        raise ModelOutputError("The model returned logits for no class.")
    require(torch.isfinite(logits).all(), lambda: NonFiniteError(_BAD_LOGITS))
    return logits


def checked_rows(logits: Tensor, images: Tensor) -> Tensor:
    """Return the logits if there is a row for each picture.

    Raises:
        ModelOutputError: there are more or fewer.
    """
    if len(logits) != len(images):
        raise ModelOutputError(
            f"The model returned logits of shape {tuple(logits.shape)} for {len(images)} pictures: it must return one "
            "row for each, in the same order."
        )
    return logits


def widened(images: Tensor) -> Tensor:
    """Return the images in float32 at least, so that what is computed of them is not rounded twice."""
    return images.to(torch.promote_types(images.dtype, torch.float32))


def keep_sign(values: Tensor, sign: Sign) -> Tensor:
    """Return max(x, 0), x or |x|, elementwise."""
    if sign == "positive":
        return values.clamp_min(0)
    return values.abs() if sign == "absolute" else values


def principal_component(values: Tensor) -> Tensor:
    """Return the projection (N, h, w) of each position's channels onto their first principal component.

    The component is the first right singular vector of the positions-by-channels matrix, not centred, with the sign
    that makes the projection agree with the sum over channels.

    Args:
        values: (N, C, h, w).

    Raises:
        NonFiniteError: they hold NaN or infinity.
    """
    found, _ = first_component(values)
    summed = values.double().sum(dim=1)
    sign = torch.where((found * summed).sum(dim=(1, 2), keepdim=True) < 0, -1.0, 1.0)
    projected: Tensor = (found * sign).to(values.dtype)
    return projected


def first_component(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projection (N, h, w) float64 as `principal_component`, of any sign, and how sure it is.

    Args:
        values: (N, C, h, w).

    Returns:
        The projection; and the gap (N,) between the two largest squared singular values, as a share of the largest.

    Raises:
        NonFiniteError: they hold NaN or infinity.
    """
    if not bool(torch.isfinite(values).all()):  # which is not put off: eigh waits for the device in any case
        raise NonFiniteError("The contributions hold NaN or infinity; use a float32 model, or another layer.")
    count, channels, rows, columns = values.shape
    matrix = values.double().reshape(count, channels, rows * columns)
    # The eigenvectors of the smaller of the two Gram matrices give the same projection at less cost.
    if channels <= rows * columns:
        strengths, vectors = torch.linalg.eigh(matrix @ matrix.mT)
        projected = (vectors[:, :, -1:].mT @ matrix)[:, 0]
    else:
        strengths, vectors = torch.linalg.eigh(matrix.mT @ matrix)
        projected = vectors[:, :, -1] * strengths[:, -1:].clamp_min(0).sqrt()
    return projected.reshape(count, rows, columns), gap_of(strengths)


def gap_of(strengths: Tensor) -> Tensor:
    """Return the gap (...) between the two largest of ascending eigenvalues (..., K), as a share of the largest."""
    if strengths.shape[-1] < 2:
        return torch.ones_like(strengths[..., 0])
    largest = strengths[..., -1]
    return torch.where(largest > 0, (largest - strengths[..., -2]) / torch.where(largest > 0, largest, 1.0), 1.0)
