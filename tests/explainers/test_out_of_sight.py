"""The right layer if the picture passes through a buffer, NumPy, keywords, or a module that fails."""

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


def detour(way: Callable[[Tensor], Tensor]) -> nn.Module:
    """Between its convolutions the features pass through something else."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.c3(net.c2(way(net.c1(images)))).mean(dim=(2, 3)))

    c1, c2, c3 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, (3, 5), (1, 4))
    return nets.Wired(run, c1=c1, c2=c2, c3=c3, head=nn.Linear(8, 5))


@pytest.mark.parametrize("way", [through_view, through_padding, through_out, through_numpy])
def test_the_default_layer_is_the_last_one_behind_a_detour(way):
    net = nets.seeded(detour, way)
    assert survey(net, SHAPE).default_layers == ("c3",)
    assert GradCAM().explain(net, torch.rand(1, *SHAPE)).layers == ("c3",)
    for path in ("c1", "c2", "c3"):
        assert wrap_model(net, input_size=(24, 40), default_layers=(path,)).default_layers == (path,)
    assert GradCAM().explain(wrap_model(net, input_size=(24, 40)), torch.rand(1, *SHAPE)).layers == ("c3",)


def test_halves_of_a_buffer_are_as_branches_side_by_side():
    def write_halves(net: nn.Module, images: Tensor) -> Tensor:
        buffer = torch.zeros(len(images), 8, *images.shape[2:])
        features = net.first(images)
        buffer[:, :4] = features
        buffer[:, 4:] = net.second(features)
        return net.head(buffer.mean(dim=(2, 3)))

    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    net = nets.Wired(write_halves, first=first, second=second, head=nn.Linear(8, 5)).eval()
    assert survey(net, SHAPE).default_layers == ("second",)


def test_a_declared_layer_is_taken_where_only_its_branch_is_out_of_sight():
    def run(net: nn.Module, images: Tensor) -> Tensor:
        elsewhere = net.unseen(torch.from_numpy(images.detach().numpy()))
        branches = [net.seen(images).mean(dim=(2, 3)), elsewhere.mean(dim=(2, 3))]
        return net.head(torch.cat(branches, dim=1))

    seen, unseen = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, (1, 4))
    net = nets.Wired(run, seen=seen, unseen=unseen, head=nn.Linear(8, 5)).eval()
    assert survey(net, SHAPE).default_layers == ("seen",)
    model = wrap_model(net, input_size=(24, 40), default_layers=("unseen",))
    assert GradCAM().explain(model, torch.rand(1, *SHAPE)).layers == ("unseen",)


def test_a_module_called_by_keywords_is_as_one_called_by_position():
    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.last(net.elsewhere(images=net.first(images))).mean(dim=(2, 3)))

    first, last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, (1, 4))
    net = nets.Wired(run, first=first, elsewhere=nets.out_of_sight(), last=last, head=nn.Linear(4, 5)).eval()
    rows = {layer.path: layer for layer in survey(net, SHAPE).layers}
    assert rows["elsewhere"].input_shape == (1, 4, 24, 40)
    assert rows["elsewhere"].grid is not None
    assert rows["last"].default


def test_a_module_that_raised_an_exception_has_nobody_elses_output():
    def fail(net: nn.Module, images: Tensor) -> Tensor:
        raise NotImplementedError(net.inner(images).shape)

    def fall_back(net: nn.Module, images: Tensor) -> Tensor:
        try:
            features = net.fast(images)
        except NotImplementedError:
            features = net.slow(images)
        return net.head(features.mean(dim=(2, 3)))

    fast, slow = nets.Wired(fail, inner=nn.Conv2d(3, 4, 3)), nn.Conv2d(3, 4, 3)
    layers = survey(nets.Wired(fall_back, fast=fast, slow=slow, head=nn.Linear(4, 5)).eval(), SHAPE)
    assert [layer.path for layer in layers.layers] == ["", "fast.inner", "slow", "head"]
    assert layers.layers[0].output_shape == (1, 5)
    assert layers.default_layers == ("slow",)
