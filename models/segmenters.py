"""The segmenters of torchvision."""

from functools import cache, partial
from typing import Any

from torch import nn
from torchvision.models import get_model, list_models, segmentation

from seewhy.models.preprocess import Preprocess
from seewhy.models.spec import ModelSpec
from seewhy.models.weight_sets import source_of, weight_set_of
from seewhy.models.weights import fill_by_name


@cache
def segmenter_names() -> tuple[str, ...]:
    """Return the names of all of them."""
    return tuple(list_models(module=segmentation))


def segmenter_spec(name: str, weights: str | None) -> ModelSpec:
    """Describe a segmenter. It sees the whole picture, resized to a square.

    Raises:
        UnknownModelError: it has no such weight set.
    """
    weight_set = weight_set_of(name, weights)
    transforms = weight_set.transforms()
    size = (transforms.resize_size[0], transforms.resize_size[0])
    return ModelSpec(
        name=name,
        source="torchvision",
        licence="BSD-3-Clause",
        preprocess=Preprocess(
            size, size, "exact", transforms.interpolation.value, tuple(transforms.mean), tuple(transforms.std)
        ),
        labels=tuple(weight_set.meta["categories"]),
        build=partial(build_segmenter, name),
        fill=fill_by_name,
        weights=source_of(name, weights, weight_set),
        declared_head="segmentation",
    )


def build_segmenter(name: str, **arguments: Any) -> nn.Module:
    """Make a segmenter with random weights; `arguments` go to its builder.

    Where it may have an auxiliary head, it has it, as torchvision's weights do.
    """
    if not name.startswith("lraspp"):
        arguments = {"aux_loss": True, **arguments}
    module: nn.Module = get_model(name, weights=None, weights_backbone=None, **arguments)
    return module
