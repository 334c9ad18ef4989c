"""CAMs that change a layer's output and run the rest of the model: Ablation-CAM and Recipro-CAM."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.execution.chunks import chunk_size, chunks
from seewhy.explainers.execution.replay import Replay, UnreplayableError
from seewhy.explainers.methods.cam.base import ForwardCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.perturbation.base import certain_change

_LEAST = 1e-6
"""Minimum denominator of Ablation-CAM, as a share of the largest logit."""


def outputs_with(
    edit: Callable[[Tensor, Sequence[int]], Tensor],
    total: int,
    question: Question,
    tensors: LayerTensors,
    path: str,
    row: int,
) -> tuple[Tensor, Tensor]:
    """Return a picture's outputs (total, ...) with `total` replacements of a layer's output, and as many without.

    The latter come from the unedited rows of the same batches, so that rounding does not count as an effect.

    Args:
        edit: returns the replacements (R, C, h, w) of R numbers below `total`, given the output (1, C, h, w), which
            must stay as it is.
        total: number of replacements.
        question: see `Question`.
        tensors: tensors of the question.
        path: path of the layer.
        row: row of the picture.

    Raises:
        ModelOutputError: the model's outputs change when the picture is one of a batch, or are not finite.
    """
    view, image = tensors.views[path], question.images[row : row + 1]
    progress = question.progress.part(row, len(question.images))
    size = max(1, chunk_size(question.module, question.images, backward=False) - 1)

    def batches() -> Iterator[Sequence[int]]:
        return (range(rows.start, rows.stop) for rows in chunks(total, size, progress))

    def replace(output: Tensor, numbers: Sequence[int], _call: int) -> Tensor:
        if len(output) != 1 + len(numbers):
            raise UnreplayableError
        first = output[:1]
        return torch.cat([first, view.put(first, edit(view.of(first), numbers))]).contiguous()

    with torch.no_grad(), closing(Replay(question.module, image, path)) as replay:
        parts = replay.outputs(question.task.outputs, batches, replace)
    edited = torch.cat([rows[1:] for rows in parts])
    if not bool(torch.isfinite(edited).all()):
        raise ModelOutputError(
            f"Without parts of the output of layer {path!r} the logits contain NaN or infinity; choose another layer."
        )
    return edited, torch.cat([rows[:1].expand_as(rows[1:]) for rows in parts])


@method("ablationcam", family="cam", forwards="1 + channels", backwards="0")
class AblationCAM(ForwardCAM):
    r"""Ablation-CAM: feature maps of a layer, weighted by the decrease of the score without each of them.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k w_k^c A^k\Big), \qquad w_k^c = \frac{y^c - y_k^c}{y^c}

    where :math:`y^c` is the logit of class c and :math:`y_k^c` the logit with :math:`A^k = 0`. For each channel only
    the part of the model after the layer runs; a channel that is already zero needs no pass.

    The denominator here is the magnitude of the logit: with a negative logit, the paper's equation would turn evidence
    for the class into evidence against it. It is at least a millionth of the picture's largest logit, which keeps the
    map finite. It is the same for all channels and therefore only scales the map. With a contrast the scores are
    differences of two logits.
    """

    runs_whole: ClassVar[bool] = False

    def layer_map(self, question: Question, tensors: LayerTensors, path: str) -> tuple[Tensor, Tensor | None]:
        """Ablate each channel of each picture."""
        activations = tensors.activations[path]
        falls = torch.zeros(activations.shape[:2], device=activations.device)
        for row, values in enumerate(activations):
            channels = (values != 0).any(dim=2).any(dim=1).nonzero()[:, 0]
            if len(channels) == 0:
                continue

            def ablated(output: Tensor, numbers: Sequence[int], channels: Tensor = channels) -> Tensor:
                without = output.repeat(len(numbers), 1, 1, 1)
                without[range(len(without)), channels[numbers]] = 0
                return without

            edited, plain = outputs_with(ablated, len(channels), question, tensors, path, row)
            objective = tensors.objective.rows(torch.full_like(channels, row))
            falls[row, channels] = objective.scores(plain) - objective.scores(edited)
        largest = tensors.outputs.abs().flatten(1).amax(dim=1)
        change = certain_change(falls.abs().amax(dim=1), largest, question.images.dtype)
        falls = falls * (change > 0)[:, None]
        scores = tensors.objective.scores(tensors.outputs).abs().maximum(_LEAST * largest)
        weights = falls / torch.where(scores > 0, scores, torch.ones_like(scores))[:, None]
        return self.project(activations * weights[:, :, None, None]), change


@method("recipro-cam", family="cam", forwards="1 + positions", backwards="0")
class ReciproCAM(ForwardCAM):
    r"""Recipro-CAM: probability of the class when a layer's output keeps one position at a time.

    .. math:: L^c_{ij} = p^c\big(F^{ij}\big) - \min_{uv} p^c\big(F^{uv}\big), \qquad
              F^{ij}_{kuv} = A^k_{ij} \, G_{u-i,\,v-j}, \qquad
              G = \frac{1}{16} \begin{pmatrix} 1 & 2 & 1 \\ 2 & 4 & 2 \\ 1 & 2 & 1 \end{pmatrix}

    where :math:`p^c` is the probability (softmax) of class c for feature maps that are zero outside of these nine
    positions. G spreads the features of the position over its neighbours, as the authors' code does; with
    ``gaussian=False`` they stay in place, unscaled. For each position only the part of the model after the layer runs.

    The authors also divide the map by its maximum, which is done here when drawing. Without a contrast, the map is
    never negative. With one, it is the difference of the two classes' maps.
    """

    runs_whole: ClassVar[bool] = False

    gaussian: Annotated[
        bool, Field(description="Spread the features of the position over its neighbours with a 3x3 Gaussian.")
    ] = True

    def layer_map(self, question: Question, tensors: LayerTensors, path: str) -> tuple[Tensor, Tensor | None]:
        """Keep each position of each picture."""
        activations = tensors.activations[path]
        _, _, height, width = activations.shape
        kernel = torch.tensor([0.25, 0.5, 0.25] if self.gaussian else [0.0, 1.0, 0.0], device=activations.device)

        def alone(output: Tensor, numbers: Sequence[int]) -> Tensor:
            positions = torch.tensor(numbers, device=output.device)
            masks = functional.one_hot(positions, height * width).view(-1, 1, height, width).float()
            masks = functional.conv2d(masks, (kernel[:, None] * kernel)[None, None], padding=1).to(output.dtype)
            return output[0].flatten(1)[:, positions].T[:, :, None, None] * masks

        maps, peaks = [], []
        for row in range(len(activations)):
            edited, _ = outputs_with(alone, height * width, question, tensors, path, row)
            objective = tensors.objective.rows(torch.full((len(edited),), row, device=edited.device))
            shares = objective.probabilities(edited)
            maps.append(objective.scores(shares - shares.amin(dim=0)).view(1, height, width))
            peaks.append(objective.alone.scores(shares).amax())
        rises = torch.stack(maps)
        change = certain_change(rises.abs().amax(dim=(1, 2, 3)), torch.stack(peaks), question.images.dtype)
        return self.project(rises * (change > 0)[:, None, None, None]), change
