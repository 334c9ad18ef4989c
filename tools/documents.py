"""Documents: JSON with arrays, pictures and dataclasses in it. They are taken apart, stored and compared."""

import base64
import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load as tensors_of

FLIPPED = 1e-3
"""Share of a drawing's pixels that may differ by more than one level."""

MOMENTARY = {"timings_ms", "versions", "microseconds", "instance", "elapsed_ms", "milliseconds"}
"""Members that change each time."""

WORDS = {"detail", "message", "error", "stderr"}
"""Members that are words, in problems, diagnostics and output of commands; and so is a title beside a detail."""

UNSTEADY = (r"0x[0-9a-f]{6,}", r"sha256:[0-9a-f]{64}", r"seewhy_[\w-]{43}", r"[\d.,]+(?= seconds)")
"""Patterns of addresses, digests of new keys, new keys and measured times."""

Array = NDArray[Any]


@dataclass
class Item:
    """A document taken apart.

    Attributes:
        facts: the parts that must be equal, without arrays and floating-point numbers.
        words: the texts that may differ, by member.
        arrays: maps and drawings by place (members and items), the numbers of documents by member.
    """

    facts: Any = None
    words: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


class Reader:
    """Takes documents apart.

    Args:
        names: placeholders of texts that belong to this run, such as the path of a folder.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._item = Item()
        self._numbers: dict[str, list[float]] = {}

    def read(self, document: Any) -> Item:
        """Return a document taken apart."""
        self._item, self._numbers = Item(), {}
        self._item.facts = self._fact(document, "")
        self._item.arrays.update({place: np.array(values) for place, values in self._numbers.items()})
        return self._item

    def _fact(self, value: Any, place: str) -> Any:
        if is_dataclass(value):
            value = {member.name: getattr(value, member.name) for member in fields(value)}
        if isinstance(value, dict):
            words = WORDS | {"title"} if "detail" in value else WORDS
            return {str(name): self._member(str(name), value[name], place, words) for name in value}
        if isinstance(value, list | tuple):
            facts = [self._fact(part, f"{place}[{_item_key(part, number)}]") for number, part in enumerate(value)]
            is_even = len(facts) > 1 and isinstance(facts[0], str) and facts == facts[:1] * len(facts)
            return f"{len(facts)} x {facts[0]}" if is_even else facts
        if isinstance(value, float):
            self._numbers.setdefault(_member_of(place), []).append(value)
            return "number"
        if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
            return value.tolist()
        if isinstance(value, np.ndarray | Image.Image | torch.Tensor):
            array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
            self._item.arrays[place] = array
            return f"{value.mode if isinstance(value, Image.Image) else array.dtype} {array.shape}"
        if isinstance(value, str) and re.match(r'\{\s*"', value):
            return self._fact(json.loads(value), place)
        if isinstance(value, str) and value.startswith("data:image/"):
            return self._fact(decoded(value[5:].partition(";")[0], base64.b64decode(value.partition(",")[2])), place)
        return self._steady(value) if isinstance(value, str) else value

    def _member(self, name: str, value: Any, place: str, words: set[str]) -> Any:
        if name in MOMENTARY:
            return sorted(value) if isinstance(value, dict) else "of the moment"
        if name in words and isinstance(value, str):
            self._item.words.setdefault(_member_of(f"{place}.{name}"), []).append(self._steady(value))
            return "words"
        return self._fact(value, f"{place}.{name}")

    def _steady(self, text: str) -> str:
        for momentary, name in self._names.items():
            text = text.replace(momentary, name)
        return re.sub("|".join(UNSTEADY), "...", text)


def _item_key(item: Any, number: int) -> Any:
    """Return the identifier of an item of a list: its key, if it has one, or its number."""
    return item.get("key", number) if isinstance(item, dict) else number


def _member_of(place: str) -> str:
    """Return a place without items of lists: the member that they have in common."""
    return re.sub(r"\[[^]]*\]", "", place)


def decoded(kind: str, body: bytes) -> Any:
    """Return the content of a body of a media type, or of a file with a suffix."""
    kind = kind.rpartition("/")[2].rpartition("+")[2].removeprefix("x-")
    if kind == "json":
        return json.loads(body)
    if kind in ("png", "jpeg", "jpg", "webp"):
        return Image.open(io.BytesIO(body))
    if kind == "npz":
        with np.load(io.BytesIO(body)) as arrays:
            return dict(arrays)
    if kind == "safetensors":
        return tensors_of(body)
    if kind == "jsonl":
        return [json.loads(line) for line in body.splitlines()]
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(body.decode())))
    if kind == "event-stream":
        events = re.findall(r"event: (\w+)\ndata: (.*)\n\n", body.decode())
        steps = {member for _, data in events[:-1] for member in json.loads(data)}
        return {"steps": sorted(steps - {"preview"}), "last": events[-1][0], "answer": json.loads(events[-1][1])}
    return body.decode(errors="replace").splitlines()


def binary_tensors(body: bytes, length: int) -> Any:
    """Return an answer of the Open Inference Protocol, given the number of its bytes that are JSON."""
    document, rest = json.loads(body[:length]), body[length:]
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        kind = {"FP32": "<f4", "INT64": "<i8"}.get(output["datatype"])
        output["data"] = np.frombuffer(rest[:size], kind) if kind else rest[:size].decode("latin-1")
        rest = rest[size:]
    return document


def write(path: Path, items: dict[str, Item]) -> None:
    """Write items to two files: a path with the suffixes ``.json`` and ``.npz``."""
    documents = {name: {"facts": item.facts, "words": item.words} for name, item in items.items()}
    path.with_suffix(".json").write_text(json.dumps(documents, indent=1), encoding="utf-8")
    arrays = {f"{name}\t{place}": array for name, item in items.items() for place, array in item.arrays.items()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)


def load(path: Path) -> dict[str, Item]:
    """Return the items that `write` wrote."""
    documents = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    items = {name: Item(**members) for name, members in documents.items()}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key, array in arrays.items():
            name, _, place = key.rpartition("\t")
            items[name].arrays[place] = array
    return items


Difference = tuple[str, Any, Any]
"""A place, the recorded value, and the present one."""


def differences(recorded: Item, present: Item, tolerance: float) -> Iterator[Difference]:
    """Yield the differences of two items, except for their words."""
    yield from _unequal(recorded.facts, json.loads(json.dumps(present.facts)), "")
    for place in sorted(recorded.arrays.keys() | present.arrays.keys()):
        first, second = recorded.arrays.get(place), present.arrays.get(place)
        if first is None or second is None or first.dtype != second.dtype or first.shape != second.shape:
            yield place, _shape(first), _shape(second)
        elif distance := _distance(first, second, tolerance):
            yield place, _shape(first), distance


def _unequal(recorded: Any, present: Any, place: str) -> Iterator[Difference]:
    if isinstance(recorded, dict) and isinstance(present, dict):
        for name in {**recorded, **present}:
            yield from _unequal(recorded.get(name, "nothing"), present.get(name, "nothing"), f"{place}.{name}")
    elif isinstance(recorded, list) and isinstance(present, list) and len(recorded) == len(present):
        for number, pair in enumerate(zip(recorded, present, strict=True)):
            yield from _unequal(*pair, f"{place}[{number}]")
    elif recorded != present:
        yield place, recorded, present


def _shape(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} {array.shape}"


def _distance(recorded: Array, present: Array, tolerance: float) -> str:
    """Return the difference of an array from the recorded one of the same shape, as text; empty if they are close
    enough."""
    if np.array_equal(recorded, present, equal_nan=recorded.dtype.kind == "f"):
        return ""
    if recorded.dtype == np.uint8:
        levels = np.abs(recorded.astype(int) - present)
        share = float((levels > 1).reshape(*levels.shape[:2], -1).any(axis=-1).mean())
        return f"{share:.2%} of the pixels, by up to {levels.max()}" if share > FLIPPED else ""
    if recorded.dtype.kind != "f" or not np.array_equal(np.isfinite(recorded), np.isfinite(present)):
        return "other values"
    sizes = np.abs(np.nan_to_num(recorded, posinf=0, neginf=0).astype(float))
    largest = max(sizes.max(), np.finfo(np.float32).tiny)
    units = np.maximum(sizes, largest / 1000) if recorded.dtype == np.float64 else largest
    gap = float(np.nanmax(np.abs(recorded.astype(float) - present) / units))
    return f"{gap:.1e} away" if gap > tolerance else ""
