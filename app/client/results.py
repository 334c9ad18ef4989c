"""Answers of a service: explanations that are drawn, saved and shown like those of the library."""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.core.choices import verdict_of
from seewhy.explainers.core.percent import likelihood, percent
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.boxes import DetectedBox
from seewhy.explainers.results.evaluation import Column, Evaluation
from seewhy.explainers.results.likeness import Likeness, Pair
from seewhy.explainers.results.map_drawing import MapDrawing
from seewhy.explainers.results.map_panel import MapPanel
from seewhy.explainers.results.segments import Segments


class RemotePrediction(SimpleNamespace):
    """A class, value, region or box, with the members that the service gives of it: `index`, `label` and others.

    Attributes:
        index: its place among the model's outputs.
        label: its name.
        probability: in [0, 1]; None where the model gives none.
    """

    index: int
    label: str
    probability: float | None

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__(**{"probability": None, **members})

    @property
    def name(self) -> int | str:
        """Its name as a target."""
        members = vars(self)
        if "unit" in members:
            return f"output:{self.index}" + (":down" if members.get("direction") == "down" else "")
        if "box" not in members:
            return self.index
        edges = ",".join(f"{edge:.0f}" for edge in members["box"])
        place = f"box:{edges if members['number'] is None else members['number']}"
        return place if members.get("attribute", "score") == "score" else f"{place}:{members['attribute']}"

    @property
    def text(self) -> str:
        """The model's answer, for people: ``37.1%``, ``41.2 years``."""
        members = vars(self)
        if "unit" in members:
            down = " (what lowers it)" if members.get("direction") == "down" else ""
            return f"{members['value']:.4g} {members['unit']}".rstrip() + down
        if "area" in members:
            return f"on {percent(members['area'])}"
        text = likelihood(members["probability"])
        return text if members.get("attribute", "score") == "score" else f"{text}, {members['attribute']}"


class RemoteProof(SimpleNamespace):
    """How far a heatmap can be trusted, with the members of `Proof`."""

    grade: str | None
    sentence: str
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The grade for people, as in `Proof`."""
        return verdict_of(self.grade, self.warnings)

    def __repr__(self) -> str:
        return f"RemoteProof({self.verdict}: {self.sentence})"


def _proof_of(members: Mapping[str, Any] | None) -> RemoteProof | None:
    return None if members is None else RemoteProof(**vars(objects(members)))


@dataclass(frozen=True, eq=False, repr=False)
class RemoteExplanation(MapDrawing):
    """The explanation of a prediction by a model of a service; it has the interface of `Explanation`.

    `save` writes ``.json`` and pictures here. The service is asked once more for ``.npz`` and ``.html``, which have
    data that its JSON lacks, such as all logits.

    Attributes:
        upload: the picture's file, as it was sent.
        geometry: the part of the upload that the model saw.
        map: (h, w) float32, the method's raw map, from edge to edge of that part.
        signed: whether negative values speak against the class.
        target: the explained class.
        predictions: the five most probable classes.
        method: the method's name.
        layers: paths of the layers used.
        against: the class that the target is contrasted with; None without a contrast.
        diagnostics: remarks for the reader of the map, with `code` and `message`.
        proof: how far the map can be relied on, as `Proof`; None unless requested.
        model: the service's `name`, `weights`, `sha256`, `head` and `precision` of the model.
        members: the part of the service's JSON about this explanation.
        answer: the service's JSON.
        download: returns the service's file of a format: npz or report.
    """

    upload: bytes
    geometry: Geometry
    map: NDArray[np.float32]
    signed: bool
    target: RemotePrediction
    predictions: tuple[RemotePrediction, ...]
    method: str
    layers: tuple[str, ...]
    against: RemotePrediction | None
    diagnostics: tuple[Any, ...]
    proof: RemoteProof | None
    model: Any
    members: Mapping[str, Any]
    answer: Mapping[str, Any]
    download: Callable[[str], bytes]

    @cached_property
    def picture(self) -> Image.Image:  # type: ignore[override]  # it is decoded for drawings alone
        """The upright upload, RGB."""
        return read_picture(self.upload)

    @property
    def outside(self) -> float | None:
        """Share of the map's magnitude outside the region of a segmenter; None for other targets."""
        share: float | None = self.members.get("outside")
        return share

    @property
    def regions(self) -> tuple[Any, ...]:
        """`gain` and `predictions` of each region, for methods that divide the picture; empty for all others."""
        parts: tuple[Any, ...] = objects(self.members["regions"])
        return parts

    def document(self) -> dict[str, Any]:
        """Return the service's JSON of this explanation, with the heatmap's values in rows."""
        return _document([self])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz; it is asked once more. Errors as `Client.explain`."""
        return arrays_in(self.download("npz"))

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {**super()._number_files, ".html": lambda: [self.download("report")]}


@dataclass(frozen=True, eq=False, repr=False)
class RemoteComparison(MapPanel[RemoteExplanation]):
    """The explanations of one class by several methods; it has the interface of `Comparison`.

    Attributes:
        explanations: one per method.
        agreement: the rank correlation of the maps of each pair of methods, in [-1, 1]; None if a map is constant.
    """

    explanations: tuple[RemoteExplanation, ...]
    agreement: Mapping[tuple[str, str], float | None]

    def document(self) -> dict[str, Any]:
        """Return the service's JSON, with the heatmaps' values in rows."""
        return _document(self.explanations)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz; it is asked once more. Errors as `Client.compare`."""
        return arrays_in(self[0].download("npz"))

    @property
    def _number_files(self) -> Mapping[str, Callable[[], Iterable[bytes]]]:
        return {**super()._number_files, ".html": lambda: [self[0].download("report")]}


