"""All models by name, and their loading."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.errors import LayerError, OptionError, counted, given, near_matches
from seewhy.explainers.execution.accelerators import choose
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.process_wide import exclusive
from seewhy.explainers.tasks.pose import survey
from seewhy.explainers.trust.calibration import check_model, trials_text
from seewhy.explainers.trust.trial import Trial
from seewhy.models.detectors import box_head_of, detector_parts, preprocess_of_detector, pyramid
from seewhy.models.errors import ModelError, ModelsFileError, UnknownModelError
from seewhy.models.models_file import DEFAULT_PREPROCESS, SIZE_ADVICE, own_specs
from seewhy.models.preprocess import channels_hint
from seewhy.models.probabilities import ADVICE, returns_probabilities
from seewhy.models.spec import LoadedModel, ModelSpec
from seewhy.models.weights import checked_sha256, find_weights, missing_reason, obtain_weights, read_state_dict
from seewhy.models.zoo import zoo_names, zoo_spec

_log = logging.getLogger(__name__)

DEFAULT = "default"
"""Stands for the library's default weight set."""


class Registry:
    """All models by name: built-in and custom models.

    Args:
        weights_dir: a folder of weights files, searched before the libraries' caches; None for no folder.
        models_file: the TOML file of the user's models; None for no file.
        download: whether weights may be downloaded.

    Raises:
        ModelsFileError: the file is malformed, or declares the name of a ready-made model.
    """

    def __init__(
        self, weights_dir: Path | None = None, models_file: Path | None = None, download: bool = False
    ) -> None:
        self._weights_dir = weights_dir
        self._download = download
        self._declared = own_specs(models_file) if models_file is not None else {}
        if clashes := set(self._declared) & set(zoo_names()):
            name = min(clashes)
            raise ModelsFileError(f"[models.{name}]: {name!r} is the name of a ready-made model; choose another name.")

    def names(self) -> list[str]:
        """Return all names, the user's models first."""
        return [*self._declared, *zoo_names()]

    def specs(self) -> list[ModelSpec]:
        """Return the description of every model, in the order of `names`."""
        with _listing:
            return [self.spec(name) for name in self.names()]

    def spec(self, name: str, weights: str | None = None) -> ModelSpec:
        """Describe a model without loading it.

        Raises:
            UnknownModelError: no such model or weight set; the message lists near matches.
        """
        if name not in self._declared:
            try:
                return zoo_spec(name, weights)
            except UnknownModelError:
                if name not in zoo_names() and (hint := near_matches(name, self._declared)):
                    raise UnknownModelError(f"There is no model {name!r}. {hint}") from None
                raise
        if weights is not None:
            raise UnknownModelError(f"{name!r} has the weights that the models file names; leave out {weights!r}.")
        return self._declared[name]

    def missing_weights(self, spec: ModelSpec) -> str | None:
        """Return why the weights of a model are not installed, and what to do; None if they are."""
        return missing_reason(spec) if find_weights(spec, self._weights_dir) is None else None

    def file_size(self, spec: ModelSpec) -> int:
        """Return the bytes of a model's weights file; 0 if it is not on this machine."""
        path = find_weights(spec, self._weights_dir)
        try:
            return 0 if path is None else path.stat().st_size
        except OSError:  # the file vanished, or is unreadable: loading the model reports that
            return 0

    def survey(self, spec: ModelSpec, check: Callable[[], None] = lambda: None) -> Survey:
        """Describe the layers of a model without reading its weights.

        Args:
            spec: spec of the model.
            check: called now and then while this thread waits for another survey; it ends the wait by raising.
        """
        layers = _surveys.get(spec)
        if layers is None:
            spec.prepare()
            with exclusive(check):  # one at a time, because a large model takes seconds of a processor
                layers = _surveys.get(spec) or _surveyed(*_without_weights(spec))
                if spec not in _surveys and len(_surveys) >= MOST_SURVEYS:
                    del _surveys[next(iter(_surveys))]
                _surveys[spec] = layers
        return layers

    def load(
        self,
        name: str,
        weights: str | None = DEFAULT,
        device: str | torch.device = "cpu",
        accelerator: str = "auto",
        dtype: torch.dtype = torch.float32,
    ) -> LoadedModel:
        """Load a model, frozen and in evaluation mode; see `load_model`."""
        spec = self.spec(name, None if weights == DEFAULT else weights)
        device = torch.device(device)
        accelerator = choose(accelerator, device)
        # OpenVINO does its own rounding; the part in PyTorch needs float32 for gradients.
        bfloat16 = dtype == torch.bfloat16 and accelerator == "openvino"
        path = obtain_weights(spec, self._weights_dir, self._download) if weights is not None else None
        spec.prepare()
        (spec, module), digest = _as_detector(spec, _build(spec)), None
        if path is not None:
            try:
                digest = checked_sha256(spec, path)
                spec.fill(module, read_state_dict(path))
            except ModelError as error:
                raise type(error)(f"{spec.name}: {error}") from error
        module = module.eval().requires_grad_(False).to(device)
        for value in (*module.parameters(), *module.buffers()):
            if value.ndim == 4:  # channels last is the fastest format of convolutions, forward and backward
                value.data = value.data.contiguous(memory_format=torch.channels_last)
        surveyed = _surveyed(spec, module)
        outputs = surveyed.outputs or surveyed.layers[0].output_shape
        if outputs is not None and spec.head != "detection" and (len(outputs) == 4) != (spec.head == "segmentation"):
            hint = 'declare head = "segmentation"' if len(outputs) == 4 else 'head = "segmentation" needs (N, K, H, W)'
            raise ModelsFileError(f"[models.{spec.name}], head: the model returns {tuple(outputs)}; {hint}.")
        count = None if outputs is None else max(2, outputs[1]) if spec.head == "segmentation" else outputs[-1]
        count = spec.box_head.layout.classes if spec.box_head else count
        if count not in (None, len(spec.labels)):
            raise ModelsFileError(
                f"[models.{spec.name}]: the model has {counted(count, 'class', 'classes')}, but "
                f"{given(len(spec.labels), 'label')}."
            )
        _warn_of_probabilities(spec, module)
        return LoadedModel(
            spec=spec,
            module=module if bfloat16 else module.to(dtype),
            survey=surveyed,
            device=device,
            weights=spec.weights.name if path is not None and spec.weights is not None else None,
            sha256=digest,
            accelerator=accelerator,
            bfloat16=bfloat16,
            calibrations=_calibrations_of(spec, digest),
        )


