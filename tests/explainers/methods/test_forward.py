"""What the CAMs of many forward passes have in common: Score-CAM and its relatives, Ablation-CAM, Recipro-CAM."""

from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers import get_method
from seewhy.explainers.core.explainer import AUGMENTATIONS, Explainer
from seewhy.explainers.errors import LayerError, ModelOutputError, NonFiniteError, TargetError
from seewhy.explainers.execution import chunks as room
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.cam.base import fuse
from seewhy.models import LoadedModel
from tests import nets

EXAMPLES = Path(__file__).parents[3] / "examples"
OPTIONS = {
    "scorecam": {},
    "sscam": {"samples": 2, "std": 0.3},
    "iscam": {"samples": 3},
    "ablationcam": {},
    "recipro-cam": {},
}
TARGETS = torch.tensor([0, 2, 1, 1])


def made(name: str, *layers: str, **options) -> Explainer:
    return get_method(name).build({"layers": layers, **OPTIONS[name], **options})


@pytest.fixture(params=OPTIONS)
def name(request) -> str:
    return request.param


@pytest.fixture
def pictures(images: Tensor) -> Tensor:
    return images[:, :, :16, :24].clone()


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(nets.InPlaceModule)


def test_a_batch_of_mixed_targets_equals_singles(name, resnet18, images, untouched):
    cam = made(name, "layer1.0.conv1" if "recipro" not in name else "layer3", sign="signed")
    images, targets = images[:2, :, :32, :48], torch.tensor([3, 999])
    together = cam.explain(untouched(resnet18), images, targets)
    assert together.maps.shape[1:] == ((8, 12) if "recipro" not in name else (2, 3))
    assert together.maps.abs().amax(dim=(1, 2)).min() > 0
    for row, target in enumerate(targets):
        alone = cam.explain(resnet18, images[row : row + 1], target[None])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-3
        assert nets.relative_error(together.logits[row], alone.logits[0]) < 1e-5


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_passes_of_all_sizes_give_the_same_map(name, size, net, pictures, monkeypatch):
    cam = made(name, "relu", sign="signed")
    expected = cam.explain(net, pictures, TARGETS).maps
    monkeypatch.setattr(room, "MOST", size)
    rows: list[int] = []
    handle = net.head.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    found = cam.explain(net, pictures, TARGETS).maps
    handle.remove()
    assert nets.relative_error(found, expected) < 1e-4
    assert max(rows[1:]) <= (max(size, 2) if name in ("ablationcam", "recipro-cam") else size)


def test_the_same_answer_comes_twice(name, net, pictures):
    state = torch.random.get_rng_state()
    cam = made(name, "relu")
    assert torch.equal(cam.explain(net, pictures, TARGETS).maps, cam.explain(net, pictures, TARGETS).maps)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_modes_flags_and_gradient_modes_do_not_matter(name, pictures, untouched):
    net = nets.seeded(nets.Stochastic)
    cam = made(name, "conv", sign="signed")
    expected = cam.explain(net, pictures, TARGETS).maps
    assert expected.abs().amax() > 0
    untouched(net.train().requires_grad_(False))
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            inside = pictures.clone()
            assert torch.equal(cam.explain(net, inside, TARGETS).maps, expected)
            assert torch.equal(inside, pictures)


def test_a_parameter_and_a_picture_that_need_gradients_get_none(name, net, pictures):
    leaf = pictures.clone().requires_grad_()
    made(name, "relu").explain(net, leaf)
    assert leaf.grad is None
    assert all(value.grad is None for value in net.parameters())


def test_precisions(name, net, pictures, untouched):
    cam = made(name, "relu")
    expected = cam.explain(net, pictures, TARGETS).maps
    found = cam.explain(net.double(), pictures.double(), TARGETS)
    assert found.maps.dtype == torch.float32
    assert nets.relative_error(found.maps, expected) < 1e-3
    untouched(net.bfloat16())
    half = cam.explain(net, pictures.bfloat16(), TARGETS)
    assert [half.maps.dtype, half.logits.dtype] == [torch.float32, torch.float32]
    if name in ("scorecam", "sscam", "iscam"):
        assert nets.relative_error(half.maps, expected) < 0.1
    assert half.maps.amax() > 0


def test_channels_last_gives_the_same_map(name, net, pictures):
    cam = made(name, "relu")
    expected = cam.explain(net, pictures, TARGETS).maps
    net.to(memory_format=torch.channels_last)
    found = cam.explain(net, pictures.to(memory_format=torch.channels_last), TARGETS).maps
    assert nets.relative_error(found, expected) < 1e-4


