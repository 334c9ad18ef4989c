"""Answers of a service about hooks: traces, captures, interventions and sweeps."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from seewhy.app.client.results import RemotePrediction, arrays_in, objects
from seewhy.explainers.errors import OptionError, counted
from seewhy.explainers.imaging.choices import PICTURE_SUFFIXES


@dataclass(frozen=True, eq=False, repr=False)
class Inspection:
    """Base of answers about the hooks of a model of a service.

    Attributes:
        answer: the service's JSON.
        download: returns the service's file of a format, with these options; the service is asked once more.
    """

    formats: ClassVar[Mapping[str, str]] = PICTURE_SUFFIXES
    """Formats by the suffix of a file."""

    answer: Mapping[str, Any]
    download: Callable[[str, Mapping[str, Any]], bytes]

    def __post_init__(self) -> None:
        repr(self)  # reads members that the answer of another service lacks

    @property
    def target(self) -> RemotePrediction:
        """The target of gradients and scores, without edits."""
        return RemotePrediction(self.answer["target"])

    def save(self, path: str | os.PathLike[str], **drawing: Any) -> Path:
        """Write a file whose suffix names the format, and return its path.

        The service makes all formats but ``.json``, and is asked once more.

        Args:
            path: path of the file.
            drawing: options of the route for its drawing, such as `top` and `view`.

        Raises:
            OptionError: another suffix, or an unknown option.
            ServiceError: as the method of the client.
        """
        path = Path(path)
        forms = {**self.formats, ".json": "json"}
        form = forms.get(path.suffix.lower())
        if form is None:
            raise OptionError(
                f"The suffix {path.suffix!r} is not an output format; use {', '.join(forms)}.", field="path"
            )
        is_text = form == "json"
        path.write_bytes(json.dumps(self.answer).encode() if is_text else self.download(form, drawing))
        return path


class RemoteTrace(Inspection):
    """The timeline of one forward and one backward pass; it is saved as ``.svg``, ``.png`` or ``.json``."""

    formats: ClassVar[Mapping[str, str]] = {".svg": "svg", ".png": "png"}

    @cached_property
    def events(self) -> tuple[Any, ...]:
        """In chronological order, with the members of `Event`."""
        return tuple(map(objects, self.answer["events"]))

    @cached_property
    def summary(self) -> Any:
        """Notable modules and feature maps, with the members of `Summary`."""
        return objects(self.answer["summary"])

    def __repr__(self) -> str:
        return f"RemoteTrace({counted(len(self.answer['events']), 'event')}; target {self.target.name})"


class RemoteCapture(Inspection):
    """Activations and gradients of layers; ``.npz`` and ``.safetensors`` have the arrays, pictures the strongest."""

    formats: ClassVar[Mapping[str, str]] = {**PICTURE_SUFFIXES, ".npz": "npz", ".safetensors": "safetensors"}

    @cached_property
    def tensors(self) -> tuple[Any, ...]:
        """The description of each tensor: `key`, `layer`, `kind`, `call`, `name` and `statistics`."""
        return tuple(map(objects, self.answer["tensors"]))

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by key, without missing gradients; the service is asked once more."""
        return arrays_in(self.download("npz", {}))

    def __repr__(self) -> str:
        return f"RemoteCapture({', '.join(row['key'] for row in self.answer['tensors'])}; target {self.target.name})"


class RemoteIntervention(Inspection):
    """The effect of edits for one picture and one class; pictures are the panel."""

    def _repr_png_(self) -> bytes:
        return self.download("png", {})

    @cached_property
    def before(self) -> Any:
        """The `target`, `predictions` and `diagnostics` without the edits."""
        return objects(self.answer["before"])

    @cached_property
    def after(self) -> Any:
        """The same with the edits."""
        return objects(self.answer["after"])

    @cached_property
    def applied(self) -> tuple[Any, ...]:
        """The effect of each edit at each call."""
        return tuple(map(objects, self.answer["applied"]))

    @property
    def score_change(self) -> float:
        """Change of the target's logit, or value, by the edits."""
        return float(self.answer["difference"]["score"])

    @property
    def probability_change(self) -> float | None:
        """Change of the target's probability by the edits; None for a value."""
        change: float | None = self.answer["difference"]["probability"]
        return change

    def __repr__(self) -> str:
        before, after = (RemotePrediction(self.answer[side]["target"]) for side in ("before", "after"))
        edits = counted(len(self.answer["edits"]), "edit")
        return f"RemoteIntervention({edits}; {before.label}: {before.text} before, {after.text} after)"


class RemoteSweep(Inspection):
    """The channels of a layer, ranked by the effect of an edit of each; pictures show the first ones' feature maps."""

    @property
    def layer(self) -> str:
        """Path of the layer."""
        return str(self.answer["layer"])

    @cached_property
    def channels(self) -> tuple[Any, ...]:
        """The effects, with the members of `ChannelEffect`; the channel whose edit lowers the score most comes
        first."""
        return tuple(map(objects, self.answer["channels"]))

    def __repr__(self) -> str:
        ends = [f"{row['score_change']:+z.4f} (channel {row['channel']})" for row in self.answer["channels"]]
        count = counted(len(ends), "channel")
        return f"RemoteSweep({count} of {self.layer!r}; target {self.target.name}: {ends[0]} to {ends[-1]})"
