"""Model randomisation: whether a map changes when the network's weights are randomised."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.correlations import rank_correlations
from seewhy.explainers.errors import UnsupportedModuleError
from seewhy.explainers.trust.metrics.base import Metric, Seed, Subject
from seewhy.explainers.trust.metrics.catalogue import metric

BINS = 100
"""Number of bins of the histogram of a map's values."""


class RandomModel:
    """A model with another module of the same structure, without an accelerator; see `Model`."""

    def __init__(self, model: Any, module: nn.Module) -> None:
        names = ("task", "preprocess", "labels", "default_layers", "no_default_layer", "survey", "device")
        alike = {name: getattr(model, name) for name in names if hasattr(model, name)}
        vars(self).update(alike, module=module, accelerated=None)


@dataclass(frozen=True, kw_only=True)
class Randomisation(Metric):
    """Base of tests that randomise a copy of the network.

    Each parameter is replaced by samples of a normal distribution with its mean and standard deviation, so the network
    keeps only its scales. (The paper initialises it again, which not every module supports.)
    """

    seed: Seed = 0

    def networks(self, subject: Subject, stages: int) -> Iterator[AnyModel]:
        """Yield the model with the last 1/stages of its modules randomised, then with more, and finally with all.

        All of these share one copy: use each before the next.

        Raises:
            UnsupportedModuleError: the module cannot be copied.
        """
        copy = copy_of(subject.question.module)
        whole = subject.question.model
        model: AnyModel = copy if isinstance(whole, nn.Module) else stand_in(whole, copy)
        modules = [part for part in copy.modules() if next(part.parameters(recurse=False), None) is not None]
        generator = torch.Generator().manual_seed(self.seed)
        ends = [len(modules) - round(len(modules) * stage / stages) for stage in range(stages + 1)]
        for stop, start in pairwise(ends):
            with torch.no_grad():
                for part in reversed(modules[start:stop]):
                    for value in part.parameters(recurse=False):
                        if value.is_floating_point():
                            noise = torch.randn(value.shape, generator=generator).to(value)
                            value.copy_(value.mean() + value.std(correction=0) * noise)
            yield model

    def again(self, subject: Subject, model: AnyModel, images: Tensor) -> Tensor:
        """Return the maps (N, h, w) of another network for the same targets."""
        return subject.explainer.explain(model, images, subject.question.ask, progress=subject.question.progress).maps


@metric("mprt", aspect="randomisation", better="lower", explanations="stages")
class MPRT(Randomisation):
    r"""MPRT, the model parameter randomisation test: rank correlation of the map with the maps of the network,
    randomised step by step from its end.

    .. math:: \frac{1}{L} \sum_{l=1}^{L} \big|\rho\big(|M|,\, |M_l|\big)\big|

    where :math:`M_l` is the map of the network with the last l of L parts randomised, and :math:`\rho` is Spearman's
    correlation. 1 means that the map does not depend on the learned weights.
    """

    stages: Annotated[int, Field(ge=1, le=1000, description="Number of steps in which the network is randomised.")] = 4

    def similarities(self, subject: Subject) -> Tensor:
        """Return Spearman's correlation of each map with that of each stage, (N, stages)."""
        before, rows = self.before(subject), []
        for number, model in enumerate(self.networks(subject, self.stages)):
            subject.question.progress.at(number, self.stages)
            after = self.drawn(subject, partial(self.again, subject, model))
            rows.append(rank_correlations(before.abs(), after.abs()))
        return torch.stack(rows, dim=1)

    def before(self, subject: Subject) -> Tensor:
        """Return the maps (N, h, w) of the unchanged network."""
        return subject.raw

    def drawn(self, subject: Subject, maps: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the maps (N, h, w) of the pictures, given a function from pictures to maps."""
        return maps(subject.images)

    def score(self, subject: Subject) -> Tensor:
        """Return the mean magnitude (N,) of the correlations."""
        return self.similarities(subject).abs().mean(dim=1)


@metric("smooth-mprt", aspect="randomisation", better="lower", explanations="samples * stages + samples")
class SmoothMPRT(MPRT):
    r"""Smooth MPRT: MPRT with maps averaged over noisy copies of the picture.

    .. math:: \frac{1}{L} \sum_{l=1}^{L} \Big|\rho\Big(\Big|\sum_k M(x + \epsilon_k)\Big|,\,
              \Big|\sum_k M_l(x + \epsilon_k)\Big|\Big)\Big|,
              \qquad \epsilon_k \sim \mathcal{N}\big(0, \sigma^2\big)

    The average removes noise of the gradients. The last copy has no noise.
    """

    samples: Annotated[int, Field(ge=1, le=1000, description="Number of copies to average.")] = 10
    noise: Annotated[
        float,
        Field(ge=0, le=10, description="Standard deviation of the noise, as a share of the picture's range of values."),
    ] = 0.1

    def before(self, subject: Subject) -> Tensor:
        """Return the mean maps over the noisy copies."""
        return self.drawn(subject, subject.explained)

    def drawn(self, subject: Subject, maps: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean maps over the noisy copies."""
        images, generator = subject.images, torch.Generator().manual_seed(self.seed)
        spread = images.amax(dim=(1, 2, 3), keepdim=True) - images.amin(dim=(1, 2, 3), keepdim=True)
        total = maps(images)
        for _ in range(self.samples - 1):
            noise = torch.randn(images.shape[1:], generator=generator).to(images)
            total = total + maps(images + self.noise * spread * noise)
        return total / self.samples


@metric("efficient-mprt", aspect="randomisation", better="higher", explanations="1")
class EfficientMPRT(Randomisation):
    r"""Efficient MPRT: relative increase of the map's complexity when the whole network is randomised.

    .. math:: \frac{H(\hat{M}) - H(M)}{H(M)}

    where :math:`\hat{M}` is the map of the fully randomised network, and H is the entropy of the histogram of a map's
    values with 100 bins.
    """

    def score(self, subject: Subject) -> Tensor:
        """Return the relative increase (N,); NaN if all values of the map are equal."""
        (model,) = self.networks(subject, 1)
        maps = (subject.raw, self.again(subject, model, subject.images))
        before, after = (torch.tensor([entropy(row) for row in rows.cpu().numpy()]) for rows in maps)
        rises = torch.where(before > 0, (after - before) / before.where(before > 0, 1), torch.nan)
        return rises.float().to(subject.raw.device)


def entropy(values: Any) -> float:
    """Return the entropy of the histogram of a map's values, in nats."""
    counts = np.histogram(values.astype(np.float64), bins=BINS)[0]
    parts = counts[counts > 0] / counts.sum()
    return float(-(parts * np.log(parts)).sum())


def copy_of(module: nn.Module) -> nn.Module:
    """Return a private copy of a module, in evaluation mode, its parameters frozen.

    Raises:
        UnsupportedModuleError: the module cannot be copied.
    """
    try:
        copy = deepcopy(module)
    except Exception as error:  # an attribute that cannot be copied, such as a lock
        raise UnsupportedModuleError(
            f"{type(module).__name__} cannot be copied ({error}), so its weights cannot be randomised: leave out the "
            "metrics that randomise the network."
        ) from error
    return copy.eval().requires_grad_(False)


def stand_in(model: Any, module: nn.Module) -> Any:
    """Return a model with another module, without an accelerator."""
    return RandomModel(model, module)
