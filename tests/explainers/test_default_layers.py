"""The right layer of an architecture, by its authors' drawing, against the layer that the survey finds.

Each expected layer was read from the architecture: the last stage that is still a grid over the picture, after its
channels are normalised or mixed, before pooling or flattening. If only tokens follow the patches, it is the last layer
that the head reads, or the normalised tokens from which the last attention fills the class token.
"""

import copy
import functools

import pytest
import timm
import torch
import torchvision
from torch import nn

from seewhy import explain, wrap_model
from seewhy.explainers import GradCAM, survey
from seewhy.explainers.layers.survey import Survey
from tests.grids import few

# Name, (height, width) of the picture, layer, and its rows and columns.
# Torchvision's classifiers with pictures of their own size stand in tests/models/test_zoo.py.
ARCHITECTURES = [
    ("inception_v3", (200, 299), "Mixed_7c", (4, 8)),
    ("resnet18", (96, 320), "layer4", (3, 10)),
    ("squeezenet1_1", (100, 300), "features", (6, 18)),
    ("swin_t", (96, 160), "permute", (3, 5)),
    ("vgg11", (64, 256), "features.19", (4, 16)),
    ("timm/caformer_s18", (224, 224), "stages", (7, 7)),
    ("timm/cait_xxs24_224", (224, 224), "blocks_token_only.1.norm1", (14, 14)),
    ("timm/coat_lite_tiny", (224, 224), "patch_embed4.proj", (7, 7)),  # blocks of tokens before and after
    ("timm/coatnet_0_rw_224", (224, 224), "norm", (7, 7)),
    ("timm/convmixer_768_32", (224, 224), "blocks", (32, 32)),
    ("timm/davit_tiny", (224, 224), "stages", (7, 7)),
    ("timm/deit_tiny_distilled_patch16_224", (224, 224), "blocks.11.norm1", (14, 14)),
    ("timm/dla34", (224, 224), "level5", (7, 7)),
    ("timm/dpn68", (224, 224), "features", (7, 7)),
    ("timm/edgenext_xx_small", (256, 256), "stages", (8, 8)),
    ("timm/efficientformer_l1", (224, 224), "stages.3.blocks.2", (7, 7)),  # its last block works on tokens
    ("timm/efficientformerv2_s0", (224, 224), "norm", (7, 7)),
    ("timm/efficientvit_m0", (224, 224), "stages", (4, 4)),
    ("timm/fastvit_t8", (256, 256), "final_conv", (8, 8)),
    ("timm/focalnet_tiny_srf", (224, 224), "norm", (7, 7)),
    ("timm/gcvit_xxtiny", (224, 224), "stages", (7, 7)),
    ("timm/ghostnet_100", (224, 224), "blocks", (7, 7)),
    ("timm/hrnet_w18_small", (224, 224), "final_layer", (7, 7)),
    ("timm/levit_128s", (224, 224), "stages.2.blocks", (4, 4)),
    ("timm/maxvit_rmlp_pico_rw_256", (256, 256), "norm", (8, 8)),
    ("timm/mixer_s32_224", (224, 224), "norm", (7, 7)),
    ("timm/mobileone_s0", (224, 224), "stages", (7, 7)),
    ("timm/mobilevit_xxs", (256, 256), "final_conv", (8, 8)),
    ("timm/nest_tiny", (224, 224), "norm", (14, 14)),
    ("timm/nfnet_l0", (224, 224), "final_act", (7, 7)),
    ("timm/poolformer_s12", (224, 224), "stages", (7, 7)),
    ("timm/pvt_v2_b0", (224, 224), "stages", (7, 7)),
    ("timm/pvt_v2_b0", (96, 160), "stages", (3, 5)),
    ("timm/repvgg_a0", (224, 224), "stages", (7, 7)),
    ("timm/resnest26d", (224, 224), "layer4", (7, 7)),
    ("timm/resnetv2_50", (224, 224), "norm", (7, 7)),
    ("timm/rexnet_100", (224, 224), "features", (7, 7)),
    ("timm/selecsls42", (224, 224), "head", (4, 4)),
    ("timm/tf_efficientnetv2_b0", (128, 300), "bn2", (4, 10)),
    ("timm/tiny_vit_5m_224", (224, 224), "stages", (7, 7)),
    ("timm/vit_small_patch14_reg4_dinov2", (518, 518), "blocks.11.norm1", (37, 37)),
    ("timm/vit_small_patch16_dinov3", (256, 256), "norm", (16, 16)),  # its head reads the patches
    ("timm/vit_small_r26_s32_224", (224, 224), "patch_embed.proj", (7, 7)),
    ("timm/vit_small_resnet26d_224", (224, 224), "patch_embed.proj", (7, 7)),
    ("timm/vit_tiny_patch16_224", (224, 224), "blocks.11.norm1", (14, 14)),
    ("timm/vit_tiny_r_s16_p8_224", (224, 224), "blocks.11.norm1", (7, 7)),  # a stem of one convolution, then patches
    ("timm/volo_d1_224", (224, 224), "network.4", (14, 14)),
    ("timm/xception41", (299, 299), "blocks", (10, 10)),
    ("timm/xcit_nano_12_p16_224", (224, 224), "cls_attn_blocks.1.norm1", (14, 14)),
]

