"""What can go wrong in an explanation, as one tree.

    ExplainerError
    ├── PictureError
    │   ├── UnreadablePictureError   the bytes are no picture we can read
    │   └── PictureTooLargeError     more pixels than allowed
    ├── OptionError                  a method, or an option of one, that does not exist or is out of bounds
    │   ├── UnknownOptionError       an argument that an explainer does not take; a TypeError too
    │   └── EditError                an edit that cannot be applied
    ├── CaptureTooLargeError         tensors that would take more memory than allowed
    ├── LayerError                   a layer that does not exist, does not run, or has no grid
    │   └── UnsuitableModelError     a model that is not what the method takes it to be
    ├── TargetError                  a class that the model does not have
    ├── UnsupportedModuleError       a module that hooks cannot see into
    ├── UnsupportedOperationError    an operation of the model for which a method has no rule
    └── ModelOutputError             no usable logits came out of the model
        └── NonFiniteError           NaN or infinity where a number belongs

Every message says what to do next.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any


class ExplainerError(Exception):
    """Root of everything this package raises on purpose."""


class PictureError(ExplainerError):
    """Something is wrong with the picture itself."""


class UnreadablePictureError(PictureError):
    """The bytes are not a picture in one of the supported formats, or they are cut short."""


class PictureTooLargeError(PictureError):
    """The picture has more pixels than the limit."""


class OptionError(ExplainerError):
    """An unknown method, or an option with a value it cannot take.

    `field` names the option; `fault` says what is wrong with it where it need not be named any more.
    """

    def __init__(self, message: str, field: str, fault: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.fault = fault or message


class UnknownOptionError(OptionError, TypeError):
    """An argument that an explainer does not take. It is a `TypeError` too, as for any other dataclass."""


class CaptureTooLargeError(ExplainerError):
    """What is to be captured would take more memory than allowed."""


class EditError(OptionError):
    """An edit that cannot be applied; `field` names it by index and field, as in ``edits[0].channels``."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}", field, message)


class LayerError(ExplainerError):
    """A layer that the model lacks, or that cannot carry the explanation asked for."""


class UnsuitableModelError(LayerError):
    """No gradient flows where the method needs one, or the logits are not made as the method takes them to be."""


class TargetError(ExplainerError):
    """A class index or label that the model lacks."""


class UnsupportedModuleError(ExplainerError):
    """A compiled, scripted or parallelised module: its submodules never run as Python modules."""


class UnsupportedOperationError(ExplainerError):
    """The model computes something for which the method has no rule. `operation` names it."""

    def __init__(self, message: str, operation: str) -> None:
        super().__init__(message)
        self.operation = operation


class ModelOutputError(ExplainerError):
    """The model's output holds no logits of shape (N, K)."""


class NonFiniteError(ModelOutputError):
    """The model's output, or the map computed from it, holds NaN or infinity."""


_PLAIN = {
    "missing": "It is missing; it must be given.",
    "tuple_type": "It must be a list.",
    "list_type": "It must be a list.",
    "dict_type": "It must be an object.",
    "model_attributes_type": "It must be an object.",
    "string_type": "It must be text.",
    "int_type": "It must be a whole number.",
    "int_parsing": "It must be a whole number.",
    "int_from_float": "It must be a whole number.",
    "float_type": "It must be a number.",
    "float_parsing": "It must be a number.",
    "finite_number": "It must be a finite number.",
    "bool_type": "It must be true or false.",
    "bool_parsing": "It must be true or false.",
}


def plain_fault(fault: Mapping[str, Any]) -> str:
    """Return what pydantic found wrong with a value as a sentence for whoever sent it, who need not know Python.

    Args:
        fault: one of `pydantic.ValidationError.errors()`.
    """
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "too_short":
        least = context["min_length"]
        return f"It has {context['actual_length']} items; it must have {least} or more."
    if kind == "too_long":
        return f"It has too many items; it may have {context['max_length']}."
    if kind == "string_too_long":
        return f"It is too long; it may have {context['max_length']} characters."
    said = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "It must be").rstrip(".")
    return f"{said[:1].upper()}{said[1:]}."


def near_matches(name: str, names: Iterable[str], limit: int = 5) -> str:
    """Return a sentence such as ``Near matches: layer3, layer4.`` or an empty string; see `nearest`."""
    close = nearest(name, names, limit)
    return f"Near matches: {', '.join(close)}." if close else ""


def nearest(name: str, names: Iterable[str], limit: int = 5) -> list[str]:
    """Return the names that may be meant by one that is none of them.

    Case is ignored. Names that have it as a word come first, the shortest of them before the others, as ``tiger cat``
    for ``cat``; names that merely contain it come last.
    """
    name = name[:100]  # the search is quadratic in it
    by_lower = {candidate.lower(): candidate for candidate in names if candidate}
    wanted = name.lower()
    holding = [candidate for candidate in by_lower if wanted and wanted in candidate]
    close = sorted((one for one in holding if wanted in re.split(r"[^a-z0-9]+", one)), key=len)
    close += difflib.get_close_matches(wanted, by_lower, n=limit, cutoff=0.6)
    return [by_lower[candidate] for candidate in [*dict.fromkeys([*close, *holding])][:limit]]
