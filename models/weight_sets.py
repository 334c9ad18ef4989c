"""The weight sets of torchvision: which a model has, and where their files lie."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchvision import models as torchvision_models

from seewhy.models.errors import UnknownModelError
from seewhy.models.spec import WeightsSource
from seewhy.models.weights import SUFFIXES, is_file, published_digest


def weight_set_of(name: str, weights: str | None) -> Any:
    """Return torchvision's description of a weight set; None for the default one.

    Raises:
        UnknownModelError: the model has none of this name.
    """
    members = torchvision_models.get_model_weights(name)
    # A set without categories, such as VGG-16's IMAGENET1K_FEATURES, has no classifier.
    sets = {member.name: member for member in members if member.meta["categories"]}
    if weights is not None and weights not in sets:
        raise UnknownModelError(f"{name!r} has no weight set {weights!r}; it has {', '.join(sets)}.")
    return sets[weights] if weights is not None else members.DEFAULT


def source_of(name: str, weights: str | None, weight_set: Any) -> WeightsSource:
    """Return the places of a weight set that a user names, or of the default one."""
    file_name = hub_file(weight_set.url).name
    return WeightsSource(
        weight_set.name,
        (*file_names(name if weights is None else f"{name}-{weights}"), file_name),
        partial(cached_file, weight_set.url),
        partial(download_file, weight_set.url),
        published_digest(file_name),
    )


def file_names(*stems: str) -> tuple[str, ...]:
    """Return the names of files of weights in all formats."""
    return tuple(stem + suffix for stem in stems for suffix in SUFFIXES)


def hub_file(url: str) -> Path:
    """Return the file of weights in PyTorch's cache."""
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


def cached_file(url: str) -> Path | None:
    """Return the file of weights in PyTorch's cache, if it is there."""
    return path if is_file(path := hub_file(url)) else None


def download_file(url: str) -> Path:
    """Download weights into PyTorch's cache."""
    path = hub_file(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = published_digest(path.name).get(path.name)
    torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=False)
    return path
