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


class Audio(nn.Module):
    """Of a spectrogram it pools frequencies and keeps every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential()
        for inputs, width in ((1, 8), (8, 16), (16, 16)):
            self.body.extend([nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()])
            self.body.append(nn.MaxPool2d((4, 1)))
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean(dim=(2, 3)))


class AttentionPooling(nn.Module):
    """A backbone that ends in `flatten(2)`; attention of one learnt query pools its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(2)
        )
        self.query = nn.Parameter(torch.randn(1, 1, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.backbone(images).transpose(1, 2)
        pooled, _ = self.attention(self.query.expand(len(images), -1, -1), tokens, tokens)
        return self.head(pooled[:, 0])


class ScoredPositions(nn.Module):
    """A convolution of one channel, the last that runs, says how much each position counts."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.score = nn.Conv2d(16, 1, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        weights = self.score(features).flatten(2).softmax(dim=2)
        return self.head((features.flatten(2) * weights).sum(dim=2))


class Recurrent(nn.Module):
    """An LSTM reads the columns, as of a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential()
        for inputs, width in ((1, 8), (8, 16), (16, 16)):
            self.convolutions.extend([nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)])
        self.columns = nn.LSTM(16 * 4, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.convolutions(images).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.columns(features)[0][:, -1])


class SeveralScales(nn.Module):
    """What two stages found is pooled and put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        return self.head(torch.cat([fine.mean(dim=(2, 3)), self.coarse(fine).mean(dim=(2, 3))], dim=1))


class FlatResidual(nn.Module):
    """Residual blocks without a module around them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = functional.relu(features + block(features))
        return self.head(features.mean(dim=(2, 3)))


class BareHead(nn.Module):
    """Its head is a parameter, so that a convolution is the last module with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.head = nn.Parameter(torch.randn(16, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images).relu()).relu().mean(dim=(2, 3)) @ self.head


class OutOfSight(nn.Module):
    """Leaves PyTorch for a moment."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh(features.detach().numpy()))


class Elsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.elsewhere = nn.Conv2d(3, 8, 3, 2, 1), OutOfSight()
        self.last = nn.Conv2d(8, 8, 3, 2, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.elsewhere(self.stem(images))).mean(dim=(2, 3)))


NETS = [
    (PilotNet, (3, 66, 200), "features", (1, 18)),
    (Audio, (1, 64, 101), "body.10", (4, 101)),
    (AttentionPooling, (3, 32, 32), "backbone.3", (8, 8)),
    (AttentionPooling, (3, 48, 80), "backbone.3", (12, 20)),
    (ScoredPositions, (3, 32, 40), "features", (8, 10)),
    (Recurrent, (1, 32, 100), "convolutions.7", (8, 25)),
    (SeveralScales, (3, 32, 32), "coarse", (8, 8)),
    (FlatResidual, (3, 32, 32), "blocks.2", (16, 16)),
    (BareHead, (3, 20, 32), "last", (16, 28)),
    (Elsewhere, (3, 32, 40), "last", (8, 10)),
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
    assert attribution.layers == ("features.9",)
    assert attribution.maps.shape[1:] in ((1, 18), (66, 200))
    assert attribution.maps.isfinite().all()


@pytest.mark.parametrize("layer", ["features", "features.0", "features.5", "features.8"])
def test_a_declared_layer_is_taken_whatever_its_proportions(layer):
    net = nets.seeded(PilotNet)
    assert survey(net, (3, 66, 200), (layer,)).default_layers == (layer,)
    model = wrap_model(net, input_size=(66, 200), default_layers=(layer,))
    images = torch.rand(1, 3, 66, 200, generator=torch.Generator().manual_seed(0))
    assert GradCAM().explain(model, images).layers == (layer,)


class Queries(nn.Module):
    """Attention written out, whose tensors of four axes are as wide and as high as pictures might be."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, 16, 4, 4)
        self.queries, self.attention, self.attended = nn.Identity(), nn.Softmax(dim=-1), nn.Identity()
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embedding(images).flatten(2).mT
        heads = self.queries(tokens.unflatten(2, (2, 8)).transpose(1, 2))  # (N, 2, L, 8)
        attention = self.attention(heads @ heads.mT)  # (N, 2, L, L)
        mixed = self.attended(attention @ heads)
        return self.head((tokens + mixed.transpose(1, 2).flatten(2)).mean(dim=1))


@pytest.mark.parametrize("path", ["queries", "attention", "attended"])
def test_attention_is_no_feature_map_even_where_it_has_the_pictures_proportions(path):
    net = nets.seeded(Queries)
    rows = {layer.path: layer for layer in survey(net, (3, 32, 32)).layers}
    assert rows["attention"].output_shape == (1, 2, 64, 64)
    assert not rows[path].cam
    assert rows["embedding"].cam
    with pytest.raises(
        LayerError, match=f"{path!r} is not a layer with a grid over the picture: it returns a tensor of"
    ):
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
        survey(nets.seeded(AttentionPooling), (3, 32, 32), (path,))


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
    (results,) = explanations(
        model,
        "gradcam",
        Image.fromarray(picture),
        Geometry(200, 66, (0.0, 0.0, 200.0, 66.0)),
        replace(attribution, maps=last),
    )
    brightest = results.heatmap[33] > 0.99
    # The last cell has its middle at 30.5 + 17 * 8 = 166.5; what is right of it no cell is nearer to.
    assert 162 <= brightest.argmax() <= 168
    assert brightest[170:].all()
    assert results.map.shape == (1, 18)
