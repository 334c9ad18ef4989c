"""Explainers: frozen parameters, and one method that turns images into maps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor

from seewhy.explainers.core.ask import Ask, Targets
from seewhy.explainers.core.attribution import Attribution, require_finite
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign, Smooth, keep_sign, principal_component
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import TargetError, UnknownOptionError, near_matches
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.tasks.pose import pose

SignOption = Annotated[
    Sign,
    Field(
        description="`positive`: evidence for the class only. `signed`: evidence for it, and against it as negative "
        "values. `absolute`: magnitudes."
    ),
]

Seed = Annotated[
    int, Field(ge=0, lt=2**63, description="Seed of the random generator; the same seed gives the same map.")
]
Noise = Annotated[
    float,
    Field(le=10, description="Standard deviation of the noise, as a share of the picture's range of values."),
]

AUGMENTATIONS = tuple((flip, factor) for flip in (False, True) for factor in (1.0, 0.9, 1.1))
"""Augmentations of ``smooth="tta"``: whether mirrored, and the factor of the pixels; the plain picture first."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Base of classes that consist of parameters, checked on creation; an unknown one raises `UnknownOptionError`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, arguments: Any) -> Any:
        names = [field.name for field in fields(cls)]
        keywords = arguments.kwargs if isinstance(arguments, ArgsKwargs) else arguments
        for name in keywords if isinstance(keywords, dict) else ():
            if name not in names:
                hint = near_matches(name, names) or f"It takes {', '.join(sorted(names)) or 'no options'}."
                raise UnknownOptionError(f"{cls.__name__} has no option {name!r}. {hint}", field=name)
        return arguments


