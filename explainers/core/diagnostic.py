"""Remarks about maps, without PyTorch: clients of the service have no model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """A remark about a map for its reader.

    Attributes:
        code: a code such as ``blank-map``; docs/http.md lists all codes.
        message: the meaning, and what to try.
    """

    code: str
    message: str
