"""CAMs on the tokens of transformers: their maps are those of the same network with its patches on a grid."""

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from seewhy import wrap_model
from seewhy.explainers import survey
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.methods.catalogue import METHODS
from tests import nets
from tests.explainers.test_attention import SIZES, build, pictures
from tests.grids import few

CAMS = [name for name, method in METHODS.items() if method.family == "cam" or name == "random"]
LAST = "encoder.layers.encoder_layer_1.ln_1"


def twin(net: nn.Module, images: Tensor) -> Tensor:
    """The small ViT of torchvision, whose last attention reads its patches from a grid (N, C, h, w)."""
    tokens = first_block(net.vit, images)
    normal = net.vit.encoder.layers[1].ln_1(tokens)
    height, width = (side // net.vit.patch_size for side in images.shape[2:])
    patches = net.patches(normal[:, 1:].mT.unflatten(2, (height, width))).flatten(2).mT
    return last_block(net.vit, tokens, torch.cat([normal[:, :1], patches], dim=1))


def first_block(vit: torchvision.models.VisionTransformer, images: Tensor) -> Tensor:
    """Return the tokens (N, T, C) behind the first of two blocks."""
    patches = vit.conv_proj(images).flatten(2).mT
    tokens = torch.cat([vit.class_token.expand(len(images), -1, -1), patches], dim=1) + vit.encoder.pos_embedding
    return vit.encoder.layers[0](tokens)


def last_block(vit: torchvision.models.VisionTransformer, tokens: Tensor, normal: Tensor) -> Tensor:
    """Return the logits, given the tokens behind the first of two blocks, and the same normalised."""
    block = vit.encoder.layers[1]
    tokens = tokens + block.self_attention(normal, normal, normal, need_weights=False)[0]
    return vit.heads(vit.encoder.ln(tokens + block.mlp(block.ln_2(tokens)))[:, 0])


@pytest.mark.parametrize(
    ("method", "written"),
    [
        ("gradcam", lambda values, slopes: (values * slopes.mean(dim=1, keepdim=True)).sum(dim=2)),
        ("hirescam", lambda values, slopes: (values * slopes).sum(dim=2)),
        ("layercam", lambda values, slopes: (values * slopes.clamp_min(0)).sum(dim=2)),
    ],
)
def test_the_map_of_a_vit_is_the_one_written_out(method, written, untouched):
    vit, images, targets = build("vit"), pictures(32), torch.tensor([3, 7])
    attribution = METHODS[method].build({"sign": "signed"}).explain(untouched(vit), images, targets)
    tokens = first_block(vit, images)
    normal = vit.encoder.layers[1].ln_1(tokens).requires_grad_()
    (slopes,) = torch.autograd.grad(last_block(vit, tokens, normal).gather(1, targets[:, None]).sum(), normal)
    expected = written(normal.detach()[:, 1:], slopes[:, 1:]).unflatten(1, (4, 4))
    assert attribution.layers == (LAST,)
    assert nets.relative_error(attribution.maps, expected) < 1e-5


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
@pytest.mark.parametrize("name", ["swin", "swin_v2"])
def test_the_map_of_a_swin_is_the_one_written_out(name, method, untouched):
    swin, images, targets = build(name), pictures(64), torch.tensor([3, 7])
    attribution = METHODS[method].build({"sign": "signed"}).explain(untouched(swin), images, targets)
    values = swin.norm(swin.features(images)).detach().requires_grad_()
    scores = swin.head(values.mean(dim=(1, 2))).gather(1, targets[:, None]).sum()
    (slopes,) = torch.autograd.grad(scores, values)
    weights = slopes.mean(dim=(1, 2), keepdim=True) if method == "gradcam" else slopes
    assert nets.relative_error(attribution.maps, (values.detach() * weights).sum(dim=3)) < 1e-5
    sums = attribution.maps.sum(dim=(1, 2)) + swin.head.bias[targets]
    torch.testing.assert_close(sums, attribution.outputs[[0, 1], targets], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", few(CAMS, {"gradcam++", "shapleycam", "ablationcam", "recipro-cam", "eigencam"}))
def test_a_cam_of_tokens_is_that_of_the_patches_on_a_grid(method, untouched):
    vit, images, targets = build("vit"), pictures(32), torch.tensor([3, 7])
    options = {"sign": "signed"} if "signed" in METHODS[method].options["sign"]["enum"] else {}
    of_tokens, of_grid = (METHODS[method].build({**options, "layers": (layer,)}) for layer in (LAST, "patches"))
    try:
        net = nets.Wired(twin, vit=vit, patches=nn.Identity())
        expected = of_grid.explain(untouched(net), images, targets).maps
    except UnsuitableModelError as error:  # CAM needs pooling, which a class token replaces
        with pytest.raises(UnsuitableModelError, match=str(error)[:40]):
            of_tokens.explain(untouched(vit), images, targets)
        assert method == "cam"
        return
    assert expected.shape == (2, 4, 4)
    assert nets.relative_error(of_tokens.explain(untouched(vit), images, targets).maps, expected) < 1e-5


LAYERS = {
    "vit": LAST,
    "vit_tiny_patch16_224": "blocks.1.norm1",
    "deit_tiny_distilled_patch16_224": "blocks.1.norm1",
    "vit_small_patch14_reg4_dinov2": "blocks.1.norm1",
    "beit_base_patch16_224": "blocks.1",
    "vit_small_patch16_dinov3": "norm",
}
"""The head of the last two reads the patches, the others' class or distillation tokens."""


@pytest.mark.parametrize("name", few(LAYERS, {"vit_small_patch14_reg4_dinov2"}))
def test_class_and_register_tokens_do_not_count(name, untouched):
    side, size, _ = SIZES[name]
    net, images = untouched(build(name)), pictures(side)
    (layer,) = survey(net, (3, side, side)).default_layers
    assert layer == LAYERS[name]
    maps = METHODS["hirescam"].build({"sign": "signed"}).explain(net, images, torch.tensor([3, 7])).maps
    assert maps.shape == (2, 4, 4)
    values: list[Tensor] = []
    handle = net.get_submodule(layer).register_forward_hook(lambda _module, _args, output: values.append(output))
    with handle, torch.enable_grad():
        images = images.clone().requires_grad_()
        scores = net(images).gather(1, torch.tensor([[3], [7]])).sum()
        (slopes,) = torch.autograd.grad(scores, values)
    products = (values[0].detach() * slopes).sum(dim=2)
    assert nets.relative_error(maps.flatten(1), products[:, size - 16 :]) < 1e-5


def test_a_head_that_reads_the_patches_is_explained_at_the_last_tokens(untouched):
    options = {"img_size": 64, "depth": 2, "num_classes": 3}
    pooled = timm.create_model("vit_tiny_patch16_224", global_pool="avg", **options).eval()
    assert survey(pooled, (3, 64, 64)).default_layers == ("blocks",)
    both = timm.create_model("vit_tiny_patch16_224", global_pool="avgmax", **options).eval()
    assert survey(both, (3, 64, 64)).default_layers == ("blocks",)
    asking = timm.create_model("vit_base_patch16_siglip_224", embed_dim=48, num_heads=4, **options).eval()
    assert survey(asking, (3, 64, 64)).default_layers == ("norm",)
    maps = METHODS["hirescam"].build({"sign": "signed"}).explain(untouched(asking), pictures(64)).maps
    assert maps.abs().amin(dim=(1, 2)).gt(0).all()


def test_cam_itself_explains_a_head_that_is_linear_in_the_mean_of_the_patches(untouched):
    net = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=3, global_pool="avg").eval()
    net.fc_norm = nn.Identity()
    cam = METHODS["cam"].build({"sign": "signed"}).explain(untouched(net), pictures(64), torch.tensor([0, 1]))
    scores = cam.maps.mean(dim=(1, 2)) + net.head.bias[:2]
    torch.testing.assert_close(scores, cam.outputs[[0, 1], [0, 1]], rtol=1e-4, atol=1e-5)


def test_a_named_or_declared_layer_of_tokens_is_taken(untouched):
    vit, images = untouched(build("vit")), pictures(32)
    gradcam = METHODS["gradcam"]
    for layer in (LAST, "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_0.mlp"):
        assert gradcam.build({"layers": (layer,)}).explain(vit, images).maps.shape == (2, 4, 4)
    several = gradcam.build({"layers": ("encoder.layers.*.ln_1",)}).explain(vit, images).layers
    assert several == ("encoder.layers.encoder_layer_0.ln_1", LAST)
    declared = ("encoder.layers.encoder_layer_0",)
    assert wrap_model(vit, input_size=32, default_layers=declared).default_layers == declared
    with pytest.raises(LayerError, match="tokens"):
        gradcam.build({"layers": ("encoder.layers.encoder_layer_1.self_attention",)}).explain(vit, images)


def test_tokens_behind_the_last_attention_have_no_gradient_where_the_class_token_is_read(untouched):
    """So they are no default layer; nor are those in front of it, where the map of HiResCAM is but rounding."""
    vit, images = untouched(build("vit")), pictures(32)
    for number, least in ((1, 0.0), (0, 1e-5)):
        layer = f"encoder.layers.encoder_layer_{number}"
        hirescam = METHODS["hirescam"].build({"layers": (layer,), "sign": "signed"})
        assert hirescam.explain(vit, images).maps.abs().max() <= least


def test_pictures_of_other_proportions(generator, untouched):
    net = untouched(nets.seeded(nets.Transformer))
    images = torch.randn(2, 3, 16, 24, generator=generator)
    assert METHODS["hirescam"].build({}).explain(net, images, torch.tensor([0, 1])).maps.shape == (2, 4, 6)
