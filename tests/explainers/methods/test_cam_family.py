"""What all class activation maps have in common, whatever their equation."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.core.task import Ask
from seewhy.explainers.methods.shared_pass import explain_together
from tests import nets

EXAMPLES = Path(__file__).parents[3] / "examples"

PLAIN = ["eigencam", "kpcacam", "fem", "random"]
"""Those that look at no class."""

DISCRIMINATING = [
    "cam",
    "gradcam++",
    "smoothgradcam++",
    "xgradcam",
    "hirescam",
    "gradcam-elementwise",
    "layercam",
    "eigengradcam",
    "finercam",
    "shapleycam",
    "refinecam",
]

METHODS = [*DISCRIMINATING, *PLAIN]

FEW = {"smoothgradcam++": {"samples": 3}}

TARGETS, OTHERS = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2])


def built(name: str, **options: object):
    if name == "refinecam" and options.get("sign") == "signed":
        options["sign"] = "positive"
    return get_method(name).build({**FEW.get(name, {}), **options})


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(Rectified)


class Rectified(nn.Module):
    """Two convolutions, ReLU, global mean, linear head; the rectified features are a module's output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(self.stem(images)).mean(dim=(2, 3)))


@pytest.fixture
def pictures() -> Tensor:
    return torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_mixed_targets_equals_singles(name, net, pictures, untouched):
    explainer = built(name, layers=("conv",), sign="signed")
    together = explainer.explain(untouched(net), pictures, TARGETS)
    assert together.maps.shape == (3, 6, 10)
    assert together.maps.dtype == torch.float32
    assert float(together.maps.abs().amax(dim=(1, 2)).min()) > 0
    for row in range(3):
        alone = explainer.explain(net, pictures[row : row + 1], TARGETS[row : row + 1])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_only_the_methods_that_claim_it_tell_classes_apart(name, net, pictures):
    explainer = built(name, layers=("conv",), sign="signed")
    one, other = (explainer.explain(net, pictures, classes).maps for classes in (TARGETS, OTHERS))
    assert torch.equal(one, other) is not get_method(name).discriminates
    assert get_method(name).discriminates is (name in DISCRIMINATING)


@pytest.mark.parametrize("name", METHODS)
def test_frozen_training_and_channels_last_modules_give_the_same_map(name, net, pictures, untouched):
    explainer = built(name, layers=("conv",))
    expected = explainer.explain(net, pictures, TARGETS).maps
    untouched(net.train().requires_grad_(False).to(memory_format=torch.channels_last))
    with torch.inference_mode():
        found = explainer.explain(net, pictures.to(memory_format=torch.channels_last), TARGETS).maps
    assert nets.relative_error(found.clone(), expected) < 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_other_precisions(name, net, pictures):
    explainer = built(name, layers=("conv",), sign="signed")
    expected = explainer.explain(net, pictures, TARGETS)
    double = explainer.explain(nets.seeded(Rectified).double(), pictures.double(), TARGETS)
    assert double.maps.dtype == torch.float32
    assert nets.relative_error(double.maps, expected.maps) < 1e-3
    half = explainer.explain(nets.seeded(Rectified).bfloat16(), pictures.bfloat16(), TARGETS)
    assert [half.maps.dtype, half.logits.dtype] == [torch.float32, torch.float32]
    # Which features stand out is a matter of rounding.
    assert name == "fem" or nets.relative_error(half.maps, expected.maps) < 0.1


@pytest.mark.parametrize("smooth", ["eigen", "tta"])
@pytest.mark.parametrize("name", METHODS)
def test_contrasts_and_smoothing_compose(name, smooth, net, pictures):
    found = built(name, layers=("conv", "stem") if name != "cam" else ("conv",), smooth=smooth).explain(
        net, pictures, TARGETS, OTHERS
    )
    assert torch.equal(found.against, OTHERS)
    assert float(found.maps.amax()) > 0
    assert float(found.maps.amin()) >= 0


@pytest.mark.parametrize("name", ["cam", "xgradcam", "hirescam"])
def test_linear_methods_contrast_by_the_difference_of_two_maps(name, net, pictures):
    explainer = built(name, layers=("conv",), sign="signed")
    one, other = (explainer.explain(net, pictures, classes).maps for classes in (TARGETS, OTHERS))
    contrast = explainer.explain(net, pictures, TARGETS, OTHERS).maps
    assert nets.relative_error(contrast, one - other) < 1e-5


@pytest.mark.parametrize("name", ["cam", *PLAIN])
def test_methods_of_activations_run_no_backward_pass(name, net, pictures, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("A backward pass.")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    explainer = built(name, layers=("conv",))
    assert explainer.uses_gradients is False
    assert get_method(name).backwards == "0"
    explainer.explain(net, pictures, TARGETS)
    seen: list[bool] = []
    handle = net.conv.register_forward_hook(lambda module, args, output: seen.append(torch.is_grad_enabled()))
    explainer.explain(net, pictures, TARGETS)
    handle.remove()
    assert seen == [False]


@pytest.mark.parametrize("name", METHODS)
def test_methods_together_are_the_methods_alone(name, net, pictures):
    explainers = (built(name, layers=("conv",)), built("hirescam", layers=("conv",)))
    together = explain_together(explainers, net, pictures, Ask(TARGETS))
    for explainer, found in zip(explainers, together, strict=True):
        assert torch.equal(found.maps, explainer.explain(net, pictures, TARGETS).maps)


@pytest.fixture(scope="module")
def both(lite0) -> Tensor:
    """A cat on the left and a cup of coffee on the right."""
    picture = Image.new("RGB", (224, 224))
    for place, name in enumerate(("cat", "coffee")):
        with Image.open(EXAMPLES / f"{name}.png") as half:
            picture.paste(ImageOps.fit(half.convert("RGB"), (112, 224)), (112 * place, 0))
    return lite0.preprocess(picture)[None]


@pytest.mark.parametrize("name", METHODS)
def test_espresso_is_on_the_right(name, lite0, both):
    found = built(name).explain(lite0, both, torch.tensor([967])).maps[0]
    assert float(found.max()) > 0
    if get_method(name).discriminates:
        assert float(found[:, found.shape[1] // 2 :].sum()) > 0.6 * float(found.sum())
