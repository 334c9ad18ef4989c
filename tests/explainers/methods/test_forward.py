"""Common properties of the CAMs of many forward passes: Score-CAM and its relatives, Ablation-CAM, Recipro-CAM."""

import pytest
import torch
import torchvision
from torch import Tensor

from seewhy.explainers import get_method
from seewhy.explainers.errors import LayerError, ModelOutputError, NonFiniteError, TargetError
from seewhy.explainers.methods.explainer import Explainer
from tests import nets

OPTIONS = {
    "scorecam": {},
    "sscam": {"samples": 2, "std": 0.3},
    "iscam": {"samples": 3},
    "ablationcam": {},
    "recipro-cam": {},
}


def explainer_of(name: str, *layers: str, **options) -> Explainer:
    return get_method(name).build({"layers": layers, **OPTIONS[name], **options})


@pytest.fixture(params=OPTIONS)
def name(request) -> str:
    return request.param


@pytest.fixture
def pictures(images: Tensor) -> Tensor:
    return images[:, :, :16, :24].clone()


def test_a_channels_last_layer_gives_the_map_of_its_channels_first_twin(name, generator, untouched):
    swin = untouched(nets.seeded(torchvision.models.SwinTransformer, [4, 4], 16, [1, 1], [2, 2], [4, 4]))
    images, targets = torch.randn(2, 3, 32, 64, generator=generator), torch.tensor([5, 6])
    expected = explainer_of(name, "permute").explain(swin, images, targets).maps
    assert expected.shape == (2, 4, 8)
    assert expected.amax() > 0
    assert nets.relative_error(explainer_of(name, "norm").explain(swin, images, targets).maps, expected) < 1e-4


def test_what_cannot_be_explained_is_refused(name, pictures, untouched):
    net = untouched(nets.seeded(nets.Net))
    for layer, message in (("unused", "never runs"), ("head", "not a grid"), ("konv", "Near matches: conv")):
        with pytest.raises(LayerError, match=message):
            explainer_of(name, layer).explain(net, pictures)
    with pytest.raises(LayerError, match="runs 2 times"):
        explainer_of(name, "again").explain(untouched(nets.seeded(nets.Twice)), pictures)
    with pytest.raises(TargetError):
        explainer_of(name, "conv").explain(net, pictures, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(NonFiniteError):
        explainer_of(name, "conv").explain(net, pictures * torch.nan)
    with pytest.raises(ModelOutputError):
        explainer_of(name, "net.conv").explain(nets.Wrapped(net, lambda logits: logits.sum()), pictures)
