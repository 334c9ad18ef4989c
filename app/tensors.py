"""Tensors of the Open Inference Protocol, as JSON and as binary data after it."""

import base64
import json
import re
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from flask import Request
from pydantic import ValidationError
from werkzeug.exceptions import RequestEntityTooLarge

from app.carriers import decoded, read_body
from app.compatible_schemas import V2Input, V2Request, V2RequestedOutput
from app.errors import FieldError, MalformedRequestError, UnsupportedBodyError
from app.instances import Numbers, numbers
from explainers.errors import near_matches, plain_fault

HEADER = "Inference-Header-Content-Length"

_GZIP = 16 + zlib.MAX_WBITS
"""What zlib takes for a gzip header."""

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
"""What is in a tensor that holds numbers, as NumPy names it."""


@dataclass(frozen=True)
class Asked:
    """What a request holds.

    Attributes:
        id: of the request; made up where it has none.
        parameters: options, still unchecked.
        tensor: an array with the shape that the request gives, or the items of a BYTES tensor.
        outputs: what is asked for; empty for the usual.
    """

    id: str
    parameters: dict[str, Any]
    tensor: Numbers | list[bytes]
    outputs: tuple[V2RequestedOutput, ...]

    def wanted(self, usual: Sequence[str], others: Sequence[str] = ()) -> tuple[V2RequestedOutput, ...]:
        """Return the outputs that are asked for, or the usual ones.

        Args:
            usual: names of those that come unasked.
            others: names of further ones.

        Raises:
            FieldError: there is no such output, or it is asked for twice.
        """
        named = [one.name for one in self.outputs]
        for name in named:
            if name not in (*usual, *others):
                hint = near_matches(name, (*usual, *others)) or f"Choose from {', '.join((*usual, *others))}."
                raise FieldError(f"There is no output {name!r}. {hint}", field="outputs")
            if named.count(name) > 1:
                raise FieldError(f"The output {name!r} is asked for twice.", field="outputs")
        return self.outputs or tuple(V2RequestedOutput(name=name) for name in usual)

    def pictures(self) -> list[bytes | Numbers]:
        """Return the pictures one by one.

        Raises:
            FieldError: the tensor has no axes of pictures.
        """
        if isinstance(self.tensor, list):
            return list(self.tensor)
        if self.tensor.ndim == 3:
            return [self.tensor]
        if self.tensor.ndim == 4:
            return list(self.tensor)
        raise FieldError(
            f"A tensor of shape {list(self.tensor.shape)} holds no pictures; send [N, H, W, 3] or [N, 3, H, W], or "
            "BYTES of shape [N].",
            field="inputs[0].shape",
        )

    def is_binary(self, output: V2RequestedOutput) -> bool:
        """Whether an output goes after the JSON, and not into it."""
        binary = output.parameters.get("binary_data", self.parameters.get("binary_data_output", False))
        if not isinstance(binary, bool):
            raise FieldError("binary_data must be true or false.", field="binary_data")
        return binary


