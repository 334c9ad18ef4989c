import numpy as np
import pytest

from seewhy.explainers.correlations import rank_correlation


def grid(*rows):
    return np.array(rows, dtype=np.float32)


def test_by_hand():
    values = grid([1, 2], [3, 4])
    assert rank_correlation(values, values**3) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    # One swap of neighbours: 1 - 6 * 2 / (4 * 15).
    assert rank_correlation(values, grid([1, 2], [9, 4])) == pytest.approx(0.8)


def test_equal_values_share_their_mean_rank():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    first, second = (np.round(generator.normal(size=(9, 7)), 1).astype(np.float32) for _ in range(2))
    assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first.ravel(), second.ravel()).statistic)


def test_the_coarser_map_is_resized():
    fine = np.add.outer(np.arange(8), np.arange(8)).astype(np.float32)
    coarse = fine[::4, ::4]
    assert rank_correlation(coarse, fine) == rank_correlation(fine, coarse) > 0.95


def test_a_constant_map_ranks_nothing():
    assert rank_correlation(np.zeros((3, 3), np.float32), np.eye(3, dtype=np.float32)) is None
    for value in np.linspace(0.1, 3, 9, dtype=np.float32):  # resizing rounds, and must not make ranks of that
        assert rank_correlation(np.full((2, 2), value), np.eye(7, dtype=np.float32)) is None
