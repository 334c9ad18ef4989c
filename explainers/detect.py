"""The boxes of a detector in a picture."""

from torch import Tensor

from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.boxes import DetectedBox
from seewhy.explainers.tasks.detected import BoxPrediction, located
from seewhy.explainers.tasks.detection import Detection
from seewhy.explainers.tasks.pose import predict
from seewhy.explainers.view import ViewSource, prepare


def detect(model: Model, picture: ViewSource) -> tuple[DetectedBox, ...]:
    """Return the boxes that a detector shows in a picture, in order of score; none if it shows none.

    Args:
        model: a `LoadedModel` of a detector, from `load_model` or `wrap_model`.
        picture: as in `explain`.

    Raises:
        OptionError: the model is not a detector.
        PictureError: the picture cannot be read.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, picture)
    must_detect(model)
    view = prepare(model, picture)
    return detected(model, predict(model, view.images(model.device))[0], view.geometry)


def must_detect(model: Model) -> None:
    """Raise `OptionError` unless a model is a detector."""
    if not isinstance(model.task, Detection):
        raise OptionError(
            "This model is not a detector; use one, such as fasterrcnn_resnet50_fpn, or wrap your own with "
            "head=BoxHead(...).",
            field="model",
        )


def detected(model: Model, outputs: Tensor, geometry: Geometry) -> tuple[DetectedBox, ...]:
    """Return the boxes in a detector's outputs (A, F) for a picture."""
    rows = located(model.task.describe(outputs, top=len(outputs) * len(model.labels)), geometry)
    return tuple(
        DetectedBox(row.number, row.box, row.label, row.probability)
        for row in rows
        if isinstance(row, BoxPrediction) and row.number is not None
    )