QUICK = {
    ("resnet18", 96),
    ("timm/efficientformer_l1", 224),
    ("timm/levit_128s", 224),
    ("timm/pvt_v2_b0", 96),
    ("timm/vit_tiny_patch16_224", 224),
}
"""Name and height of those that `make test` tries; `make test-slow` tries the others."""


def build(name: str) -> nn.Module:
    """Return an architecture without numbers, for the survey needs none."""
    # The initial weights of a RegNet depend on its sizes, which are tensors.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        if name.startswith("timm/"):
            return timm.create_model(name.removeprefix("timm/")).eval()
        make = functools.partial(torchvision.models.get_model, name, weights=None)
        return make(init_weights=False).eval() if name in ("googlenet", "inception_v3") else make().eval()


def surveyed(name: str, size: tuple[int, int]) -> Survey:
    return survey(build(name), (3, *size))


@pytest.mark.parametrize(
    ("name", "size", "layer", "grid"),
    [
        pytest.param(*row, id=f"{row[0]}-{row[1][0]}x{row[1][1]}", marks=() if (row[0], row[1][0]) in QUICK else slow)
        for slow in (pytest.mark.slow,)
        for row in ARCHITECTURES
    ],
)
def test_the_default_layer_is_the_last_that_is_a_grid(name, size, layer, grid):
    layers = surveyed(name, size)
    assert layers.default_layers == (layer,)
    assert layers.branches == ()
    (default,) = (row for row in layers.layers if row.default)
    assert default.cam
    assert default.calls == 1
    if default.grid is None:
        assert (default.tokens.rows, default.tokens.columns) == grid
        return
    _, rows, columns = default.grid.axes
    assert (default.output_shape[rows], default.output_shape[columns]) == grid


HEADLESS = [
    *("densenet121", "resnet18", "vgg11", "vit_b_16", "timm/efficientformer_l1", "timm/nfnet_l0"),
    "timm/xcit_nano_12_p16_224",
]


@pytest.mark.parametrize("name", few(HEADLESS, {"resnet18"}))
def test_a_network_without_its_head_has_the_layer_of_the_network_with_it(name):
    whole = build(name)
    if name.startswith("timm/"):
        with torch.device("meta"):
            headless = timm.create_model(name.removeprefix("timm/"), num_classes=0).eval()
    else:
        headless = copy.deepcopy(whole)
        head = next(head for head in ("fc", "classifier", "head", "heads") if hasattr(whole, head))
        setattr(headless, head, nn.Identity())
    size = whole.pretrained_cfg["input_size"] if name.startswith("timm/") else (3, 224, 224)
    (layer,) = survey(whole, size).default_layers
    assert survey(headless, size).default_layers == (layer,)


