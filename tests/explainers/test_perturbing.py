"""What holds of all methods that perturb pictures or layers: batches, seeds, modes, precision, contrasts, smoothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from seewhy.explainers import Explainer
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.concept.dff import DFF
from seewhy.explainers.methods.perturbation.base import masked, superpixels
from seewhy.explainers.methods.perturbation.extremal import ExtremalPerturbation
from seewhy.explainers.methods.perturbation.occlusion import Occlusion
from seewhy.explainers.methods.perturbation.rise import RISE
from seewhy.explainers.methods.perturbation.sobol import Sobol
from seewhy.explainers.methods.perturbation.superpixels import LIME, FeatureAblation, KernelSHAP
from tests import nets

EXAMPLES = Path(__file__).parents[2] / "examples"

METHODS: list[Explainer] = [
    Occlusion(patch=8, stride=8),
    RISE(samples=40, cells=3, sign="signed"),
    FeatureAblation(segmentation="grid", segments=6),
    LIME(segmentation="grid", segments=6, samples=40, score="logit"),
    KernelSHAP(segmentation="grid", segments=8, samples=80),
    Sobol(cells=3, samples=8),
    ExtremalPerturbation(steps=5, cells=6, area=0.3),
    DFF(layers=("relu",), concepts=3),
]
SEEDED = [one for one in METHODS if hasattr(one, "seed")]
TARGETS, OTHERS = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2])


def named(explainers: list[Explainer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("explainer", explainers, ids=lambda one: type(one).__name__)


@pytest.fixture
def pictures(generator) -> Tensor:
    """Three wide pictures that are no noise."""
    coarse = torch.randn(3, 3, 4, 6, generator=generator)
    fine = torch.randn(3, 3, 16, 24, generator=generator)
    return nn.functional.interpolate(coarse, size=(16, 24), mode="bilinear") * 2 + fine / 4


class Small(nn.Module):
    """A convolutional net whose logits differ enough for half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)
        nn.init.normal_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.dropout(self.relu(self.norm(self.conv(images))).mean(dim=(2, 3))))


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(Small)


@named(METHODS)
def test_a_batch_of_mixed_targets_equals_singles_whatever_the_size_of_a_pass(explainer, net, pictures, monkeypatch):
    together = explainer.explain(net, pictures, TARGETS)
    assert together.maps.ndim == 3
    assert together.maps.abs().amax(dim=(1, 2)).min() > 0
    monkeypatch.setattr("seewhy.explainers.execution.chunks.MOST", 3)
    for row in range(3):
        alone = explainer.explain(net, pictures[row : row + 1], TARGETS[row : row + 1])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-3
        assert nets.relative_error(together.logits[row], alone.logits[0]) < 1e-5


@named(METHODS)
def test_passes_stay_within_their_size_and_are_reported(explainer, net, pictures, monkeypatch):
    monkeypatch.setattr("seewhy.explainers.execution.chunks.MOST", 5)
    sizes, told = [], []
    handle = net.conv.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    explainer.explain(net, pictures, TARGETS, progress=Progress(report=lambda *pair: told.append(pair)))
    handle.remove()
    assert max(sizes) <= 5
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0
    assert told == sorted(told)


