"""The client itself."""

import base64
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.app.client.connection import Connection, Result
from seewhy.app.client.inspections import Inspection, RemoteCapture, RemoteIntervention, RemoteSweep, RemoteTrace
from seewhy.app.client.results import (
    Download,
    RemoteComparison,
    RemoteExplanation,
    RemoteLikeness,
    RemotePrediction,
    boxes_of,
    comparison_of,
    evaluation_of,
    explanations_of,
    likeness_of,
    segments_of,
)
from seewhy.explainers.core.choices import AREA, Extent, Fill
from seewhy.explainers.errors import LayerError, OptionError, TargetError, nearest
from seewhy.explainers.imaging.decode import PictureSource, read_picture
from seewhy.explainers.imaging.png import encode_png
from seewhy.explainers.results.boxes import DetectedBox
from seewhy.explainers.results.evaluation import Evaluation
from seewhy.explainers.results.segments import Segments
from seewhy.explainers.tasks.choices import Part

_OF_DRAWINGS = ("view", "colormap", "alpha", "scale")
_OF_REQUESTS = ("image", "format", "values", *_OF_DRAWINGS)
"""Options of requests that are not options of methods: they would change what a result is made from."""

Inspected = TypeVar("Inspected", bound=Inspection)

Target = int | str | NDArray[np.bool_]
"""The index or the label of a class, another name of a target, or a mask (H, W) of a segmenter's region."""


