"""Networks of users: pictures that are not square, valid convolutions, attention pooling, recurrent heads, gates."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from seewhy.explainers import Geometry, GradCAM, survey
from seewhy.explainers.errors import LayerError
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.results.explanation import explanations
from seewhy.models import wrap_model
from tests import nets
from tests.explainers.test_catalogue import TARGETS, Small, cheap_method
from tests.grids import few


class PilotNet(nn.Module):
    """Of 66 by 200 pixels its valid convolutions leave one row of 18 columns (Bojarski et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        widths, kernels, strides = (3, 24, 36, 48, 64, 64), (5, 5, 5, 3, 3), (2, 2, 2, 1, 1)
        self.features = nn.Sequential()
        for inputs, width, kernel, stride in zip(widths, widths[1:], kernels, strides, strict=False):
            self.features.extend([nn.Conv2d(inputs, width, kernel, stride), nn.ReLU()])
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 18, 100), nn.ReLU(), nn.Linear(100, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def halved(inputs: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, width, 3, 2, 1), nn.ReLU()]


def audio() -> nn.Module:
    """Of a spectrogram it pools frequencies and keeps every moment."""
    layer = nn.Sequential()
    for inputs, width in ((1, 8), (8, 16), (16, 16)):
        layer.extend([nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d((4, 1))])
    return nets.Pooled(nn.Linear(16, 5), layer)


def attention_pooling() -> nn.Module:
    """A backbone that ends in `flatten(2)`; attention of one learnt query pools its tokens."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        tokens = net.backbone(images).transpose(1, 2)
        pooled, _ = net.attention(net.query.expand(len(images), -1, -1), tokens, tokens)
        return net.head(pooled[:, 0])

    backbone = nn.Sequential(*halved(3, 8), *halved(8, 16), nn.Flatten(2))
    query, attention = nn.Parameter(torch.randn(1, 1, 16)), nn.MultiheadAttention(16, 2, batch_first=True)
    return nets.Wired(run, backbone=backbone, query=query, attention=attention, head=nn.Linear(16, 5))


def scored_positions() -> nn.Module:
    """A convolution of one channel, the last that runs, says how much each position counts."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        features = net.features(images)
        weights = net.score(features).flatten(2).softmax(dim=2)
        return net.head((features.flatten(2) * weights).sum(dim=2))

    features = nn.Sequential(*halved(3, 8), *halved(8, 16))
    return nets.Wired(run, features=features, score=nn.Conv2d(16, 1, 1), head=nn.Linear(16, 5))


def recurrent() -> nn.Module:
    """An LSTM reads the columns, as of a line of text."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        features = net.convolutions(images).permute(0, 3, 1, 2).flatten(2)
        return net.head(net.columns(features)[0][:, -1])

    convolutions, columns = nn.Sequential(), nn.LSTM(16 * 4, 12, batch_first=True, bidirectional=True)
    for inputs, width in ((1, 8), (8, 16), (16, 16)):
        convolutions.extend([nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)])
    return nets.Wired(run, convolutions=convolutions, columns=columns, head=nn.Linear(24, 5))


def several_scales() -> nn.Module:
    """What two stages found is pooled and put side by side."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        fine = net.fine(images)
        return net.head(torch.cat([fine.mean(dim=(2, 3)), net.coarse(fine).mean(dim=(2, 3))], dim=1))

    fine, coarse = nn.Sequential(*halved(3, 8)), nn.Sequential(*halved(8, 8))
    return nets.Wired(run, fine=fine, coarse=coarse, head=nn.Linear(16, 5))


