"""Requests and answers of the Open Inference Protocol: JSON, optionally followed by binary data."""

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from seewhy.app.answers.stream import Body, BodyStream, json_parts
from seewhy.app.compatible.instances import Numbers
from seewhy.app.compatible.schemas import V2Request, V2RequestedOutput
from seewhy.app.compatible.tensors import HEADER, Tensor, read_tensor
from seewhy.app.errors import FieldError, MalformedRequestError
from seewhy.app.http.bodies import parse_object
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.explainers.errors import near_matches, plain_fault

_WHOLE_BYTES = 2**20
"""JSON up to this size is sent in one piece, with Content-Length."""


@dataclass(frozen=True)
class InferRequest:
    """A parsed request, not yet checked against the model.

    Attributes:
        id: id of the request; generated if the client sent none.
        parameters: unchecked options.
        tensor: an array with the request's shape, or the items of a BYTES tensor.
        outputs: the requested outputs; empty for the default ones.
    """

    id: str
    parameters: dict[str, Any]
    tensor: Numbers | list[bytes]
    outputs: tuple[V2RequestedOutput, ...]

    def outputs_of(self, usual: Sequence[str], further: Sequence[str] = ()) -> tuple[V2RequestedOutput, ...]:
        """Return the outputs of the answer: the requested ones, or the default ones.

        Args:
            further: names of the outputs that must be requested.

        Raises:
            FieldError: an output does not exist, or is requested twice.
        """
        names = [output.name for output in self.outputs]
        for name in names:
            if name not in (*usual, *further):
                hint = near_matches(name, (*usual, *further)) or f"Choose from {', '.join((*usual, *further))}."
                raise FieldError(f"There is no output {name!r}. {hint}", field="outputs")
            if names.count(name) > 1:
                raise FieldError(f"The output {name!r} is requested twice.", field="outputs")
        return self.outputs or tuple(V2RequestedOutput(name=name) for name in usual)

    def pictures(self) -> list[bytes | Numbers]:
        """Return the pictures one by one."""
        if isinstance(self.tensor, list):
            return list(self.tensor)
        if self.tensor.ndim == 3:
            return [self.tensor]
        if self.tensor.ndim == 4:
            return list(self.tensor)
        raise FieldError(
            f"A tensor of shape {list(self.tensor.shape)} is not a batch of pictures; send [N, H, W, 3] or "
            "[N, 3, H, W], or BYTES of shape [N].",
            field="inputs[0].shape",
        )

    def is_binary(self, output: V2RequestedOutput) -> bool:
        """Whether an output is binary data after the JSON."""
        binary = output.parameters.get("binary_data", self.parameters.get("binary_data_output", False))
        if not isinstance(binary, bool):
            raise FieldError("binary_data must be true or false.", field="binary_data")
        return binary


def read_request(body: bytes, header_length: str | None) -> InferRequest:
    """Parse a request.

    Raises:
        MalformedRequestError, FieldError: the request is invalid.
    """
    length = len(body)
    if header_length is not None:
        length = int(header_length) if re.fullmatch(r"[0-9]{1,15}", header_length) else -1
        if not 0 < length <= len(body):
            raise MalformedRequestError(
                f"{HEADER} is {header_length[:50]!r}; it must be the number of JSON bytes in the body, at most "
                f"{len(body)}."
            )
    try:
        request = V2Request.model_validate(parse_object(body[:length]))
    except ValidationError as error:
        fault = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
        raise FieldError(f"{place}: {plain_fault(fault)}", field=place) from error
    if len(request.inputs) != 1:
        raise FieldError(f"Send one input with all pictures in it, not {len(request.inputs)}.", field="inputs")
    (tensor,) = request.inputs
    names = [*tensor.parameters, *(name for output in request.outputs for name in output.parameters)]
    if any(name.startswith("shared_memory") for name in names):
        raise FieldError("Shared memory is not supported; send and request the tensor itself.", field="parameters")
    return InferRequest(
        id=request.id or str(uuid.uuid4()),
        parameters=request.parameters,
        tensor=read_tensor(tensor, memoryview(body)[length:]),
        outputs=tuple(request.outputs),
    )


def write_answer(head: dict[str, Any], tensors: Sequence[tuple[Tensor, bool]]) -> tuple[Body, int | None]:
    """Return the body of an answer, and the length of its JSON if binary data follows.

    Args:
        head: the members besides the outputs.
        tensors: each with whether it is binary.

    Raises:
        AnswerTooLargeError, OutOfMemoryError: there is no memory for the JSON before binary data, ever or at present.
    """
    outputs: list[dict[str, Any]] = []
    binary_tensors: list[Tensor] = []
    for tensor, is_binary in tensors:
        if is_binary:
            binary_tensors.append(tensor)
            parameters = {**tensor.parameters, "binary_data_size": tensor.binary_size}
            outputs.append(tensor.head() | {"parameters": parameters})
        else:
            outputs.append(tensor.in_json())
    text = json_parts({**head, "outputs": outputs})
    if not binary_tensors:
        return (text if text.most_bytes > _WHOLE_BYTES else text.join()), None
    account().take(text.most_bytes, ANSWER)
    document = text.join()
    length = len(document) + sum(tensor.binary_size for tensor in binary_tensors)
    pieces = partial(_joined, document, binary_tensors)
    source_bytes = len(document) + sum(tensor.values.nbytes for tensor in binary_tensors)
    return BodyStream(pieces, source_bytes, length, length), len(document)


def _joined(document: bytes, tensors: Sequence[Tensor]) -> Iterator[bytes]:
    yield document
    for tensor in tensors:
        yield from tensor.in_binary()
