"""The user's models, declared in a TOML file.

[models.pneumonia]
architecture = "resnet18"            # a torchvision name, "timm/NAME", or "package.module:factory"
weights = "pneumonia.safetensors"    # paths are relative to this file
sha256 = "9f86d081884c7d65..."        # the file's first digits, at least 8; default: not checked
labels = "labels.txt"                # one label per line, or a list: labels = ["healthy", "pneumonia"]
input_size = 224                     # or [height, width]; required for a custom architecture
resize = 256                         # shorter side before the centre crop, or [height, width], which changes the
                                     # proportions; default: input_size
interpolation = "bilinear"
mean = [0.485, 0.456, 0.406]         # for each channel: three, or one for a network that sees grey
std = [0.229, 0.224, 0.225]
head = "sigmoid"                     # if several labels may apply, or for a single logit; default: "softmax";
                                     # "value" for regression; "detection" for a module with a `box_head`
units = ["years"]                    # for values
default_layers = ["layer4"]          # default: automatic
calibration = "scores.json"          # from `seewhy calibrate`, to grade proofs by, or a list of such files, one
                                     # for each proof_area; default: scores of requests
licence = "proprietary"
"""

import importlib
import inspect
import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from torch import nn

from seewhy.explainers.errors import near_matches, plain_fault
from seewhy.explainers.process_wide import accepted_changes, restored
from seewhy.explainers.tasks.heads import Head, head_fault
from seewhy.models.errors import ModelsFileError
from seewhy.models.hub import timm
from seewhy.models.preprocess import Interpolation, Preprocess, normalisation_fault
from seewhy.models.spec import ModelSpec, WeightsSource, prepare_nothing
from seewhy.models.weights import fill_by_name, is_file
from seewhy.models.zoo import LITE, TIMM_PREFIX, build_torchvision, zoo_names, zoo_spec

_log = logging.getLogger(__name__)

DEFAULT_PREPROCESS = Preprocess((224, 224), (256, 256))
"""The preprocessing if none is declared."""


def _ruled(rule: str) -> WrapValidator:
    """Return a validator that reports any fault as this sentence, not in pydantic's words about one type of a union."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(rule) from error

    return WrapValidator(check)


Text = Annotated[str, Field(min_length=1)]
File = Annotated[Path, BeforeValidator(TypeAdapter(Text).validate_python), _ruled("It must be the path of a file.")]
SIZE_ADVICE = "A value is required; give the side or [height, width] of the pictures in training, in pixels."

Side = Annotated[int, Field(strict=True, ge=8, le=4096)]
Sides = Annotated[
    Side | tuple[Side, Side], _ruled("It must be a side in pixels, from 8 to 4096, or [height, width] of such sides.")
]
Mean = Annotated[FiniteFloat, Field(strict=True)]
Spread = Annotated[Mean, Field(gt=0)]


class ModelDeclaration(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str
    weights: File
    sha256: (
        Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8,64}$"), _ruled("It must be 8 to 64 hexadecimal digits.")] | None
    ) = None
    labels: Annotated[
        File | Annotated[tuple[Text, ...], Field(min_length=1)],
        _ruled("It must be a list of names, or the path of a text file with one name per line."),
    ]
    input_size: Sides | None = None
    resize: Sides | None = None
    interpolation: Interpolation | None = None
    mean: Annotated[
        tuple[Mean, Mean, Mean] | tuple[Mean] | None,
        _ruled("It must be a list of three numbers, or of one for grayscale networks, such as [0.5]."),
    ] = None
    std: Annotated[
        tuple[Spread, Spread, Spread] | tuple[Spread] | None,
        _ruled("It must be a list of three positive numbers, or of one for grayscale networks, such as [0.25]."),
    ] = None
    head: Head | None = None
    units: Annotated[tuple[str, ...], _ruled("It must be a list with a unit for each value.")] = ()
    default_layers: Annotated[tuple[str, ...], _ruled("It must be a list of layers, such as ['layer4'].")] = ()
    calibration: Annotated[
        File | tuple[File, ...], _ruled("It must be the path of a file, or a list of such paths.")
    ] = ()
    licence: str = "own"


def own_specs(file: Path) -> dict[str, ModelSpec]:
    """Read the declarations.

    Raises:
        ModelsFileError: the file is not TOML, has an unknown key or an invalid value, or its labels file cannot be
            read.
    """
    return {name: _own_spec(name, table, file) for name, table in _tables(file).items()}


def _tables(file: Path) -> dict[str, Any]:
    """Return the tables of the file, still unchecked, by the names of the models."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("models", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelsFileError(f"The models file {file.name!r} cannot be read: {error}") from error
    if not isinstance(tables, dict) or not tables:
        raise ModelsFileError(f"The models file {file.name!r} declares no model; it needs a table [models.NAME].")
    for name in tables:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ModelsFileError(f"[models.{name!r}]: a name may hold letters, digits, dots, dashes and underscores.")
    return tables


