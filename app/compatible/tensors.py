"""Tensors of the Open Inference Protocol, as JSON and as binary data."""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from seewhy.app.compatible.instances import Numbers, numbers
from seewhy.app.compatible.schemas import V2Input
from seewhy.app.errors import FieldError, MalformedRequestError
from seewhy.app.http.uploads import decode_base64
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import BODY
from seewhy.explainers.errors import near_matches
from seewhy.explainers.results.array_files import PIECE_BYTES

HEADER = "Inference-Header-Content-Length"
"""The header with the number of JSON bytes in a body."""

DATATYPES: dict[str, str] = {
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""NumPy types of numeric tensors."""


def read_tensor(tensor: V2Input, binary: memoryview) -> Numbers | list[bytes]:
    """Return the tensor of a request: an array of its shape, or the items of a BYTES tensor.

    Args:
        tensor: its description, and its data if they are in the JSON.
        binary: the bytes after the JSON; numbers are not copied, items of a BYTES tensor are copied and counted.

    Raises:
        MalformedRequestError, FieldError: the tensor is invalid.
        OutOfMemoryError, BodyTooLargeError: there is no memory for the items, at present or ever.
    """
    datatype = tensor.datatype.upper()
    names = (*DATATYPES, "BYTES")
    if datatype not in names:
        hint = near_matches(datatype, names) or f"Choose from {', '.join(names)}."
        raise FieldError(f"There is no datatype {tensor.datatype!r} for pictures. {hint}", field="inputs[0].datatype")
    if not all(1 <= edge < 2**31 for edge in tensor.shape):
        raise FieldError("The dimensions of a shape must be 1 or more.", field="inputs[0].shape")
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        if binary:
            raise MalformedRequestError(f"{len(binary)} bytes follow the JSON, but the input has no binary_data_size.")
        return _of_json(tensor, datatype)
    if type(size) is not int or size != len(binary):
        raise FieldError(
            f"binary_data_size is {str(size)[:50]}, but {len(binary)} bytes follow the JSON, whose length is in the "
            f"header {HEADER}.",
            field="inputs[0].parameters",
        )
    if tensor.data is not None:
        raise FieldError("The input has data in the JSON and after it; send it once.", field="inputs[0].data")
    if datatype == "BYTES":
        return _check_count(list(_items(binary)), tensor)
    dtype = np.dtype(DATATYPES[datatype])
    if size != prod(tensor.shape) * dtype.itemsize:
        raise FieldError(
            f"{datatype} of shape {tensor.shape} is {prod(tensor.shape) * dtype.itemsize} bytes; there are {size}.",
            field="inputs[0].shape",
        )
    return np.frombuffer(binary, dtype=dtype).reshape(tensor.shape)


def _of_json(tensor: V2Input, datatype: str) -> Numbers | list[bytes]:
    if not isinstance(tensor.data, list):
        raise FieldError(
            "The input has no data: a list in the JSON, or binary_data_size bytes after it.", field="inputs[0].data"
        )
    if datatype == "BYTES":
        items = [item for row in tensor.data for item in (row if isinstance(row, list) else [row])]
        return _check_count(
            [decode_base64(f"inputs[0].data[{place}]", item) for place, item in enumerate(items)], tensor
        )
    array = numbers(tensor.data, "inputs[0].data")
    if array.size != prod(tensor.shape):
        raise FieldError(
            f"The shape {tensor.shape} has {prod(tensor.shape)} numbers; data has {array.size}.",
            field="inputs[0].shape",
        )
    if datatype.startswith("FP"):
        return array.astype(np.float64).reshape(tensor.shape)
    if array.dtype.kind == "f":
        raise FieldError(f"data of {datatype} must be integers.", field="inputs[0].data")
    return array.reshape(tensor.shape)


def _check_count(items: list[bytes], tensor: V2Input) -> list[bytes]:
    if len(items) != prod(tensor.shape):
        raise FieldError(
            f"The shape {tensor.shape} has {prod(tensor.shape)} items; data has {len(items)}.", field="inputs[0].shape"
        )
    return items


def _items(binary: memoryview) -> Iterator[bytes]:
    """Yield the items of a BYTES tensor: each is a length of four bytes, little-endian, followed by the item."""
    start = 0
    while start < len(binary):
        length = int.from_bytes(binary[start : start + 4], "little")
        start += 4
        if start + length > len(binary):
            raise FieldError(
                f"An item of the BYTES tensor should have {length} bytes; {max(0, len(binary) - start)} are left.",
                field="inputs[0].data",
            )
        account().take(length, BODY)
        yield bytes(binary[start : start + length])
        start += length


@dataclass(frozen=True)
class Tensor:
    """A tensor of an answer.

    Attributes:
        values: numbers; for a BYTES tensor an array of strings or bytes.
    """

    name: str
    values: Numbers
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def datatype(self) -> str:
        """The protocol's name of the type."""
        return next((name for name, kind in DATATYPES.items() if self.values.dtype == np.dtype(kind)), "BYTES")

    def head(self) -> dict[str, Any]:
        """Return the tensor without its data."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.values.shape)}

    def in_json(self) -> dict[str, Any]:
        """Return the tensor for JSON: numbers still as an array, bytes as base64."""
        members = self.head() | ({"parameters": self.parameters} if self.parameters else {})
        values = self.values.ravel()
        if self.datatype != "BYTES":
            return {**members, "data": values}
        texts = values.tolist()
        if any(isinstance(text, bytes) for text in texts):
            texts = [base64.b64encode(text).decode("ascii") for text in texts]
            members["parameters"] = {**self.parameters, "content_type": "base64"}
        return {**members, "data": texts}

    @property
    def binary_size(self) -> int:
        """Size of the tensor as binary data, in bytes."""
        return self.values.nbytes if self.datatype != "BYTES" else sum(map(len, self.in_binary()))

    def in_binary(self) -> Iterator[bytes]:
        """Yield the tensor as binary data."""
        if self.datatype != "BYTES":
            data = np.ascontiguousarray(self.values).reshape(-1).view(np.uint8)
            yield from (data[start : start + PIECE_BYTES].tobytes() for start in range(0, len(data), PIECE_BYTES))
            return
        for item in self.values.ravel().tolist():
            content = item if isinstance(item, bytes) else item.encode()
            yield struct.pack("<I", len(content)) + content
