"""Attention rollout, Chefer's relevance and LeGrad: by hand, as their equations written out, and on stock models."""

from functools import partial

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from seewhy.explainers.errors import UnsuitableModelError
from seewhy.explainers.layers.survey import survey_module
from seewhy.explainers.methods.transformer.attention import AttentionRollout, Chefer, LeGrad
from tests import nets
from tests.explainers.test_attention import SIZES, build, pictures
from tests.grids import few

METHODS_OF_ATTENTION = (AttentionRollout(), Chefer(), LeGrad())


class Uniform(nn.Module):
    """A block in which each token adds the mean of all tokens to itself."""

    def forward(self, tokens: Tensor) -> Tensor:
        probabilities = (0 * tokens @ tokens.mT)[:, None].softmax(dim=-1)
        return tokens + (probabilities @ tokens[:, None])[:, 0]


class ByHand(nn.Module):
    """Each pixel is a token; the logits are the first token, a class token of 0, and its negative."""

    def __init__(self, blocks: int, pooled: bool = False) -> None:
        super().__init__()
        self.patches = nets.pointwise([[1.0]])
        self.first = nn.Parameter(torch.zeros(1, 1, 1))
        self.blocks = nn.Sequential(*(Uniform() for _ in range(blocks)))
        self.head, self.pooled = nets.linear([[2.0], [-2.0]]), pooled

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = self.blocks(tokens)
        return self.head(tokens[:, 1:].mean(dim=1) if self.pooled else tokens[:, 0])


PIXELS = torch.tensor([[1.0, -2.0, 3.0]])
"""Three tokens besides the class token: T = 4."""


def test_rollout_by_hand(untouched):
    net = untouched(ByHand(2))
    # ((J + I) / 2)^2 = (3 J + I) / 4, where all entries of J are 1 / 4
    maps = AttentionRollout().explain(net, PIXELS[None, None]).maps
    torch.testing.assert_close(maps[0], torch.full((1, 3), 3 / 16))
    pooled = AttentionRollout().explain(ByHand(2, pooled=True), PIXELS[None, None]).maps
    torch.testing.assert_close(pooled[0], torch.full((1, 3), 3 / 16 + 1 / 12))  # a third of each token's own row


@pytest.mark.parametrize(("target", "expected"), [(0, [2.0, 0.0, 6.0]), (1, [0.0, 4.0, 0.0])])
def test_chefer_and_legrad_by_hand(target, expected, untouched):
    # The gradient of the logit by the attention of the class token to token k is the weight times x_k; A is 1 / 4.
    # In LeGrad every token is a query, in front of a mean: 1 / 4 too.
    for method in (Chefer(), LeGrad()):
        result = method.explain(untouched(ByHand(1)), PIXELS[None, None], torch.tensor([target]))
        torch.testing.assert_close(result.maps[0, 0], torch.tensor(expected) / 4)