Download = Callable[[int | str | None, str], bytes]
"""Asks the service again, about one of several targets by its name, for a file of this format."""


def explanations_of(answer: Mapping[str, Any], upload: bytes, download: Download) -> tuple[RemoteExplanation, ...]:
    """Return the explanations in the JSON of /explain with ``values=map``."""
    names = [RemotePrediction(part["target"]).name for part in answer["explanations"]]
    are_several = len(names) > len(answer["methods"])
    predictions = tuple(map(RemotePrediction, answer["predictions"]))
    return tuple(
        RemoteExplanation(
            upload=upload,
            geometry=_geometry(part["heatmap"]),
            map=np.array(part["heatmap"]["map"], np.float32),
            signed=part["heatmap"]["signed"],
            target=RemotePrediction(part["target"]),
            predictions=predictions,
            method=part["method"],
            layers=tuple(answer["layers"]),
            against=RemotePrediction(part["against"]) if part.get("against") else None,
            diagnostics=objects(part["diagnostics"]),
            proof=_proof_of(part.get("proof")),
            model=objects(answer["model"]),
            members=part,
            answer=answer,
            download=partial(download, name if are_several else None),
        )
        for name, part in zip(names, answer["explanations"], strict=True)
    )


def comparison_of(answer: Mapping[str, Any], upload: bytes, download: Download) -> RemoteComparison:
    """Return the explanations of several methods in the JSON of /explain with ``values=map``."""
    pairs = {tuple(row["methods"]): row["rank_correlation"] for row in answer["agreement"]}
    return RemoteComparison(explanations_of(answer, upload, download), MappingProxyType(pairs))


def _document(explanations: Sequence[RemoteExplanation]) -> dict[str, Any]:
    """Return the service's JSON of some of its explanations, with values in rows."""
    answer = explanations[0].answer
    parts = []
    for explanation in explanations:
        heatmap = {name: value for name, value in explanation.members["heatmap"].items() if name != "map"}
        values = explanation.heatmap.tolist()
        parts.append({**explanation.members, "heatmap": {**heatmap, "values": values}})
    methods = [row for row in answer["methods"] if row["name"] in {part["method"] for part in parts}]
    agreement = answer["agreement"] if len(parts) > 1 else []
    own = {"method": methods[0], "methods": methods, "agreement": agreement, "explanations": parts}
    return {**answer, **own}


