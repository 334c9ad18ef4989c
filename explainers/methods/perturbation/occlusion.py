"""Occlusion: a patch slides over the picture."""

from typing import Annotated

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.perturbation.base import Perturbation


@method("occlusion", family="perturbation", forwards="1 + positions", backwards="0", fine=True)
class Occlusion(Perturbation):
    r"""Occlusion: decrease of the score when a patch hides a part of the picture.

    .. math:: M_{ij} = \frac{1}{|\{P : (i,j) \in P\}|} \sum_{P : (i,j) \in P} \big( S(x) - S(x_{\setminus P}) \big)

    where :math:`x_{\setminus P}` is the picture with the patch P replaced by the baseline. Positions start in the upper
    left corner; the last ones are cut off at the border. Section 4.2 of the paper shows the score at each position of a
    grey square; here each position counts for all the pixels that it hides. The score here is the logit; the paper uses
    the probability (``score="probability"``).
    """

    patch: Annotated[int, Field(ge=1, le=1024, description="Side of the patch in pixels of the model's input.")] = 32
    stride: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            validate_default=True,
            description="Number of pixels between two positions, at most the patch.",
        ),
    ] = 16

    @field_validator("stride")
    @classmethod
    def _leaves_no_gap(cls, stride: int, info: ValidationInfo) -> int:
        if stride > info.data.get("patch", stride):
            raise ValueError(f"It must be at most the patch, {info.data['patch']}, or pixels would be left out")
        return stride

    def quantities(self, model: AnyModel, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return the number of positions of the patch."""
        rows, columns = (len(range(0, side - self.patch + self.stride, self.stride)) for side in image_shape[1:])
        return {"positions": rows * columns}

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per position of the patch."""
        images = question.images
        height, width = images.shape[2:]
        if self.patch > min(height, width):
            raise OptionError(
                f"A patch of {self.patch} pixels does not fit into {height}x{width} pixels; choose a smaller one.",
                field="patch",
            )
        tops, lefts = (torch.arange(0, side - self.patch + self.stride, self.stride) for side in (height, width))
        corners = torch.cartesian_prod(tops, lefts).to(images.device)
        rows, columns = (torch.arange(side, device=images.device) for side in (height, width))

        def masks(_picture: int, part: slice) -> Tensor:
            top, left = corners[part].T[:, :, None]
            down = (rows >= top) & (rows < top + self.patch)
            across = (columns >= left) & (columns < left + self.patch)
            visible: Tensor = 1 - (down[:, :, None] & across[:, None, :]).float()
            return visible

        objective, outputs = question.plain()
        plain = self.scores(objective, outputs)
        falls = images.new_zeros(len(images), height, width, dtype=torch.float32)
        counts = torch.zeros_like(falls)

        def maps() -> Tensor:
            return self.project((falls / counts.clamp_min(1))[:, None])

        for picture, _, visible, scores in self.probe(question, objective, [len(corners)] * len(images), masks):
            falls[picture] += torch.einsum("r,rhw->hw", plain[picture] - scores, 1 - visible)
            counts[picture] += (1 - visible).sum(dim=0)
            question.progress.show(maps)
        return self.answer_of_changes(falls / counts.clamp_min(1), objective, outputs)