def flat_residual() -> nn.Module:
    """Residual blocks without a module around them."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        features = net.stem(images)
        for block in net.blocks:
            features = functional.relu(features + block(features))
        return net.head(features.mean(dim=(2, 3)))

    blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
    return nets.Wired(run, stem=nn.Conv2d(3, 8, 3, 2, 1), blocks=blocks, head=nn.Linear(8, 5))


def bare_head() -> nn.Module:
    """Its head is a parameter, so that a convolution is the last module with weights."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.last(net.first(images).relu()).relu().mean(dim=(2, 3)) @ net.head

    head = nn.Parameter(torch.randn(16, 5))
    return nets.Wired(run, first=nn.Conv2d(3, 8, 3), last=nn.Conv2d(8, 16, 3), head=head)


def elsewhere() -> nn.Module:
    first, last = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
    return nets.Pooled(nn.Linear(8, 5), nn.Sequential(first, nets.out_of_sight(), last))


NETS = [
    (PilotNet, (3, 66, 200), "features", (1, 18)),
    (audio, (1, 64, 101), "layer.10", (4, 101)),
    (attention_pooling, (3, 32, 32), "backbone.3", (8, 8)),
    (attention_pooling, (3, 48, 80), "backbone.3", (12, 20)),
    (scored_positions, (3, 32, 40), "features", (8, 10)),
    (recurrent, (1, 32, 100), "convolutions.7", (8, 25)),
    (several_scales, (3, 32, 32), "coarse", (8, 8)),
    (flat_residual, (3, 32, 32), "blocks.2", (16, 16)),
    (bare_head, (3, 20, 32), "last", (16, 28)),
    (elsewhere, (3, 32, 40), "layer", (8, 10)),
]


@pytest.mark.parametrize(("kind", "shape", "layer", "grid"), NETS)
def test_the_default_layer_is_the_last_feature_map(kind, shape, layer, grid, untouched):
    net = untouched(nets.seeded(kind))
    layers = survey(net, shape)
    assert layers.default_layers == (layer,)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    attribution = GradCAM(sign="signed").explain(net, images)
    assert attribution.layers == (layer,)
    assert attribution.maps.shape == (2, *grid)
    assert (attribution.maps != 0).any()


@pytest.mark.parametrize(
    "name",
    few(
        [name for name, method in METHODS.items() if method.takes_layers and name not in ("cam", "dff")],
        short=["gradcam", "eigencam", "scorecam", "recipro-cam", "guided-gradcam", "odam"],
    ),
)
def test_every_method_of_layers_takes_a_layer_of_any_proportions(name, untouched):
    net = untouched(nets.seeded(PilotNet).requires_grad_(False))
    images = torch.rand(1, 3, 66, 200, generator=torch.Generator().manual_seed(0))
    attribution = cheap_method(name, layers=("features.9",)).explain(net, images, torch.tensor([3]))
    detail = ("features.1", "features.3") if name == "votes-detail" else ()
    assert attribution.layers == (*detail, "features.9")
    assert attribution.maps.shape[1:] in ((1, 18), (31, 98) if detail else (66, 200))
    assert attribution.maps.isfinite().all()


@pytest.mark.parametrize("layer", ["features", "features.0", "features.5", "features.8"])
def test_a_declared_layer_is_taken_whatever_its_proportions(layer):
    net = nets.seeded(PilotNet)
    assert survey(net, (3, 66, 200), (layer,)).default_layers == (layer,)
    model = wrap_model(net, input_size=(66, 200), default_layers=(layer,))
    images = torch.rand(1, 3, 66, 200, generator=torch.Generator().manual_seed(0))
    assert GradCAM().explain(model, images).layers == (layer,)


def attending(net: nn.Module, images: Tensor) -> Tensor:
    """Attention written out, whose tensors of four axes are as wide and as high as pictures might be."""
    tokens = net.embedding(images).flatten(2).mT
    heads = net.queries(tokens.unflatten(2, (2, 8)).transpose(1, 2))  # (N, 2, L, 8)
    attention = net.attention(heads @ heads.mT)  # (N, 2, L, L)
    mixed = net.attended(attention @ heads)
    return net.head((tokens + mixed.transpose(1, 2).flatten(2)).mean(dim=1))


