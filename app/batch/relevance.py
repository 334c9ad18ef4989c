"""Spectral relevance analysis: groups of maps that look at the same places."""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.linalg import eigh
from scipy.spatial import cKDTree

SIDE = 16
"""Maximum number of cells along each side of the compared maps."""

_NEIGHBOURS = 10
"""Number of nearest maps that a map is tied to."""

_MOST = 8
"""Maximum number of groups."""


def downsized(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a map (h, w) with at most `SIDE` cells along each side, each the mean of the cells that it covers."""
    for axis in (0, 1):
        length = values.shape[axis]
        if length > SIDE:
            edges = np.arange(SIDE) * length // SIDE
            counts = np.diff(edges, append=length)
            sums = np.add.reduceat(values, edges, axis=axis)
            values = sums / (counts[:, None] if axis == 0 else counts)
    return values.astype(np.float32)


def clusters(maps: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the group of each map, the largest group first.

    Maps are points, tied to their nearest neighbours; the eigenvectors of the graph's normalised Laplacian with the
    smallest eigenvalues embed it, and there are as many groups as eigenvalues before the largest gap. After Lapuschkin
    et al., Unmasking Clever Hans predictors and assessing what machines really learn (arXiv 1902.10178), 2019. There a
    person chooses the number of groups.

    Args:
        maps: (N, h, w) float32, of one class. Only their shapes count: each is divided by its norm.

    Returns:
        (N,) int64, from 0; all 0 if the maps are few or lie together.
    """
    count = len(maps)
    if count <= _NEIGHBOURS:
        return np.zeros(count, dtype=np.int64)
    points = maps.reshape(count, -1).astype(np.float64)
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    _, neighbours = cKDTree(points).query(points, _NEIGHBOURS + 1)
    ties = np.zeros((count, count))
    ties[np.arange(count)[:, None], neighbours] = 1
    ties = np.maximum(ties, ties.T)
    np.fill_diagonal(ties, 0)
    scale = 1 / np.sqrt(np.maximum(ties.sum(axis=1), 1))
    laplacian = np.eye(count) - scale[:, None] * ties * scale
    most = min(_MOST, count // _NEIGHBOURS)
    eigenvalues, vectors = eigh(laplacian, subset_by_index=(0, most))
    groups = int(np.argmax(np.diff(eigenvalues))) + 1
    if groups == 1:
        return np.zeros(count, dtype=np.int64)
    embedding = vectors[:, :groups]
    embedding = embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    _, labels = kmeans2(embedding, groups, minit="++", seed=0)
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    ranks = np.empty(len(sizes), dtype=np.int64)
    ranks[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    result: NDArray[np.int64] = ranks[labels]
    return result
