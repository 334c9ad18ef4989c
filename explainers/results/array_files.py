"""Files of arrays, npz and safetensors, made piece by piece: memory never holds a whole file or a second copy."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ArrayForm = Literal["npz", "safetensors"]

PIECE_BYTES = 2**18
"""Maximum bytes of one piece of an array."""

_NAMES = {
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in safetensors."""


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """A file of named arrays, which stay as they are.

    Attributes:
        form: npz or safetensors.
        arrays: by name; NumPy arrays in an npz only. NumPy has no bfloat16: in an npz such a tensor is float32.
    """

    form: ArrayForm
    arrays: Mapping[str, Tensor | NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, and of two copies of the largest one: in C order, and in another dtype."""
        sizes = [array.nbytes for array in self.arrays.values()]
        return sum(sizes) + 2 * max(sizes, default=0)

    @property
    def length(self) -> int | None:
        """Bytes of the file; None for an npz over 2 GiB, whose length depends on the arrays' positions."""
        data = sum(_length(array, self.form) for array in self.arrays.values())
        length = sum(map(len, self._pieces(with_data=False))) + data
        return None if self.form == "npz" and length > zipfile.ZIP64_LIMIT else length

    def pieces(self) -> Iterator[bytes]:
        """Yield the file; two calls differ only in the time stamps of an npz."""
        return self._pieces(with_data=True)

    def _pieces(self, with_data: bool) -> Iterator[bytes]:
        return (_npz if self.form == "npz" else _safetensors)(self.arrays, with_data)


class _Sink:
    """A file for `zipfile` to write to, emptied by each `drain`."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes, /) -> int:
        self._pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Do nothing; `zipfile` calls it."""

    def close(self) -> None:
        """Do nothing."""

    def drain(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _npz(arrays: Mapping[str, Tensor | NDArray[Any]], with_data: bool) -> Iterator[bytes]:
    """Yield the file as `numpy.savez` writes it to a pipe, with sizes and checksums after the data."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                dtype, shape = _numpy_dtype(array), tuple(array.shape)
                np.lib.format.write_array_header_1_0(
                    member, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                )
                for piece in _data(array, "npz") if with_data else ():
                    member.write(piece)
                    yield sink.drain()
    yield sink.drain()


def _safetensors(arrays: Mapping[str, Tensor | NDArray[Any]], with_data: bool) -> Iterator[bytes]:
    """Yield the file as https://github.com/huggingface/safetensors describes it, the widest dtypes first."""
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    head: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end = start + tensor.nbytes
        head[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names if with_data else ():
        yield from _data(tensors[name], "safetensors")


def _numpy_dtype(array: Tensor | NDArray[Any]) -> np.dtype[Any]:
    return torch.empty(0, dtype=_npz_dtype(array)).numpy().dtype if isinstance(array, Tensor) else array.dtype


def _npz_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype


def _length(array: Tensor | NDArray[Any], form: ArrayForm) -> int:
    if isinstance(array, Tensor) and form == "npz":
        return array.numel() * _npz_dtype(array).itemsize
    return array.nbytes


def _data(array: Tensor | NDArray[Any], form: ArrayForm) -> Iterator[bytes]:
    """Yield the bytes of an array in C order; only an array of another order or dtype is copied."""
    if isinstance(array, Tensor):
        if form == "npz":
            array = array.to(_npz_dtype(array))
        array = array.contiguous().reshape(-1).view(torch.uint8).numpy()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(flat), PIECE_BYTES):
        yield flat[start : start + PIECE_BYTES].tobytes()
