"""Attention made visible: the probabilities, the same results, and no trace."""

import threading

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import AttentionSession
from seewhy.explainers.hooks.attention import DefinedAttention
from tests import nets
from tests.grids import few

SIZES = {
    "vit": (32, 17, ["encoder.layers.encoder_layer_0.self_attention", "encoder.layers.encoder_layer_1.self_attention"]),
    "swin": (64, 16, ["features.1.0.attn", "features.1.1.attn", "features.3.0.attn", "features.3.1.attn"]),
    "swin_v2": (64, 16, ["features.1.0.attn", "features.1.1.attn", "features.3.0.attn", "features.3.1.attn"]),
    "vit_tiny_patch16_224": (64, 17, ["blocks.0.attn", "blocks.1.attn"]),
    "deit_tiny_distilled_patch16_224": (64, 18, ["blocks.0.attn", "blocks.1.attn"]),
    "beit_base_patch16_224": (64, 17, ["blocks.0.attn", "blocks.1.attn"]),
    "vit_small_patch14_reg4_dinov2": (56, 21, ["blocks.0.attn", "blocks.1.attn"]),
    "vit_small_patch16_dinov3": (64, 21, ["blocks.0.attn", "blocks.1.attn"]),
}
"""Side of the picture, keys of the first attention, and the modules that attend."""