def _own_spec(name: str, table: Any, file: Path) -> ModelSpec:
    if not isinstance(table, dict):
        raise ModelsFileError(f"[models.{name}]: It must be a table.")
    try:
        declaration = ModelDeclaration.model_validate(table)
    except ValidationError as error:
        # A misspelt key comes first: it explains a missing one.
        first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        field = str(first["loc"][0])
        is_unknown = first["type"] == "extra_forbidden"
        problem = "There is no such key." if is_unknown else plain_fault(first)
        hint = near_matches(field, ModelDeclaration.model_fields) if is_unknown else ""
        raise ModelsFileError(f"[models.{name}], {field}: {problem} {hint}".rstrip()) from error
    labels = (
        declaration.labels
        if isinstance(declaration.labels, tuple)
        else _read_labels(name, file.parent / declaration.labels)
    )
    is_sized = declaration.input_size is not None or ":" not in declaration.architecture
    if not is_sized and declaration.head != "detection":
        raise ModelsFileError(f"[models.{name}], input_size: {SIZE_ADVICE}")
    preprocess = _preprocess(declaration)
    if fault := normalisation_fault(preprocess.mean, preprocess.std):
        raise ModelsFileError(f"[models.{name}]: {fault}")
    if fault := head_fault(declaration.head, len(labels), declaration.units):
        key = "units" if declaration.units else "head"
        raise ModelsFileError(f"[models.{name}], {key}: {fault}")
    weights = file.parent / declaration.weights
    return ModelSpec(
        name=name,
        source="own",
        licence=declaration.licence,
        preprocess=preprocess,
        labels=labels,
        build=_builder(name, declaration.architecture, len(labels)),
        fill=fill_by_name,
        weights=WeightsSource(
            declaration.weights.name,
            (declaration.weights.name,),
            lambda: weights if is_file(weights) else None,
            download=None,
            digests={weights.name: declaration.sha256.lower()} if declaration.sha256 else {},
            declared=weights,
        ),
        default_layers=declaration.default_layers,
        declared_head=declaration.head,
        units=declaration.units,
        is_sized=is_sized,
        calibrations=tuple(file.parent / path for path in _listed(declaration.calibration)),
        prepare=partial(_imported, name, declaration.architecture)
        if ":" in declaration.architecture
        else prepare_nothing,
    )


def _listed(paths: Path | tuple[Path, ...]) -> tuple[Path, ...]:
    return paths if isinstance(paths, tuple) else (paths,)


