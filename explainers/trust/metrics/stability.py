"""Max-sensitivity: the change of a map under small changes of the picture."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.trust.metrics.base import Metric, Seed, Subject
from seewhy.explainers.trust.metrics.catalogue import metric


@metric("max-sensitivity", aspect="stability", better="lower", explanations="samples")
class MaxSensitivity(Metric):
    r"""Max-sensitivity: largest change of the map under small noise on the picture, as a share of the map.

    .. math:: \max_{\|\epsilon\|_\infty \le r} \frac{\|M(x + \epsilon) - M(x)\|_2}{\|M(x)\|_2}

    The maximum is estimated from random :math:`\epsilon`, uniform in each pixel. The paper does not divide by the norm
    of the map; here this makes maps of different units comparable.
    """

    samples: Annotated[int, Field(ge=1, le=1000, description="Number of noisy copies.")] = 10
    radius: Annotated[float, Field(gt=0, le=10, description="Maximum noise of a pixel, in normalised units.")] = 0.1
    seed: Seed = 0

    def score(self, subject: Subject) -> Tensor:
        """Return the largest relative change (N,); NaN for a blank map."""
        generator = torch.Generator().manual_seed(self.seed)
        images, before = subject.images, subject.raw.flatten(1)
        lengths, largest = before.norm(dim=1), before.new_zeros(len(before))
        for number in range(self.samples):
            subject.question.progress.at(number, self.samples)
            noise = self.radius * (2 * torch.rand(images.shape[1:], generator=generator) - 1)
            after = subject.explained(images + noise.to(images.device)).flatten(1)
            largest = torch.maximum(largest, (after - before).norm(dim=1))
        return torch.where(lengths > 0, largest / lengths, torch.nan)
