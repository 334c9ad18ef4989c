"""DAVE: the gradient with gates held constant, views and their way back, which samples count, and stock models."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.errors import ModelOutputError, UnsupportedOperationError
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.transformer.dave import DAVE, grid_of, laid_back, robust_mean, seen
from tests import nets
from tests.explainers.methods.test_attnlrp import random_transformer
from tests.explainers.test_attention import SIZES, build, pictures
from tests.grids import few

STILL = {"flips": False, "rotation": 0, "shift": 0, "scaling": 0, "noise_level": 0, "blur": 0, "sign": "signed"}
PLAIN = DAVE(samples=1, **STILL)
"""The effective transformation of the picture itself."""


def norm(values: Tensor, layer: nn.LayerNorm) -> Tensor:
    deviation = (values.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt().detach()
    return (values - values.mean(dim=-1, keepdim=True)) / deviation * layer.weight + layer.bias


def through(block: nets.AttentionBlock, tokens: Tensor) -> Tensor:
    query, key, value = block.qkv(norm(tokens, block.before)).unflatten(2, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    probabilities = (query @ key.mT / key.shape[-1] ** 0.5).softmax(dim=-1).detach()
    tokens = tokens + block.project((probabilities @ value).transpose(1, 2).flatten(2))
    hidden = block.mlp[0](norm(tokens, block.behind))
    gates = (1 + torch.erf(hidden / 2**0.5)).detach() / 2
    return tokens + block.mlp[2](hidden * gates)


def written_out(net: nets.Transformer, images: Tensor) -> Tensor:
    """Return the logits, whose gradients are those with the gates held constant."""
    tokens = torch.cat([net.first.expand(len(images), -1, -1), net.patches(images).flatten(2).mT], dim=1)
    for block in net.blocks:
        tokens = through(block, tokens)
    return net.head(norm(tokens, net.norm)[:, 0])


def test_two_blocks_equal_autograd_with_detached_gates(generator, untouched):
    net, images = random_transformer(generator), torch.randn(3, 3, 16, 24, generator=generator)
    leaf = images.clone().requires_grad_()
    logits = written_out(net, leaf)
    torch.testing.assert_close(logits, net(images), rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(logits[:, 2].sum(), leaf)
    maps = PLAIN.explain(untouched(net), images, torch.tensor([2, 2, 2])).maps
    assert nets.relative_error(maps, (gradient * images).sum(dim=1)) < 1e-5


def test_without_biases_the_map_sums_to_the_logit(generator):
    net, images = random_transformer(generator), torch.randn(3, 3, 16, 24, generator=generator)
    for part in net.modules():
        if getattr(part, "bias", None) is not None:
            part.bias.data.zero_()
    net.first.data.zero_()
    attribution = PLAIN.explain(net, images, torch.tensor([0, 3, 2]))
    scores = attribution.logits[[0, 1, 2], [0, 3, 2]]
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), scores, rtol=1e-4, atol=1e-4)


def of_pixels(function) -> nn.Module:
    return nets.Wrapped(nn.Flatten(), function)


def elementwise(pixels: Tensor) -> Tensor:
    """Logits x·σ(2x), GELU(x), x from -2 to 3, and group norm of three pixels."""
    gated = pixels * (2 * pixels).sigmoid()
    grouped = functional.group_norm(pixels, 1)
    return torch.cat([gated, functional.gelu(pixels), functional.hardtanh(pixels, -2, 3), grouped], dim=1)


def test_gates_of_activations_by_hand():
    net, image = of_pixels(elementwise), torch.tensor([-1.0, 0.0, 4.0]).view(1, 1, 1, 3)
    logits = net(image)[0]
    for target in range(9):  # each is one pixel times its gate
        maps = PLAIN.explain(net, image, torch.tensor([target])).maps[0, 0]
        torch.testing.assert_close(maps, logits[target] * torch.eye(3)[target % 3])
    maps = PLAIN.explain(net, image, torch.tensor([11])).maps[0, 0]
    torch.testing.assert_close(maps, logits[11] / 3 * torch.tensor([1 / 3, 0, 8 / 3]))  # 4 - (-1 + 0 + 4) / 3 = 3


def test_a_gate_at_zero_is_the_slope_there():
    shifted = of_pixels(lambda pixels: functional.gelu(pixels - 1))
    maps = PLAIN.explain(shifted, torch.ones(1, 1, 1, 3), torch.tensor([1])).maps  # not 0 / 0
    torch.testing.assert_close(maps, torch.tensor([[[0.0, 0.5, 0.0]]]))


PATTERN = torch.arange(48.0).view(1, 1, 6, 8) + 1


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({}, PATTERN),
        ({"mirrored": True}, PATTERN.flip(3)),
        ({"shift": (0.25, 0.0)}, functional.pad(PATTERN, (2, -2))),  # two of eight columns to the right
        ({"shift": (0.0, -0.5)}, functional.pad(PATTERN, (0, 0, -3, 3))),
        ({"degrees": 180.0}, PATTERN.flip(2, 3)),
        ({"mirrored": True, "shift": (0.25, 0.0)}, functional.pad(PATTERN.flip(3), (2, -2))),
    ],
)
def test_views_are_where_they_should_be(view, expected):
    options = {"mirrored": False, "degrees": 0.0, "shift": (0.0, 0.0), "scale": 1.0, **view}
    torch.testing.assert_close(seen(PATTERN, grid_of((6, 8), **options)[None]), expected, rtol=0, atol=1e-4)


def test_a_quarter_turn_is_clockwise_and_a_view_of_half_the_size_in_the_middle():
    square = torch.arange(64.0).view(1, 1, 8, 8)
    turned = seen(square, grid_of((8, 8), False, 90.0, (0.0, 0.0), 1.0)[None])
    torch.testing.assert_close(turned, square.rot90(-1, (2, 3)), rtol=0, atol=1e-4)
    halved = seen(square + 1, grid_of((8, 8), False, 0.0, (0.0, 0.0), 0.5)[None])
    assert halved[0, 0, 2:6, 2:6].min() > 0
    assert halved.sum() == halved[0, 0, 2:6, 2:6].sum()
    oblong = torch.zeros(1, 1, 16, 32)
    oblong[0, 0, 6:10, 14:18] = 1  # a square stays one in pixels, whatever the picture's proportions are
    turned = seen(oblong, grid_of((16, 32), False, 45.0, (0.0, 0.0), 1.0)[None])[0, 0]
    torch.testing.assert_close(turned, turned.flip(0))
    torch.testing.assert_close(turned.sum(dim=1)[4:12], turned.sum(dim=0)[12:20])


def test_what_is_laid_back_is_the_transpose_of_what_is_seen(generator):
    images, slopes = torch.randn(2, 4, 3, 6, 8, generator=generator).unbind()
    grids = torch.stack([grid_of((6, 8), turn < 0, turn, (0.1, -0.2), 1.1) for turn in (-20.0, 5.0, 60.0, 180.0)])
    forth, back = (seen(images, grids) * slopes).sum(), (images * laid_back(slopes, grids)).sum()
    torch.testing.assert_close(forth, back)


def sums() -> nn.Module:
    """Logits that are sums of a picture's channels, weighted."""
    return nets.Weighted((1.0, -2.0, 3.0), (0.0, 0.0, 0.0))


