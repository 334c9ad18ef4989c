"""The right layer where the picture passes through a buffer, NumPy, keywords, or a module that fails."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM, survey
from seewhy.models import wrap_model
from tests import nets

SHAPE = (3, 24, 40)


def through_view(features: Tensor) -> Tensor:
    buffer = torch.zeros(features.shape[0], 8, *features.shape[2:])
    buffer[:, :4] = features
    return buffer


def through_padding(features: Tensor) -> Tensor:
    count, _, rows, columns = features.shape
    buffer = torch.zeros(count, 8, rows + 2, columns + 2)
    buffer[:, 2:6, 1:-1, 1:-1] = features
    return buffer


def through_out(features: Tensor) -> Tensor:
    buffer = torch.zeros(features.shape[0], 8, *features.shape[2:])
    torch.add(features.detach(), 1, out=buffer[:, 4:])
    return buffer


def through_numpy(features: Tensor) -> Tensor:
    return torch.from_numpy(features.detach().repeat(1, 2, 1, 1).numpy())


class Detour(nn.Module):
    """Between its convolutions the features pass through something else."""

    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way
        self.c1 = nn.Conv2d(3, 4, 3, padding=1)
        self.c2, self.c3 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, (3, 5), (1, 4))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.c3(self.c2(self.way(self.c1(images)))).mean(dim=(2, 3)))


@pytest.mark.parametrize("way", [through_view, through_padding, through_out, through_numpy])
def test_the_default_layer_is_the_last_one_behind_a_detour(way):
    net = nets.seeded(lambda: Detour(way))
    assert survey(net, SHAPE).default_layers == ("c3",)
    assert GradCAM().explain(net, torch.rand(1, *SHAPE)).layers == ("c3",)
    for path in ("c1", "c2", "c3"):
        assert wrap_model(net, input_size=(24, 40), default_layers=(path,)).default_layers == (path,)
    assert GradCAM().explain(wrap_model(net, input_size=(24, 40)), torch.rand(1, *SHAPE)).layers == ("c3",)


class Halves(nn.Module):
    """Two convolutions write a half of a buffer each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        buffer = torch.zeros(len(images), 8, *images.shape[2:])
        features = self.first(images)
        buffer[:, :4] = features
        buffer[:, 4:] = self.second(features)
        return self.head(buffer.mean(dim=(2, 3)))


def test_halves_of_a_buffer_are_as_branches_side_by_side():
    assert survey(nets.seeded(Halves), SHAPE).default_layers == ("second",)


class Aside(nn.Module):
    """One branch leaves PyTorch, the other does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.unseen = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, (1, 4))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        elsewhere = self.unseen(torch.from_numpy(images.detach().numpy()))
        branches = [self.seen(images).mean(dim=(2, 3)), elsewhere.mean(dim=(2, 3))]
        return self.head(torch.cat(branches, dim=1))


def test_a_declared_layer_is_taken_where_only_its_branch_is_out_of_sight():
    net = nets.seeded(Aside)
    assert survey(net, SHAPE).default_layers == ("seen",)
    model = wrap_model(net, input_size=(24, 40), default_layers=("unseen",))
    assert GradCAM().explain(model, torch.rand(1, *SHAPE)).layers == ("unseen",)


class Elsewhere(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return torch.from_numpy(features.detach().tanh().numpy())


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.elsewhere = nn.Conv2d(3, 4, 3, padding=1), Elsewhere()
        self.last, self.head = nn.Conv2d(4, 4, 3, (1, 4)), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.elsewhere(features=self.first(images))).mean(dim=(2, 3)))


def test_a_module_called_by_keywords_is_as_one_called_by_position():
    rows = {layer.path: layer for layer in survey(nets.seeded(ByKeyword), SHAPE).layers}
    assert rows["elsewhere"].input_shape == (1, 4, 24, 40)
    assert rows["elsewhere"].grid is not None
    assert rows["last"].default


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError(self.inner(images).shape)


class Fallback(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = Failing(), nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        try:
            features = self.fast(images)
        except NotImplementedError:
            features = self.slow(images)
        return self.head(features.mean(dim=(2, 3)))


def test_a_module_that_raised_an_exception_has_nobody_elses_output():
    layers = survey(nets.seeded(Fallback), SHAPE)
    assert [layer.path for layer in layers.layers] == ["", "fast.inner", "slow", "head"]
    assert layers.layers[0].output_shape == (1, 5)
    assert layers.default_layers == ("slow",)
