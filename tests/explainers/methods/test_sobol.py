import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.perturbation.sobol import Sobol, total_order
from tests import nets


def ishigami(quarters: Tensor) -> Tensor:
    """The textbook function of three variables, of the mean brightness of three of four quarters of a grey picture."""
    first, second, third, _ = (quarters[:, 0].flatten(1) * 2 * torch.pi - torch.pi).unbind(1)
    result = first.sin() + 7 * second.sin() ** 2 + 0.1 * third**4 * first.sin()
    return torch.stack([result, torch.zeros_like(result)], dim=1)


ISHIGAMI = nets.Wrapped(nn.AvgPool2d(2), ishigami)


def test_the_indices_of_ishigamis_function(large_passes):
    maps = Sobol(cells=2, samples=4096).explain(ISHIGAMI, torch.ones(1, 1, 4, 4), torch.tensor([0])).maps
    # 0.5576, 0.4424, 0.2437 follow from its parts of the variance; the fourth quarter counts for nothing.
    torch.testing.assert_close(maps[0], torch.tensor([[0.5576, 0.4424], [0.2437, 0.0]]), rtol=0, atol=0.01)


def test_the_indices_of_a_sum_are_squares(generator, large_passes):
    picture = torch.rand(1, 1, 4, 6, generator=generator)
    heatmap = Sobol(cells=2, samples=1024).explain(nets.Weighted((1.0,), (0.0,)), picture, torch.tensor([0])).maps[0]
    parts = picture[0].unfold(1, 2, 2).unfold(2, 3, 3).sum(dim=(3, 4))[0] ** 2
    torch.testing.assert_close(heatmap, parts / parts.sum(), rtol=0, atol=0.02)


def test_the_map_is_the_estimator_by_the_equation(images):
    net = nets.seeded(nets.Net)
    cells, samples, picture = 3, 8, images[:1, :, :31, :50]
    sequence = SobolEngine(2 * 9, scramble=True, seed=4).draw(samples)
    first, second = sequence[:, :9], sequence[:, 9:]

    def scores(grids: Tensor) -> Tensor:
        masks = nn.functional.interpolate(grids.view(-1, 1, cells, cells), size=(31, 50), mode="nearest")
        return net(picture * masks)[:, 2].detach()

    mean = torch.cat([scores(first), scores(second)]).mean()
    variance = torch.cat([scores(first) - mean, scores(second) - mean]).square().mean()
    expected = []
    for cell in range(9):
        mixed = first.clone()
        mixed[:, cell] = second[:, cell]
        expected.append((scores(first) - scores(mixed)).square().mean() / 2 / variance)
    maps = Sobol(cells=cells, samples=samples, seed=4).explain(net, picture, torch.tensor([2])).maps
    assert nets.relative_error(maps.flatten(), torch.stack(expected)) < 1e-3


def test_the_estimator_equals_scipy():
    stats = pytest.importorskip("scipy.stats")
    scores = torch.randn(7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    samples = scores.numpy()
    peer = stats.sobol_indices(func={"f_A": samples[:1], "f_B": samples[1:2], "f_AB": samples[2:, None]}, n=16)
    np.testing.assert_allclose(total_order(scores).numpy(), peer.total_order.squeeze(), rtol=1e-12)


def test_a_constant_score_has_a_blank_map():
    maps = Sobol(cells=2, samples=4).explain(ISHIGAMI, torch.ones(1, 1, 4, 4), torch.tensor([1])).maps
    assert torch.equal(maps, torch.zeros(1, 2, 2))
    rounding = 5 + torch.randn(6, 8, dtype=torch.float64) * 1e-7
    assert torch.equal(total_order(rounding), torch.zeros(4, dtype=torch.float64))


def test_more_passes_than_anybody_waits_for_are_refused():
    with pytest.raises(OptionError, match="64 by 64 cells take 16785408 passes; at most 1000000 are allowed") as caught:
        Sobol(cells=64, samples=4096).explain(ISHIGAMI, torch.ones(1, 1, 4, 4))
    assert caught.value.field == "samples"