def test_the_map_of_a_linear_network_is_gradient_times_input_but_where_views_end(generator):
    images = torch.randn(2, 3, 20, 30, generator=generator)
    moved = DAVE(samples=8, **{**STILL, "flips": True, "shift": 0.1}).explain(sums(), images, torch.tensor([0, 0]))
    expected = (images * torch.tensor([1.0, -2.0, 3.0]).view(3, 1, 1)).sum(dim=1)
    inside = moved.maps[:, 3:-3, 4:-4]
    torch.testing.assert_close(inside, expected[:, 3:-3, 4:-4], rtol=1e-4, atol=1e-4)
    assert nets.relative_error(moved.maps, expected) > 1e-3  # some views do not show the edge


def test_noise_takes_from_the_picture_evenly_up_to_its_level(generator):
    images = torch.randn(1, 3, 6, 8, generator=generator)
    still = PLAIN.explain(sums(), images, torch.tensor([0])).maps
    noisy = DAVE(samples=2, **{**STILL, "noise_level": 0.6}).explain(sums(), images, torch.tensor([0])).maps
    torch.testing.assert_close(noisy, still * (1 + 0.4) / 2)


def test_views_of_noise_alone_have_the_variance_of_noise():
    rows = []
    net = sums()
    with net.register_forward_pre_hook(lambda module, args: rows.append(args[0])):
        DAVE(samples=2, **{**STILL, "noise_level": 1.0}).explain(net, torch.full((1, 3, 40, 40), 7.0))
    last = rows[-1][-1]
    assert abs(last.mean()) < 0.05
    assert abs(last.std() - 1) < 0.05


