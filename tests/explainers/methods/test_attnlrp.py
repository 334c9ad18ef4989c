"""AttnLRP: its rules by hand, a net of two blocks with all rules written out, conservation, and stock models."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.errors import UnsupportedOperationError
from seewhy.explainers.methods.rules import attention, relevance
from seewhy.explainers.methods.rules.attention import product_relevance, softmax_relevance
from seewhy.explainers.methods.transformer.attnlrp import AttnLRP
from tests import nets
from tests.explainers.test_attention import SIZES, build, pictures
from tests.grids import few

PLAIN = AttnLRP(gamma=0, conv_gamma=0, epsilon=1e-9)


def test_the_rule_of_a_softmax_by_hand():
    scores = torch.tensor([[0.0, 1.0, -torch.inf]])
    probabilities, quota = scores.softmax(dim=1), torch.tensor([[3.0, 1.0, 5.0]])
    share = torch.e / (1 + torch.e)
    expected = torch.tensor([[0.0, 1.0 - share * 9.0, 0.0]])
    torch.testing.assert_close(softmax_relevance(scores, probabilities, quota, 1), expected)


def test_the_rule_of_a_product_by_hand():
    first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [-1.0]])  # 3 - 2 = 1
    parts = product_relevance(torch.matmul, (first, second), first @ second, torch.tensor([[4.0]]), 1e-9)
    torch.testing.assert_close(parts, (torch.tensor([[6.0, -4.0]]), torch.tensor([[6.0], [-4.0]])))


def elementwise(pixels: Tensor) -> Tensor:
    """Logits x·σ(2x), GELU(x), x / |x + 1| and (x - mean) / deviation of three pixels."""
    gated, normal = pixels * (2 * pixels).sigmoid(), functional.layer_norm(pixels, (3,))
    return torch.cat([gated, functional.gelu(pixels), pixels / (pixels + 1), normal], dim=1)


def test_gates_activations_quotients_and_norms_by_hand():
    net, image = nets.Wrapped(nn.Flatten(), elementwise), torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 1, 3)
    logits = net(image)[0]
    for target in range(9):  # each of one pixel, which gets all: of a gate from both of its factors
        maps = PLAIN.explain(net, image, torch.tensor([target])).maps[0, 0]
        torch.testing.assert_close(maps, logits[target] * torch.eye(3)[target % 3])
    maps = PLAIN.explain(net, image, torch.tensor([11])).maps[0, 0]
    # The last of three: 6 - (1 + 2 + 6) / 3 = 3, of which the pixels contribute -1/3, -2/3 and 4.
    torch.testing.assert_close(maps, logits[11] * torch.tensor([-1 / 3, -2 / 3, 4.0]) / 3)


def dense(values: Tensor, layer: nn.Linear, quota: Tensor) -> Tensor:
    return values * ((quota / layer(values)) @ layer.weight)


def norm(values: Tensor, layer: nn.LayerNorm, quota: Tensor) -> Tensor:
    deviations = (values.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt()
    slopes = quota / layer(values) * layer.weight / deviations
    return values * (slopes - slopes.mean(dim=-1, keepdim=True))


def product(first: Tensor, second: Tensor, quota: Tensor) -> tuple[Tensor, Tensor]:
    factors = quota / (2 * first @ second)
    return first * (factors @ second.mT), second * (first.mT @ factors)


def total(first: Tensor, second: Tensor, quota: Tensor) -> tuple[Tensor, Tensor]:
    return quota * first / (first + second), quota * second / (first + second)


def through(block: nets.AttentionBlock, tokens: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return a block's tokens, and the function from their relevance to that of its input."""
    count, size, width = tokens.shape

    def heads(values: Tensor) -> Tensor:
        return values.reshape(count, size, block.heads, -1).transpose(1, 2)

    normalised = block.before(tokens)
    query, key, value = (heads(part) for part in block.qkv(normalised).chunk(3, dim=2))
    scores = query / (width // block.heads) ** 0.5 @ key.mT
    probabilities = scores.softmax(dim=-1)
    mixed = probabilities @ value
    joined = mixed.transpose(1, 2).flatten(2)
    attended = block.project(joined)
    middle = tokens + attended
    inner = block.behind(middle)
    hidden = block.mlp[0](inner)
    added = block.mlp[2](functional.gelu(hidden))

    def back(quota: Tensor) -> Tensor:
        of_middle, of_added = total(middle, added, quota)
        of_hidden = dense(functional.gelu(hidden), block.mlp[2], of_added)
        of_middle = of_middle + norm(middle, block.behind, dense(inner, block.mlp[0], of_hidden))
        of_tokens, of_attended = total(tokens, attended, of_middle)
        of_probabilities, of_value = product(probabilities, value, heads(dense(joined, block.project, of_attended)))
        of_scores = scores * (of_probabilities - probabilities * of_probabilities.sum(dim=-1, keepdim=True))
        of_query, of_key = product(query, key.mT, of_scores)
        parts = [part.transpose(1, 2).flatten(2) for part in (of_query, of_key.mT, of_value)]
        return of_tokens + norm(tokens, block.before, dense(normalised, block.qkv, torch.cat(parts, dim=2)))

    return middle + added, back


def written_out(net: nets.Transformer, images: Tensor, target: int) -> Tensor:
    """Return the relevance of the pixels (N, H, W) by the equations, one after the other."""
    patches = net.patches(images)
    tokens = torch.cat([net.first.expand(len(images), -1, -1), patches.flatten(2).mT], dim=1)
    backs = []
    for block in net.blocks:
        tokens, back = through(block, tokens)
        backs.append(back)
    normalised = net.norm(tokens)
    logits = net.head(normalised[:, 0])
    of_first = dense(normalised[:, 0], net.head, logits * functional.one_hot(torch.tensor(target), 4))
    quota = norm(tokens, net.norm, torch.cat([of_first[:, None], torch.zeros_like(normalised[:, 1:])], dim=1))
    for back in reversed(backs):
        quota = back(quota)
    factors = quota[:, 1:].mT.reshape(patches.shape) / patches
    pixels = functional.conv_transpose2d(factors, net.patches.weight, stride=4) * images
    return pixels.sum(dim=1)


def random_transformer(generator: torch.Generator) -> nets.Transformer:
    net = nets.seeded(nets.Transformer).requires_grad_(False)
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 2
    return net


def test_two_blocks_equal_the_rules_written_out(generator, untouched):
    net, images = random_transformer(generator), torch.randn(3, 3, 16, 24, generator=generator)
    maps = PLAIN.explain(untouched(net), images, torch.tensor([2, 2, 2])).maps
    expected = written_out(deepcopy(net).double(), images.double(), 2)
    assert nets.relative_error(maps, expected.float()) < 1e-4


@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_without_biases_all_rules_but_that_of_the_softmax_conserve_relevance(gamma, generator, monkeypatch):
    """The rule of the softmax is a Taylor decomposition, whose constant term keeps relevance."""
    net, images = random_transformer(generator), torch.randn(2, 3, 16, 24, generator=generator)
    for part in net.modules():
        if getattr(part, "bias", None) is not None:
            part.bias.data.zero_()
    net.first.data.zero_()
    errors, constants = list[float](), list[Tensor]()
    replaced, by_softmax = relevance.replaced, attention.softmax_relevance

    def watched(output: Tensor, backward: Callable[[Tensor], tuple[Tensor, ...]], *inputs: Tensor, **options: bool):
        def audit(quota: Tensor) -> tuple[Tensor, ...]:
            before = len(constants)
            parts = backward(quota)
            constant_share = sum(constant.sum() for constant in constants[before:])
            difference = quota.sum() - sum(part.sum() for part in parts) - constant_share
            errors.append(float(abs(difference) / quota.abs().sum()))
            return parts

        return replaced(output, audit, *inputs, **options)

    def softmax(scores: Tensor, probabilities: Tensor, quota: Tensor, axis: int) -> Tensor:
        part = by_softmax(scores, probabilities, quota, axis)
        mean = (probabilities * scores).sum(dim=axis, keepdim=True)
        constants.append(quota * (1 - scores + mean))  # what the linear part of the expansion leaves
        return part

    monkeypatch.setattr(relevance, "replaced", watched)
    monkeypatch.setattr(attention, "replaced", watched)
    monkeypatch.setattr(attention, "softmax_relevance", softmax)
    explainer = AttnLRP(gamma=gamma, conv_gamma=gamma, epsilon=1e-12)
    attribution = explainer.explain(net, images, torch.tensor([1, 3]))
    assert len(errors) > 20
    assert max(errors) < 1e-4
    scores = attribution.logits[[0, 1], [1, 3]]
    constant_share = sum(constant.flatten(1).sum(dim=1) for constant in constants)
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)) + constant_share, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", few(SIZES, {"vit", "vit_small_patch16_dinov3"}))
def test_stock_transformers_are_explained(name, untouched):
    net, images = untouched(build(name)), pictures(SIZES[name][0], count=8)
    attribution = AttnLRP().explain(net, images)
    assert attribution.maps.shape == (8, SIZES[name][0], SIZES[name][0])
    assert attribution.signed
    assert attribution.maps.min() < 0 < attribution.maps.max()
    torch.testing.assert_close(attribution.logits, net(images), rtol=1e-4, atol=1e-5)
    alone = AttnLRP().explain(net, images[3:4])
    assert nets.relative_error(attribution.maps[3:4], alone.maps) < 1e-4


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", pytest.param("coatnet_0_rw_224", marks=pytest.mark.slow)])
def test_gates_and_smooth_activations_of_other_networks_have_rules(name, untouched):
    net = untouched(nets.seeded(lambda: timm.create_model(name, num_classes=5)).eval().requires_grad_(False))
    maps = AttnLRP().explain(net, pictures(224, count=1)).maps
    assert maps.isfinite().all()
    assert maps.abs().max() > 0


