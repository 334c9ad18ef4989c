"""Errors of explanations, as one tree.

    ExplainerError
    ├── PictureError
    │   ├── UnreadablePictureError   the bytes are not a readable picture
    │   └── PictureTooLargeError     more pixels than allowed
    ├── OptionError                  an unknown method or option, or a value out of bounds
    │   ├── UnknownOptionError       an unknown argument of an explainer; a TypeError too
    │   ├── UnmeasurableError        pictures, or targets, that a metric cannot measure
    │   ├── InvalidArgumentError     an invalid argument in Python code; a ValueError too
    │   └── EditError                an edit that cannot be applied
    ├── CaptureTooLargeError         tensors that take more memory than allowed
    ├── LayerError                   a layer that does not exist, does not run, or has no grid
    │   └── UnsuitableModelError     a model without the structure that the method needs
    ├── TargetError                  a class that the model lacks
    │   └── MaskError                a mask that is empty, or does not lie over the picture
    ├── UnsupportedModuleError       a module that hooks cannot reach
    ├── UnsupportedOperationError    an operation of the model for which a method has no rule
    └── ModelOutputError             the model returned no usable logits
        └── NonFiniteError           NaN or infinity

Every message says what to do next.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class ExplainerError(Exception):
    """Base class of all errors of this package. `field` names the option at fault, if known."""

    field: str | None = None


class PictureError(ExplainerError):
    """The picture cannot be used.

    Attributes:
        path: path of its file, which begins the message; None if it did not come from a file.
    """

    path: str | None = None

    @property
    def reason(self) -> str:
        """Return the message without the path."""
        return super().__str__()

    def __str__(self) -> str:
        return self.reason if self.path is None else f"{self.path}: {self.reason}"


def reason_of(error: Exception) -> str:
    """Return why a picture failed, for lists that name its file."""
    return error.reason if isinstance(error, PictureError) else str(error)


@contextmanager
def at_fault(field: str, kind: type[ExplainerError] = PictureError) -> Iterator[None]:
    """Name this field in errors of a kind, in place of the usual one."""
    try:
        yield
    except kind as error:
        error.field = field
        raise


class UnreadablePictureError(PictureError):
    """The bytes are not a picture of a supported format, or are incomplete."""


class PictureTooLargeError(PictureError):
    """The picture has more pixels than the limit."""


class OptionError(ExplainerError):
    """An unknown method or option, or an option with an invalid value.

    Attributes:
        field: name of the option.
        fault: the message without the name of the option.
    """

    def __init__(self, message: str, field: str, fault: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.fault = fault or message


class UnknownOptionError(OptionError, TypeError):
    """An unknown argument of an explainer. It is a `TypeError` too, as for any other dataclass."""


class UnmeasurableError(OptionError):
    """Pictures, or targets, that a metric cannot measure, whatever the method."""


class InvalidArgumentError(OptionError, ValueError):
    """An invalid argument in Python code, such as images of the wrong shape. It is a `ValueError` too."""


class CaptureTooLargeError(ExplainerError):
    """The captured tensors would take more memory than allowed."""


class EditError(OptionError):
    """An edit that cannot be applied; `field` names it by index and field, as in ``edits[0].channels``."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}", field, message)


class LayerError(ExplainerError):
    """The model does not have the layer, or the method cannot use it."""


class UnsuitableModelError(LayerError):
    """The method needs a gradient that does not flow, or a structure of the model's head that is missing."""


class TargetError(ExplainerError):
    """The model does not have this class index or label."""


class MaskError(TargetError):
    """The mask is empty, has another size than the picture, or lies outside of the model's input."""

    field = "mask"


class UnsupportedModuleError(ExplainerError):
    """A compiled, scripted or parallelised module: its submodules never run as Python modules."""


class UnsupportedOperationError(ExplainerError):
    """The model uses an operation for which the method has no rule; `operation` names it."""

    def __init__(self, message: str, operation: str) -> None:
        super().__init__(message)
        self.operation = operation


class ModelOutputError(ExplainerError):
    """The model's output contains no logits of shape (N, K)."""


class NonFiniteError(ModelOutputError):
    """The model's output, or the map computed from it, holds NaN or infinity."""


_PLAIN = {
    "missing": "A value is required.",
    "tuple_type": "It must be a list.",
    "list_type": "It must be a list.",
    "dict_type": "It must be an object.",
    "model_attributes_type": "It must be an object.",
    "string_type": "It must be text.",
    "int_type": "It must be an integer.",
    "int_parsing": "It must be an integer.",
    "int_from_float": "It must be an integer.",
    "float_type": "It must be a number.",
    "float_parsing": "It must be a number.",
    "finite_number": "It must be a finite number.",
    "bool_type": "It must be true or false.",
    "bool_parsing": "It must be true or false.",
}