def test_a_channels_last_layer_gives_the_map_of_its_channels_first_twin(name, generator, untouched):
    swin = untouched(nets.seeded(torchvision.models.SwinTransformer, [4, 4], 16, [1, 1], [2, 2], [4, 4]))
    images, targets = torch.randn(2, 3, 32, 64, generator=generator), torch.tensor([5, 6])
    expected = made(name, "permute").explain(swin, images, targets).maps
    assert expected.shape == (2, 4, 8)
    assert expected.amax() > 0
    assert nets.relative_error(made(name, "norm").explain(swin, images, targets).maps, expected) < 1e-4


def test_several_layers_are_fused(name, net, pictures):
    maps = [made(name, layer).explain(net, pictures, TARGETS).maps for layer in ("stem", "conv")]
    told = []
    found = made(name, "conv", "stem").explain(
        net, pictures, TARGETS, progress=Progress(report=lambda *pair: told.append(pair))
    )
    assert found.layers == ("stem", "conv")
    assert nets.relative_error(found.maps, fuse(maps)) < 1e-5
    parts = [done / total for done, total in told]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0, 1)


def test_a_report_may_end_the_explanation(name, net, pictures, untouched):
    def late(done: int, total: int) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        made(name, "relu").explain(untouched(net), pictures, progress=Progress(report=late))


def test_smoothing_and_signs(name, net, pictures):
    cam = made(name, "conv", smooth="tta", sign="signed")
    plain = made(name, "conv", sign="signed")
    targets = plain.explain(net, pictures).targets
    expected = torch.zeros(4, 8, 12)
    for flip, factor in AUGMENTATIONS:
        maps = plain.explain(net, (pictures.flip(3) if flip else pictures) * factor, targets).maps
        expected += (maps.flip(2) if flip else maps) / len(AUGMENTATIONS)
    assert nets.relative_error(cam.explain(net, pictures).maps, expected) < 1e-4
    signed = plain.explain(net, pictures, TARGETS)
    assert signed.signed
    assert torch.equal(made(name, "conv").explain(net, pictures, TARGETS).maps, signed.maps.clamp_min(0))
    assert torch.equal(made(name, "conv", sign="absolute").explain(net, pictures, TARGETS).maps, signed.maps.abs())
    eigen = made(name, "conv", smooth="eigen", sign="signed").explain(net, pictures, TARGETS).maps
    assert eigen.abs().amax() > 0
    if name == "recipro-cam":
        assert nets.relative_error(eigen, signed.maps) < 1e-5


def test_what_cannot_be_explained_is_refused(name, pictures, untouched):
    net = untouched(nets.seeded(nets.Net))
    for layer, message in (("unused", "runs 0 times"), ("head", "not a grid"), ("konv", "Near matches: conv")):
        with pytest.raises(LayerError, match=message):
            made(name, layer).explain(net, pictures)
    with pytest.raises(LayerError, match="runs 2 times"):
        made(name, "again").explain(untouched(nets.seeded(nets.Twice)), pictures)
    with pytest.raises(TargetError):
        made(name, "conv").explain(net, pictures, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(NonFiniteError):
        made(name, "conv").explain(net, pictures * torch.nan)
    with pytest.raises(ModelOutputError):
        made(name, "net.conv").explain(nets.Wrapped(net, lambda logits: logits.sum()), pictures)


@pytest.fixture(scope="module")
def beside() -> Tensor:
    """A cat on the left half, coffee on the right."""
    both = Image.new("RGB", (192, 96))
    for number, file in enumerate(("cat.png", "coffee.png")):
        with Image.open(EXAMPLES / file) as image:
            both.paste(image.convert("RGB").resize((96, 96)), (96 * number, 0))
    pixels = torch.frombuffer(bytearray(both.tobytes()), dtype=torch.uint8)
    return pixels.view(1, 96, 192, 3).permute(0, 3, 1, 2) / 127.5 - 1


@pytest.mark.parametrize(
    ("name", "layer", "options"),
    [
        ("scorecam", "blocks.3", {}),
        pytest.param("sscam", "blocks.3", {"samples": 1, "std": 0.1}, marks=pytest.mark.slow),
        pytest.param("iscam", "blocks.3", {"samples": 2}, marks=pytest.mark.slow),
        pytest.param("ablationcam", "bn2", {}, marks=pytest.mark.slow),
        ("recipro-cam", "bn2", {}),
    ],
)
def test_the_embedded_model_sees_coffee_on_the_right(name, layer, options, lite0: LoadedModel, beside):
    coffee, cat = (torch.tensor([lite0.labels.index(label)]) for label in ("espresso", "tabby"))
    (found,) = made(name, layer, **options).explain(lite0, beside, coffee, cat).maps
    assert float(found[:, found.shape[1] // 2 :].sum() / found.sum()) > 0.65
    if layer == "bn2":  # the others take long
        (found,) = made(name, layer, **options).explain(lite0, beside, cat).maps
        assert float(found[:, found.shape[1] // 2 :].sum() / found.sum()) < 0.35
