"""The boxes that a detector finds, without PyTorch: clients of the service have no model."""

from dataclasses import dataclass

from seewhy.explainers.imaging.geometry import Box


@dataclass(frozen=True)
class DetectedBox:
    """A box that a detector shows.

    Attributes:
        index: its number, in order of score; the target ``box:INDEX`` names it.
        box: left, top, right, bottom, in pixels of the upload.
        label: label of its class.
        score: the detector's score, in [0, 1].
    """

    index: int
    box: Box
    label: str
    score: float