def arrays_in(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file."""
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def boxes_of(answer: Mapping[str, Any]) -> tuple[DetectedBox, ...]:
    """Return the boxes in the JSON of /detect."""
    return tuple(DetectedBox(**{**row, "box": tuple(row["box"])}) for row in answer["boxes"])


def segments_of(answer: Mapping[str, Any], upload: bytes) -> Segments:
    """Return the segments in the JSON of /segment."""
    _, _, content = answer["mask"].partition(",")
    with Image.open(io.BytesIO(base64.b64decode(content))) as file:
        mask = np.asarray(file).astype(np.uint8 if answer["void"] == np.iinfo(np.uint8).max else np.uint16)
    rows, columns = _geometry(answer).window
    height, width = mask.shape
    geometry = Geometry(width, height, (columns.start, rows.start, columns.stop, rows.stop))
    classes = tuple(map(RemotePrediction, answer["classes"]))
    return Segments(classes, mask[rows, columns], read_picture(upload), geometry)  # type: ignore[arg-type]  # as predictions


@dataclass(frozen=True, eq=False, repr=False)
class RemoteLikeness(Likeness):
    """The similarity of two pictures to a model of a service; it has the interface of `Likeness`.

    Attributes:
        answer: the service's JSON.
        download: returns the service's npz.
    """

    answer: Mapping[str, Any] = field(default_factory=dict)
    download: Callable[[], bytes] = bytes

    @property
    def diagnostics(self) -> tuple[Any, ...]:
        """Remarks for the reader of the maps, with `code` and `message`."""
        remarks: tuple[Any, ...] = objects(self.answer["diagnostics"])
        return remarks

    def document(self) -> dict[str, Any]:
        """Return the service's JSON."""
        return dict(self.answer)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz; it is asked once more. Errors as `Client.similar`."""
        return arrays_in(self.download())


def likeness_of(
    answer: Mapping[str, Any], uploads: tuple[bytes, bytes], download: Callable[[], bytes]
) -> RemoteLikeness:
    """Return the likeness in the JSON of /similar."""
    first, second = answer["image"], answer["reference"]
    proofs: Any = _proof_of(first.get("proof")), _proof_of(second.get("proof"))  # as those of the library
    return RemoteLikeness(
        score=answer["score"],
        maps=(np.array(first["map"], np.float32), np.array(second["map"], np.float32)),
        pairs=tuple(Pair(tuple(row["image"]), tuple(row["reference"]), row["contribution"]) for row in answer["pairs"]),
        embedding=answer["embedding"],
        layer=answer["layer"],
        exact=answer["exact"],
        pictures=(read_picture(uploads[0]), read_picture(uploads[1])),
        geometries=(_geometry(first), _geometry(second)),
        proof=None if proofs[0] is None else proofs,
        answer=answer,
        download=download,
    )


def evaluation_of(answers: Mapping[str, Mapping[str, Any]], seed: int) -> Evaluation:
    """Return the evaluation in the JSON of /evaluate for each picture by name, at least one."""
    first = next(iter(answers.values()))
    columns = tuple(Column(**row) for row in first["metrics"])
    values: dict[tuple[str, str], list[float]] = {}
    for answer in answers.values():
        for row in answer["methods"]:
            for name, value in row["values"].items():
                values.setdefault((row["name"], name), []).append(np.nan if value is None else value)
    return Evaluation(
        model=first["model"]["name"],
        pictures=tuple(answers),
        methods=tuple(row["name"] for row in first["methods"]),
        controls=tuple(row["name"] for row in first["methods"] if row["control"]),
        columns=columns,
        values={key: np.array(numbers, np.float64) for key, numbers in values.items()},
        failures={},
        reasons={
            (row["name"], metric): reason for row in first["methods"] for metric, reason in row["reasons"].items()
        },
        left_out={
            column.name: np.array([column.name in answer.get("left_out", ()) for answer in answers.values()])
            for column in columns
            if any(column.name in answer.get("left_out", ()) for answer in answers.values())
        },
        seed=seed,
    )


def _geometry(heatmap: Mapping[str, Any]) -> Geometry:
    height, width = heatmap["shape"]
    left, top, right, bottom = heatmap["box"]
    return Geometry(width, height, (left, top, right, bottom))


def objects(value: Any) -> Any:
    """Return JSON with objects that have attributes, and tuples."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: objects(part) for name, part in value.items()})
    return tuple(map(objects, value)) if isinstance(value, list) else value