def build(name: str) -> nn.Module:
    """Return a small transformer whose random weights leave no part without effect."""
    models = torchvision.models
    if name == "vit":
        net = nets.seeded(lambda: models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10))
    elif name == "swin":
        net = nets.seeded(lambda: models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10))
    elif name == "swin_v2":
        parts = models.swin_transformer.SwinTransformerBlockV2, models.swin_transformer.PatchMergingV2
        net = nets.seeded(
            lambda: models.SwinTransformer(
                [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10, block=parts[0], downsample_layer=parts[1]
            )
        )
    else:
        sizes = {"embed_dim": 48, "num_heads": 4} if "base" in name else {}
        net = nets.seeded(lambda: timm.create_model(name, img_size=SIZES[name][0], depth=2, num_classes=10, **sizes))
    generator = torch.Generator().manual_seed(1)
    for value in net.parameters():
        value.data += 0.05 * torch.randn(value.shape, generator=generator)
    return net.eval().requires_grad_(False)


def pictures(side: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SIZES)
def test_the_probabilities_of_each_block_are_seen_and_the_result_is_the_same(name, untouched):
    side, keys, paths = SIZES[name]
    net, images = untouched(build(name)), pictures(side)
    plain = net(images)
    with AttentionSession(net) as attention:
        assert repr(attention) == f"AttentionSession({type(net).__name__}, open)"
        result = net(images)
    assert repr(attention).startswith(f"AttentionSession({type(net).__name__}, closed; attention of {paths[0]!r}")
    assert [call.path for call in attention.calls] == paths
    assert list(attention.probabilities) == paths
    for call in attention.calls:
        assert call.probabilities.shape[-1] == call.probabilities.shape[-2]
        torch.testing.assert_close(call.probabilities.sum(dim=-1), torch.ones(call.probabilities.shape[:-1]))
    assert attention.calls[0].probabilities.shape[-1] == keys
    assert nets.relative_error(result, plain) < 2e-6
    assert torch.equal(net(images), plain)


def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    probabilities = scores.softmax(dim=-1)
    return probabilities @ value, probabilities


@pytest.mark.parametrize("kind", ["plain", "mask", "bias", "causal", "scale", "groups"])
def test_fused_attention_is_what_its_definition_says(kind, generator):
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, 4 if kind != "groups" else 2, 5, 8, generator=generator)
    mask = torch.rand(5, 5, generator=generator) > 0.3
    mask |= torch.eye(5, dtype=torch.bool)
    options = {
        "mask": {"attn_mask": mask},
        "bias": {"attn_mask": torch.randn(4, 5, 5, generator=generator)},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.1},
        "groups": {"enable_gqa": True},
    }.get(kind, {})
    expected = functional.scaled_dot_product_attention(query, key, value, **options)
    records = list[Tensor]()
    with DefinedAttention(records.append):
        actual = functional.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    if kind in ("plain", "mask", "causal"):
        masks = {"mask": mask, "causal": torch.ones(5, 5, dtype=torch.bool).tril()}
        torch.testing.assert_close(records[0], attended(query, key, value, masks.get(kind))[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("kind", few(["self", "cross", "padding", "mask", "rows", "single"], short=["cross", "rows"]))
def test_multi_head_attention_gives_its_output_and_weights(kind, batched, generator):
    sizes = {"kdim": 6, "vdim": 10} if kind == "cross" else {}
    net = nets.seeded(lambda: nn.MultiheadAttention(8, 2, batch_first=True, **sizes)).eval()
    shape = (3, 5) if batched else (5,)
    query = torch.randn(*shape, 8, generator=generator)
    key, value = (torch.randn(*shape, sizes.get(name, 8), generator=generator) for name in ("kdim", "vdim"))
    mask = torch.rand(5, 5, generator=generator) > 0.7
    mask &= ~torch.eye(5, dtype=torch.bool)
    options = {
        "padding": {"key_padding_mask": mask[: shape[0] if batched else 1].reshape(*shape)},
        "mask": {"attn_mask": mask},
        "rows": {"attn_mask": torch.randn(6 if batched else 2, 5, 5, generator=generator)},
        "single": {"average_attn_weights": False},
    }.get(kind, {})
    arguments = (query, query, query) if kind == "self" else (query, key, value)
    expected = net(*arguments, **options)
    with torch.no_grad(), AttentionSession(net) as attention:
        actual = net(*arguments, **options)
    for result, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-6)
    (call,) = attention.calls
    assert call.path == ""
    probabilities = call.probabilities if kind == "single" else call.probabilities.mean(dim=1)
    torch.testing.assert_close(probabilities if batched else probabilities[0], expected[1])


def test_gradients_of_the_probabilities_are_those_of_the_forward_pass(generator):
    net = nets.seeded(lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True)).eval()
    tokens = torch.randn(1, 4, 8, generator=generator)
    with AttentionSession(net) as attention:
        score = net(tokens)[0, 0, 0]
    (gradients,) = torch.autograd.grad(score, attention.calls[0].probabilities)
    assert gradients.shape == (1, 2, 4, 4)
    assert gradients[:, :, 0].abs().min() > 0
    assert not gradients[:, :, 1:].any(), "the first token is made of its own row"


def test_a_softmax_that_weighs_no_values_is_no_attention(generator):
    net = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=1))
    with AttentionSession(net) as attention:
        net(torch.randn(2, 4, generator=generator))
    assert attention.calls == []


def test_keys_that_are_added_stay_unseen():
    net = nets.seeded(lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)).eval()
    tokens = torch.ones(1, 3, 8)
    with AttentionSession(net) as attention:
        result = net(tokens, tokens, tokens)
    assert attention.calls == []
    torch.testing.assert_close(result, net(tokens, tokens, tokens))


def test_a_session_sees_its_own_thread_and_ends_after_an_error(untouched):
    net, images = untouched(build("vit")), pictures(32)
    results = list[Tensor]()
    with AttentionSession(net) as attention:
        thread = threading.Thread(target=lambda: results.append(net(images)))
        thread.start()
        thread.join()
        assert attention.calls == []
    with pytest.raises(ZeroDivisionError), AttentionSession(net):
        raise ZeroDivisionError
    torch.testing.assert_close(results[0], net(images))


def test_a_session_can_be_opened_again_and_starts_afresh():
    net, images = build("vit"), pictures(32)
    session = AttentionSession(net)
    for _ in range(2):
        with session as attention:
            net(images)
        assert len(attention.calls) == 2