def _read_labels(name: str, path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelsFileError(f"[models.{name}]: the labels file {path.name!r} cannot be read.") from error
    labels = tuple(line.strip() for line in lines if line.strip())
    if not labels:
        raise ModelsFileError(f"[models.{name}]: the labels file {path.name!r} is empty; give one label per line.")
    return labels


def _preprocess(declaration: ModelDeclaration) -> Preprocess:
    """Return the architecture's own preprocessing, with the declared changes."""
    defaults = (
        zoo_spec(declaration.architecture).preprocess if declaration.architecture in zoo_names() else DEFAULT_PREPROCESS
    )
    size = declaration.input_size
    if isinstance(size, int):
        size = (size, size)
    scale, kind = size or defaults.scale_size, defaults.resize
    if isinstance(declaration.resize, int):
        scale = (declaration.resize, declaration.resize)
    elif declaration.resize is not None:
        scale, kind = declaration.resize, "exact"
    return Preprocess(
        size=size or defaults.size,
        scale_size=scale,
        resize=kind,
        interpolation=declaration.interpolation or defaults.interpolation,
        mean=declaration.mean or defaults.mean,
        std=declaration.std or defaults.std,
    )


def _builder(name: str, architecture: str, classes: int) -> Callable[[], nn.Module]:
    if ":" in architecture:
        return partial(_from_factory, name, architecture)
    if architecture.startswith(TIMM_PREFIX) and timm.is_model(architecture.removeprefix(TIMM_PREFIX).split(".")[0]):
        return partial(timm.create_model, architecture.removeprefix(TIMM_PREFIX), num_classes=classes)
    if architecture in zoo_names():
        if architecture in LITE:
            return partial(timm.create_model, f"tf_{architecture}", num_classes=classes)
        return partial(build_torchvision, architecture, num_classes=classes)
    near = near_matches(architecture.rpartition(".")[2], zoo_names())
    hints = [near, "Custom code is named as 'package.module:factory'."]
    raise ModelsFileError(
        f"[models.{name}]: there is no architecture {architecture!r}. {' '.join(filter(None, hints))}"
    )


def missing_modules(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each declared model whose code this Python does not find, and the error; nothing is imported.

    Args:
        file: the models file, which `own_specs` accepts.
    """
    for name, table in _tables(file).items():
        package, colon, _ = table["architecture"].partition(":")
        package = package.partition(".")[0]
        if colon and package not in sys.modules and package and find_spec(package) is None:
            yield name, _missing(name, package)


def _missing(name: str, module: str) -> str:
    if module.endswith(".py"):
        return f"[models.{name}]: No module named {module!r}: leave out `.py`."
    return (
        f"[models.{name}]: No module named {module!r}: put its folder on Python's path (PYTHONPATH=FOLDER seewhy ...), "
        "or install it."
    )


def _imported(name: str, architecture: str) -> ModuleType:
    """Return the package of a factory.

    Raises:
        ModelsFileError: it cannot be imported.
    """
    with _blaming(name, architecture), accepted_changes():
        return importlib.import_module(architecture.partition(":")[0])


def _from_factory(name: str, architecture: str) -> nn.Module:
    code, (path, _, function) = _imported(name, architecture), architecture.partition(":")
    with _blaming(name, architecture):
        factory = getattr(code, function, None)
    if factory is None:
        hint = near_matches(function, vars(code)) or "Name a function or a class of it."
        raise ModelsFileError(f"[models.{name}]: the module {path!r} has no {function!r}. {hint}")
    if not _takes_nothing(factory):
        raise ModelsFileError(
            f"[models.{name}]: {architecture!r} must be a function that can be called without arguments and returns "
            "the module."
        )
    with _blaming(name, architecture), accepted_changes(), restored() as changes:
        module = factory()
    if changes:
        raise ModelsFileError(
            f"[models.{name}]: {architecture!r} left {' and '.join(changes)} changed, which all models share; restore "
            "it before the factory returns."
        )
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise ModelsFileError(f"[models.{name}]: {architecture!r} returned a {kind}, not an nn.Module.")
    return module


def _takes_nothing(factory: Any) -> bool:
    """Whether an object can be called without arguments, as far as is known before the call."""
    try:
        with suppress(ValueError):  # a builtin without a signature
            inspect.signature(factory).bind()
    except TypeError:
        return False
    return True


@contextmanager
def _blaming(name: str, architecture: str) -> Iterator[None]:
    """Turn any exception of the user's code into a `ModelsFileError` that names the table."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if torch.empty(0).is_meta:  # tensors without values may be the cause; the caller goes on with real ones
            raise
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise ModelsFileError(_missing(name, error.name)) from error
        _log.exception("[models.%s]: %r failed", name, architecture)
        raise ModelsFileError(
            f"[models.{name}]: {architecture!r} raised {type(error).__name__}; the log says why."
        ) from error
