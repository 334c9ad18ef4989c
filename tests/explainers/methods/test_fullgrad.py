import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from explainers import passes
from explainers.base import AUGMENTATIONS, asked
from explainers.errors import LayerError
from explainers.methods.fullgrad import FullGrad, FullGradients, full_gradients
from tests import nets
from tests.explainers.methods.test_cam_family import both  # noqa: F401

TARGETS = torch.tensor([7, 999, 0, 7])


def decomposed(model: nn.Module, images: Tensor, targets: Tensor, against: Tensor | None = None) -> FullGradients:
    with asked(model, images, targets, against) as question:
        return full_gradients(question)


def biased(name: str) -> nn.Module:
    """Return a stock model whose biases and running statistics are not those of an untrained one, which are zero."""
    model = nets.seeded(torchvision.models.get_model, name)
    generator = torch.Generator().manual_seed(0)
    for key, value in model.state_dict().items():
        if key.endswith(("bias", "running_mean")):
            value.copy_(torch.randn(value.shape, generator=generator) / 5)
        elif key.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return model


def test_terms_by_hand(untouched):
    """y = 3 relu(2 x + 1) - 4 relu(-x + 2) at x = 1 and x = -1, then 5 y + 6."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1, bias=False), nn.Flatten(), nn.Linear(2, 2))
    net[0].weight.data, net[0].bias.data = torch.tensor([2.0, -1.0]).view(2, 1, 1, 1), torch.tensor([1.0, 2.0])
    net[2].weight.data = torch.tensor([3.0, -4.0]).view(1, 2, 1, 1)
    net[4].weight.data, net[4].bias.data = torch.tensor([[5.0, 5.0], [0.0, 0.0]]), torch.tensor([6.0, 0.0])
    found = decomposed(untouched(net), torch.tensor([[[[1.0, -1.0]]]]), torch.tensor([0]))
    terms = dict(found.terms)
    # The gradients are 5 (6 + 4) and, where the first ReLU is off, 5 * 4.
    assert terms[""].tolist() == [[[[50.0, -20.0]]]]
    assert terms["0"].tolist() == [[[[15.0, 0.0]], [[-40.0, -40.0]]]]
    assert terms["4"].tolist() == [[6.0, 0.0]]
    assert set(terms) == {"", "0", "4"}
    assert float(found.logits[0, 0]) == 50 - 20 + 15 - 80 + 6


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "densenet121",
        "mobilenet_v2",
        "squeezenet1_1",
        "efficientnet_b0",  # SiLU, gates
        "mobilenet_v3_small",  # hard swish, gates
        "convnext_tiny",  # GELU, layer norm
    ],
)
def test_the_terms_add_up_to_the_logit(name, images, untouched):
    model = untouched(biased(name))
    for against in (None, torch.tensor([1, 2])):
        found = decomposed(model, images[:2], TARGETS[:2], against)
        total = sum(term.double().flatten(1).sum(dim=1) for _, term in found.terms)
        scores = found.goal.scores(found.logits).double()
        size = sum(term.double().flatten(1).sum(dim=1).abs() for _, term in found.terms)
        assert float(((total - scores) / size).abs().max()) < 1e-4
        (picture,) = (term for path, term in found.terms if path == "")
        assert float((picture.double().flatten(1).sum(dim=1) - scores).abs().max()) > 0.01 * float(size.max())


def test_terms_of_a_bias_sum_to_it_times_its_gradient(images):
    model = nets.seeded(nets.Stochastic)
    found = dict(decomposed(model, images[:1], torch.tensor([1])).terms)
    biases = [model.stem.bias, model.conv.bias, model.norm.bias, model.head.bias]
    gradients = torch.autograd.grad(model(images[:1])[0, 1], biases)
    for path, bias, gradient in zip(("stem", "conv", "norm", "head"), biases, gradients, strict=True):
        expected = (
            bias
            if path != "norm"
            else bias - model.norm.running_mean * model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
        )
        channels = found[path][0].sum(dim=(1, 2)) if path != "head" else found[path][0]
        torch.testing.assert_close(channels, (expected * gradient).detach(), rtol=1e-4, atol=1e-6)


def test_the_implicit_bias_of_batch_norm_counts_its_running_mean(images):
    model = nets.seeded(nets.Stochastic)
    model.norm.running_mean = torch.arange(5.0)
    model.norm.running_var = torch.arange(1.0, 6.0)
    found = decomposed(model, images, torch.tensor([0, 1, 2, 0]))
    assert float(found.missing.abs().max()) < 1e-6
    gradients = [term for path, term in found.terms if path == "norm"]
    assert len(gradients) == 1
    assert gradients[0].shape == (4, 5, 32, 32)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.conv(images).sigmoid()


def test_a_module_that_does_more_than_its_parts_is_taken_as_a_whole(images):
    net = nn.Sequential(nn.Conv2d(3, 3, 3), Gate(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    found = decomposed(net.eval(), images, torch.tensor([0, 1, 0, 1]))
    assert [path for path, _ in found.terms] == ["", "0", "4", "1"]
    assert float(found.missing.abs().max()) < 1e-5


def test_a_module_that_runs_twice_has_two_terms(images):
    found = decomposed(nets.seeded(nets.Twice), images, torch.tensor([0, 1, 2, 0]))
    assert [path for path, _ in found.terms].count("again") == 2
    assert float(found.missing.abs().max()) < 1e-5


def test_a_model_that_adds_outside_its_modules_is_refused(images, untouched):
    net = untouched(nets.Wrapped(nets.seeded(nets.Net), lambda logits: logits + 1))
    with pytest.raises(LayerError, match="do not add up to the score"):
        FullGrad().explain(net, images)
    with pytest.raises(LayerError, match="No gradient flows"):
        FullGrad().explain(nets.Wrapped(nets.seeded(nets.Net), torch.detach), images)


def test_the_signed_map_sums_to_the_score_less_what_has_no_position(images, untouched):
    model = untouched(biased("resnet18"))
    found = FullGrad(sign="signed").explain(model, images, TARGETS)
    terms = dict(decomposed(model, images, TARGETS).terms)
    assert float(terms["layer4.1.bn2"].abs().max()) > 1e-3
    expected = found.logits[range(4), TARGETS] - model.fc.bias[TARGETS]
    torch.testing.assert_close(found.maps.sum(dim=(1, 2)), expected, rtol=1e-3, atol=1e-3)
    assert found.maps.shape == (4, 64, 64)
    assert found.layers == ()
    positive = FullGrad(sign="positive").explain(model, images, TARGETS).maps
    assert torch.equal(positive, found.maps.clamp_min(0))


@pytest.mark.parametrize("smooth", ["none", "tta"])
def test_the_signed_map_of_layers_larger_than_the_picture_sums_to_the_score(smooth, generator):
    net = nets.seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1, padding=6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3, bias=False),
        )
    )
    pictures, targets = torch.randn(2, 3, 20, 23, generator=generator), torch.tensor([0, 2])
    found = FullGrad(sign="signed", smooth=smooth).explain(net, pictures, targets)
    changed = AUGMENTATIONS if smooth == "tta" else [(False, 1.0)]
    scores = [net((pictures.flip(3) if flip else pictures) * factor)[range(2), targets] for flip, factor in changed]
    expected = torch.stack(scores).mean(dim=0).detach()
    torch.testing.assert_close(found.maps.sum(dim=(1, 2)), expected, rtol=1e-4, atol=1e-5)


def test_the_map_of_magnitudes_follows_the_authors_code(images):
    """pytorch-grad-cam stretches each channel by itself instead, and knows no biases of activations."""
    model = nets.seeded(nets.Stochastic)
    found = FullGrad().explain(model, images[:1], torch.tensor([1])).maps[0]
    expected = torch.zeros(64, 64)
    for _, term in decomposed(model, images[:1], torch.tensor([1])).terms:
        if term.ndim != 4:
            continue
        values = term[0].abs() - term[0].abs().min()
        values = values / values.max().clamp_min(1e-30)
        for channel in values:
            resized = functional.interpolate(channel[None, None], size=(64, 64), mode="bilinear")
            expected += resized[0, 0]
    assert nets.relative_error(found, expected) < 1e-5


@pytest.fixture
def pictures() -> Tensor:
    return torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(3))


MIXED = torch.tensor([0, 2, 1])


@pytest.mark.parametrize("smooth", ["none", "eigen", "tta"])
@pytest.mark.parametrize("sign", ["absolute", "signed"])
def test_a_batch_of_mixed_targets_equals_singles_and_passes_do_not_matter(
    sign, smooth, pictures, untouched, monkeypatch
):
    net = untouched(nets.seeded(nets.Stochastic))
    explainer = FullGrad(sign=sign, smooth=smooth)
    against = torch.tensor([1, 0, 2])
    together = explainer.explain(net, pictures, MIXED, against)
    assert torch.equal(together.against, against)
    for row in range(3):
        one = slice(row, row + 1)
        alone = explainer.explain(net, pictures[one], MIXED[one], against[one])
        assert nets.relative_error(together.maps[row], alone.maps[0]) < 1e-5
    monkeypatch.setattr(passes, "MOST", 2)
    told: list[tuple[int, int]] = []
    again = explainer.explain(net, pictures, MIXED, against, report=lambda *pair: told.append(pair))
    assert nets.relative_error(again.maps, together.maps) < 1e-5
    rounds = 6 if smooth == "tta" else 1
    assert [pair for pair in told if pair[1] == 3 * rounds][:2] == [(0, 3 * rounds), (1, 3 * rounds)]


def test_frozen_training_and_channels_last_modules_and_other_precisions(pictures, untouched):
    expected = FullGrad().explain(nets.seeded(nets.Stochastic), pictures, MIXED).maps
    net = nets.seeded(nets.Stochastic).train().requires_grad_(False).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        found = FullGrad().explain(untouched(net), pictures.to(memory_format=torch.channels_last), MIXED).maps
    assert nets.relative_error(found.clone(), expected) < 1e-5
    double = FullGrad().explain(nets.seeded(nets.Stochastic).double(), pictures.double(), MIXED).maps
    assert double.dtype == torch.float32
    assert nets.relative_error(double, expected) < 1e-4
    half = FullGrad().explain(nets.seeded(nets.Stochastic).bfloat16(), pictures.bfloat16(), MIXED).maps
    assert half.dtype == torch.float32
    assert nets.relative_error(half, expected) < 0.1


def test_a_cup_beside_a_cat_is_on_the_right(lite0, both):  # noqa: F811
    found = {
        sign: FullGrad(sign=sign).explain(lite0, both, torch.tensor([967])).maps[0] for sign in ("absolute", "positive")
    }
    assert float(found["absolute"].min()) >= 0
    for values in found.values():
        assert float(values[:, 112:].sum()) > 0.5 * float(values.sum())
    assert float(found["positive"][:, 112:].sum()) > 0.6 * float(found["positive"].sum())


def test_a_transformer_is_refused(images, untouched):
    vit = nets.seeded(torchvision.models.VisionTransformer, 64, 16, 3, 2, 32, 64)
    nn.init.normal_(vit.heads.head.weight, generator=torch.Generator().manual_seed(0))
    with pytest.raises(LayerError, match="no forward derivative"):
        FullGrad().explain(untouched(vit), images[:1])