@pytest.mark.parametrize("path", ["queries", "attention", "attended"])
def test_attention_is_no_feature_map_even_where_it_has_the_pictures_proportions(path):
    parts = {"queries": nn.Identity(), "attention": nn.Softmax(dim=-1), "attended": nn.Identity()}
    net = nets.Wired(attending, embedding=nn.Conv2d(3, 16, 4, 4), head=nn.Linear(16, 5), **parts)
    rows = {layer.path: layer for layer in survey(net, (3, 32, 32)).layers}
    assert rows["attention"].output_shape == (1, 2, 64, 64)
    assert not rows[path].cam
    assert rows["embedding"].cam
    message = f"{path!r} is not a layer with a grid over the picture: it returns a tensor of"
    with pytest.raises(LayerError, match=message):
        survey(net, (3, 32, 32), (path,))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere", "not a module that runs"),
        ("head", r"it returns a tensor of shape \(1, 5\)"),
        ("attention", "it returns no single tensor"),
    ],
)
def test_a_declared_layer_that_has_no_grid_is_refused_with_the_reason(path, why):
    with pytest.raises(LayerError, match=why):
        survey(nets.seeded(attention_pooling), (3, 32, 32), (path,))


PARAMETRISED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "weight_norm of hooks": weight_norm,
    "spectral_norm of hooks": spectral_norm,
}


def parametrised(kind: str) -> tuple[nn.Module, nn.Module]:
    """Return a net with parametrised weights, and one with the same weights as plain parameters."""
    net, plain = nets.seeded(Small), nets.seeded(Small)
    for name in ("stem", "conv", "head"):
        PARAMETRISED[kind](getattr(net, name))
    net.eval()(torch.zeros(1, 3, 16, 24))  # hooks compute the weights before a pass
    for name in ("stem", "conv", "head"):
        getattr(plain, name).weight.data = getattr(net, name).weight.detach().clone()
    return net, plain


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", PARAMETRISED)
def test_what_parametrises_weights_is_part_of_its_module(kind):
    net, plain = parametrised(kind)
    actual, expected = survey(net, (3, 16, 24)), survey(plain, (3, 16, 24))
    assert actual.default_layers == expected.default_layers == ("mixed",)
    assert [layer.path for layer in actual.layers] == [layer.path for layer in expected.layers]
    assert all(layer.calls == 1 or layer.path == "relu" for layer in actual.layers)
    assert actual.last_weighted == ("head",)
    model = wrap_model(net, input_size=(16, 24))
    assert model.default_layers == ("mixed",)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("name", ["gradcam", "saliency", "occlusion", "fullgrad", "lrp", "attnlrp", "deeplift"])
@pytest.mark.parametrize("kind", few(PARAMETRISED, {"weight_norm"}))
def test_methods_of_each_kind_explain_parametrised_weights_as_plain_ones(kind, name, generator):
    net, plain = parametrised(kind)
    images = torch.rand(3, 3, 16, 24, generator=generator) * 2 - 1
    actual, expected = (cheap_method(name).explain(model, images, TARGETS).maps for model in (net, plain))
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_heatmap_lies_where_the_cells_saw_it():
    net = nets.seeded(PilotNet)
    model = wrap_model(net, input_size=(66, 200))
    picture = np.zeros((66, 200, 3), np.uint8)
    attribution = GradCAM().explain(model, torch.rand(1, 3, 66, 200, generator=torch.Generator().manual_seed(0)))
    last = torch.zeros_like(attribution.maps)
    last[:, :, 17] = 1
    geometry = Geometry(200, 66, (0.0, 0.0, 200.0, 66.0))
    (results,) = explanations(model, "gradcam", Image.fromarray(picture), geometry, replace(attribution, maps=last))
    brightest = results.heatmap[33] > 0.99
    # The last cell has its middle at 30.5 + 17 * 8 = 166.5; what is right of it no cell is nearer to.
    assert 162 <= brightest.argmax() <= 168
    assert brightest[170:].all()
    assert results.map.shape == (1, 18)