class Client:
    """Explains pictures with the models of a service, as the library does with its own. It imports no PyTorch.

    Your own hooks, `explain_many`, data sets and tensors need the library itself.

    >>> client = Client("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> client.explain("cat.jpg", target="tabby").save("why.png")  # doctest: +SKIP

    Errors are those of the library, with the same messages. Problems that only a service has, such as too many
    requests, are `ServiceError`s.

    Args:
        url: address of the service.
        key: API key; None if the service needs none.
        timeout: seconds to wait for an answer.

    Raises:
        OptionError: the address is not an HTTP address, or the key has characters that keys cannot have.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 600.0) -> None:
        self._connection = Connection(url, key, timeout)

    def explain(
        self,
        picture: PictureSource,
        method: str | None = None,
        target: Target | Sequence[Target] | None = None,
        layer: str | Sequence[str] | None = None,
        against: int | str | None = None,
        *,
        model: str | None = None,
        top: int | None = None,
        attribute: str | None = None,
        label: int | str | None = None,
        region: Part | None = None,
        proof: Extent = False,
        proof_area: float = AREA,
        proof_fill: Fill = "blur",
        **options: Any,
    ) -> RemoteExplanation | list[RemoteExplanation]:
        """Explain the prediction of a model for a picture.

        Args:
            picture: a path, bytes, open file, PIL image or array. Files are sent as they are.
            model: a name from `models`; None for the service's default model.
            method: a name from `methods`; None for the service's default method.
            target, layer, against, top, attribute, label, proof, proof_area, proof_fill: as in `seewhy.explain`;
                targets and layers by their names.
            region: for a segmenter, where logits are averaged: the region, its border or the whole picture.
            options: the method's own options.

        Returns:
            The explanation; a list of them for a list of targets, with `top`, and for several boxes of a class.

        Raises:
            ExplainerError, ModelError: as in `seewhy.explain`.
            ServiceError: the service refuses the request, or cannot be reached.
        """
        names = {"method": method, "target": target, "top": top, "attribute": attribute, "label": label}
        proving = {"proof": proof, "proof_area": proof_area, "proof_fill": proof_fill}
        fields = {**names, "layer": layer, "against": against, "model": model, "region": region, **proving}
        results = self._explained(explanations_of, picture, fields, options)
        is_single = top is None and not isinstance(target, list | tuple) and len(results) == 1
        return results[0] if is_single else list(results)

    def compare(
        self,
        picture: PictureSource,
        methods: Sequence[str],
        target: Target | None = None,
        layer: str | Sequence[str] | None = None,
        against: int | str | None = None,
        *,
        model: str | None = None,
        proof: Extent = False,
        proof_area: float = AREA,
        proof_fill: Fill = "blur",
        **options: Any,
    ) -> RemoteComparison:
        """Explain with several methods.

        Args:
            methods: names from `methods`.
            picture, target, layer, against, model, proof, proof_area, proof_fill, options: as in `explain`, including
                the errors.

        Returns:
            One explanation per method, all of the same class, with the agreement of their maps.
        """
        names = [methods] if isinstance(methods, str) else list(methods)
        proving = {"proof": proof, "proof_area": proof_area, "proof_fill": proof_fill}
        fields = {"method": names, "target": target, "layer": layer, "against": against, "model": model, **proving}
        return self._explained(comparison_of, picture, fields, options)

    def predict(
        self, picture: PictureSource, top: int = 5, *, model: str | None = None
    ) -> tuple[RemotePrediction, ...]:
        """Return the `top` most probable classes of a picture; errors as in `explain`."""
        body = {"image": picture, "top": top, "model": model}
        return self._posted("/predict", body, lambda answer: tuple(map(RemotePrediction, answer["predictions"])))

    def detect(self, picture: PictureSource, *, model: str | None = None) -> tuple[DetectedBox, ...]:
        """Return the boxes that a detector of the service finds, in order of score; errors as in `explain`."""
        return self._posted("/detect", {"image": picture, "model": model}, boxes_of)

    def segment(self, picture: PictureSource, *, model: str | None = None) -> Segments:
        """Return the class that a segmenter of the service gives each pixel of a picture; errors as in `explain`.

        Its `map` covers the pixels of the upload that the model saw.
        """
        upload = _upload(picture)
        body = {"image": upload, "model": model, "format": "json"}
        return self._posted("/segment", body, lambda answer: segments_of(answer, upload))

    def similar(
        self,
        image: PictureSource,
        reference: PictureSource,
        top: int = 5,
        *,
        model: str | None = None,
        proof: Extent = False,
        proof_area: float = AREA,
        proof_fill: Fill = "blur",
    ) -> RemoteLikeness:
        """Compare two pictures as a model of the service sees them.

        Args:
            image, reference: each like the picture of `explain`, including the errors.
            top, proof, proof_area, proof_fill: as in `seewhy.similar`.
            model: as in `explain`.
        """
        uploads = _upload(image), _upload(reference)
        proving = {"proof": proof, "proof_area": proof_area, "proof_fill": proof_fill}
        fields = {"image": uploads[0], "reference": uploads[1], "top": top, "model": model, **proving}

        def download() -> bytes:
            return self._connection.download("/similar", _body({**fields, "format": "npz"}))

        return self._posted(
            "/similar", {**fields, "format": "json"}, lambda answer: likeness_of(answer, uploads, download)
        )

    def evaluate(
        self,
        pictures: Iterable[PictureSource | tuple[PictureSource, Target]],
        methods: str | Sequence[str] | None = None,
        metrics: str | Sequence[str] | None = None,
        target: int | str | None = None,
        layer: str | Sequence[str] | None = None,
        *,
        masks: Sequence[NDArray[np.bool_]] | None = None,
        controls: bool = True,
        model: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Evaluation:
        """Measure how good the maps of several methods are, with one request for each picture.

        Metrics that need several pictures are refused.

        Args:
            pictures: each like the picture of `explain`; or pairs of a picture and its target.
            methods: names from `methods`; None for the service's default method.
            metrics: names of metrics; None for the service's.
            target: target for all pictures without one of their own.
            masks: for each picture, where its target lies, (H, W) bool in its pixels.
            layer, controls, seed, options: as in `seewhy.evaluate`.
            model: as in `explain`, including the errors.

        Raises:
            OptionError: no list of pictures, an empty one, or another number of masks.
        """
        if isinstance(pictures, str | bytes | os.PathLike | Image.Image | np.ndarray):
            raise OptionError("Pass a list, even for a single picture.", field="pictures")
        sources = list(pictures)
        if not sources:
            raise OptionError("The list of pictures is empty; give one or more.", field="pictures")
        if masks is not None and len(masks) != len(sources):
            counts = f"The number of pictures is {len(sources)}, but the number of masks is {len(masks)}"
            raise OptionError(f"{counts}; give one for each picture.", field="masks")
        fields = {"method": methods, "metrics": metrics, "layer": layer, "controls": controls, "model": model}
        answers = {}
        for number, source in enumerate(sources):
            picture, label = source if isinstance(source, tuple) else (source, target)
            truth = None if masks is None else _mask_file(masks[number])
            body = {**options, **fields, "image": picture, "target": label, "truth": truth}
            name = str(picture) if isinstance(picture, str | os.PathLike) else str(number)
            answers[name if name not in answers else f"{name} ({number})"] = self._posted("/evaluate", body, dict)
        return evaluation_of(answers, seed)

    def trace(
        self,
        picture: PictureSource,
        target: int | str | None = None,
        layers: str | Sequence[str] | None = None,
        *,
        model: str | None = None,
    ) -> RemoteTrace:
        """Trace one forward and one backward pass of a picture.

        Args:
            target, layers: as in `seewhy.trace`; layers by paths and globs.
            picture, model: as in `explain`, including the errors.
        """
        return self._inspected(RemoteTrace, "trace", {"image": picture, "target": target, "layer": layers}, model)

    def capture(
        self,
        picture: PictureSource,
        layers: str | Sequence[str],
        kinds: str | Sequence[str] = "output",
        target: int | str | None = None,
        *,
        model: str | None = None,
    ) -> RemoteCapture:
        """Capture activations and gradients of layers for a picture: their statistics, and on demand the arrays.

        Args:
            layers, kinds, target: as in `seewhy.capture`; layers by paths and globs.
            picture, model: as in `explain`, including the errors.
        """
        fields = {"image": picture, "layer": layers, "kind": kinds, "target": target}
        return self._inspected(RemoteCapture, "capture", fields, model)

    def intervene(
        self,
        picture: PictureSource,
        edits: Sequence[Mapping[str, Any]],
        target: int | str | None = None,
        other: PictureSource | None = None,
        method: str | None = None,
        layer: str | Sequence[str] | None = None,
        *,
        model: str | None = None,
        **options: Any,
    ) -> RemoteIntervention:
        """Edit the activations and gradients of a model's layers, and compare predictions and heatmaps.

        Args:
            edits, target, other, method, layer, options: as in `seewhy.intervene`; edits as mappings.
            picture, model: as in `explain`, including the errors.
        """
        fields = {**options, "image": picture, "edits": list(edits), "target": target, "other": other}
        with _of_methods(options):
            return self._inspected(RemoteIntervention, "intervene", {**fields, "method": method, "layer": layer}, model)

    def sweep_channels(
        self,
        picture: PictureSource,
        edit: Mapping[str, Any],
        target: int | str | None = None,
        other: PictureSource | None = None,
        *,
        model: str | None = None,
    ) -> RemoteSweep:
        """Rank the channels of a layer by the effect that an edit of each has on a class.

        Args:
            edit, target, other: as in `seewhy.sweep_channels`; the edit as a mapping.
            picture, model: as in `explain`, including the errors.
        """
        fields = {"image": picture, "edits": [edit], "each_channel": True, "target": target, "other": other}
        return self._inspected(RemoteSweep, "intervene", fields, model)

    def models(self, source: str | None = None) -> dict[str, Any]:
        """Return the JSON of each model of the service, by name; errors as in `explain`.

        Args:
            source: embedded, torchvision, timm or own; None for all.
        """
        return self._connection.get("/models", lambda answer: _by_name(answer["models"]), source=source)

    def methods(self) -> dict[str, Any]:
        """Return the JSON of each method of the service, by name; errors as in `explain`."""
        return self._connection.get("/methods", lambda answer: _by_name(answer["methods"]))

    def _posted(self, path: str, fields: Mapping[str, Any], read: Callable[[Any], Result]) -> Result:
        """Return what `read` makes of a route's answer; see `_body`."""
        return self._connection.post(path, _body(fields), read)

    def _inspected(self, kind: type[Inspected], route: str, fields: Mapping[str, Any], model: str | None) -> Inspected:
        """Return the answer of a route about hooks."""
        body = _body({**fields, "model": model})

        def download(form: str, drawing: Mapping[str, Any]) -> bytes:
            return self._connection.download(f"/hooks/{route}", {**body, **drawing, "format": form})

        return self._connection.post(
            f"/hooks/{route}", {**body, "format": "json"}, lambda answer: kind(answer, download)
        )

    def _explained(
        self,
        read: Callable[[Any, bytes, Download], Result],
        picture: PictureSource,
        fields: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Result:
        upload = _upload(picture)
        body = {name: value for name, value in {**fields, **options}.items() if value is not None}
        if isinstance(target := body.get("target", []), np.ndarray):
            body["mask"] = _base64(_mask_file(target))
            del body["target"]
        for part in _parts(body.get("target", [])):
            if not isinstance(part, str | Integral):
                raise TargetError(f"A service takes targets by their names and masks, not {part!r}.")
        for part in _parts(body.get("layer", [])):
            if not isinstance(part, str):
                raise LayerError(f"A service takes layers by their dotted paths, such as 'layer4', not {part!r}.")
        body |= {"image": _base64(upload)}

        def download(target: int | str | None, form: str) -> bytes:
            question = body
            if target is not None:
                question = {name: value for name, value in body.items() if name != "top"} | {"target": target}
            return self._connection.download("/explain", {**question, "format": form})

        request = {**body, "format": "json", "values": "map"}
        with _of_methods(options):
            return self._connection.post("/explain", request, lambda answer: read(answer, upload, download))

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"


@contextmanager
def _of_methods(options: Mapping[str, Any]) -> Iterator[None]:
    """Raise `OptionError` if an option belongs to requests, or is spelt like one that does; it says where that
    belongs."""
    for name in options:
        if name in _OF_REQUESTS:
            raise _misplaced(name, name)
    try:
        yield
    except OptionError as error:
        name = error.field or ""
        near = nearest(name, _OF_DRAWINGS) if name in options else []
        if near and f"Near matches: {near[0]}" in str(error):
            raise _misplaced(name, near[0]) from error
        raise


def _misplaced(name: str, meant: str) -> OptionError:
    """Return the error about an option, which may be meant as one of requests."""
    way = f"save(path, {meant}=...)" if meant in _OF_DRAWINGS else "save(path), whose suffix is the format"
    return OptionError(f"No method has an option {name!r}. Results are drawn and saved by result.{way}.", field=name)


def _body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a request, with pictures as base64 and without fields that are None."""
    body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    for name in body.keys() & {"image", "reference", "truth", "other"}:
        body[name] = _base64(_upload(body[name]))
    return body


def _mask_file(mask: NDArray[np.bool_]) -> bytes:
    return encode_png(Image.fromarray(mask.astype(np.uint8) * 255))


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _upload(source: PictureSource) -> bytes:
    """Return the file of a picture; errors as in `read_picture`, which reports anything that is not a picture."""
    if hasattr(source, "read"):
        source = source.read()
    if isinstance(source, bytes):
        return source
    if isinstance(source, os.PathLike) or (isinstance(source, str) and "://" not in source):
        return Path(source).read_bytes()
    return encode_png(read_picture(source))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["name"]: row for row in rows}
