"""Helpers for tests of batch runs by several processes: pictures, data sets, and the processes of a run."""

import os
from pathlib import Path

import numpy as np
from PIL import Image


def draw_noise(place: Path, count: int) -> None:
    """Make a folder of so many pictures, named by their numbers."""
    place.mkdir()
    for number in range(count):
        Image.effect_noise((64, 48), 80).convert("RGB").save(place / f"{number}.png")


class Noise:
    """A data set whose first picture is broken."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 0:
            raise RuntimeError("the disk is gone")
        values = np.random.default_rng(index).integers(0, 256, (36, 40, 3), dtype=np.uint8)
        return Image.fromarray(values), index % 3


class Deadly(Noise):
    """A data set with a picture that ends the process."""

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 1:
            os._exit(1)
        return super().__getitem__(index)


def rows_of(results) -> list[str]:
    """Return the paths of the rows without an error."""
    return [row["path"] for row in results.table.to_pylist() if row["error"] is None]


def descendants(root: int) -> dict[int, str]:
    """Return the command lines of the processes below one, by their numbers."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                names[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])

    def below(number: int) -> bool:
        return number == root or (number in parents and below(parents[number]))

    return {number: name for number, name in names.items() if number != root and below(number)}
