"""Two pictures in, their likeness out."""

from dataclasses import replace

import numpy as np

from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import at_fault
from seewhy.explainers.likeness.decomposition import Decomposition, decompose
from seewhy.explainers.results.display import must_show
from seewhy.explainers.results.likeness import Likeness, Pair
from seewhy.explainers.view import View, ViewSource, prepare


def similar(model: Model, image: ViewSource, reference: ViewSource, top: int = 5) -> Likeness:
    """Compare two pictures as a model sees them, and find the patches that make them alike.

    The score is the cosine of their embeddings, which are what the last linear layer reads. Where an embedding is the
    average of a grid of features, or lists them, the maps and the pairs are its exact parts; otherwise they are
    estimated, and the likeness is not `exact`.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left as it was.
        image, reference: each a path, bytes, open file, PIL image or array, see `read_picture`; or a tensor (C, H, W)
            of the model's input.
        top: most pairs of patches to return.

    Returns:
        The score, a map of each picture, and the strongest pairs.

    Raises:
        PictureError: a picture cannot be read; `field` names it.
        OptionError: fewer than one pair.
        LayerError: no layer of the model has cells of the picture.
        ModelOutputError: the model returns no outputs, or NaN.
        UnsupportedModuleError: a bare module, whose preprocessing is unknown.
    """
    must_show(top)
    first = prepare(model, image)
    with at_fault("reference"):
        second = prepare(model, reference)
    parts = decompose(model, first.images(model.device), second.images(model.device), top)
    return likeness(model, parts, (first, second))


def likeness(model: Model, parts: Decomposition, views: tuple[View, View]) -> Likeness:
    """Return the likeness of two pictures in their own coordinates.

    Args:
        model: of the decomposition.
        parts: the score by cells.
        views: the pictures, upright, or smaller copies to draw on.
    """
    first, second = (values.numpy().astype(np.float32) for values in parts.maps)
    places = [
        replace(view.geometry, reach=model.survey.reach((parts.layer,), values.shape))
        for view, values in zip(views, (first, second), strict=True)
    ]
    pairs = tuple(
        Pair(
            places[0].cell(*pair.first, size=first.shape),
            places[1].cell(*pair.second, size=second.shape),
            pair.contribution,
        )
        for pair in parts.pairs
    )
    return Likeness(
        score=parts.score,
        maps=(first, second),
        pairs=pairs,
        embedding=parts.embedding,
        layer=parts.layer,
        exact=parts.exact,
        pictures=(views[0].picture, views[1].picture),
        geometries=(places[0], places[1]),
    )
