from operator import itemgetter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import HookSession
from seewhy.explainers.methods.cam.scorecam import ISCAM, SSCAM, ScoreCAM
from tests import nets

TARGETS = torch.tensor([0, 2, 1, 1])


@pytest.fixture
def pictures(images: Tensor) -> Tensor:
    return images[:, :, :16, :24].clone()


def noises(cam: SSCAM, size: tuple[int, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(cam.seed)
    return [cam.std * torch.randn(size, generator=generator) for _ in range(cam.samples)]


def by_equation(cam: ScoreCAM, net: nn.Module, picture: Tensor, layer: str, score) -> Tensor:
    """One channel and one pass at a time, with the baseline and all terms of the papers."""
    with torch.no_grad(), HookSession(net) as hooks:
        hooks.record(layer, kinds=["output"])
        net(picture[None].clone())
        (activations,) = hooks.outputs[layer][0]
    size = picture.shape[1:]

    def f(masked: Tensor) -> Tensor:
        with torch.no_grad():
            return score(net(masked[None].clone())[0])

    raised = []
    for values in activations:
        mask = functional.interpolate(values[None, None], size=size, mode="bilinear")[0, 0]
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        if isinstance(cam, SSCAM):
            scores = [f(picture * (mask + noise)) - f(0 * picture) for noise in noises(cam, size)]
            raised.append(sum(scores) / cam.samples)
        elif isinstance(cam, ISCAM):
            masked = [sum(j / cam.samples for j in range(i)) * picture * mask for i in range(cam.samples + 1)]
            raised.append(sum(f(image) - f(0 * picture) for image in masked) / cam.samples)
        else:
            raised.append(f(picture * mask) - f(0 * picture))
    weights = torch.stack(raised).softmax(dim=0)
    return (weights[:, None, None] * activations).sum(dim=0)


CAMS = [ScoreCAM, SSCAM, ISCAM]


@pytest.mark.parametrize("kind", CAMS)
@pytest.mark.parametrize("layer", ["stem", "conv"])
def test_the_equation(kind, layer, pictures):
    net = nets.seeded(nets.Net)
    options = {} if kind is ScoreCAM else {"samples": 4}
    cam = kind(layers=(layer,), sign="signed", **options)
    maps = cam.explain(net, pictures, TARGETS).maps
    rivals = (TARGETS + 1) % 3
    contrast = cam.explain(net, pictures, TARGETS, rivals).maps
    for row, (target, rival) in enumerate(zip(TARGETS, rivals, strict=True)):
        expected = by_equation(cam, net, pictures[row], layer, itemgetter(target))
        assert nets.relative_error(maps[row], expected) < 1e-4
        expected = by_equation(cam, net, pictures[row], layer, lambda logits, a=target, b=rival: logits[a] - logits[b])
        assert nets.relative_error(contrast[row], expected) < 1e-4
        assert nets.relative_error(maps[row], contrast[row]) > 1e-4
    positive = kind(layers=(layer,), **options).explain(net, pictures, TARGETS).maps
    assert torch.equal(positive, maps.clamp_min(0))


@pytest.mark.parametrize("target", [0, 1])
def test_by_hand_with_a_constant_map(target):
    """Feature maps x, -x and 5; logits 4 A0 + 8 A1 and 8 A0 + 4 A1, summed.

    Masks are (0.6, 0.8; 1, 0) and one less that, so masked pictures sum to 0.6 + 1.6 + 3 = 5.2 and 2 - 5.2.
    """
    picture = torch.tensor([[[[1.0, 2.0], [3.0, -2.0]]]])
    masks = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    sums = torch.stack([(picture * masks).sum(), (picture * (1 - masks)).sum()])
    torch.testing.assert_close(sums, torch.tensor([5.2, 4 - 5.2]))
    slope = [-4.0, 4.0][target]  # of a logit in the sum of the picture
    weights = (slope * sums).softmax(dim=0)
    net, rows = nets.Pooled(nets.linear([[16, 32, 4], [32, 16, 4]]), nets.pointwise([[1], [-1], [0]], [0, 0, 5])), []
    cam = ScoreCAM(layers=("layer",), sign="signed")
    maps = cam.explain(net, picture, torch.tensor([target])).maps
    torch.testing.assert_close(maps, (weights[0] - weights[1]) * picture[:, 0])
    with net.register_forward_pre_hook(lambda _, args: rows.append(len(args[0]))):
        cam.explain(net, picture)
    assert sum(rows) == 1 + 2, "none for the constant map, none for the baseline"
    assert not ScoreCAM(layers=("layer",)).explain(net, torch.ones(1, 1, 2, 2)).maps.any()


def test_limits(pictures):
    net = nets.seeded(nets.Net)
    plain = ScoreCAM(layers=("conv",)).explain(net, pictures, TARGETS).maps
    noiseless = SSCAM(layers=("conv",), std=0, samples=2).explain(net, pictures, TARGETS).maps
    assert nets.relative_error(noiseless, plain) < 1e-5
    # Where the score is linear in the picture, IS-CAM is Score-CAM of its mean multiple, (1 + 3 + 6) / 4 / 4 for N = 4.
    linear = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    four = ISCAM(layers=("0",), samples=4, sign="signed").explain(linear, pictures, TARGETS).maps
    once = ScoreCAM(layers=("0",), sign="signed")
    linear[3].weight.data *= 10 / 16
    assert nets.relative_error(four, once.explain(linear, pictures, TARGETS).maps) < 1e-4


def test_more_samples_make_another_map(pictures):
    net = nets.seeded(nets.Net)

    def maps_of(**options) -> Tensor:
        return SSCAM(layers=("conv",), **options).explain(net, pictures, TARGETS).maps

    assert nets.relative_error(maps_of(samples=3), maps_of(samples=4)) > 1e-5


def test_a_feature_map_that_barely_varies_is_a_mask_all_the_same(pictures):
    net = nets.seeded(nets.Net)
    expected = ScoreCAM(layers=("stem",)).explain(net, pictures, TARGETS).maps
    with torch.no_grad():
        for value in net.stem.parameters():
            value *= 2.0**-60
        net.conv.weight *= 2.0**60
    maps = ScoreCAM(layers=("stem",)).explain(net, pictures, TARGETS).maps
    assert nets.relative_error(maps * 2.0**60, expected) < 1e-4


# Peers


@pytest.mark.parametrize("samples", [0, 2])
def test_scorecam_and_sscam_equal_torchcam(samples, images, monkeypatch):
    """Where cells' centres are pixels, for it normalises before it resizes. Its softmax counts constant maps too.

    Its IS-CAM sums the steps j from 1 to i, where the paper has them from 0 to i - 1: no equality there.
    """
    methods = pytest.importorskip("torchcam.methods")
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    model = nets.seeded(nn.Sequential, nn.Conv2d(3, 16, 3, stride=3), *head)
    images, targets = images[:2, :, :33, :33], [3, 4]
    cam = SSCAM(layers=("0",), samples=samples, std=0.5) if samples else ScoreCAM(layers=("0",))
    options = {"num_samples": samples, "std": 0.5} if samples else {}
    kind = methods.SSCAM if samples else methods.ScoreCAM
    with kind(model, "0", **options) as peer:
        if samples:
            noise = iter(noises(cam, (33, 33)))
            monkeypatch.setattr(peer._distrib, "sample", lambda size: next(noise).expand(size))
        logits = model(images)
        (expected,) = peer.compute_cams(targets, logits, normalized=False)
    maps = cam.explain(model, images, torch.tensor(targets)).maps
    for heatmap, reference in zip(maps, expected, strict=True):
        assert nets.relative_error(heatmap / heatmap.max(), reference / reference.max()) < 1e-5
