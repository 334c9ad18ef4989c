"""Sanity of a method on a network: its maps beside those of shuffled weights and of an unlikely class."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from seewhy import LoadedModel
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.agreement import rank_correlation
from seewhy.explainers.trust.sanity import Sanity

UNLIKELY = 0.5
"""The rank of the unlikely class among all, as a share of them."""


def shuffled(model: LoadedModel, paths: Sequence[str], seed: int = 0) -> LoadedModel:
    """Return a copy of a model in which the entries of each parameter of some modules are in random order."""
    module, generator = deepcopy(model.module), torch.Generator().manual_seed(seed)
    for path in paths:
        for value in module.get_submodule(path).parameters(recurse=False):
            order = torch.randperm(value.numel(), generator=generator)
            value.data = value.data.flatten()[order].view_as(value)
    return replace(model, module=module, accelerator="eager")


def random_head(model: LoadedModel) -> LoadedModel:
    """Return a copy of a model whose last module with parameters is shuffled."""
    return shuffled(model, model.survey.last_weighted)


def random_model(model: LoadedModel) -> LoadedModel:
    """Return a copy of a model all of whose modules are shuffled."""
    return shuffled(model, [path for path, _ in model.module.named_modules()])


def sanity_of(explainer: Explainer, models: tuple[LoadedModel, LoadedModel, LoadedModel], images: Tensor) -> Sanity:
    """Return the sanity of a method on a network.

    Args:
        explainer: the method.
        models: the network, with a random head, and all random.
        images: (N, C, H, W).
    """
    model, head, whole = models
    plain = explainer.explain(model, images)
    classes = plain.targets
    if not isinstance(classes, Tensor):
        raise TypeError("Only classifiers have unlikely classes.")
    unlikely = plain.outputs.argsort(dim=1)[:, int(UNLIKELY * plain.outputs.shape[1])]
    others = [
        explainer.explain(head, images, classes),
        explainer.explain(whole, images, classes),
        explainer.explain(model, images, unlikely),
    ]
    return Sanity(*(_likeness(plain.maps, other.maps) for other in others), pictures=len(images))


def _likeness(first: Tensor, second: Tensor) -> float:
    """Return the mean magnitude of the rank correlation of maps (N, h, w); of blank ones there is none."""
    pairs = zip(first.numpy(), second.numpy(), strict=True)
    return round(fmean(abs(rank_correlation(*pair) or 0.0) for pair in pairs), 3)
