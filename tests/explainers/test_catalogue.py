"""What holds for every method of the catalogue, whatever it computes."""

import gc

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import AUGMENTATIONS, Explainer
from seewhy.explainers.core.objective import NO_CONTRAST
from seewhy.explainers.execution import chunks as passes
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.catalogue import METHODS
from tests import nets

FEW = {"samples": 3, "steps": 4, "masks": 12, "segments": 12, "iterations": 4, "grid": 3, "patch": 8, "stride": 8}
"""Small values of the options that make methods expensive."""

LAYERS = {"cam": ("last",), "dff": ("last",)}
"""Where a method can only be used."""

TARGETS = torch.tensor([0, 3, 2])


class Small(nn.Module):
    """A convolutional net with an in-place, a functional and a repeated ReLU, a skip connection and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Identity()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm(self.stem(images)))
        features = features + torch.nn.functional.relu(self.conv(features))
        return self.head(self.pool(self.last(self.relu(features))).flatten(1))


@pytest.fixture
def net() -> nn.Module:
    net = nets.seeded(Small)
    generator = torch.Generator().manual_seed(1)
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 2
    net.norm.running_mean.uniform_(-0.5, 0.5, generator=generator)
    net.norm.running_var.uniform_(0.5, 2, generator=generator)
    return net.eval().requires_grad_(False)


@pytest.fixture
def wide(generator: torch.Generator) -> Tensor:
    """Three pictures, wider than high."""
    return torch.rand(3, 3, 16, 24, generator=generator) * 2 - 1


def made(name: str, **options: object) -> Explainer:
    """Return a method that is as cheap as can be, at the layer that has a grid."""
    method = METHODS[name]
    given: dict[str, object] = {option: value for option, value in FEW.items() if option in method.options}
    for option, value in given.items():
        schema = method.options[option]
        given[option] = max(value, schema.get("minimum", value))
    if method.takes_layers:
        given["layers"] = LAYERS.get(name, ("conv",))
    return method.build({**given, **options})


def explained(name: str, model: nn.Module, images: Tensor, targets: Tensor | None = TARGETS, **options) -> Attribution:
    return made(name, **options).explain(model, images, targets)


def fullest(name: str) -> str:
    """Return the sign that keeps most of a method's map."""
    return "signed" if "signed" in METHODS[name].options["sign"]["enum"] else "positive"


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == expected.shape
    largest = expected.abs().max()
    assert largest > 0
    assert (found - expected).abs().max() <= tolerance * largest


@pytest.mark.parametrize("name", METHODS)
def test_maps_are_finite_and_of_the_pictures_proportions(name, net, wide, untouched):
    found = explained(name, untouched(net), wide)
    count, rows, columns = found.maps.shape
    assert count == 3
    # Perturbations may use a square grid over any picture.
    assert abs(columns - rows * 24 / 16) <= 1.5 or METHODS[name].family == "perturbation"
    assert found.maps.dtype == torch.float32
    assert found.maps.isfinite().all()
    assert torch.equal(found.targets, TARGETS)
    torch.testing.assert_close(found.logits, net(wide), rtol=1e-4, atol=1e-5)
    assert found.layers == (LAYERS.get(name, ("conv",)) if METHODS[name].takes_layers else ())
    assert found.signed is METHODS[name].signed
    assert found.signed or (found.maps >= 0).all()
    signed = explained(name, net, wide, sign=fullest(name)).maps
    assert (signed != 0).any()


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_mixed_targets_is_as_its_pictures_alone(name, net, wide):
    whole = explained(name, net, wide, sign=fullest(name)).maps
    alone = [explained(name, net, wide[i : i + 1], TARGETS[i : i + 1], sign=fullest(name)).maps for i in range(3)]
    close(torch.cat(alone), whole)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_question_has_the_same_answer_to_the_bit(name, net, wide):
    first, second = (explained(name, net, wide).maps for _ in range(2))
    assert torch.equal(first, second)
    assert made(name) == made(name)
    assert hash(made(name)) == hash(made(name))