def test_samples_far_from_the_median_do_not_count():
    column = torch.tensor([1.0, 3.0, 2.0, 100.0, 4.0])
    assert robust_mean(column.view(5, 1, 1, 1)).item() == 2.5
    pair = torch.tensor([1.0, 9.0])
    assert robust_mean(pair.view(2, 1, 1, 1)).item() == 5.0
    rows = torch.cat([column.view(5, 1, 1, 1)] * 40, dim=2)
    assert torch.equal(robust_mean(rows), torch.full((1, 40, 1), 2.5))


def test_half_of_the_map_is_blurred(generator):
    images = torch.zeros(1, 3, 21, 21)
    images[0, 0, 10, 10] = 1
    maps = DAVE(samples=1, **{**STILL, "blur": 2}).explain(sums(), images, torch.tensor([0])).maps[0]
    torch.testing.assert_close(maps.sum(), torch.tensor(1.0))
    assert 0.5 < maps[10, 10] < 0.6
    assert 0 < maps[10, 11] < 0.05


@pytest.mark.parametrize("name", few(SIZES, {"vit"}))
def test_stock_transformers_are_explained(name, untouched):
    net, images = untouched(build(name)), pictures(SIZES[name][0], count=2)
    attribution = DAVE(samples=2).explain(net, images)
    assert attribution.maps.shape == (2, SIZES[name][0], SIZES[name][0])
    assert attribution.maps.max() > 0
    torch.testing.assert_close(attribution.logits, net(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_convolutional_networks_with_gates_are_explained(untouched):
    net = untouched(nets.seeded(lambda: timm.create_model("efficientnet_b0", num_classes=5)).eval())
    assert DAVE(samples=1).explain(net, pictures(96, count=1)).maps.max() > 0


def test_what_has_no_effective_transformation_is_refused(images):
    with pytest.raises(UnsupportedOperationError, match="'dave' has no rule for the operation 'mul'"):
        PLAIN.explain(of_pixels(lambda pixels: pixels * pixels.flip(1)), images)
    with pytest.raises(UnsupportedOperationError, match="'dave' has no rule for the operation 'clamp'"):
        PLAIN.explain(of_pixels(lambda pixels: pixels.clamp(min=1)), images)
    with pytest.raises(ModelOutputError, match="or ends in sigmoid or softmax, which 'dave' holds constant"):
        PLAIN.explain(of_pixels(lambda pixels: pixels.softmax(dim=1)), images)


def test_each_sample_is_a_pass_and_the_picture_itself_one(images):
    rows = []
    net = sums()
    with net.register_forward_pre_hook(lambda module, args: rows.append(len(args[0]))):
        DAVE(samples=5).explain(net, images)  # whose activations are counted, once
    passes = METHODS["dave"].passes(DAVE(samples=5), net, images.shape[1:])
    assert sum(rows) - 1 == passes.forwards * len(images) == (passes.backwards + 1) * len(images)
    assert METHODS["dave"].needs == ("gradient",)
