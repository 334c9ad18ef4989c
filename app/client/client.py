"""The client itself."""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.app.client.connection import Connection, Result
from seewhy.app.client.results import (
    Download,
    RemoteComparison,
    RemoteExplanation,
    RemotePrediction,
    comparison_of,
    explanations_of,
    png_of,
)
from seewhy.explainers.errors import LayerError, OptionError, TargetError
from seewhy.explainers.imaging.decode import PictureSource, read_picture
from seewhy.explainers.tasks.choices import Part
from seewhy.explainers.trust.choices import AREA, Extent, Fill

_OF_REQUESTS = frozenset({"image", "format", "values", "view", "colormap", "alpha", "scale"})
"""Options of requests that are none of methods: they would change what a result is made from."""

Target = int | str | NDArray[np.bool_]
"""The index or the label of a class, another name of a target, or a mask (H, W) of a segmenter's region."""


class Client:
    """Explains pictures with the models of a service, as the library does with its own. It imports no PyTorch.

    >>> client = Client("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> client.explain("cat.jpg", target="tabby").save("why.png")  # doctest: +SKIP

    Errors are those of the library, with the same messages. What only a service refuses, such as too many requests, is
    a `ServiceError`.

    Args:
        url: address of the service.
        key: API key; None if the service needs none.
        timeout: seconds to wait for an answer.

    Raises:
        OptionError: the address is not one of HTTP, or the key has characters that none has.
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
            target, layer, against, top, attribute, label, proof, proof_area, proof_fill: as `seewhy.explain`; targets
                and layers by their names.
            region: for a segmenter, where logits are averaged: the region, its border or the whole picture.
            options: the method's own options.

        Returns:
            The explanation; a list of them for a list of targets, with `top`, and for several boxes of a class.

        Raises:
            ExplainerError, ModelError: as `seewhy.explain`.
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
            picture, target, layer, against, model, proof, proof_area, proof_fill, options: as `explain`; also the
                errors.

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
        """Return the `top` most probable classes of a picture; errors as `explain`."""
        body = {"image": _base64(_upload(picture)), "top": top, **({} if model is None else {"model": model})}
        return self._connection.post(
            "/predict", body, lambda answer: tuple(map(RemotePrediction, answer["predictions"]))
        )

    def models(self, source: str | None = None) -> dict[str, Any]:
        """Return the JSON of each model of the service, by name; errors as `explain`.

        Args:
            source: embedded, torchvision, timm or own; None for all.
        """
        return self._connection.get("/models", lambda answer: _by_name(answer["models"]), source=source)

    def methods(self) -> dict[str, Any]:
        """Return the JSON of each method of the service, by name; errors as `explain`."""
        return self._connection.get("/methods", lambda answer: _by_name(answer["methods"]))

    def _explained(
        self,
        read: Callable[[Any, bytes, Download], Result],
        picture: PictureSource,
        fields: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Result:
        upload = _upload(picture)
        for name in options:
            if name in _OF_REQUESTS:
                raise OptionError(f"No method has an option {name!r}; results are drawn and saved here.", field=name)
        body = {name: value for name, value in {**fields, **options}.items() if value is not None}
        if isinstance(target := body.get("target", []), np.ndarray):
            body["mask"] = _base64(png_of(Image.fromarray(target.astype(np.uint8) * 255)))
            del body["target"]
        for part in _parts(body.get("target", [])):
            if not isinstance(part, str | Integral):
                raise TargetError(f"A service takes targets by their names and masks, not {part!r}.")
        for part in _parts(body.get("layer", [])):
            if not isinstance(part, str):
                raise LayerError(f"A service takes layers by their dotted paths, such as 'layer4', not {part!r}.")
        body |= {"image": _base64(upload)}

        def download(target: int | str | None, form: str) -> bytes:
            one = {name: value for name, value in body.items() if name != "top"} | {"target": target}
            return self._connection.download("/explain", {**(body if target is None else one), "format": form})

        request = {**body, "format": "json", "values": "map"}
        return self._connection.post("/explain", request, lambda answer: read(answer, upload, download))

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _upload(source: PictureSource) -> bytes:
    """Return the file of a picture; errors as `read_picture`, which says what is none."""
    if hasattr(source, "read"):
        source = source.read()
    if isinstance(source, bytes):
        return source
    if isinstance(source, os.PathLike) or (isinstance(source, str) and "://" not in source):
        return Path(source).read_bytes()
    return png_of(read_picture(source))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["name"]: row for row in rows}