@named(METHODS)
def test_frozen_modules_in_training_mode_give_the_same_map_to_the_bit(explainer, net, pictures, untouched):
    expected = explainer.explain(net, pictures, TARGETS).maps
    assert torch.equal(explainer.explain(net, pictures, TARGETS).maps, expected)
    untouched(net.train().requires_grad_(False))
    before, state = pictures.clone(), torch.get_rng_state()
    with torch.inference_mode():
        assert torch.equal(explainer.explain(net, pictures, TARGETS).maps, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(pictures, before)


@named(SEEDED)
def test_another_seed_gives_another_map(explainer, net, pictures):
    one, other = (replace(explainer, seed=seed).explain(net, pictures, TARGETS).maps for seed in (0, 1))
    assert not torch.equal(one, other)


@named(METHODS)
def test_precision_and_memory_format(explainer, net, pictures):
    expected = explainer.explain(net, pictures, TARGETS).maps
    last = explainer.explain(
        net.to(memory_format=torch.channels_last), pictures.to(memory_format=torch.channels_last), TARGETS
    )
    assert nets.relative_error(last.maps, expected) < 1e-3
    double = explainer.explain(net.double(), pictures.double(), TARGETS).maps
    assert double.dtype == torch.float32
    assert nets.relative_error(double, expected) < 1e-2
    half = explainer.explain(net.bfloat16(), pictures, TARGETS)
    assert [half.maps.dtype, half.logits.dtype] == [torch.float32, torch.float32]
    correlation = torch.corrcoef(torch.stack([half.maps.flatten(), expected.flatten()]))[0, 1]
    assert correlation > 0.9


@named(METHODS)
def test_contrasts_and_smoothing_compose(explainer, net, pictures):
    plain = explainer.explain(net, pictures, TARGETS)
    contrast = explainer.explain(net, pictures, TARGETS, OTHERS)
    assert torch.equal(contrast.against, OTHERS)
    assert contrast.maps.shape == plain.maps.shape
    for smooth in ("eigen", "tta"):
        smoothed = replace(explainer, smooth=smooth).explain(net, pictures, TARGETS)
        assert smoothed.maps.shape == plain.maps.shape
        assert torch.equal(smoothed.targets, TARGETS)
    eigen = replace(explainer, smooth="eigen").explain(net, pictures, TARGETS)
    assert nets.relative_error(eigen.maps, plain.maps) < 1e-4  # of one channel


@named(METHODS)
def test_signs(explainer, net, pictures):
    maps = {sign: replace(explainer, sign=sign).explain(net, pictures, TARGETS) for sign in ("signed", "absolute")}
    assert torch.equal(maps["signed"].maps.abs(), maps["absolute"].maps)
    positive = replace(explainer, sign="positive").explain(net, pictures, TARGETS)
    assert torch.equal(maps["signed"].maps.clamp_min(0), positive.maps)
    assert [maps["signed"].signed, positive.signed] == [True, False]


LOOKING = [
    Occlusion(patch=64, stride=40),
    RISE(samples=50, cells=4),
    FeatureAblation(segments=30),
    LIME(segments=20, samples=40),
    KernelSHAP(segments=10, samples=60),
    Sobol(cells=4, samples=3),
    ExtremalPerturbation(steps=20),
    DFF(),
]


@named(LOOKING)
def test_the_coffee_beside_the_cat_is_found(explainer, lite0):
    both = Image.new("RGB", (448, 448))
    for place, name in enumerate(("cat", "coffee")):
        with Image.open(EXAMPLES / f"{name}.png") as picture:
            both.paste(ImageOps.fit(picture.convert("RGB"), (224, 448)), (place * 224, 0))
    found = explainer.explain(lite0, lite0.preprocess(both)[None], torch.tensor([967])).maps[0]
    assert torch.isfinite(found).all()
    above = (found - found.mean()).clamp_min(0)  # for the map of RISE has no zero
    assert above[:, above.shape[1] // 2 :].sum() > 0.7 * above.sum() > 0


@pytest.mark.parametrize("kind", ["slic", "quickshift", "grid"])
def test_superpixels_are_numbered_and_as_large_as_the_picture(kind, lite0):
    with Image.open(EXAMPLES / "cat.png") as picture:
        image = lite0.preprocess(picture.convert("RGB"))[:, :96, :128]
    labels = superpixels(image, kind, 20)
    assert labels.shape == (96, 128)
    assert labels.unique().tolist() == list(range(int(labels.max()) + 1))
    assert 4 <= labels.max() < 60
    assert torch.equal(labels, superpixels(image, kind, 20))
    for odd in (torch.zeros(3, 9, 7), torch.rand(1, 9, 7), torch.rand(3, 2, 3), torch.rand(5, 16, 8).bfloat16()):
        assert superpixels(odd, kind, 20).shape == odd.shape[1:]


def test_slic_follows_edges():
    image = torch.zeros(3, 32, 32)
    image[:, :, 13:] = 1
    labels = superpixels(image, "slic", 4)
    assert not set(labels[:, :13].unique().tolist()) & set(labels[:, 13:].unique().tolist())


def test_a_grid_has_nearly_square_cells():
    labels = superpixels(torch.zeros(3, 10, 40), "grid", 16)
    assert labels.max() == 15
    assert labels[:5, :5].unique().tolist() == [0]
    assert superpixels(torch.zeros(3, 2, 3), "grid", 50).max() == 5


def test_masks_of_ones_and_zeros_give_the_picture_and_the_baseline_to_the_bit(pictures):
    hidden = baseline_of(pictures, "blur")
    assert not torch.equal(hidden, pictures)
    masks = torch.stack([torch.ones(16, 24), torch.zeros(16, 24)])
    kept, gone = masked(pictures[0], hidden[0], masks)
    assert torch.equal(kept, pictures[0])
    assert torch.equal(gone, hidden[0])
