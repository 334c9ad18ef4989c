"""What all methods that go back by rules have in common."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.rules.deeplift import DeepLIFT
from seewhy.explainers.methods.rules.excitation import ExcitationBackprop
from seewhy.explainers.methods.rules.guided import Deconvnet, GuidedBackprop, GuidedGradCAM
from seewhy.explainers.methods.rules.lrp import LRP
from tests import nets

EXAMPLES = Path(__file__).parents[3] / "examples"
TARGETS, OTHERS = torch.tensor([0, 2, 1, 1]), torch.tensor([1, 0, 2, 0])
EXPLAINERS = [
    GuidedBackprop(sign="signed"),
    Deconvnet(sign="signed"),
    GuidedGradCAM(layers=("second",), sign="signed"),
    LRP(),
    LRP(composite="epsilon"),
    LRP(composite="epsilon-alpha2-beta1-flat"),
    DeepLIFT(),
    DeepLIFT(baseline="blur"),
    ExcitationBackprop(sign="signed"),
    ExcitationBackprop(layers=("second",), sign="signed"),
]


def named(explainer) -> str:
    return f"{type(explainer).__name__}-{getattr(explainer, 'composite', '')}"


every = pytest.mark.parametrize("explainer", EXPLAINERS, ids=named)


class Mixed(nn.Module):
    """Batch norm, a ReLU used three times, in place too, a shortcut, a concatenation, poolings, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.last = nn.BatchNorm2d(12)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(12 * 4, 3)
        for norm in (self.norm, self.last):
            norm.running_mean = torch.linspace(-0.2, 0.2, norm.num_features)
            norm.weight.data = torch.linspace(-0.5, 2, norm.num_features)
            norm.bias.data = torch.linspace(-0.1, 0.3, norm.num_features)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.relu(self.norm(self.first(images))))
        branch = self.second(features)
        branch += features
        features = functional.relu(self.last(torch.cat([self.relu(branch), features], dim=1)), inplace=True)
        return self.head(self.dropout(functional.adaptive_avg_pool2d(torch.relu(features), 2).flatten(1)))


@pytest.fixture
def pictures(generator) -> Tensor:
    return torch.randn(4, 3, 24, 36, generator=generator)


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(Mixed)


@every
def test_a_batch_of_mixed_targets_equals_singles(explainer, net, pictures, untouched):
    net, pictures = net.double(), pictures.double()
    together = explainer.explain(untouched(net), pictures, TARGETS, OTHERS)
    assert together.maps.dtype == torch.float32
    assert together.maps.shape[1:] in ((24, 36), (12, 18))
    for row in range(4):
        alone = explainer.explain(net, *(values[row : row + 1] for values in (pictures, TARGETS, OTHERS)))
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-4
    again = explainer.explain(net, pictures, TARGETS, OTHERS)
    assert torch.equal(again.maps, together.maps)


@every
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_frozen_or_training_and_whatever_the_callers_mode(explainer, context, net, pictures, untouched):
    expected = explainer.explain(net, pictures, TARGETS).maps
    assert expected.abs().max() > 0
    frozen = untouched(nets.seeded(Mixed).requires_grad_(False))
    training = untouched(nets.seeded(Mixed).train())
    with context():
        inside = pictures.clone()
        assert torch.equal(explainer.explain(frozen, inside, TARGETS).maps, expected)
        assert torch.equal(explainer.explain(training, inside, TARGETS).maps, expected)
    assert torch.equal(inside, pictures)


@every
def test_other_precisions_and_layouts_give_the_same_map(explainer, net, pictures):
    expected = explainer.explain(net, pictures, TARGETS).maps
    last = nets.seeded(Mixed).to(memory_format=torch.channels_last)
    found = explainer.explain(last, pictures.to(memory_format=torch.channels_last), TARGETS).maps
    assert nets.relative_error(found, expected) < 1e-3
    double = explainer.explain(nets.seeded(Mixed).double(), pictures, TARGETS)
    assert double.maps.dtype == torch.float32
    assert nets.relative_error(double.maps, expected) < 1e-3
    half = explainer.explain(nets.seeded(Mixed).bfloat16(), pictures, TARGETS)
    assert [half.maps.dtype, half.logits.dtype] == [torch.float32, torch.float32]
    both = torch.stack([half.maps.flatten(), expected.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.9


@every
@pytest.mark.parametrize("smooth", ["eigen", "tta"])
def test_smoothing(explainer, smooth, net, pictures):
    options = {name: value for name, value in vars(explainer).items() if not name.startswith("_")}
    smoothed = type(explainer)(**{**options, "smooth": smooth})
    found = smoothed.explain(net, pictures, TARGETS)
    plain = explainer.explain(net, pictures, TARGETS)
    assert found.maps.shape == plain.maps.shape
    assert torch.equal(found.logits, plain.logits)
    assert nets.relative_error(found.maps, plain.maps) > 1e-3


@pytest.fixture(scope="module")
def cat_beside_coffee(lite0) -> Tensor:
    both = Image.new("RGB", (512, 512))
    for place, name in enumerate(("cat", "coffee")):
        with Image.open(EXAMPLES / f"{name}.png") as image:
            both.paste(ImageOps.fit(image.convert("RGB"), (256, 512)), (place * 256, 0))
    return lite0.preprocess(both)[None]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("guided-backprop", {}),
        ("deconvnet", {}),
        ("guided-gradcam", {}),
        ("lrp", {"sign": "positive"}),
        ("lrp", {"sign": "positive", "composite": "z-plus"}),
        ("deeplift", {"sign": "positive"}),
        ("excitation-backprop", {}),
        ("excitation-backprop", {"layers": ["blocks.4"]}),
    ],
)
def test_the_embedded_model_sees_the_espresso_at_the_right(name, options, lite0, cat_beside_coffee):
    found = METHODS[name].build(options).explain(lite0, cat_beside_coffee, torch.tensor([967])).maps[0]
    assert found.isfinite().all()
    assert found.std() > 0
    right = float(found[:, found.shape[1] // 2 :].sum() / found.sum())
    if METHODS[name].discriminates:
        assert right > 0.55


def test_a_contrast_makes_excitation_see_only_the_class(lite0, cat_beside_coffee):
    espresso, tabby = torch.tensor([967]), torch.tensor([281])
    for target, against, side in ((espresso, tabby, slice(112, None)), (tabby, espresso, slice(112))):
        found = ExcitationBackprop().explain(lite0, cat_beside_coffee, target, against).maps[0]
        assert found[:, side].sum() > 0.9 * found.sum()