class Written(nn.Module):
    """The model of `nets.Transformer` with its attention written out, and all that the equations ask for."""

    def __init__(self, net: nets.Transformer) -> None:
        super().__init__()
        self.net, self.tokens, self.probabilities = net, list[Tensor](), list[Tensor]()

    def block(self, block: nets.AttentionBlock, tokens: Tensor) -> Tensor:
        count, size, width = tokens.shape
        parts = block.qkv(block.before(tokens)).reshape(count, size, 3, block.heads, width // block.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        probabilities = (query @ key.mT / (width // block.heads) ** 0.5).softmax(dim=-1)
        self.probabilities.append(probabilities)
        tokens = tokens + block.project((probabilities @ value).transpose(1, 2).reshape(tokens.shape))
        return tokens + block.mlp(block.behind(tokens))

    def first(self, images: Tensor) -> Tensor:
        tokens = self.net.patches(images).flatten(2).mT
        return torch.cat([self.net.first.expand(len(tokens), -1, -1), tokens], dim=1).requires_grad_()

    def head(self, tokens: Tensor) -> Tensor:
        return self.net.head(self.net.norm(tokens)[:, 0])


def rollout(net: nets.Transformer, images: Tensor, _target: int) -> Tensor:
    written = Written(net)
    tokens = written.first(images)
    matrix = torch.eye(tokens.shape[1])
    for block in net.blocks:
        tokens = written.block(block, tokens)
        matrix = (written.probabilities[-1].mean(dim=1) + torch.eye(tokens.shape[1])) / 2 @ matrix
    return matrix[:, 0, 1:]


def chefer(net: nets.Transformer, images: Tensor, target: int) -> Tensor:
    written = Written(net)
    tokens = written.first(images)
    for block in net.blocks:
        tokens = written.block(block, tokens)
    gradients = torch.autograd.grad(written.head(tokens)[:, target].sum(), written.probabilities)
    matrix = torch.eye(tokens.shape[1])
    for probabilities, gradient in zip(written.probabilities, gradients, strict=True):
        matrix = matrix + (gradient * probabilities).clamp_min(0).mean(dim=1) @ matrix
    return matrix[:, 0, 1:]


def legrad(net: nets.Transformer, images: Tensor, target: int) -> Tensor:
    written = Written(net)
    tokens, maps = written.first(images), []
    for block in net.blocks:
        tokens = written.block(block, tokens.detach().requires_grad_())
        score = written.head(tokens.mean(dim=1, keepdim=True))[:, target].sum()
        (gradient,) = torch.autograd.grad(score, written.probabilities[-1], retain_graph=True)
        maps.append(gradient.clamp_min(0).mean(dim=(1, 2))[:, 1:])
    return (maps[0] + maps[1]) / 2


@pytest.mark.parametrize(
    ("method", "written"),
    [(AttentionRollout(), rollout), (Chefer(), chefer), (LeGrad(), legrad)],
    ids=["rollout", "chefer", "legrad"],
)
def test_a_method_equals_its_equation_written_out(method, written, generator, untouched):
    net = nets.seeded(nets.Transformer).requires_grad_(False)
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 2
    images = torch.randn(3, 3, 16, 24, generator=generator)
    maps = method.explain(untouched(net), images, torch.tensor([2, 2, 2])).maps
    assert maps.shape == (3, 4, 6)
    assert nets.relative_error(maps, written(net, images, 2).detach().reshape(3, 4, 6)) < 1e-5


@pytest.mark.parametrize("heads", ["max", "min"])
def test_rollout_takes_other_statistics_of_the_heads(heads, generator):
    net = nets.seeded(nets.Transformer)
    images = torch.randn(2, 3, 16, 24, generator=generator)
    maps = AttentionRollout(heads=heads).explain(net, images).maps
    assert maps.isfinite().all()
    assert nets.relative_error(maps, AttentionRollout().explain(net, images).maps) > 1e-4
    assert (maps.sum(dim=(1, 2)) < 1).all(), "the class token keeps a part"


GLOBAL = [name for name in SIZES if not name.startswith("swin")]


STOCK = {"vit", "vit_small_patch16_dinov3"}
"""The transformers of `make test`, of each library one."""


@pytest.mark.parametrize("method", METHODS_OF_ATTENTION, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", few(GLOBAL, STOCK))
def test_stock_transformers_are_explained_on_the_grid_of_their_patches(name, method, untouched):
    net, images = untouched(build(name)), pictures(SIZES[name][0], count=3)
    attribution = method.explain(net, images)
    assert attribution.maps.shape == (3, 4, 4)
    assert attribution.maps.std(dim=(1, 2)).min() > 0
    assert attribution.maps.min() >= 0
    torch.testing.assert_close(attribution.logits, net(images), rtol=1e-4, atol=1e-5)
    alone = method.explain(net, images[2:])
    assert nets.relative_error(attribution.maps[2:], alone.maps) < 1e-4


@pytest.mark.parametrize("name", few(GLOBAL, STOCK))
def test_the_survey_tells_class_and_register_tokens_from_patches(name):
    side, keys, paths = SIZES[name]
    layers = survey_module(build(name), (3, side, side), lambda raw: raw).layers
    (grid,) = {layer.tokens for layer in layers if layer.path == paths[-1].rpartition(".")[0]}
    assert (grid.rows, grid.columns, grid.before, grid.after) == (4, 4, keys - 16, 0)


def test_tokens_that_wait_for_their_head_count_alike():
    """A head that averages patches reads all of them: the map is the mean of their rows."""
    net = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=3, global_pool="avg").eval()
    images = pictures(64)
    for method in METHODS_OF_ATTENTION:
        assert method.explain(net, images).maps.shape == (2, 4, 4)
    pooling = timm.create_model("vit_base_patch16_siglip_224", img_size=64, depth=2, embed_dim=48, num_heads=4).eval()
    assert AttentionRollout().explain(pooling, images).maps.shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("build", "side", "reason"),
    [
        (lambda: torchvision.models.resnet18(num_classes=4), 64, "this model computes no attention"),
        (lambda: build("swin"), 64, r"'features.1.0.attn' is of shape \(16, 2, 16, 16\), as within windows"),
        *(
            pytest.param(partial(timm.create_model, name, num_classes=4), 224, reason, marks=pytest.mark.slow)
            for name, reason in (
                ("xcit_nano_12_p16_224", "over channels"),
                ("pvt_v2_b0", "is of shape"),
                ("caformer_s18", "have 196, 49 tokens, as in stages"),
            )
        ),
    ],
    ids=["resnet", "swin", "xcit", "pvt", "caformer"],
)
def test_a_model_without_attention_of_all_tokens_is_refused(build, side, reason, untouched):
    net = untouched(build().eval())
    for method in METHODS_OF_ATTENTION:
        with pytest.raises(UnsuitableModelError, match=f"{reason}.*Use .*saliency"):
            method.explain(net, pictures(side, count=1 if side == 224 else 2))


def test_blocks_that_are_no_modules_are_refused():
    def attend_twice(net: nn.Module, images: Tensor) -> Tensor:
        tokens = net.patches(images).flatten(2).mT
        for _ in range(2):
            tokens = tokens + net.attend(tokens, tokens, tokens)[0]
        return tokens.mean(dim=1)

    patches, attend = nn.Conv2d(3, 4, 8, stride=8), nn.MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(UnsuitableModelError, match="the attention of 'attend'"):
        Chefer().explain(nets.Wired(attend_twice, patches=patches, attend=attend).eval(), pictures(64))