@dataclass(frozen=True, kw_only=True)
class Explainer(Parameters, ABC):
    """Base of all methods. An explainer is its parameters, checked on creation: equal explainers can share a batch.

    Attributes:
        sign: the part of the map to keep: ``positive`` for evidence for the class, ``signed`` for evidence against it
            too, as negative values, or ``absolute`` for magnitudes.
        smooth: ``eigen`` replaces the sum over channels by the projection onto their first principal component; ``tta``
            (test-time augmentation) averages the maps of the picture and its mirror image, each also with normalised
            values a tenth smaller and larger, for the class of the plain picture.
        runs_whole: whether each of its passes runs the whole model, not a part of it.
        reads_attention: whether it needs a transformer in which all tokens of the picture attend to each other.
        reads: the members of an `Objective` that it reads and only some tasks have: ``region`` of a segmenter,
            ``similarity`` of a detector, ``nearest`` or ``log_probabilities`` of classes.
        sums: whether its signed map sums to the score of the picture minus that of `origins`.
    """

    runs_whole: ClassVar[bool] = True
    reads_attention: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    sums: ClassVar[bool] = False

    sign: SignOption = "positive"
    smooth: Annotated[
        Smooth,
        Field(
            description="`eigen`: first principal component over the channels instead of their sum. `tta`: average "
            "over flips and brightness."
        ),
    ] = "none"

    @abstractmethod
    def attribute(self, question: Question) -> Attribution:
        """Return the attribution; `explain` has checked the arguments and prepared the module.

        Args:
            question: the pictures, the prepared module, and the targets.
        """

    def must_suit(self, question: Question) -> None:
        """Raise an error if the method can never explain the question's model, whatever the picture and the target.

        Args:
            question: about any picture.

        Raises:
            LayerError: as in `attribute`.
        """
        for member in self.reads:
            question.task.objectives.must_have(member)

    def quantities(self, model: AnyModel, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return the quantities besides the options on which the number of passes depends.

        Args:
            model: a `LoadedModel`.
            image_shape: (C, H, W) of the model's input.

        Returns:
            Values by their names in the method's expressions, such as ``channels``.
        """
        return {}

    @property
    def is_complete(self) -> bool:
        """Whether the map, with these options, sums to the score of the picture minus that of `origins`."""
        return self.sums and self.sign == "signed" and self.smooth == "none"

    def origins(self, images: Tensor, model: AnyModel) -> Tensor:
        """Return the pictures (N, C, H, W) whose score the map's sum is measured from.

        Raises:
            NotImplementedError: the method promises no sum.
        """
        raise NotImplementedError

    def project(self, values: Tensor) -> Tensor:
        """Return the maps (N, h, w) of contributions (N, C, h, w), by `smooth` and `sign`."""
        return keep_sign(principal_component(values) if self.smooth == "eigen" else values.sum(dim=1), self.sign)

    def answer(self, maps: Tensor, objective: Objective, outputs: Tensor, layers: tuple[str, ...] = ()) -> Attribution:
        """Return the attribution of final maps (N, h, w)."""
        maps, outputs = maps.detach().float(), outputs.detach().float()
        return Attribution(maps, objective.ask_targets, outputs, layers, self.sign == "signed", objective.against)

    def explain(
        self,
        model: AnyModel,
        images: Tensor,
        targets: Ask | Targets | Callable[[Tensor], Tensor] | None = None,
        against: Tensor | None = None,
        progress: Progress = SILENT,
    ) -> Attribution:
        """Explain why the model gives each image its target class.

        The module is left as it was: no hook, no ``.grad``, no changed mode, flag or weight. It runs in evaluation
        mode. It may be frozen, in half precision or channels-last, and the caller may be inside ``torch.no_grad()`` or
        ``torch.inference_mode()``.

        Args:
            model: an `nn.Module` that returns logits (N, K), or a `LoadedModel`.
            images: (N, C, H, W) floating, normalised as the model wants them, on the model's device;
                converted to the model's dtype.
            targets: (N,) int64 class indices, `MOST_PROBABLE` for some of them, or None for
                the most probable class of each image; or a function from outputs (N, K) to the scores (N,) to
                explain, such as ``lambda logits: logits[:, 3] - logits[:, 5]``; or an `Ask`, contrast included.
            against: (N,) int64 class indices to contrast the targets with: the maps explain the difference of both
                scores; `NO_CONTRAST` for some of them, or None.
            progress: see `Progress`.

        Returns:
            Raw maps (N, h, w) float32 on the images' device, with targets and outputs.

        Raises:
            UnsupportedModuleError: a scripted, compiled or data-parallel module.
            LayerError: a layer that does not suit the method.
            TargetError: a target out of range, or of the wrong shape.
            ModelOutputError: the model returns no outputs, or NaN.
            InvalidArgumentError: images of the wrong shape or dtype.
        """
        if not isinstance(targets, Ask):
            targets = Ask(against=against, function=targets) if callable(targets) else Ask(targets, against)
        elif against is not None:
            raise TargetError("An `Ask` already contains the contrast; omit `against`.")
        with pose(model, images, targets, progress) as question:
            attribution = self.attribution(question)
            require_finite(attribution.maps)
            return attribution

    def attribution(self, question: Question) -> Attribution:
        """Return the attribution; with ``smooth="tta"`` the mean of those of all `AUGMENTATIONS`."""
        if self.smooth != "tta":
            return self.attribute(question)
        rounds, progress = len(AUGMENTATIONS), question.progress
        progress.at(0, rounds)
        # Intermediate maps are hidden, because those of mirrored pictures would confuse.
        first = self.attribute(replace(question, progress=progress.part(0, rounds).unseen))
        ask, total = replace(question.ask, targets=first.targets), first.maps
        for number, (flip, factor) in enumerate(AUGMENTATIONS[1:], start=1):
            progress.at(number, rounds)
            progress.show(partial(torch.div, total, number))
            images = (question.images.flip(3) if flip else question.images) * factor
            part = progress.part(number, rounds).unseen
            altered = replace(question, images=images, ask=ask.mirrored() if flip else ask, progress=part)
            maps = self.attribute(altered).maps
            total = total + (maps.flip(2) if flip else maps)
        return replace(first, maps=total / rounds)
