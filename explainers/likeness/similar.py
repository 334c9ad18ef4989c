"""The likeness of two pictures."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, Extent, Fill
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import at_fault
from seewhy.explainers.likeness.decomposition import Decomposition, decompose
from seewhy.explainers.likeness.proof import prove
from seewhy.explainers.results.display import must_show
from seewhy.explainers.results.likeness import Likeness, Pair
from seewhy.explainers.trust.proof import proof_of
from seewhy.explainers.trust.sentences import Subject
from seewhy.explainers.trust.trial import trial_of
from seewhy.explainers.view import View, ViewSource, prepare

SUBJECT = Subject("the similarity", "contributes to", "{:z.3f}".format)
"""The subject of sentences about two pictures."""


def similar(
    model: Model,
    image: ViewSource,
    reference: ViewSource,
    top: int = 5,
    *,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
) -> Likeness:
    """Compare two pictures as a model sees them, and find the patches that make them similar.

    The score is the cosine of their embeddings, the inputs of the last linear layer. If an embedding is the average of
    a grid of features, or lists them, the maps and the pairs are its exact parts; otherwise they are estimated, and the
    likeness is not `exact`.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left unchanged.
        image, reference: each a path, bytes, open file, PIL image or array, see `read_picture`; or a tensor (C, H, W)
            of the model's input.
        top: maximum number of pairs of patches to return.
        proof: whether to test each map on masked copies of its picture, with six extra forward passes, and to add a
            `proof` of each to the result; ``full`` also tries rotated and mirrored copies of the maps.
        proof_area, proof_fill: as in `explain`.

    Returns:
        The score, a map of each picture, and the strongest pairs.

    Raises:
        PictureError: a picture cannot be read; `field` names it.
        OptionError: fewer than one pair, or a value out of bounds.
        UnsuitableModelError: the model has no embedding, or no layer with cells of the picture.
        ModelOutputError: the model returns no outputs, or NaN.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_show(top)
    trial = trial_of(proof, proof_area, proof_fill)
    first = prepare(model, image)
    with at_fault("reference"):
        second = prepare(model, reference)
    images = first.images(model.device), second.images(model.device)
    parts = decompose(model, *images, top)
    return likeness(model, parts, (first, second), () if trial is None else prove(model, images, parts, trial))


def likeness(
    model: Model,
    parts: Decomposition,
    views: tuple[View, View],
    faithfulness: Sequence[Faithfulness] = (),
    calibration: Calibration | None = None,
) -> Likeness:
    """Return the likeness of two pictures in their own coordinates.

    Args:
        model: model of the decomposition.
        parts: the score by cells.
        views: the pictures, upright, or smaller copies to draw on.
        faithfulness: faithfulness of both maps; empty without proofs.
        calibration: scores that the proofs are compared with; None for none.
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
    proofs = [
        proof_of(part, values, place, SUBJECT, calibration=calibration)
        for part, values, place in zip(faithfulness, (first, second), places, strict=False)
    ]
    return Likeness(
        score=parts.score,
        maps=(first, second),
        pairs=pairs,
        embedding=parts.embedding,
        layer=parts.layer,
        exact=parts.exact,
        pictures=(views[0].picture, views[1].picture),
        geometries=(places[0], places[1]),
        proof=(proofs[0], proofs[1]) if proofs else None,
    )