@pytest.mark.parametrize(
    "name",
    few(
        ["vit_tiny_r_s16_p8_224", "levit_128s", "deit_tiny_patch16_224"], short=["levit_128s", "deit_tiny_patch16_224"]
    ),
)
def test_a_patch_embedding_can_be_declared(name):
    net = timm.create_model(name, num_classes=5).eval()
    layer = "stem" if name.startswith("levit") else "patch_embed.proj"
    assert survey(net, (3, 224, 224), (layer,)).default_layers == (layer,)
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    attribution = GradCAM(layers=(layer,)).explain(net, images)
    assert attribution.maps.shape[1:] in ((7, 7), (14, 14))
    assert attribution.maps.isfinite().all()


@pytest.mark.parametrize(
    "name", ["efficientformer_l1", pytest.param("vit_small_resnet26d_224", marks=pytest.mark.slow)]
)
def test_a_hybrid_explains_at_its_default_layer(name):
    net = timm.create_model(name, num_classes=5).eval().requires_grad_(False)
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    attribution = GradCAM(sign="signed").explain(net, images)
    assert attribution.maps.shape == (1, 7, 7)
    assert attribution.maps.std() > 0


class Branches(nn.Module):
    """Two branches of the picture that meet outside of a module."""

    def __init__(self, meet, first=None) -> None:
        super().__init__()
        self.meet = meet
        self.first = first or nn.Identity()
        self.deep = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
        self.flat = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, images):
        images = self.first(images)
        return self.meet(self, self.deep(images), self.flat(images))


MEETINGS = {
    "sum": (lambda net, deep, flat: net.heads[0](net.pool(deep + flat)), "flat", ("deep",)),
    "gate": (lambda net, deep, flat: net.heads[0](net.pool(deep * flat.sigmoid())), "deep", ("flat",)),
    "gate of channels": (
        lambda net, deep, flat: net.heads[0]((deep * flat.mean((2, 3), True)).mean((2, 3))),
        "deep",
        ("flat",),
    ),
    "own gate": (lambda net, deep, _: net.heads[0]((deep * deep.mean((2, 3), True)).mean((2, 3))), "deep", ()),
    "pooled": (lambda net, deep, flat: net.heads[0](net.pool(deep) + net.pool(flat)), "flat", ("deep",)),
    "scores": (lambda net, deep, flat: net.heads[0](net.pool(deep)) + net.heads[1](net.pool(flat)), "flat", ("deep",)),
    "unused": (lambda net, deep, _: net.heads[0](net.pool(deep)), "deep", ()),
}


@pytest.mark.parametrize("first", [None, nn.BatchNorm2d(3)], ids=["picture", "normalised"])
@pytest.mark.parametrize(("meet", "layer", "branches"), MEETINGS.values(), ids=MEETINGS)
def test_branches_beside_the_default_layer_are_named(meet, layer, branches, first):
    network = Branches(meet, first)
    layers = survey(network, (3, 16, 16))
    assert (layers.default_layers, layers.branches) == ((layer,), branches)
    model = wrap_model(network, input_size=16)
    picture = torch.randn(3, 16, 16)
    codes = [note.code for note in explain(model, picture).diagnostics]
    assert ("other-branches" in codes) == bool(branches)
    both = explain(model, picture, layer=[layer, *branches])
    assert "other-branches" not in [note.code for note in both.diagnostics]


def test_a_shortcut_around_a_layer_is_no_branch():
    class Shortcut(Branches):
        def forward(self, images):
            features = self.flat(images)
            return self.heads[0](self.pool(features + self.deep[1](features)))

    layers = survey(Shortcut(None), (3, 16, 16))
    assert (layers.default_layers, layers.branches) == (("deep.1",), ())