class InPlace(Small):
    """As much as possible is done in place."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm(self.stem(images)))
        more = torch.nn.functional.relu6(self.conv(features), inplace=True)
        more += features
        return self.head(self.pool(self.last(self.relu(more))).flatten(1))


@pytest.mark.parametrize("name", METHODS)
def test_nothing_of_an_answer_stays_in_memory(name, wide):
    net = nets.seeded(InPlace).eval().requires_grad_(False)
    left = []
    gc.freeze()  # what other tests hold is not looked through again and again
    try:
        for _ in range(3):
            explained(name, net, wide)
            gc.collect()
            left.append(sum(issubclass(type(one), Tensor) for one in gc.get_objects()))
    finally:
        gc.unfreeze()
    assert left[1] == left[2]


EXACT = ("kernel-shap",)
"""Methods that need no random numbers for so few superpixels."""


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if "seed" in method.options and name not in EXACT]
)
def test_another_seed_has_another_answer(name, net, wide):
    first, second = (explained(name, net, wide, sign=fullest(name), seed=seed).maps for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", METHODS)
def test_mode_parameters_and_memory_format_do_not_matter(name, net, wide, untouched):
    expected = explained(name, net, wide, sign=fullest(name)).maps
    trainable = nets.seeded(Small)
    trainable.load_state_dict(net.state_dict())
    trainable.train().requires_grad_(True)
    untouched(trainable)
    with torch.no_grad():
        close(explained(name, trainable, wide, sign=fullest(name)).maps, expected)
    with torch.inference_mode():
        close(explained(name, net, wide.clone(), sign=fullest(name)).maps, expected)
    last = net.to(memory_format=torch.channels_last)
    close(explained(name, last, wide.to(memory_format=torch.channels_last), sign=fullest(name)).maps, expected)


@pytest.mark.parametrize("name", METHODS)
def test_half_and_double_precision(name, net, wide):
    expected = explained(name, net, wide, sign=fullest(name)).maps
    double = explained(name, net.double(), wide.double(), sign=fullest(name)).maps
    assert double.dtype == torch.float32
    close(expected, double, 1e-2)
    half = explained(name, net.bfloat16(), wide, sign=fullest(name)).maps
    assert half.dtype == torch.float32
    assert half.isfinite().all()


@pytest.mark.parametrize("smooth", ["eigen", "tta"])
@pytest.mark.parametrize(
    "name", [name for name in METHODS if name != "xrai"] + [pytest.param("xrai", marks=pytest.mark.slow)]
)
def test_smoothing_and_contrasts_compose(name, smooth, net, wide):
    found = made(name, smooth=smooth).explain(net, wide, TARGETS, torch.tensor([1, 1, 0]))
    assert found.maps.isfinite().all()
    assert torch.equal(found.against, torch.tensor([1, 1, 0]))
    contrasted = made(name, sign=fullest(name)).explain(net, wide, TARGETS, torch.tensor([1, 1, 0])).maps
    plain = explained(name, net, wide, sign=fullest(name)).maps
    if METHODS[name].discriminates:
        assert not torch.allclose(contrasted, plain)


@pytest.mark.parametrize("name", METHODS)
def test_fine_maps_have_a_value_for_each_pixel(name, net, wide):
    options = {"layers": ()} if name == "excitation-backprop" else {}
    found = explained(name, net, wide, **options).maps
    assert (found.shape[1:] == wide.shape[2:]) is METHODS[name].fine


SHOWING = {
    *("smoothgradcam++", "scorecam", "sscam", "iscam", "smoothgrad", "vargrad", "integrated-gradients", "blur-ig"),
    *("expected-gradients", "guided-ig", "occlusion", "rise", "extremal-perturbation"),
}
"""The methods of many passes whose maps can be seen to grow."""


@pytest.mark.parametrize("name", METHODS)
def test_maps_are_shown_as_they_grow(name, net, wide, monkeypatch):
    monkeypatch.setattr(passes, "MOST", 2)
    seen: list[Tensor] = []
    shown = made(name, sign=fullest(name)).explain(
        net, wide, TARGETS, progress=Progress(show=lambda maps: seen.append(maps().clone()))
    )
    expected = explained(name, net, wide, sign=fullest(name)).maps
    close(shown.maps, expected)
    assert (name in SHOWING) is bool(seen)
    if name not in SHOWING:
        return
    assert len(seen) > 1
    assert not torch.equal(seen[0], seen[-1])
    assert all(maps.shape == expected.shape and maps.isfinite().all() for maps in seen)
    close(seen[-1], expected)


def test_augmented_maps_are_shown_as_they_grow(net, wide):
    seen: list[Tensor] = []
    found = made("rise", smooth="tta").explain(
        net, wide, TARGETS, progress=Progress(show=lambda maps: seen.append(maps()))
    )
    assert len(seen) == len(AUGMENTATIONS) - 1
    first = made("rise").explain(net, wide, TARGETS).maps
    close(seen[0], first)
    assert not torch.allclose(found.maps, first)


@pytest.mark.parametrize("name", METHODS)
def test_pictures_with_and_without_a_contrast_share_a_batch(name, net, wide):
    mixed = made(name, sign=fullest(name)).explain(net, wide, TARGETS, torch.tensor([1, NO_CONTRAST, 0]))
    contrasted = made(name, sign=fullest(name)).explain(net, wide, TARGETS, torch.tensor([1, 1, 0])).maps
    plain = explained(name, net, wide, sign=fullest(name)).maps
    close(mixed.maps, torch.stack([contrasted[0], plain[1], contrasted[2]]))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].takes_layers and name not in LAYERS])
def test_several_layers_are_fused(name, net, wide):
    found = explained(name, net, wide, layers=("stem", "conv"))
    assert found.layers == ("stem", "conv")
    assert found.maps.shape in ((3, 8, 12), (3, 16, 24))  # of the layers, or of the picture
    assert found.maps.isfinite().all()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "samples" in method.options])
def test_many_passes_report_and_can_be_ended(name, net, wide, untouched, monkeypatch):
    from seewhy.explainers.execution import chunks as passes

    monkeypatch.setattr(passes, "MOST", 1)

    class EndedError(Exception):
        pass

    told: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 2:
            raise EndedError

    with pytest.raises(EndedError):
        made(name).explain(untouched(net), wide, TARGETS, progress=Progress(report=report))
    assert told[0][0] < told[1][0] <= told[1][1]
