r"""The cosine of two embeddings as a sum over the cells of a layer, and over pairs of cells.

An embedding f that is the average of a grid of features F, and g that of G, have the cosine

.. math:: \frac{f \cdot g}{|f|\,|g|} = \sum_p \sum_q \frac{F_p \cdot G_q}{h w\, h' w'\, |f|\,|g|}

whose terms are the pairs, and whose sums over q and over p are the two maps. For an embedding that lists the features
of all cells, only pairs of the same cell have a term. (Stylianou, Souvenir, Pless: Visualizing Deep Similarity
Networks, 2019, has the sum for averages.) For any other embedding, the maps are gradient times activation, which is the
same for averages, and the pairs are estimated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import require_finite
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import UnsuitableModelError
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.likeness.embedding import Cells, Pictures, anatomy_of, read
from seewhy.explainers.tasks.pose import pose

_BLOCK = 2**22
"""Maximum number of pairs in memory at a time."""

_FULL, _HALF = 1e-5, 2e-2
"""Maximum difference between an embedding and the sum of its cells, as a share of its maximum; due to rounding."""

_LEAST = 1e-6
"""Least likeness of two cells; the contribution of a cell that is like no other is divided evenly."""

Check = Callable[[], None]


class CellPair(NamedTuple):
    """A cell of each picture.

    Attributes:
        first, second: row and column.
        contribution: to the cosine.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    contribution: float


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The cosine of the embeddings of two pictures, by cells.

    Attributes:
        score: the cosine; 0 if an embedding is zero.
        maps: (h, w) float64 of each picture: the contribution of each cell.
        pairs: those that add most, the largest first.
        embedding: path of the layer whose input the embedding is; None for the model's outputs.
        layer: path of the layer with the cells.
        exact: whether the pairs, and each of the maps, sum to the score.
        embeddings: (F,) float64 of each picture.
    """

    score: float
    maps: tuple[Tensor, Tensor]
    pairs: tuple[CellPair, ...]
    embedding: str | None
    layer: str
    exact: bool
    embeddings: Pictures


class Terms(NamedTuple):
    """The contributions of cells and pairs of cells to a cosine.

    Attributes:
        maps: (h, w) float64 of each picture.
        pairs: given a range of the first picture's cells, their pairs with each of the second's, (cells, h' w').
    """

    maps: tuple[Tensor, Tensor]
    pairs: Callable[[slice], Tensor]


def decompose(
    model: Model, image: Tensor, reference: Tensor, top: int = 5, progress: Progress = SILENT
) -> Decomposition:
    """Return the cosine of the embeddings of two pictures, by cells.

    Args:
        model: left unchanged.
        image, reference: each (1, C, H, W) floating, normalised.
        top: maximum number of pairs to return.
        progress: notified of each pass; its `cancel` is called between parts of long work too.

    Raises:
        UnsuitableModelError: no layer of the model has cells of the picture, or no gradient reaches them.
        ModelOutputError: the model returns no outputs, or NaN.
    """
    anatomy = anatomy_of(model)
    with pose(model, image, progress=progress) as question:
        other = reference.detach().to(question.images, copy=reference.is_inference())
        embeddings, cells = read(question, model, anatomy, (question.images, other))
        tolerance = _FULL if question.is_precise else _HALF
    exact = (
        (path, terms)
        for path, part in reversed(cells.items())
        if (terms := _exact_terms(part.features, embeddings, tolerance)) is not None
    )
    place = next(exact, None)
    path, terms = place or _estimated_terms(cells, progress.cancel)
    for values in terms.maps:
        require_finite(values)
    first, second = embeddings
    score = float(terms.maps[0].sum()) if place else float(_unit(first) @ _unit(second))
    score = min(max(score, -1.0), 1.0)  # rounding may exceed these bounds
    pairs = tuple(_strongest(terms, top, progress.cancel))
    return Decomposition(score, terms.maps, pairs, anatomy.head, path, place is not None, embeddings)


def _exact_terms(features: Pictures, embeddings: Pictures, tolerance: float) -> Terms | None:
    """Return the terms of embeddings that are averages or lists of the features; None if they are neither.

    Features are rectified where the network does that itself, between the layer and the pooling.
    """
    for first, second in (features, (features[0].relu(), features[1].relu())):
        pairs = list(zip((first, second), embeddings, strict=True))
        if all(_is_near(values.mean(dim=(1, 2)), embedding, tolerance) for values, embedding in pairs):
            return _average_terms(first, second)
        for order in ((0, 1, 2), (1, 2, 0)):
            if all(_is_near(values.permute(order).flatten(), embedding, tolerance) for values, embedding in pairs):
                return _list_terms(first, second)
    return None


def _is_near(values: Tensor, embedding: Tensor, tolerance: float) -> bool:
    """Whether an embedding consists of features, up to a factor, which does not affect the cosine."""
    if values.shape != embedding.shape:
        return False
    expected = _unit(embedding)
    return bool((_unit(values) - expected).abs().max() <= tolerance * expected.abs().max())


def _average_terms(first: Tensor, second: Tensor) -> Terms:
    """Return the terms of averages of features (C, h, w)."""
    rows, columns = (_shares(values) for values in (first, second))
    maps = (rows @ columns.sum(dim=0)).reshape(first.shape[1:]), (columns @ rows.sum(dim=0)).reshape(second.shape[1:])
    return Terms(maps, lambda cells: rows[cells] @ columns.T)


def _shares(features: Tensor) -> Tensor:
    """Return the contribution of each cell (h w, C) to the average of features (C, h, w), which is divided by its
    length."""
    length = features.mean(dim=(1, 2)).norm()
    shares = features.flatten(1).T / features[0].numel()
    return shares / length if length > 0 else shares


def _list_terms(first: Tensor, second: Tensor) -> Terms:
    """Return the terms of lists of features (C, h, w): each cell has a pair with the same cell alone."""
    values = (_unit(first.flatten()) * _unit(second.flatten())).reshape(first.shape).sum(dim=0)

    def pairs(cells: slice) -> Tensor:
        part = values.flatten()[cells]
        block = part.new_full((len(part), values.numel()), -torch.inf)
        return block.diagonal_scatter(part, offset=cells.start)

    return Terms((values, values), pairs)


def _estimated_terms(cells: dict[str, Cells], check: Check) -> tuple[str, Terms]:
    """Return the layer and the terms by gradient times activation, at the last layer whose cells have gradients.

    What each cell adds is divided among the other picture's cells in proportion to the likeness of their features, and
    a pair is the mean of both pictures' parts.

    Raises:
        UnsuitableModelError: there is no such layer.
    """
    for path, (features, gradients) in reversed(cells.items()):
        maps = [
            (values * slope).sum(dim=0)
            for values, slope in zip(features, gradients, strict=True)
            if slope is not None and slope.any()
        ]
        if len(maps) == 2:
            return path, _divided(features, (maps[0], maps[1]), check)
    raise UnsuitableModelError(
        f"No gradient flows from the embedding to the cells of {', '.join(cells)}, or it is zero everywhere."
    )


def _divided(features: Pictures, maps: Pictures, check: Check) -> Terms:
    """Return the terms of two maps, divided among pairs of cells with like features."""
    middle = torch.cat([values.flatten(1) for values in features], dim=1).mean(dim=1)[:, None]
    rows, columns = (functional.normalize((values.flatten(1) - middle).T, dim=1) for values in features)

    def likeness(cells: slice) -> Tensor:
        return (rows[cells] @ columns.T).clamp_min(_LEAST)

    sums = torch.zeros(len(columns), dtype=columns.dtype)
    for cells in _blocks(len(rows), len(columns)):
        check()
        sums += likeness(cells).sum(dim=0)
    first, second = maps[0].flatten(), maps[1].flatten() / sums

    def pairs(cells: slice) -> Tensor:
        block = likeness(cells)
        return block * (first[cells, None] / block.sum(dim=1, keepdim=True) + second) / 2

    return Terms(maps, pairs)


def _strongest(terms: Terms, top: int, check: Check) -> list[CellPair]:
    """Return the pairs with the largest contributions, the largest first; equal ones in the order of their cells."""
    width, reference_width = (part.shape[1] for part in terms.maps)
    count = terms.maps[1].numel()
    strongest: list[tuple[float, int, int]] = []
    for cells in _blocks(terms.maps[0].numel(), count):
        check()
        values, places = terms.pairs(cells).flatten().topk(min(top, (cells.stop - cells.start) * count))
        pairs = zip(values.tolist(), places.tolist(), strict=True)
        strongest += [(-value, cells.start + place // count, place % count) for value, place in pairs]
        strongest = sorted(strongest)[:top]
    return [
        CellPair(divmod(first, width), divmod(second, reference_width), -value)
        for value, first, second in strongest
        if value < torch.inf
    ]


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield ranges of rows, so that a block of them holds no more pairs than memory allows."""
    step = max(1, _BLOCK // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _unit(embedding: Tensor) -> Tensor:
    """Return an embedding (F,) divided by its length, unless that is 0."""
    length = embedding.norm()
    return embedding / length if length > 0 else embedding