def list_models() -> list[str]:
    """Return the names of all models, those of ``SEEWHY_MODELS`` first."""
    return _from_environment().names()


def load_model(
    name: str,
    weights: str | None = DEFAULT,
    device: str | torch.device = "cpu",
    download: bool = True,
    accelerator: str = "auto",
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Load a pretrained model in evaluation mode, with frozen parameters and channels-last convolution weights.

    (To save these with safetensors, make them contiguous first: ``module.to(memory_format=torch.contiguous_format)``.)

    Weights come from the package that ships them, the folder ``SEEWHY_WEIGHTS_DIR``, the caches of torchvision and
    timm, or the internet.

    Args:
        name: a name from `list_models()`.
        weights: a weight set of the library, such as ``"IMAGENET1K_V1"``; ``"default"`` for the library's default; None
            for random weights.
        device: device of the module.
        download: whether missing weights may be downloaded.
        accelerator: runtime for the parts of the model that need no hooks: ``openvino`` (on a CPU), ``eager``
            (PyTorch), ``compile`` (`torch.compile`), or ``auto`` for openvino on a CPU if installed, else eager.
        dtype: dtype of the weights. Models that are not float32 run only in PyTorch. The exception is bfloat16 on a CPU
            with OpenVINO, which ``auto`` chooses for it: the weights stay float32, and OpenVINO rounds, if that leaves
            explanations the same (rank correlation of at least 0.99) and is faster; see `LoadedModel.precision`. Maps
            are always float32.

    Returns:
        The model.

    Raises:
        UnknownModelError: the model or weight set does not exist.
        WeightsUnavailableError: the weights are missing; the message says how to get them.
        BadWeightsError: the file is damaged, or belongs to another architecture.
        ModelsFileError: a declared model cannot be built, or has another number of classes than labels.
        OptionError: the accelerator is unknown, not installed, or does not support the device.
    """
    if not isinstance(name, str):
        raise UnknownModelError(f"Expected the name of a model, got {type(name).__name__}; `wrap_model` takes modules.")
    return _from_environment(download).load(name, weights, device, accelerator, dtype)


def _from_environment(download: bool = False) -> Registry:
    folder, file = os.environ.get("SEEWHY_WEIGHTS_DIR"), os.environ.get("SEEWHY_MODELS")
    return Registry(Path(folder) if folder else None, Path(file) if file else None, download)


_listing = threading.Lock()  # the first list takes seconds and fills a cache, for which later ones wait

_surveys: dict[ModelSpec, Survey] = {}

MOST_SURVEYS = 256
"""Most surveys in memory; the oldest is dropped first."""


def _surveyed(spec: ModelSpec, module: nn.Module) -> Survey:
    with _blaming(spec, module):
        return survey(module, spec.image_shape, spec.default_layers, spec.task)


def _calibrations_of(spec: ModelSpec, sha256: str | None) -> tuple[Calibration, ...]:
    """Return the declared calibrations; log why one cannot be read or is of another model, and leave it out.

    The model also works without one, and `calibrate`, which writes it, has to load the model.
    """
    calibrations: list[Calibration] = []
    for path in spec.calibrations:
        try:
            calibration = Calibration.load(path)
            for part in calibration.trials.values():
                check_model(part, spec.name, spec.preprocess.size, sha256)
            if any(calibration.trials.keys() & row.trials for row in calibrations):
                raise OptionError(f"{str(path)!r}: another file has scores for the same proofs.", "calibration")
            calibrations.append(calibration)
        except (OSError, OptionError) as error:
            reason = error.strerror if isinstance(error, OSError) else ""
            fault = f"{str(path)!r} cannot be read ({reason})." if reason else str(error)
            _log.warning("[models.%s], calibration: %s Proofs do not use it.", spec.name, fault)
    usual = Trial()
    if calibrations and not any((usual.area, usual.fill) in row.trials for row in calibrations):
        _log.warning("[models.%s], calibration: It grades only proofs with %s.", spec.name, trials_text(calibrations))
    return tuple(calibrations)


def _warn_of_probabilities(spec: ModelSpec, module: nn.Module) -> None:
    """Log that a declared model ends in a softmax."""
    if spec.source != "own" or spec.head != "softmax":
        return
    first = next(module.parameters(), torch.empty(0))
    empty = torch.zeros((1, *spec.image_shape), device=first.device, dtype=first.dtype)
    with _blaming(spec, module), torch.no_grad():
        outputs = spec.task.outputs(module(empty.clone()))
        is_normalised = returns_probabilities(module, spec.task, spec.head, empty, outputs)
    if is_normalised:
        _log.warning("[models.%s]: the model %s", spec.name, ADVICE)


@contextmanager
def _blaming(spec: ModelSpec, module: nn.Module) -> Iterator[None]:
    """Turn an exception of a declared model on an empty picture into a `ModelsFileError` that names its table."""
    try:
        yield
    except LayerError as error:
        raise ModelsFileError(f"[models.{spec.name}], default_layers: {error}") from error
    except Exception as error:
        if spec.source != "own":
            raise
        text = f"[models.{spec.name}]: the model raised {type(error).__name__} on a picture of {spec.image_shape}"
        if hint := channels_hint(module, spec.image_shape[0]):
            raise ModelsFileError(f"{text}. {hint}") from error
        _log.exception("[models.%s]: the model failed on an empty picture", spec.name)
        raise ModelsFileError(f"{text}; the log says why.") from error


class _EmptyOnMeta(TorchFunctionMode):
    """Makes uninitialised tensors, as parameters first are, on the meta device: they take no memory or random numbers.

    Other tensors stay real, because builders compute widths or drop rates with them.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **({**kwargs, "device": "meta"} if func is torch.empty else kwargs))