def test_groups_are_normalised_as_layers_are(generator):
    """One group of a picture of one row is what a layer norm normalises."""
    images = torch.randn(2, 3, 1, 8, generator=generator)
    grouped = nn.Sequential(nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(24, 4))
    layered = nn.Sequential(nn.LayerNorm([3, 1, 8]), nn.Flatten(), grouped[2])
    maps = [PLAIN.explain(net, images, torch.tensor([0, 3])).maps for net in (grouped, layered)]
    torch.testing.assert_close(*maps)


def test_instances_are_normalised_as_groups_of_one_channel_are(generator):
    images = torch.randn(2, 3, 4, 8, generator=generator)
    single = nn.Sequential(nn.InstanceNorm2d(3, eps=0.5, affine=True), nn.Flatten(), nn.Linear(96, 4))
    single[0].weight.data.copy_(torch.tensor([1.0, -2.0, 3.0]))
    grouped = nn.Sequential(nn.GroupNorm(3, 3, eps=0.5), *single[1:])
    grouped[0].load_state_dict(single[0].state_dict())
    maps = [PLAIN.explain(net, images, torch.tensor([0, 3])).maps for net in (single, grouped)]
    torch.testing.assert_close(*maps)


def test_a_gated_unit_is_the_product_that_it_computes(generator):
    images = torch.randn(2, 4, 4, 8, generator=generator)
    head = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

    def product(net: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        values, gates = pixels.chunk(2, dim=1)
        return net.head(values * gates.sigmoid())

    gated = nn.Sequential(nn.GLU(1), head), nets.Wired(product, head=head)
    maps = [PLAIN.explain(net, images, torch.tensor([0, 3])).maps for net in gated]
    torch.testing.assert_close(*maps)


def test_an_operation_without_a_rule_is_named(images):
    net = nets.Wrapped(nn.Flatten(), lambda pixels: pixels.logsumexp(dim=1, keepdim=True) * torch.ones(3))
    with pytest.raises(UnsupportedOperationError, match="'attnlrp' has no rule for the operation 'logsumexp'"):
        AttnLRP().explain(net, images)
