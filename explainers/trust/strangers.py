"""Strangers: maps of other pictures, which do not depend on the picture on which they are tried."""

import hashlib

import torch
from torch import Tensor


class Strangers:
    """Assigns the map of the previous picture to each picture, across batches, but only once per picture and kind of
    score.

    It stores the previous picture, and a digest of each one that had a map. Calls must not overlap.

    Args:
        are_distinct: whether no picture is repeated, so that no digests are needed.
    """

    def __init__(self, are_distinct: bool = False) -> None:
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        self._tried: set[tuple[bytes, bool]] | None = None if are_distinct else set()

    def of(
        self, images: Tensor, marks: Tensor, are_blank: Tensor, are_probabilities: Tensor, are_likely: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Return a map of another picture for each likely one; none if the previous picture is the same, or its map is
        blank.

        Args:
            images: (N, C, H, W).
            marks: (N, H, W) bool, the pixels that each map marks.
            are_blank: (N,) bool, whether each map is blank.
            are_probabilities: (N,) bool, the kind of each score.
            are_likely: (N,) bool, whether others may be compared with each score.

        Returns:
            The pixels that these maps mark, (N, H, W) bool, and whether each picture has one, (N,) bool; None if none
            has.
        """
        last = self._last
        if last is None or last[0].shape[1:] != images.shape[1:] or last[0].device != images.device:
            last = images[-1:], marks[-1:], are_blank[-1:]  # the first picture is compared with itself, and gets no map
        self._last = images[-1:].clone(), marks[-1:].clone(), are_blank[-1:].clone()
        before = torch.cat([last[0], images[:-1]])
        differ = are_likely & (before != images).flatten(1).any(dim=1) & ~torch.cat([last[2], are_blank[:-1]])
        rows = zip(images, differ.tolist(), are_probabilities.tolist(), strict=True)
        exist = [differs and self._is_new(image, kind) for image, differs, kind in rows]
        if not any(exist):
            return None
        return torch.cat([last[1], marks[:-1]]), torch.tensor(exist, device=images.device)

    def _is_new(self, image: Tensor, kind: bool) -> bool:
        """Note that a picture (C, H, W) gets a map for a score of this kind; return whether it is the first one."""
        if self._tried is None:
            return True
        key = digest_of(image), kind
        is_new = key not in self._tried
        self._tried.add(key)
        return is_new


def digest_of(image: Tensor) -> bytes:
    """Return a digest of a picture (C, H, W)."""
    return hashlib.sha256(image.float().cpu().numpy().tobytes()).digest()
