"""Strangers: maps of other pictures, which do not depend on the picture on which they are tried."""

import hashlib

import torch
from torch import Tensor


class Strangers:
    """Assigns to each picture the map of the previous one, across batches, but only once to each picture.

    It stores the previous picture, and a digest of each one that had a map. Calls must not overlap.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        self._tried: set[bytes] = set()

    def of(self, images: Tensor, marks: Tensor, are_blank: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return a map of another picture for each; none if the previous picture is the same, or has a blank map.

        Args:
            images: (N, C, H, W).
            marks: (N, H, W) bool, the pixels that each map marks.
            are_blank: (N,) bool, whether each map is blank.

        Returns:
            The pixels that they mark, (N, H, W) bool, and whether there is one, (N,) bool; None if there is none at
            all.
        """
        last = self._last
        if last is None or last[0].shape[1:] != images.shape[1:] or last[0].device != images.device:
            last = images[-1:], marks[-1:], are_blank[-1:]  # the first picture is compared with itself, and gets no map
        self._last = images[-1:].clone(), marks[-1:].clone(), are_blank[-1:].clone()
        before = torch.cat([last[0], images[:-1]])
        differ = (before != images).flatten(1).any(dim=1) & ~torch.cat([last[2], are_blank[:-1]])
        exist = [bool(differs) and self._is_new(image) for differs, image in zip(differ.cpu(), images, strict=True)]
        if not any(exist):
            return None
        return torch.cat([last[1], marks[:-1]]), torch.tensor(exist, device=images.device)

    def _is_new(self, image: Tensor) -> bool:
        """Whether a picture (C, H, W) has had no map yet; from now on it has."""
        digest = hashlib.sha256(image.float().cpu().numpy().tobytes()).digest()
        is_new = digest not in self._tried
        self._tried.add(digest)
        return is_new
