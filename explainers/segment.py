"""The class of each pixel of a picture."""

import numpy as np
from torch import Tensor

from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.errors import OptionError
from seewhy.explainers.results.segments import Segments
from seewhy.explainers.tasks.pose import predict
from seewhy.explainers.tasks.segmentation import Segmentation
from seewhy.explainers.view import View, ViewSource, prepare

_MOST = np.iinfo(np.uint16).max
"""Maximum number of classes of a mask; one further value means that the model saw nothing."""


def segment(model: Model, picture: ViewSource) -> Segments:
    """Return the class that a segmenter gives each pixel of a picture.

    Args:
        model: a `LoadedModel` of a segmenter, from `load_model` or `wrap_model`; left unchanged.
        picture: as in `explain`.

    Returns:
        The classes with their areas, and the mask in upload coordinates.

    Raises:
        OptionError: the model does not segment.
        PictureError: the picture cannot be read.
        ModelOutputError: the model returns no logits, or NaN.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, picture)
    segmentation_of(model)
    view = prepare(model, picture)
    return segments_of(model, predict(model, view.images(model.device))[0], view)


def segmentation_of(model: Model) -> Segmentation:
    """Return the task of a segmenter.

    Raises:
        OptionError: the model is not a segmenter, or has too many classes.
    """
    task = model.task
    if not isinstance(task, Segmentation):
        raise OptionError(
            "The model is not a segmenter; use one, such as deeplabv3_resnet50, or your own with the head "
            "'segmentation'.",
            field="model",
        )
    if len(model.labels) > _MOST:
        raise OptionError(
            f"The model has {len(model.labels)} classes; a mask can contain at most {_MOST}.", field="model"
        )
    return task


def segments_of(model: Model, outputs: Tensor, view: View) -> Segments:
    """Return the segments of a picture, given its logits (K, h, w)."""
    classes = segmentation_of(model).describe(outputs, top=len(outputs))
    indices = outputs.argmax(dim=0).cpu().numpy()
    is_small = len(outputs) <= np.iinfo(np.uint8).max
    values = indices.astype(np.uint8) if is_small else indices.astype(np.uint16)
    return Segments(classes, values, view.picture, view.geometry)