_BOUNDS = ("less_than", "less_than_equal", "greater_than", "greater_than_equal")

_MUST = "It must be "


def plain_fault(fault: Mapping[str, Any]) -> str:
    """Return pydantic's report of a fault as a sentence for the sender of the value, free of Python's terms.

    Args:
        fault: one of `pydantic.ValidationError.errors()`.
    """
    kind, context = str(fault["type"]), fault.get("ctx", {})
    # NaN is within no bounds.
    if kind in _BOUNDS and isinstance(fault["input"], float | str) and math.isnan(float(fault["input"])):
        kind = "finite_number"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "too_short":
        least = context["min_length"]
        return f"It has {counted(context['actual_length'], 'item')}; it must have at least {least}."
    if kind == "too_long":
        return f"It has too many items; at most {context['max_length']} are allowed."
    if kind == "string_too_long":
        return f"It is too long; at most {context['max_length']} characters are allowed."
    text = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "It must be").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def plain_faults(faults: Sequence[Mapping[str, Any]]) -> str:
    """Return the faults of one value as a sentence; if it may have several types, the sentence names all of them.

    Args:
        faults: see `plain_fault`; one or more.
    """
    depths = [sum(isinstance(step, int) for step in fault["loc"]) for fault in faults]
    # If a list has wrong items, it does not help that it is not a number either.
    inner = [fault for fault, depth in zip(faults, depths, strict=True) if depth == max(depths)]
    # A value of the right type, but too long or too large, needs no other types.
    wrong = [fault for fault in inner if fault["type"] not in _PLAIN and fault["type"] != "literal_error"]
    sentences = list(dict.fromkeys(map(plain_fault, inner)))
    if wrong or len(sentences) == 1:
        return plain_fault((wrong or inner)[0])
    choices = [part for text in sentences for part in re.split(", | or ", text.removeprefix(_MUST).rstrip("."))]
    return f"{_MUST}{', '.join(choices[:-1])} or {choices[-1]}."


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as ``1 label`` or ``2 classes``.

    Args:
        count: the number.
        noun: in the singular.
        plural: plural of the noun; empty to add an s.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def given(count: int, noun: str) -> str:
    """Return a number of given things, such as ``1 label is given``."""
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'} given"


def near_matches(name: str, names: Iterable[str]) -> str:
    """Return a sentence such as ``Near matches: layer3, layer4.`` or an empty string; see `nearest`."""
    close = nearest(name, names)
    return f"Near matches: {listed(close)}." if close else ""


def listed(names: Iterable[str]) -> str:
    """Return names in a row; those that contain a comma, as labels may, are quoted."""
    return ", ".join(repr(name) if "," in name else name for name in names)


LAYER_LIST = "the list of the model's layers (`seewhy layers NAME`; in Python, `survey(...).layers`)"
"""The list that errors recommend for choosing a layer."""

LAYERS_LISTED = "`seewhy layers NAME` or GET /models/NAME/layers lists the model's layers."
"""The advice of errors of requests if no layer is given."""


def never_runs(path: str) -> str:
    """Return the message about a layer that a picture does not pass."""
    return (
        f"{path!r} never runs for this picture (its parts may run without it, or its `forward` is called directly, "
        f"bypassing hooks); choose a layer that runs, from {LAYER_LIST}."
    )


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the five names closest to an unknown name; case is ignored.

    Names that differ only in punctuation come first. Then come names with it as a word, the shortest before the others,
    as ``tiger cat`` for ``cat``, and similar names, unless they are much less similar than the most similar one; names
    that merely contain it come last.
    """
    name = name[:100]  # the search is quadratic in its length
    by_lower = {candidate.lower(): candidate for candidate in names if candidate}
    query = name.lower()
    containing = [candidate for candidate in by_lower if query and query in candidate]
    letters = _letters(query)
    close = [candidate for candidate in by_lower if letters and _letters(candidate) == letters]
    close += sorted((candidate for candidate in containing if query in re.split(r"[^a-z0-9]+", candidate)), key=len)
    for best in difflib.get_close_matches(query, by_lower, n=1, cutoff=0.6):
        similarity = difflib.SequenceMatcher(None, best, query).ratio()
        close += difflib.get_close_matches(query, by_lower, n=5, cutoff=max(0.6, similarity - 0.15))
    return [by_lower[candidate] for candidate in [*dict.fromkeys([*close, *containing])][:5]]
