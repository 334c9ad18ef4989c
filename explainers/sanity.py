"""Sanity of a method on a network: its maps beside those of shuffled weights, and of an unlikely class."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel, Model
from seewhy.explainers.correlations import rank_correlations
from seewhy.explainers.execution.replay import structure_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.trust.metrics.randomisation import stand_in
from seewhy.explainers.trust.sanity import Sanity

UNLIKELY = 0.5
"""The rank of the unlikely class among all, as a share of them."""

LEAST_CLASSES = 3
"""Minimum number of classes: among fewer, no class is unlikely without being the runner-up."""

Networks = tuple[AnyModel, AnyModel, AnyModel]
"""A network, the same with a random head, and with random weights everywhere."""

Run = Callable[[Explainer, AnyModel, Tensor, Tensor | None], Attribution]
"""Explains images (N, C, H, W) and their classes (N,), None for the most probable ones."""


def explained(explainer: Explainer, model: AnyModel, images: Tensor, classes: Tensor | None) -> Attribution:
    """Explain immediately, in this thread."""
    return explainer.explain(model, images, classes)


def networks_of(model: Model, structures: tuple[nn.Module, nn.Module] | None = None) -> Networks:
    """Return a model and its random copies, which take as much memory again as its weights.

    Args:
        model: the model.
        structures: copies of its module that share its parameters, to make the random ones of; None to make them.
    """
    head, whole = structures or (structure_of(model.module), structure_of(model.module))
    shuffle(head, model.survey.last_weighted)
    shuffle(whole, [path for path, _ in whole.named_modules()])
    return model, stand_in(model, head), stand_in(model, whole)


def shuffle(module: nn.Module, paths: Iterable[str]) -> None:
    """Replace each parameter of some modules by another one with its entries in random order."""
    generator = torch.Generator().manual_seed(0)
    for path in paths:
        part = module.get_submodule(path)
        for name, value in list(part.named_parameters(recurse=False)):
            order = torch.randperm(value.numel(), generator=generator).to(value.device)
            mixed = value.detach().flatten()[order].view_as(value)
            part.register_parameter(name, nn.Parameter(mixed, requires_grad=False))


def has_sanity(model: Model) -> bool:
    """Whether a model has unlikely classes, so that the sanity of methods can be measured on it."""
    return isinstance(model.task, Classification) and len(model.labels) >= LEAST_CLASSES


def sanity_of(explainer: Explainer, networks: Networks, images: Tensor, run: Run = explained) -> Sanity:
    """Return the sanity of a method on a network.

    Args:
        explainer: the method.
        networks: see `networks_of`.
        images: (N, C, H, W), different pictures.
        run: explains them.
    """
    model, head, whole = networks
    plain = run(explainer, model, images, None)
    classes = plain.targets
    count = plain.outputs.shape[1]
    if not isinstance(classes, Tensor) or count < LEAST_CLASSES:
        raise TypeError(f"Sanity is measured with an unlikely class, so it needs {LEAST_CLASSES} classes or more.")
    unlikely = plain.outputs.argsort(dim=1)[:, min(int(UNLIKELY * count), count - LEAST_CLASSES)]
    comparisons = [
        run(explainer, head, images, classes),
        run(explainer, whole, images, classes),
        run(explainer, model, images, unlikely),
    ]
    likenesses = [rank_correlations(plain.maps, part.maps).abs().mean() for part in comparisons]
    head_likeness, model_likeness, class_likeness = (round(float(likeness), 3) for likeness in likenesses)
    return Sanity(head_likeness, model_likeness, class_likeness, pictures=len(images))
