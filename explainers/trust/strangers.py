"""Strangers: maps of other pictures, which cannot know the picture that they are tried on."""

from typing import NamedTuple

import torch
from torch import Tensor


class ForeignMaps(NamedTuple):
    """A map of another picture for each of N.

    Attributes:
        marks: (N, H, W) bool, what it marks.
        exist: (N,) bool, whether there is one.
    """

    marks: Tensor
    exist: Tensor


class Strangers:
    """Hands each picture the map of the one before it, across batches; remembers one picture.

    Calls must not overlap.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def of(self, images: Tensor, marks: Tensor, are_blank: Tensor) -> ForeignMaps:
        """Return the map of another picture for each; none where the one before is the same, or has a blank map.

        Args:
            images: (N, C, H, W).
            marks: (N, H, W) bool, what the map of each marks.
            are_blank: (N,) bool, whether that map is blank.
        """
        last = self._last
        if last is None or last[0].shape[1:] != images.shape[1:] or last[0].device != images.device:
            last = images[-1:], marks[-1:], are_blank[-1:]  # a single picture would be its own, and so has none
        self._last = images[-1:].clone(), marks[-1:].clone(), are_blank[-1:].clone()
        before = torch.cat([last[0], images[:-1]])
        exist = (before != images).flatten(1).any(dim=1) & ~torch.cat([last[2], are_blank[:-1]])
        return ForeignMaps(torch.cat([last[1], marks[:-1]]), exist)
