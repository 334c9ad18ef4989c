"""What every explainer is: its parameters, frozen, and one method that turns images into maps."""

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution, checked_maps
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign, Smooth, keep_sign, principal_component
from seewhy.explainers.core.question import Question, pose
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import UnknownOptionError, near_matches
from seewhy.explainers.execution.progress import SILENT, Progress

Seed = Annotated[int, Field(ge=0, lt=2**63, description="Of the random draws; the same seed gives the same map.")]

AUGMENTATIONS = tuple((flip, factor) for flip in (False, True) for factor in (1.0, 0.9, 1.1))
"""Of ``smooth="tta"``: mirrored or not, and what the pixels are multiplied by; the plain picture first."""


@dataclass(frozen=True, kw_only=True)
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

    def quantities(self, model: AnyModel, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return what the number of passes depends on besides the options, by the names in the method's expressions.

        Args:
            model: a `LoadedModel`.
            image_shape: (C, H, W) of the model's input.
        """
        return {}

    def project(self, values: Tensor) -> Tensor:
        """Return the maps (N, h, w) of contributions (N, C, h, w), as `smooth` and `sign` have it."""
        return keep_sign(principal_component(values) if self.smooth == "eigen" else values.sum(dim=1), self.sign)

    def answer(self, maps: Tensor, objective: Objective, outputs: Tensor, layers: tuple[str, ...] = ()) -> Attribution:
        """Return the attribution of finished maps (N, h, w)."""
        maps, outputs = maps.detach().float(), outputs.detach().float()
        return Attribution(maps, objective.targets, outputs, layers, self.sign == "signed", objective.against)

    def explain(
        self,
        model: AnyModel,
        images: Tensor,
        targets: Tensor | None = None,
        against: Tensor | None = None,
        progress: Progress = SILENT,
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
                other, by the difference of their scores; `NO_CONTRAST` for some of them, or None.
            progress: see `Progress`.

        Raises:
            UnsupportedModuleError: a scripted, compiled or data-parallel module.
            LayerError: a layer that cannot carry this explanation.
            TargetError: a target out of range, or of the wrong shape.
            ModelOutputError: the model returns no outputs, or NaN.
            ValueError: images of the wrong shape or dtype.
        """
        with pose(model, images, Ask(targets, against), progress) as question:
            return checked_maps(self.attribution(question))

    def attribution(self, question: Question) -> Attribution:
        """Return the attribution; with ``smooth="tta"`` the mean of those of all `AUGMENTATIONS`."""
        if self.smooth != "tta":
            return self.attribute(question)
        rounds, progress = len(AUGMENTATIONS), question.progress
        progress.at(0, rounds)
        # Some of the pictures are mirrored, so their maps are not shown.
        first = self.attribute(replace(question, progress=progress.part(0, rounds).unseen))
        ask, total = replace(question.ask, targets=first.targets), first.maps
        for number, (flip, factor) in enumerate(AUGMENTATIONS[1:], start=1):
            progress.at(number, rounds)
            progress.show(partial(torch.div, total, number))
            images = (question.images.flip(3) if flip else question.images) * factor
            part = progress.part(number, rounds).unseen
            maps = self.attribute(replace(question, images=images, ask=ask, progress=part)).maps
            total = total + (maps.flip(2) if flip else maps)
        return replace(first, maps=total / rounds)
