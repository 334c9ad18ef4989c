import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision import models as torchvision_models

from seewhy.models import Preprocess, Registry
from seewhy.models.zoo import _timm_preprocess
from tests.grids import few


def noise(width: int, height: int) -> Image.Image:
    samples = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(samples)


SHORT = {"efficientnet_b3", "inception_v3", "maxvit_t", "mobilenet_v2", "regnet_y_16gf", "swin_v2_b", "vit_h_14"}
"""Models whose transforms differ in size, interpolation and crop."""

PICTURES = {"landscape": noise(431, 300), "portrait": noise(240, 361), "tiny": noise(13, 10)}


@pytest.mark.parametrize("name", few(torchvision_models.list_models(module=torchvision_models), SHORT))
def test_every_weight_set_of_torchvision_is_fed_as_its_own_transforms_do(name):
    for weights in torchvision_models.get_model_weights(name):
        if weights.name == "IMAGENET1K_FEATURES":
            continue  # has no classifier
        transforms, preprocess = weights.transforms(), Registry().spec(name, weights.name).preprocess
        for picture in PICTURES.values():
            assert torch.equal(preprocess(picture), transforms(picture)), weights


def overlaid(**fields: object) -> object:
    """A published configuration with other fields."""
    config = timm.get_pretrained_cfg("resnet50")
    for field, value in fields.items():
        setattr(config, field, value)
    return config


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(timm.get_pretrained_cfg(name), id=name)
        for name in (
            "tf_efficientnet_lite0",
            "tf_efficientnet_lite2",
            "resnet50.a1_in1k",
            "convnext_tiny.fb_in1k",
            "inception_v3.tv_in1k",
            "cspresnet50.ra_in1k",
            "convnext_base.fb_in22k_ft_in1k_384",
            "coat_lite_medium_384.in1k",
        )
    ]
    + [
        pytest.param(overlaid(crop_mode="border"), id="border"),
        pytest.param(overlaid(crop_mode="border", crop_pct=0.9, interpolation="bilinear"), id="border, cropped"),
        pytest.param(overlaid(input_size=(3, 128, 256)), id="wide"),
        pytest.param(overlaid(input_size=(3, 256, 128), crop_mode="border"), id="tall, border"),
        pytest.param(overlaid(input_size=(3, 256, 128), crop_mode="squash"), id="tall, squash"),
    ],
)
def test_timm_models_are_fed_as_its_own_transforms_do(config):
    preprocess = _timm_preprocess(config)
    transforms = create_transform(**resolve_data_config(pretrained_cfg=config.to_dict()), is_training=False)
    for name, picture in PICTURES.items():
        actual, expected = preprocess(picture), transforms(picture)
        assert actual.shape == expected.shape
        assert torch.allclose(actual, expected, atol=1e-6), name


def test_grey_and_transparent_pictures_become_three_channels():
    preprocess = Preprocess((32, 32), (32, 32))
    for mode in ("L", "RGBA", "P"):
        assert preprocess(Image.new(mode, (40, 50))).shape == (3, 32, 32)


def test_the_crop_of_a_strip_equals_the_crop_of_the_whole():
    preprocess = Preprocess((64, 64), (72, 72))
    strip = noise(3, 400)
    whole = strip.resize((72, 9600), Image.Resampling.BILINEAR).crop((4, 4768, 68, 4832))
    assert torch.allclose(preprocess(strip), Preprocess((64, 64), (64, 64))(whole), atol=0.02)


def test_the_geometry_names_the_part_of_the_picture_that_is_seen():
    assert Preprocess((224, 224), (256, 256)).geometry(512, 512).box == (32.0, 32.0, 480.0, 480.0)
    assert Preprocess((224, 224), (224, 224)).geometry(448, 896).box == (0.0, 224.0, 448.0, 672.0)
    assert Preprocess((100, 100), (100, 100), "exact").geometry(50, 300).box == (0.0, 0.0, 50.0, 300.0)
    assert Preprocess((100, 100), (100, 100), "longer").geometry(50, 100).box == (-25.0, 0.0, 75.0, 100.0)


def photograph(width: int, height: int) -> Image.Image:
    """Noise of large grain and small."""
    return Image.blend(noise(width // 20, height // 20).resize((width, height)), noise(width, height), 0.1)


@pytest.mark.parametrize(
    ("preprocess", "part"),
    [
        (Preprocess((64, 64), (72, 72), interpolation="bicubic"), 4),
        (Preprocess((64, 64), (64, 64), resize="longer"), 3),
        (Preprocess((64, 96), (64, 96), resize="exact"), 7),
        (Preprocess((32, 64), (40, 80)), 4),
    ],
)
@pytest.mark.parametrize("size", [(1600, 1208), (1211, 1601)])
def test_a_smaller_copy_is_nearly_the_same_input(preprocess, part, size):
    picture = photograph(*size)
    least = preprocess.least(*size)
    copies = [(max(width, size[0] // part), max(height, size[1] // part)) for width, height in (least,)]
    for small in (*copies, least):
        assert small[0] < size[0] / 2
        copy = picture.resize(small, Image.Resampling.BOX)
        off = (preprocess(copy, size) - preprocess(picture)).abs() * torch.tensor(preprocess.std)[:, None, None] * 255
        assert off.mean() < 4
        assert off.max() < 14


def test_a_smaller_copy_shows_the_same_part_as_the_upload():
    # By themselves 1008 by 750 pixels would be resized to another width than 4031 by 3001 are, and cropped elsewhere.
    preprocess = Preprocess((224, 224), (256, 256), interpolation="bilinear")
    assert preprocess._resized(1008, 750) != preprocess._resized(4031, 3001)
    across = np.broadcast_to(np.arange(1008, dtype=np.float32) / 1008 * 255, (750, 1008)).astype(np.uint8)
    copy = Image.fromarray(across).convert("RGB")
    left, _, right, _ = preprocess.geometry(4031, 3001).box
    row = preprocess(copy, (4031, 3001))[0, 112] * preprocess.std[0] + preprocess.mean[0]
    expected = (left + (np.arange(224) + 0.5) / 224 * (right - left)) / 4031
    assert np.abs(row.numpy() - expected).max() < 1.5 / 255


@pytest.mark.parametrize(
    ("preprocess", "size", "expected"),
    [
        (Preprocess((224, 224), (256, 256)), (4000, 3000), (682, 512)),
        (Preprocess((224, 224), (256, 256)), (600, 400), (600, 400)),
        (Preprocess((224, 224), (256, 256), interpolation="nearest"), (4000, 3000), (4000, 3000)),
        (Preprocess((224, 224), (256, 256)), (1, 100_000), (1, 100_000)),
        (Preprocess((224, 224), (224, 224), resize="longer"), (4000, 3000), (448, 336)),
    ],
)
def test_a_smaller_copy_has_twice_the_pixels_of_the_resized_picture(preprocess, size, expected):
    assert preprocess.least(*size) == expected


def test_the_input_of_a_smaller_copy_of_a_strip_is_its_middle():
    preprocess = Preprocess((64, 64), (72, 72))
    strip = Image.fromarray(np.repeat(np.linspace(0, 255, 4000).astype(np.uint8)[:, None], 30, axis=1)).convert("RGB")
    copy = strip.resize((15, 2000), Image.Resampling.BOX)
    assert torch.allclose(preprocess(copy, strip.size), preprocess(strip), atol=0.03)
