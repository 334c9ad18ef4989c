"""Declarative edits of a layer's activations and gradients.

An edit states its place (a layer, and one of its tensors), the part that it changes (channels, a region, calls), and
the operation (`op`). It is plain data: it can be written as JSON, and holds no code.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor

from seewhy.explainers.errors import LAYERS_LISTED, EditError, near_matches, plain_fault
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.inspection.edit_parts import MisfitError, Part, part_of

MAX_EDITS = 64
"""Maximum number of edits in one intervention."""

Index = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]


def _require_op(schema: dict[str, Any]) -> None:
    """Require `op` in JSON; in Python the class implies it."""
    schema["required"] = [*schema.get("required", []), "op"]


class Edit(BaseModel, ABC):
    """Base of all edits.

    Attributes:
        layer: dotted path or glob.
        at: which tensors: the layer's input or output, their gradients, or the gradients of its own parameters.
        channels: indices; None for all.
        region: top, left, bottom, right in cells of the feature map, the last two exclusive; None for all.
        calls: which calls of the layer, 0 for the first; None for all.
        parameter: one of the layer's own parameters, only with ``parameter_grad``; None for all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_require_op)

    layer: Annotated[StrictStr, Field(max_length=200, description="Dotted path or glob of the layer.")]
    at: Kind = Field("output", description="Tensors of the layer to edit: values, or gradients of the target's logit.")
    channels: tuple[Index, ...] | None = Field(
        None, min_length=1, max_length=65536, fail_fast=True, description="Indices of channels; by default all."
    )
    region: tuple[Index, Index, Index, Index] | None = Field(
        None,
        description="Top, left, bottom, right in cells of the feature map, the last two exclusive; by default all.",
    )
    calls: tuple[Index, ...] | None = Field(
        None,
        min_length=1,
        max_length=1024,
        fail_fast=True,
        description="Calls of the layer, from 0; by default all.",
    )
    parameter: Annotated[StrictStr, Field(max_length=200)] | None = Field(
        None, description="Name of one of the layer's parameters, with at=parameter_grad; by default all."
    )

    @field_validator("parameter")
    @classmethod
    def _is_for_parameters(cls, parameter: str | None, info: ValidationInfo) -> str | None:
        if parameter is not None and info.data.get("at") != "parameter_grad":
            raise ValueError("it needs at=parameter_grad")
        return parameter

    @field_validator("calls")
    @classmethod
    def _is_for_calls(cls, calls: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if calls is not None and info.data.get("at") == "parameter_grad":
            raise ValueError("omit it: the gradient of a parameter is that of all calls together")
        return calls

    @abstractmethod
    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the new values of the part, broadcastable to `values`."""

    def part(self, values: Tensor, image_size: tuple[int, int], swapped: Tensor | None = None) -> Part:
        """Return the part of a layer's tensor that the edit changes; arguments and errors as in `part_of`."""
        return part_of(values, image_size, self.channels, self.region, self.at == "parameter_grad", swapped)

    def apply(self, values: Tensor, part: Part) -> Tensor:
        """Return a new tensor with its part changed, differentiable in `values`.

        Raises:
            MisfitError: the edit does not fit the tensor.
        """
        return torch.where(part.mask, self.changed(values, part).to(values.dtype), values)


class Zero(Edit):
    """Replace by zero."""

    op: Literal["zero"] = "zero"

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return zero."""
        return values.new_zeros(())


class Scale(Edit):
    """Multiply by `value`."""

    op: Literal["scale"] = "scale"
    value: Number

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the product."""
        return values * self.value


class Add(Edit):
    """Add `value`."""

    op: Literal["add"] = "add"
    value: Number

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the sum."""
        return values + self.value


class Set(Edit):
    """Replace by `value`."""

    op: Literal["set"] = "set"
    value: Number

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the value."""
        return _as(self.value, values)


class Clamp(Edit):
    """Limit to `min` and `max`; either may be left out."""

    op: Literal["clamp"] = "clamp"
    min: Number | None = None
    max: Number | None = None

    @field_validator("max")
    @classmethod
    def _is_above(cls, high: float | None, info: ValidationInfo) -> float | None:
        low = info.data.get("min")
        if low is not None and high is not None and low > high:
            raise ValueError(f"it is {high}, less than min, {low}")
        return high

    @model_validator(mode="after")
    def _has_limits(self) -> "Clamp":
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        return self

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the limited values."""
        if values.is_complex():
            raise MisfitError("op", "Complex numbers have no order and no limits; use another op or layer.")
        return values.clamp(
            None if self.min is None else _as(self.min, values), None if self.max is None else _as(self.max, values)
        )


class Noise(Edit):
    """Add normal noise with standard deviation `value`, the same for the same `seed` on every device."""

    op: Literal["noise"] = "noise"
    value: Annotated[Number, Field(ge=0)]
    seed: Seed = 0

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the sum of values and noise, the same noise for every picture of a batch."""
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn([1] * min(values.ndim, 1) + list(values.shape[1:]), generator=generator)
        return values + self.value * noise.to(values)


class Negate(Edit):
    """Change the sign."""

    op: Literal["negate"] = "negate"

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the negative."""
        return -values


class PermuteChannels(Edit):
    """Permute the channels by `seed`, so that none stays in its place."""

    op: Literal["permute_channels"] = "permute_channels"
    seed: Seed = 0

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the tensor with its channels in another order."""
        if part.channel is None:
            raise MisfitError("op", "The tensor has no axis of channels to permute; choose another op or layer.")
        count = values.shape[part.channel]
        indices = torch.tensor(sorted(set(self.channels if self.channels is not None else range(count))))
        if len(indices) < 2:
            raise MisfitError("channels", "A single channel cannot be permuted; give two or more.")
        generator = torch.Generator().manual_seed(self.seed)
        indices = indices[torch.randperm(len(indices), generator=generator)]
        order = torch.arange(count)
        order[indices] = indices.roll(1)  # one cycle through all of them
        return values.index_select(part.channel, order.to(values.device))


class Mean(Edit):
    """Replace by the mean over positions, channel by channel, or over channels, position by position."""

    op: Literal["mean"] = "mean"
    over: Literal["spatial", "channel"] = Field("spatial", description="Average over positions, or over channels.")

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the mean of the part, with the averaged axes kept at size one."""
        axes = part.spatial if self.over == "spatial" else () if part.channel is None else (part.channel,)
        if not axes:
            axis = "positions" if self.over == "spatial" else "channels"
            raise MisfitError("over", f"The tensor, of shape {tuple(values.shape)}, has no {axis} to average over.")
        part_values = torch.where(part.mask, _wide(values), 0)
        count = part.mask.expand(values.shape).sum(axes, keepdim=True)
        return part_values.sum(axes, keepdim=True) / count.clamp_min(1)


class Normalize(Edit):
    """Divide by the sum, the Euclidean norm or the largest magnitude of the part, which becomes one."""

    op: Literal["normalize"] = "normalize"
    to: Literal["sum", "norm", "maximum"] = Field("norm", description="Quantity that becomes 1.")

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the quotient, picture by picture."""
        if not values.ndim:
            raise MisfitError("op", "A single number cannot be normalised; use another op or layer.")
        part_values = torch.where(part.mask, _wide(values), 0).flatten(1)
        if self.to == "sum":
            total = part_values.sum(dim=1)
        else:
            total = torch.linalg.vector_norm(part_values, ord=2 if self.to == "norm" else torch.inf, dim=1)
        if not bool((torch.isfinite(total) & (total != 0)).all()):
            measure = {"sum": "sum", "norm": "norm", "maximum": "largest magnitude"}[self.to]
            raise MisfitError("to", f"The {measure} is zero or not finite, so it cannot divide; choose another layer.")
        return values / total.reshape(-1, *[1] * (values.ndim - 1))


class Swap(Edit):
    """Replace by the layer's tensor for another picture."""

    op: Literal["swap"] = "swap"

    def changed(self, values: Tensor, part: Part) -> Tensor:
        """Return the other picture's tensor."""
        if part.swapped is None:
            raise MisfitError(
                "op", "The layer has no such tensor for the other picture; choose another layer, call or picture."
            )
        if part.swapped.shape[1:] != values.shape[1:]:
            shape = tuple(part.swapped.shape)
            raise MisfitError(
                "op", f"The other picture's tensor has shape {shape}, not {tuple(values.shape)}; choose another layer."
            )
        return part.swapped


AnyEdit = Annotated[
    Zero | Scale | Add | Set | Clamp | Noise | Negate | PermuteChannels | Mean | Normalize | Swap,
    Field(discriminator="op"),
]
OPS: Mapping[str, type[Edit]] = {kind.model_fields["op"].default: kind for kind in get_args(get_args(AnyEdit)[0])}
_OPS_HINT = f"Choose from {', '.join(OPS)}."

AnyEdits = Annotated[tuple[AnyEdit, ...], Field(min_length=1, max_length=MAX_EDITS)]
EDITS: TypeAdapter[tuple[Edit, ...]] = TypeAdapter(AnyEdits)


def parse_edits(edits: Any) -> tuple[Edit, ...]:
    """Return checked edits, from `Edit` objects or mappings as in JSON.

    Raises:
        EditError: an invalid edit; `field` names its index and field.
    """
    if isinstance(edits, Mapping | Edit | str | bytes) or not hasattr(edits, "__iter__"):
        raise EditError(_no_list(edits), field="edits")
    try:
        return EDITS.validate_python(tuple(map(_plain, edits)))
    except ValidationError as error:
        first = error.errors()[0]  # the other faults may be mere consequences
        where, message = edit_fault(first, first["loc"])
        raise EditError(message, field=where) from error


def _plain(value: Any) -> Any:
    """Return a value with the numbers, arrays and tensors of NumPy and PyTorch turned into Python's."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray | Tensor) else value


NO_LIST = ("tuple_type", "too_short", "too_long")
"""Pydantic's names for a value that is not a list, or a list of the wrong length."""


def edit_fault(fault: Any, loc: Sequence[int | str]) -> tuple[str, str]:
    """Return the place of a fault in a list of edits, as in ``edits[0].channels[1]``, and a sentence about it.

    Args:
        fault: one of `ValidationError.errors()`.
        loc: its location in the list.
    """
    place = "edits"
    if "region" in loc:
        loc = loc[: loc.index("region") + 1]
    for index, step in enumerate((*loc, *(("", "op") if fault["type"].startswith("union_tag") else ()))):
        if index != 1:  # step 1 is the op, pydantic's discriminator
            place += f"[{step}]" if isinstance(step, int) else f".{step}"
    return place, _fault_message(fault)


def _fault_message(fault: Any) -> str:
    kind, place = fault["type"], fault["loc"]
    if kind == "union_tag_invalid":
        tag = str(fault["ctx"]["tag"])
        return f"There is no op {tag[:100]!r}. {near_matches(tag, OPS) or _OPS_HINT}"
    if kind == "union_tag_not_found":
        return f"It needs an op. {_OPS_HINT}"
    if kind == "extra_forbidden":
        name, fields = str(place[-1]), OPS[place[-2]].model_fields
        hint = near_matches(name, fields) or f"It takes {', '.join(fields)}."
        return f"The edit {place[-2]!r} has no such field. {hint}"
    if kind in NO_LIST and place in ((), ("edits",)):
        return _no_list(fault["input"])
    if kind == "model_attributes_type":
        return 'It must be an object such as {"op": "zero", "layer": "bn2"}.'
    if "region" in place:
        return "It must be a list of four nonnegative integers: top, left, bottom, right."
    if kind == "too_short":
        return "It is empty; omit it to select all."
    if kind == "missing" and place[-1] == "layer":
        return f"{plain_fault(fault)} {LAYERS_LISTED}"
    return plain_fault(fault)


def _no_list(value: Any) -> str:
    hint = "; put the single edit in [ ]" if isinstance(value, Mapping | Edit) else ""
    return f"It must be a list of 1 to {MAX_EDITS} edits{hint}."


def not_finite(subject: str, index: int, edit: Edit) -> EditError:
    """Return the error of an edit that causes NaN or infinity; it names the edit's largest number, if any."""
    numbers = {
        name: abs(number) for name in ("value", "min", "max") if (number := getattr(edit, name, None)) is not None
    }
    if not numbers:
        return EditError(f"{subject} contain NaN or infinity; choose another layer or op.", field=f"edits[{index}]")
    largest = max(numbers, key=lambda name: numbers[name])
    return EditError(f"{subject} contain NaN or infinity; use a smaller value.", field=f"edits[{index}].{largest}")


def _as(value: float, values: Tensor) -> Tensor:
    """Return a number as a tensor like another; infinite if it is too large for the precision."""
    return torch.tensor(value, dtype=torch.float64).to(values.dtype).to(values.device)


def _wide(values: Tensor) -> Tensor:
    """Return values in a precision in which many of them can be added."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