def uncompressed(request: Request, limit: int) -> bytes:
    """Return the body of a request, whatever its Content-Encoding is.

    Args:
        request: of Flask.
        limit: the most bytes that it may become.

    Raises:
        UnsupportedBodyError: an encoding that is not known.
        MalformedRequestError: it is not what its encoding says.
        RequestEntityTooLarge: it becomes too large.
    """
    body, encoding = read_body(request), request.headers.get("Content-Encoding", "identity").lower()
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        raise UnsupportedBodyError(f"There is no way to read Content-Encoding {encoding!r} here; send gzip or deflate.")
    reader = zlib.decompressobj(_GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    try:
        body = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise MalformedRequestError(f"The body is not {encoding}, as its Content-Encoding says.") from error
    if len(body) > limit:
        raise RequestEntityTooLarge
    return body


def parse_json(text: bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
        MalformedRequestError: it is no JSON, which has no NaN or Infinity.
    """

    def refuse(name: str) -> Any:
        raise MalformedRequestError(f"The body holds {name}, which is no JSON; send finite numbers.")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"The body is not JSON: {error}.") from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Raises:
        MalformedRequestError: it holds none.
    """
    found = parse_json(text)
    if not isinstance(found, dict):
        raise MalformedRequestError("The body is not a JSON object.")
    return found


def read_request(body: bytes, header_length: str | None) -> Asked:
    """Read a request.

    Args:
        body: JSON, and perhaps binary data after it.
        header_length: how long the JSON is, where binary data follows.

    Raises:
        MalformedRequestError, FieldError: it does not make sense.
    """
    length = len(body)
    if header_length is not None:
        length = int(header_length) if re.fullmatch(r"[0-9]{1,15}", header_length) else -1
        if not 0 < length <= len(body):
            raise MalformedRequestError(
                f"{HEADER} is {header_length[:50]!r}; it is how many of the body's {len(body)} bytes are JSON."
            )
    try:
        request = V2Request.model_validate(parse_object(body[:length]))
    except ValidationError as error:
        fault = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
        raise FieldError(f"{place}: {plain_fault(fault)}", field=place) from error
    if len(request.inputs) != 1:
        raise FieldError(f"Send one input, and all pictures in it; there are {len(request.inputs)}.", field="inputs")
    (sent,) = request.inputs
    named = [*sent.parameters, *(name for one in request.outputs for name in one.parameters)]
    if any(name.startswith("shared_memory") for name in named):
        raise FieldError("There is no shared memory here; send and ask for the tensor itself.", field="parameters")
    return Asked(
        id=request.id or str(uuid.uuid4()),
        parameters=request.parameters,
        tensor=_tensor(sent, body[length:]),
        outputs=tuple(request.outputs),
    )


def _tensor(sent: V2Input, binary: bytes) -> Numbers | list[bytes]:
    datatype = sent.datatype.upper()
    if datatype not in (*DATATYPES, "BYTES"):
        known = (*DATATYPES, "BYTES")
        hint = near_matches(datatype, known) or f"Choose from {', '.join(known)}."
        raise FieldError(f"There is no datatype {sent.datatype!r} for pictures. {hint}", field="inputs[0].datatype")
    if not all(1 <= edge < 2**31 for edge in sent.shape):
        raise FieldError("The numbers of a shape must be 1 or more.", field="inputs[0].shape")
    size = sent.parameters.get("binary_data_size")
    if size is None:
        if binary:
            raise MalformedRequestError(f"{len(binary)} bytes follow the JSON, and the input has no binary_data_size.")
        return _of_json(sent, datatype)
    if type(size) is not int or size != len(binary):
        raise FieldError(
            f"binary_data_size is {str(size)[:50]}, but {len(binary)} bytes follow the JSON, whose length the header "
            f"{HEADER} tells.",
            field="inputs[0].parameters",
        )
    if sent.data is not None:
        raise FieldError("The input has data in the JSON and after it; send it once.", field="inputs[0].data")
    if datatype == "BYTES":
        return _counted(list(_items(binary)), sent)
    dtype = np.dtype(DATATYPES[datatype])
    if size != prod(sent.shape) * dtype.itemsize:
        raise FieldError(
            f"{datatype} of shape {sent.shape} is {prod(sent.shape) * dtype.itemsize} bytes; there are {size}.",
            field="inputs[0].shape",
        )
    return np.frombuffer(binary, dtype=dtype).reshape(sent.shape)


def _of_json(sent: V2Input, datatype: str) -> Numbers | list[bytes]:
    if not isinstance(sent.data, list):
        raise FieldError(
            "The input has no data: a list in the JSON, or binary_data_size bytes after it.", field="inputs[0].data"
        )
    if datatype == "BYTES":
        flat = [one for row in sent.data for one in (row if isinstance(row, list) else [row])]
        return _counted([decoded(f"inputs[0].data[{place}]", one) for place, one in enumerate(flat)], sent)
    array = numbers(sent.data, "inputs[0].data")
    if array.size != prod(sent.shape):
        raise FieldError(
            f"The shape {sent.shape} has {prod(sent.shape)} numbers; data has {array.size}.", field="inputs[0].shape"
        )
    if datatype.startswith("FP"):
        return array.astype(np.float64).reshape(sent.shape)
    if array.dtype.kind == "f":
        raise FieldError(f"data of {datatype} must be whole numbers.", field="inputs[0].data")
    return array.reshape(sent.shape)


def _counted(items: list[bytes], sent: V2Input) -> list[bytes]:
    if len(items) != prod(sent.shape):
        raise FieldError(
            f"The shape {sent.shape} has {prod(sent.shape)} items; data has {len(items)}.", field="inputs[0].shape"
        )
    return items


def _items(binary: bytes) -> Iterator[bytes]:
    """Yield the items of a BYTES tensor: each is its length, four bytes, the lowest first, and then itself."""
    start = 0
    while start < len(binary):
        length = int.from_bytes(binary[start : start + 4], "little")
        start += 4
        if start + length > len(binary):
            raise FieldError(
                f"An item of the BYTES tensor should have {length} bytes; {max(0, len(binary) - start)} are left.",
                field="inputs[0].data",
            )
        yield binary[start : start + length]
        start += length


@dataclass(frozen=True)
class Tensor:
    """A tensor of an answer.

    Attributes:
        name: of the output.
        values: numbers; or for a BYTES tensor an array of texts or bytes.
        parameters: what else is told of it.
    """

    name: str
    values: Numbers
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def datatype(self) -> str:
        """As the protocol names it."""
        return next((name for name, kind in DATATYPES.items() if self.values.dtype == np.dtype(kind)), "BYTES")

    def described(self) -> dict[str, Any]:
        """Return all but the data."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.values.shape)}

    def in_json(self) -> dict[str, Any]:
        """Return the tensor as JSON has it; bytes as base64."""
        told = self.described() | ({"parameters": self.parameters} if self.parameters else {})
        values = self.values.ravel().tolist()
        if any(isinstance(one, bytes) for one in values):
            values = [base64.b64encode(one).decode("ascii") for one in values]
            told["parameters"] = {**self.parameters, "content_type": "base64"}
        return {**told, "data": values}

    def in_binary(self) -> bytes:
        """Return the tensor as it stands after the JSON."""
        if self.datatype != "BYTES":
            return self.values.tobytes()
        items = [one if isinstance(one, bytes) else one.encode() for one in self.values.ravel().tolist()]
        return b"".join(part for one in items for part in (struct.pack("<I", len(one)), one))


def write_answer(head: dict[str, Any], tensors: Sequence[tuple[Tensor, bool]]) -> tuple[bytes, int | None]:
    """Return the body of an answer, and how long its JSON is where binary data follows.

    Args:
        head: the members besides the outputs.
        tensors: each with whether it is to be binary.
    """
    outputs, rest = [], []
    for tensor, binary in tensors:
        if binary:
            rest.append(tensor.in_binary())
            parameters = {**tensor.parameters, "binary_data_size": len(rest[-1])}
            outputs.append(tensor.described() | {"parameters": parameters})
        else:
            outputs.append(tensor.in_json())
    text = json.dumps({**head, "outputs": outputs}).encode()
    return b"".join([text, *rest]), len(text) if rest else None
