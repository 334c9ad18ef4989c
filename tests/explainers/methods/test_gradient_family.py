"""What holds for every method made of gradients at many pictures."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers import Explainer
from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.execution import chunks as room
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.methods.gradient import xrai
from seewhy.explainers.methods.gradient.input_gradient import InputXGradient, SmoothGrad, VarGrad
from seewhy.explainers.methods.gradient.integrated import ExpectedGradients, IntegratedGradients
from seewhy.explainers.methods.gradient.paths import BlurIG, GuidedIG
from seewhy.explainers.methods.gradient.xrai import XRAI
from seewhy.models import LoadedModel
from tests import nets
from tests.grids import few

EXAMPLES = Path(__file__).parents[3] / "examples"

FEW: dict[str, Explainer] = {
    "input-x-gradient": InputXGradient(),
    "smoothgrad": SmoothGrad(samples=5),
    "vargrad": VarGrad(samples=5),
    "integrated-gradients": IntegratedGradients(steps=5),
    "expected-gradients": ExpectedGradients(samples=6),
    "blur-ig": BlurIG(steps=5),
    "guided-ig": GuidedIG(steps=5),
    "xrai": XRAI(steps=3),
}
RANDOM = {name: explainer for name, explainer in FEW.items() if hasattr(explainer, "seed")}
LINEAR = {name: FEW[name] for name in ("input-x-gradient", "integrated-gradients", "expected-gradients", "blur-ig")}

TARGETS, OTHERS = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 2])


@pytest.fixture
def net() -> nn.Module:
    return nets.seeded(nets.Stochastic)


@pytest.fixture
def pictures(generator: torch.Generator, monkeypatch) -> Tensor:
    monkeypatch.setattr(xrai, "SIDE", 48)  # of the pictures that XRAI segments, which takes most of its time
    return torch.randn(3, 3, 18, 26, generator=generator)


def changed(explainer: Explainer, **options: object) -> Explainer:
    return type(explainer)(**{**vars(explainer), **options})


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_a_batch_of_mixed_targets_equals_singles(explainer, net, pictures, untouched):
    together = explainer.explain(untouched(net), pictures, TARGETS)
    assert together.maps.shape == (3, 18, 26)
    assert together.maps.dtype == torch.float32
    assert together.layers == ()
    assert nets.relative_error(together.logits, net(pictures).detach()) < 1e-5
    for row, target in enumerate(TARGETS):
        alone = explainer.explain(net, pictures[row : row + 1], target[None])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-4


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_passes_of_one_row_give_the_same_map(explainer, net, pictures, monkeypatch):
    expected = explainer.explain(net, pictures, TARGETS).maps
    monkeypatch.setattr(room, "MEMORY", 1)
    told: list[tuple[int, int]] = []
    rows: list[int] = []
    with net.register_forward_pre_hook(lambda _, args: rows.append(len(args[0]))):
        found = explainer.explain(
            net, pictures, TARGETS, progress=Progress(report=lambda *pair: told.append(pair))
        ).maps
    assert nets.relative_error(found, expected) < 1e-4
    if not isinstance(explainer, InputXGradient):
        assert rows == [1] * len(rows)
        total = told[0][1]
        assert list(dict.fromkeys(told)) == [(number, total) for number in range(total + 1)]
        assert total == len(rows) - 3


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_modes_contexts_and_layouts_do_not_matter(explainer, net, pictures, untouched):
    expected = explainer.explain(net, pictures, TARGETS).maps
    untouched(net.train().requires_grad_(False))
    assert torch.equal(explainer.explain(net, pictures, TARGETS).maps, expected)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(explainer.explain(net, pictures.clone(), TARGETS.clone()).maps, expected)
    last = explainer.explain(net, pictures.to(memory_format=torch.channels_last), TARGETS).maps
    assert nets.relative_error(last, expected) < 1e-4


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_precision(explainer, net, pictures):
    expected = explainer.explain(net, pictures, TARGETS).maps
    double = explainer.explain(nets.seeded(nets.Stochastic).double(), pictures.double(), TARGETS)
    half = explainer.explain(nets.seeded(nets.Stochastic).bfloat16(), pictures, TARGETS)
    assert [double.maps.dtype, half.maps.dtype, half.logits.dtype] == [torch.float32] * 3
    assert nets.relative_error(double.maps, expected) < 1e-3
    correlation = torch.corrcoef(torch.stack((half.maps.flatten(), expected.flatten())))[0, 1]
    assert correlation > 0.7


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_contrasts(explainer, net, pictures):
    explainer = changed(explainer, sign="signed")
    plain = explainer.explain(net, pictures, TARGETS)
    contrast = explainer.explain(net, pictures, TARGETS, OTHERS)
    assert torch.equal(contrast.against, OTHERS)
    assert nets.relative_error(contrast.maps, plain.maps) > 0.01
    if explainer in LINEAR.values():
        others = explainer.explain(net, pictures, OTHERS).maps
        assert nets.relative_error(contrast.maps, plain.maps - others) < 1e-4


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_signs_and_smoothing(explainer, net, pictures):
    signed = changed(explainer, sign="signed").explain(net, pictures, TARGETS).maps
    assert torch.equal(changed(explainer, sign="positive").explain(net, pictures, TARGETS).maps, signed.clamp_min(0))
    assert torch.equal(changed(explainer, sign="absolute").explain(net, pictures, TARGETS).maps, signed.abs())
    for smooth in ("eigen", "tta"):
        found = changed(explainer, sign="signed", smooth=smooth).explain(net, pictures, TARGETS).maps
        assert found.shape == signed.shape
        assert nets.relative_error(found, signed) > 1e-3


@pytest.mark.parametrize("explainer", RANDOM.values(), ids=RANDOM)
def test_seeds(explainer, net, pictures):
    state = torch.get_rng_state()
    first, again = (explainer.explain(net, pictures, TARGETS).maps for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert nets.relative_error(changed(explainer, seed=1).explain(net, pictures, TARGETS).maps, first) > 0.01
    assert torch.isfinite(changed(explainer, seed=2**63 - 1).explain(net, pictures, TARGETS).maps).all()


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_a_model_without_gradients_is_refused(explainer, pictures, untouched):
    net = untouched(nets.Wrapped(nets.seeded(nets.Net), torch.detach))
    with pytest.raises(ModelOutputError, match="No gradient flows"):
        explainer.explain(net, pictures)


@pytest.mark.parametrize("explainer", FEW.values(), ids=FEW)
def test_a_model_that_writes_into_its_input_is_explained_like_another(explainer, net, pictures):
    class WritesIntoInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: Tensor) -> Tensor:
            return self.net(images.mul_(2))

    class Copies(WritesIntoInput):
        def forward(self, images: Tensor) -> Tensor:
            return self.net(images * 2)

    found, expected = (explainer.explain(kind().eval(), pictures, TARGETS).maps for kind in (WritesIntoInput, Copies))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", FEW)
def test_costs_are_those_of_the_catalogue(name, net, pictures, monkeypatch):
    FEW[name].explain(net, pictures, TARGETS)  # finds how much memory a pass takes
    passed = {"forwards": 0, "backwards": 0}

    def count(which: str, rows: int) -> None:
        passed[which] += rows

    gradient = torch.autograd.grad

    def counted(score: Tensor, leaf: Tensor, **more: bool) -> tuple[Tensor, ...]:
        count("backwards", len(leaf))
        return gradient(score, leaf, **more)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    with net.register_forward_pre_hook(lambda _, args: count("forwards", len(args[0]))):
        FEW[name].explain(net, pictures, TARGETS)
    for which, rows in passed.items():
        assert rows == 3 * eval(getattr(METHODS[name], which), {}, vars(FEW[name]))


def test_the_methods_are_in_the_catalogue():
    for name, explainer in FEW.items():
        assert METHODS[name].explainer is type(explainer)
        assert METHODS[name].build({}) == type(explainer)()


@pytest.mark.parametrize("name", few(FEW, short=["input-x-gradient", "integrated-gradients"]))
def test_coffee_beside_a_cat_is_on_the_right(name, lite0: LoadedModel):
    picture = Image.new("RGB", (448, 448))
    for place, file in enumerate(("cat.png", "coffee.png")):
        with Image.open(EXAMPLES / file) as image:
            picture.paste(image.convert("RGB").resize((224, 448)), (224 * place, 0))
    images = lite0.preprocess(picture)[None].expand(2, -1, -1, -1)
    targets = torch.tensor([lite0.labels.index(label) for label in ("espresso", "tabby")])
    maps = FEW[name].explain(lite0, images, targets).maps.abs()
    assert torch.isfinite(maps).all()
    right = maps[:, :, 112:].sum(dim=(1, 2)) / maps.sum(dim=(1, 2))
    assert right[0] > 0.55
    assert right[0] > right[1] + 0.1
