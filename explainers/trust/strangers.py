"""Strangers: maps of other pictures, which do not depend on the picture on which they are tried."""

import torch
from torch import Tensor


class Strangers:
    """Assigns to each picture the map of the previous one, across batches; stores one picture.

    Calls must not overlap.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def of(self, images: Tensor, marks: Tensor, are_blank: Tensor) -> tuple[Tensor, Tensor]:
        """Return a map of another picture for each; none if the previous picture is the same, or has a blank map.

        Args:
            images: (N, C, H, W).
            marks: (N, H, W) bool, the pixels that each map marks.
            are_blank: (N,) bool, whether each map is blank.

        Returns:
            The pixels that they mark, (N, H, W) bool, and whether there is one, (N,) bool.
        """
        last = self._last
        if last is None or last[0].shape[1:] != images.shape[1:] or last[0].device != images.device:
            last = images[-1:], marks[-1:], are_blank[-1:]  # the first picture is compared with itself, and gets no map
        self._last = images[-1:].clone(), marks[-1:].clone(), are_blank[-1:].clone()
        before = torch.cat([last[0], images[:-1]])
        exist = (before != images).flatten(1).any(dim=1) & ~torch.cat([last[2], are_blank[:-1]])
        return torch.cat([last[1], marks[:-1]]), exist