def _build(spec: ModelSpec) -> nn.Module:
    with exclusive():
        return spec.build()


def _without_weights(spec: ModelSpec) -> tuple[ModelSpec, nn.Module]:
    """Return the architecture on the meta device, which computes shapes without values; a detector with random weights.

    A detector's proposals depend on values.
    """
    if spec.head == "detection":
        return _as_detector(spec, _build(spec))
    meta_device: AbstractContextManager[Any] = torch.device("meta")  # for builders that run the network
    for place in (_EmptyOnMeta(), meta_device):
        with exclusive(), suppress(Exception, SystemExit), place:  # a builder that needs values may raise anything
            return _as_detector(spec, spec.build().to("meta"))
    return _as_detector(spec, _build(spec).to("meta"))


def _as_detector(spec: ModelSpec, module: nn.Module) -> tuple[ModelSpec, nn.Module]:
    """Return a detector, completed after it was built; one of torchvision then returns its candidates."""
    detector = detector_parts(module)
    if spec.head != "detection":
        if detector is not None or hasattr(module, "box_head"):
            raise ModelsFileError(f'[models.{spec.name}], head: the module is a detector; declare head = "detection".')
        return spec, module
    if detector is None:
        if not spec.is_sized:
            raise ModelsFileError(f"[models.{spec.name}], input_size: {SIZE_ADVICE}")
        with _blaming(spec, module):
            box_head = box_head_of(module, spec.preprocess.size)
        if box_head is None:
            raise ModelsFileError(
                f"[models.{spec.name}], head: the module has no `box_head`, which a detector needs; see BoxHead."
            )
        return replace(spec, box_head=box_head), module
    preprocess, size = preprocess_of_detector(detector), spec.preprocess.size
    if spec.preprocess != DEFAULT_PREPROCESS:
        preprocess = replace(preprocess, size=size, scale_size=size)
    spec = replace(spec, box_head=detector.box_head, preprocess=preprocess)
    return replace(spec, default_layers=spec.default_layers or pyramid(detector, spec.image_shape)), detector
