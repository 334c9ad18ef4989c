"""CAMs that mask the picture with its own feature maps and run the model again: Score-CAM, SS-CAM and IS-CAM."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import ForwardCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed

Variant = Callable[[Tensor], Tensor]
"""Changes masks (R, 1, H, W) for one round of passes."""


@method("scorecam", family="cam", forwards="1 + channels", backwards="0")
class ScoreCAM(ForwardCAM):
    r"""Score-CAM: feature maps of a layer, weighted by the score of the picture masked with each of them.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big), \qquad
              \alpha_k^c = \frac{\exp C^c(A^k)}{\sum_m \exp C^c(A^m)}, \qquad
              C^c(A^k) = f^c(X \circ H^k) - f^c(X_b), \qquad
              H^k = \frac{U(A^k) - \min U(A^k)}{\max U(A^k) - \min U(A^k)}

    where U resizes a feature map bilinearly to the size of the picture X, and :math:`f^c` is the logit of class c.
    The score of the baseline :math:`X_b` is the same for all channels, so the softmax over the channels cancels it, and
    it needs no pass. (The authors' code takes another weight: the probability of the class, without the softmax over
    the channels.) The mask multiplies the normalised picture, so that hidden pixels get the model's mean colour. With a
    contrast the score is the difference of two logits.

    A constant feature map has no H: it gets no weight, and needs no pass.
    """

    @property
    def rounds(self) -> int:
        """How many times each channel's masked picture runs through the model."""
        return 1

    @property
    def terms(self) -> int:
        """The divisor of the sum of the rounds' scores."""
        return self.rounds

    def variants(self, size: tuple[int, int], device: torch.device) -> Iterator[Variant]:
        """Yield, for each round, the function that changes its masks (R, 1, *size)."""
        yield lambda masks: masks

    def layer_map(self, question: Question, tensors: LayerTensors, path: str) -> tuple[Tensor, Tensor | None]:
        """Run the picture with each feature map as its mask."""
        activations, images = tensors.activations[path], question.images
        size = (images.shape[2], images.shape[3])
        varies = activations.amax(dim=(2, 3)) > activations.amin(dim=(2, 3))
        pictures, channels = varies.nonzero(as_tuple=True)
        scores, rounds = torch.zeros(2, len(pictures), device=images.device)
        increases = torch.full(varies.shape, -torch.inf, device=images.device)

        def maps() -> Tensor:
            means = scores / rounds * (self.rounds / self.terms)
            increases[pictures, channels] = torch.where(rounds > 0, means, -torch.inf)
            weights = torch.where(increases.isfinite(), increases.softmax(dim=1), 0.0)
            return self.project(activations * weights[:, :, None, None])

        for number, variant in enumerate(self.variants(size, images.device)):
            for rows in question.chunks(len(pictures), progress=question.progress.part(number, self.rounds)):
                picture, channel = pictures[rows], channels[rows]
                masks = variant(unit_masks(activations[picture, channel], size))
                outputs = question.predict(images[picture] * masks.to(images.dtype))
                scores[rows] += tensors.objective.rows(picture).scores(outputs)
                rounds[rows] += 1
                question.progress.show(maps)
        return maps(), None


@method("sscam", family="cam", forwards="1 + channels * samples", backwards="0")
class SSCAM(ScoreCAM):
    r"""SS-CAM: Score-CAM with the score averaged over noise on the masks.

    .. math:: \alpha_k^c = \operatorname{softmax}_k \frac{1}{N} \sum_{n=1}^{N}
              \Big( f^c\big(X \circ (H^k + \varepsilon_n)\big) - f^c(X_b) \Big), \qquad
              \varepsilon_n \sim \mathcal{N}(0, \sigma^2)

    with the masks H, the logit f and the map of Score-CAM. This is the paper's variant that smooths the feature maps:
    the noise, one value per pixel, is added to the normalised mask. All channels share the same N noise samples, so
    they are compared under equal conditions; each channel's average has the same distribution as with its own noise.
    """

    samples: Annotated[int, Field(ge=1, le=1000, description="Noisy masks per channel.")] = 10
    std: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False, description="Standard deviation of the noise on the mask.")
    ] = 2.0
    seed: Seed = 0

    @property
    def rounds(self) -> int:
        """One round for each noise."""
        return self.samples

    def variants(self, size: tuple[int, int], device: torch.device) -> Iterator[Variant]:
        """Yield functions that add one noise each to masks."""
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.samples):
            yield partial(torch.add, (self.std * torch.randn(size, generator=generator)).to(device))


@method("iscam", family="cam", forwards="1 + channels * (samples - 1)", backwards="0")
class ISCAM(ScoreCAM):
    r"""IS-CAM: Score-CAM with the score averaged over brightening of the masked picture.

    .. math:: \alpha_k^c = \operatorname{softmax}_k \frac{1}{N} \sum_{i=0}^{N} \big( f^c(M_i^k) - f^c(X_b) \big), \qquad
              M_i^k = \sum_{j=0}^{i-1} \frac{j}{N} \, X \circ H^k = \frac{i (i - 1)}{2N} \, X \circ H^k

    with the masks H, the logit f and the map of Score-CAM. The multiples grow to :math:`(N-1)/2`, because the paper
    sums the steps instead of going linearly from zero to the masked picture. The first two multiples are zero for every
    channel, so the softmax cancels them and they need no pass. (torchcam sums j from 1 to i.)
    """

    samples: Annotated[int, Field(ge=2, le=1000, description="Intervals N of the integration.")] = 10

    @property
    def rounds(self) -> int:
        """One round for each multiple that is not zero."""
        return self.samples - 1

    @property
    def terms(self) -> int:
        """The divisor is N, and not the number of rounds."""
        return self.samples

    def variants(self, size: tuple[int, int], device: torch.device) -> Iterator[Variant]:
        """Yield functions that multiply masks."""
        for step in range(2, self.samples + 1):
            yield partial(torch.mul, torch.tensor(step * (step - 1) / (2 * self.samples), device=device))


def unit_masks(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Return feature maps (R, h, w), none of them constant, as masks (R, 1, *size), each from 0 to 1."""
    resized = functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)
    least = resized.amin(dim=(2, 3), keepdim=True)
    largest = resized.amax(dim=(2, 3), keepdim=True)
    return (resized - least) / (largest - least).clamp_min(torch.finfo(resized.dtype).tiny)
