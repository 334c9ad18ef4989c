"""The predictions of a model for a picture."""

from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.core.task import Prediction
from seewhy.explainers.results.display import must_show
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.pose import predict as outputs_of
from seewhy.explainers.view import ViewSource, prepare


def predict(model: Model, picture: ViewSource, top: int = 5) -> tuple[Prediction, ...]:
    """Return the most probable classes of a picture, or other predictions of the model.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left unchanged.
        picture: as in `explain`.
        top: number of predictions, at least 1; all if the model has fewer.

    Returns:
        The `top` most probable classes, each with `index`, `label`, `probability` and `logit`; values of a regression,
        boxes of a detector, or classes of a segmenter.

    Raises:
        OptionError: `top` is out of bounds.
        PictureError: the picture cannot be read.
        ModelOutputError: the model returns no logits, or NaN.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, picture)
    must_show(top)
    view = prepare(model, picture)
    outputs = outputs_of(model, view.images(model.device))[0]
    return tuple(located(model.task.describe(outputs, top=top), view.geometry))
