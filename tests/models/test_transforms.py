"""The preprocessing that is read from transforms: the same input as the transform's, or an error."""

import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from seewhy import explain, wrap_model
from seewhy.models import ModelError
from seewhy.models.preprocess import Preprocess
from seewhy.models.transforms import preprocess_of
from tests import nets

T = torchvision.transforms
NORMALIZE = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
EVALUATION = {
    "torchvision": T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), NORMALIZE]),
    "a preset of weights": torchvision.models.ResNet18_Weights.DEFAULT.transforms(),
    "exact": T.Compose([T.Resize((24, 32), T.InterpolationMode.BICUBIC), T.ToTensor(), NORMALIZE]),
    "without a normalisation": T.Compose([T.Resize(32), T.CenterCrop((32, 16)), T.ToTensor()]),
    "of tensors": v2.Compose([v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]),
    "nested": T.Compose([T.Compose([T.Resize(40), T.CenterCrop(32)]), T.ToTensor(), NORMALIZE]),
    "timm": timm.data.create_transform((3, 32, 32), interpolation="bicubic", crop_pct=0.8),
}


@pytest.mark.parametrize("name", EVALUATION)
@pytest.mark.parametrize("size", [(90, 70), (50, 120)])
def test_the_input_is_that_of_the_transform(name, size):
    transform = EVALUATION[name]
    preprocess = preprocess_of(transform)
    picture = Image.effect_noise(size, 80).convert("RGB")
    near = 0.01 if name == "of tensors" else 1e-6
    assert torch.allclose(preprocess(picture), transform(picture), rtol=0, atol=near)


class Inverted:
    transforms = EVALUATION["torchvision"].transforms

    def __call__(self, picture):
        return -EVALUATION["torchvision"](picture)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([T.RandomResizedCrop(32), T.ToTensor()], "RandomResizedCrop is random"),
        ([T.Resize(32), T.CenterCrop(32), T.ToTensor(), nn.Identity()], "custom step, Identity"),
        ([T.Resize(32), T.ToTensor()], r"the shorter side.*`Resize\(\(32, 32\)\)`, or `Resize\(32\)` and `Cent"),
        ([T.ToTensor()], r"no `Resize`.*`Resize\(\(224, 224\)\)`"),
        ([T.CenterCrop(32), T.ToTensor()], "the step CenterCrop"),
        ([T.Resize(32), T.CenterCrop(32), T.Pad(2), T.ToTensor()], "the step Pad"),
        ([T.Resize(32), T.CenterCrop(32)], r"not return a tensor; add `ToTensor\(\)`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_laid_back_is_refused(steps, reason):
    with pytest.raises(ModelError, match=reason):
        preprocess_of(T.Compose(steps))


def test_a_transform_that_does_something_else_than_its_steps_is_refused():
    with pytest.raises(ModelError, match="numbers differ from those of its steps"):
        preprocess_of(Inverted())


def test_a_model_is_wrapped_with_its_transform():
    net = nets.seeded(nets.Net)
    model = wrap_model(net, transform=EVALUATION["torchvision"])
    assert model.preprocess == Preprocess((32, 32), (40, 40), mean=NORMALIZE.mean, std=NORMALIZE.std)
    assert explain(model, Image.effect_noise((60, 50), 80)).heatmap.shape == (50, 60)
    with pytest.raises(ModelError, match="not both"):
        wrap_model(net, transform=EVALUATION["torchvision"], resize=40)


def test_a_transform_of_files_that_are_grey_says_what_is_missing():
    steps = [T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize((0.5,), (0.25,))]
    with pytest.raises(ModelError, match=r"begin it with `Grayscale\(\)`"):
        preprocess_of(T.Compose(steps))


def test_grey_networks_see_grey():
    preprocess = preprocess_of(
        T.Compose([T.Grayscale(), T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize((0.5,), (0.25,))])
    )
    picture = Image.effect_noise((90, 70), 80).convert("RGB")
    assert preprocess(picture).shape == (1, 32, 32)
    levels = T.functional.to_tensor(picture.convert("L").resize((51, 40), Image.Resampling.BILINEAR))
    assert torch.allclose(preprocess(picture), (T.functional.center_crop(levels, 32) - 0.5) / 0.25, atol=1e-6)
