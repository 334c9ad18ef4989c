import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import convnext

from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import LayerError
from seewhy.explainers.methods.explainer import AUGMENTATIONS
from seewhy.explainers.methods.gradient import decomposition
from seewhy.explainers.methods.gradient.decomposition import FullGradients, full_gradients, units_of
from seewhy.explainers.methods.gradient.fullgrad import FullGrad, _stretched
from seewhy.explainers.tasks.pose import pose
from tests import nets
from tests.grids import few

TARGETS = torch.tensor([7, 999, 0, 7])


def decomposed(model: nn.Module, images: Tensor, targets: Tensor, against: Tensor | None = None) -> FullGradients:
    with pose(model, images, Ask(targets, against)) as question:
        return full_gradients(question, units_of(question))


def pairs(gradients: FullGradients) -> list[tuple[str, Tensor]]:
    """Return the path of each term and its values."""
    return [(term.path, term.values) for term in gradients.terms]


def small_convnext() -> nn.Module:
    blocks = [convnext.CNBlockConfig(8, 16, 1), convnext.CNBlockConfig(16, None, 1)]
    return convnext.ConvNeXt(blocks, layer_scale=1.0, num_classes=1000)


def biased(name: str) -> nn.Module:
    """Return a stock model whose biases and running statistics are not those of an untrained one, which are zero."""
    model = nets.seeded(*((torchvision.models.get_model, name) if name != "convnext" else (small_convnext,)))
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
    parts = decomposed(untouched(net), torch.tensor([[[[1.0, -1.0]]]]), torch.tensor([0]))
    terms = dict(pairs(parts))
    # The gradients are 5 (6 + 4) and, where the first ReLU is off, 5 * 4.
    assert terms[""].tolist() == [[[[50.0, -20.0]]]]
    assert terms["0"].tolist() == [[[[15.0, 0.0]], [[-40.0, -40.0]]]]
    assert terms["4"].tolist() == [[6.0, 0.0]]
    assert set(terms) == {"", "0", "4"}
    assert float(parts.outputs[0, 0]) == 50 - 20 + 15 - 80 + 6


NETWORKS = (
    *("resnet18", "densenet121", "mobilenet_v2", "squeezenet1_1"),
    *("efficientnet_b0", "mobilenet_v3_small"),  # SiLU; hard swish; gates
    *("convnext_tiny", "convnext"),  # GELU, layer norm; the same, of two blocks
)


@pytest.mark.parametrize("name", few(NETWORKS, short=["mobilenet_v3_small", "convnext"]))
def test_the_terms_add_up_to_the_logit(name, images, untouched):
    model = untouched(biased(name))
    for against in (None, torch.tensor([1, 2])):
        parts = decomposed(model, images[:2], TARGETS[:2], against)
        total = sum(term.double().flatten(1).sum(dim=1) for _, term in pairs(parts))
        scores = parts.objective.scores(parts.outputs).double()
        size = sum(term.double().flatten(1).sum(dim=1).abs() for _, term in pairs(parts))
        assert float(((total - scores) / size).abs().max()) < 1e-4
        (picture,) = (term for path, term in pairs(parts) if path == "")
        assert float((picture.double().flatten(1).sum(dim=1) - scores).abs().max()) > 0.01 * float(size.max())


def test_terms_of_a_bias_sum_to_it_times_its_gradient(images):
    model = nets.seeded(nets.Stochastic)
    results = dict(pairs(decomposed(model, images[:1], torch.tensor([1]))))
    biases = [model.stem.bias, model.conv.bias, model.norm.bias, model.head.bias]
    gradients = torch.autograd.grad(model(images[:1])[0, 1], biases)
    for path, bias, gradient in zip(("stem", "conv", "norm", "head"), biases, gradients, strict=True):
        expected = bias
        if path == "norm":
            scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
            expected = bias - model.norm.running_mean * scale
        channels = results[path][0].sum(dim=(1, 2)) if path != "head" else results[path][0]
        torch.testing.assert_close(channels, (expected * gradient).detach(), rtol=1e-4, atol=1e-6)


def test_the_implicit_bias_of_batch_norm_counts_its_running_mean(images):
    model = nets.seeded(nets.Stochastic)
    model.norm.running_mean = torch.arange(5.0)
    model.norm.running_var = torch.arange(1.0, 6.0)
    parts = decomposed(model, images, torch.tensor([0, 1, 2, 0]))
    assert float(parts.missing.abs().max()) < 1e-6
    gradients = [term for path, term in pairs(parts) if path == "norm"]
    assert len(gradients) == 1
    assert gradients[0].shape == (4, 5, 32, 32)


def gated(slope=torch.sigmoid) -> nn.Module:
    return nets.Wired(lambda net, images: images * slope(net.conv(images)), conv=nn.Conv2d(3, 3, 1))


def before_head(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()


def test_a_module_that_does_more_than_its_parts_is_taken_as_a_whole(images):
    parts = decomposed(before_head(nn.Conv2d(3, 3, 3), gated()), images, torch.tensor([0, 1, 0, 1]))
    assert [path for path, _ in pairs(parts)] == ["", "0", "4", "1"]
    assert float(parts.missing.abs().max()) < 1e-5


def test_functions_in_a_container_have_a_term_each(images):
    parts = decomposed(before_head(nn.Sequential(nn.GELU(), nn.GELU())), images, torch.tensor([0, 1, 0, 1]))
    assert [path for path, _ in pairs(parts)] == ["", "0.0", "0.1", "3"]


def test_a_module_that_runs_twice_has_two_terms(images):
    parts = decomposed(nets.seeded(nets.Twice), images, torch.tensor([0, 1, 2, 0]))
    assert [path for path, _ in pairs(parts)].count("again") == 2
    assert float(parts.missing.abs().max()) < 1e-5


def test_a_model_that_adds_outside_its_modules_is_refused(images, untouched):
    net = untouched(nets.Wrapped(nets.seeded(nets.Net), lambda logits: logits + 1))
    with pytest.raises(LayerError, match="do not add up to the score"):
        FullGrad().explain(net, images)
    with pytest.raises(LayerError, match="No gradient flows"):
        FullGrad().explain(nets.Wrapped(nets.seeded(nets.Net), torch.detach), images)


def test_the_signed_map_sums_to_the_score_less_what_has_no_position(images, untouched):
    model, images, targets = untouched(biased("resnet18")), images[:2], TARGETS[:2]
    attribution = FullGrad(sign="signed").explain(model, images, targets)
    terms = dict(pairs(decomposed(model, images, targets)))
    assert float(terms["layer4.1.bn2"].abs().max()) > 1e-3
    expected = attribution.logits[range(2), targets] - model.fc.bias[targets]
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), expected, rtol=1e-3, atol=1e-3)
    assert attribution.maps.shape == (2, 64, 64)
    assert attribution.layers == ()
    positive = FullGrad(sign="positive").explain(model, images, targets).maps
    assert torch.equal(positive, attribution.maps.clamp_min(0))


@pytest.mark.parametrize("smooth", ["none", "tta"])
def test_the_signed_map_of_layers_larger_than_the_picture_sums_to_the_score(smooth, generator):
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3, bias=False))
    net = nn.Sequential(nn.Conv2d(3, 8, 1, padding=6), *head).eval()
    pictures, targets = torch.randn(2, 3, 20, 23, generator=generator), torch.tensor([0, 2])
    attribution = FullGrad(sign="signed", smooth=smooth).explain(net, pictures, targets)
    changed = AUGMENTATIONS if smooth == "tta" else [(False, 1.0)]
    scores = [net((pictures.flip(3) if flip else pictures) * factor)[range(2), targets] for flip, factor in changed]
    expected = torch.stack(scores).mean(dim=0).detach()
    torch.testing.assert_close(attribution.maps.sum(dim=(1, 2)), expected, rtol=1e-4, atol=1e-5)


def test_the_map_of_magnitudes_follows_the_authors_code(images):
    """pytorch-grad-cam stretches each channel by itself instead, and knows no biases of activations."""
    model = nets.seeded(nets.Stochastic)
    heatmap = FullGrad().explain(model, images[:1], torch.tensor([1])).maps[0]
    expected = torch.zeros(64, 64)
    for _, term in pairs(decomposed(model, images[:1], torch.tensor([1]))):
        if term.ndim != 4:
            continue
        values = term[0].abs() - term[0].abs().min()
        values = values / values.max().clamp_min(1e-30)
        for channel in values:
            resized = functional.interpolate(channel[None, None], size=(64, 64), mode="bilinear")
            expected += resized[0, 0]
    assert nets.relative_error(heatmap, expected) < 1e-5


def transformer() -> nn.Module:
    vit = nets.seeded(torchvision.models.VisionTransformer, 64, 16, 3, 2, 32, 64)
    nn.init.normal_(vit.heads.head.weight, generator=torch.Generator().manual_seed(0))
    return vit


def test_attention_is_taken_as_a_whole(images, untouched):
    parts = decomposed(untouched(transformer()), images, torch.tensor([7, 99, 0, 7]))
    assert float(parts.missing.abs().max()) < 1e-4


def test_a_transformer_with_a_class_token_is_refused(images, untouched):
    vit = transformer()
    nn.init.normal_(vit.class_token, generator=torch.Generator().manual_seed(0))
    with pytest.raises(LayerError, match="do not add up to the score"):
        FullGrad().explain(untouched(vit), images[:1])


@pytest.mark.parametrize("kind", few(["mobilenet_v3_small", "shufflenet_v2_x0_5"], short=["shufflenet_v2_x0_5"]))
def test_untrained_biases_which_are_zero_draw_nothing_in_any_company(kind, images):
    """Zero but for rounding: stretched over 0 to 1 it differed by up to a tenth of the map."""
    model = nets.seeded(torchvision.models.get_model, kind)
    whole = FullGrad().explain(model, images, torch.arange(4)).maps
    for row in (0, 3):
        alone = FullGrad().explain(model, images[row : row + 1], torch.tensor([row])).maps[0]
        assert nets.relative_error(whole[row], alone) < 1e-4


@pytest.mark.parametrize(("share", "largest"), [(1.0, 0.02), (1e3, 1.0)])
def test_a_bias_that_rounding_could_have_made_is_not_stretched_all_the_way(share, largest):
    """Beside values of 10^4 a bias of 1 is of few roundings, one of 1000 of many."""
    part = nets.Wired(lambda net, features: features * 1e4 + net.weight, weight=nn.Parameter(torch.tensor(share)))
    net = nn.Sequential(part, nn.Flatten(), nn.Linear(48, 2, bias=False)).eval()
    picture = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    parts = decomposed(net, picture, torch.tensor([0]))
    (term,) = (term for term in parts.terms if term.path == "0")
    assert torch.allclose(term.values, share * net[2].weight[0].view(1, 3, 4, 4), rtol=0.1)
    magnitudes = _stretched(term.values.abs(), term.least)
    assert float(magnitudes.max()) == pytest.approx(largest, rel=0.6 if largest < 1 else 1e-3)


def test_which_modules_are_taken_as_a_whole_depends_on_no_picture(images):
    """A gate that is shut for the first picture, and lets the second one through."""
    shut_or_open = gated(lambda values: functional.hardsigmoid(values.abs() * 0.5 - 2.5))  # without slope
    net = before_head(nn.Conv2d(3, 3, 3), shut_or_open)
    pictures = torch.cat([torch.full((1, 3, 64, 64), -50.0), images[:1]])
    targets = torch.tensor([0, 0])
    whole = decomposed(net, pictures, targets)
    for row in range(2):
        alone = decomposed(net, pictures[row : row + 1], targets[row : row + 1])
        assert [path for path, _ in pairs(alone)] == [path for path, _ in pairs(whole)] == ["", "0", "4", "1"]
        for term, all_of_them in zip(alone.terms, whole.terms, strict=True):
            torch.testing.assert_close(term.values[0], all_of_them.values[row], rtol=1e-4, atol=1e-6)


def test_changed_weights_are_seen(images):
    net = before_head(gated())
    with torch.no_grad():
        weight = net[0].conv.weight.clone()
        net[0].conv.weight.zero_()
        net[0].conv.bias.zero_()
        assert "0" not in dict(pairs(decomposed(net, images, TARGETS % 2)))
        net[0].conv.weight.copy_(weight)
    assert "0" in dict(pairs(decomposed(net, images, TARGETS % 2)))


def test_units_are_found_once_for_each_size_until_weights_change(images, monkeypatch):
    net = before_head(gated())
    searched = []
    find = decomposition._find_units
    monkeypatch.setattr(decomposition, "_find_units", lambda question: searched.append(1) or find(question))
    for _ in range(2):
        for side in (16, 20):
            decomposed(net, images[:1, :, :side, :side], TARGETS[:1] % 2)
    assert len(searched) == 2
    with torch.no_grad():
        net[0].conv.weight.mul_(2)
    for side in (16, 20):
        decomposed(net, images[:1, :, :side, :side], TARGETS[:1] % 2)
    assert len(searched) == 4


def mixing() -> nn.Module:
    """Holds a tensor that is neither parameter nor buffer."""
    table = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 3.0]])
    return nets.Wired(lambda net, images: torch.einsum("nchw,cd->ndhw", images.tanh(), net.table), table=table)


class Raised(nn.ReLU):
    """Adds one to what it is a subclass of."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) + 1


@pytest.mark.parametrize("kind", [mixing, Raised])
def test_own_modules_without_parameters_have_their_implicit_bias(kind, images):
    torch.manual_seed(0)
    parts = decomposed(before_head(nn.Conv2d(3, 3, 3), kind()), images, TARGETS[: len(images)] % 2)
    assert dict(pairs(parts))["1"].abs().max() > 0
    assert parts.missing.abs().max() < 1e-5


@pytest.mark.parametrize("sign", ["absolute", "signed"])
def test_a_picture_of_one_pixel(sign, generator):
    net = nets.seeded(nets.Stochastic)
    picture = torch.randn(2, 3, 1, 1, generator=generator)
    attribution = FullGrad(sign=sign).explain(net, picture, torch.tensor([0, 2]))
    assert attribution.maps.shape == (2, 1, 1)
    if sign == "signed":
        expected = attribution.logits[range(2), [0, 2]] - net.head.bias[[0, 2]].detach()
        torch.testing.assert_close(attribution.maps[:, 0, 0], expected, rtol=1e-4, atol=1e-5)
    else:
        assert (attribution.maps > 0).all()


def test_several_models_at_once(images):
    """Forward derivatives have levels that belong to the process: threads took them from each other."""
    models = [biased("convnext"), nets.seeded(nets.Stochastic)]
    explained = partial(FullGrad().explain, images=images, targets=torch.tensor([0, 1, 2, 0]))
    expected = [explained(model).maps for model in models]
    barrier = threading.Barrier(2)

    def work(model: nn.Module) -> list[Tensor]:
        barrier.wait()
        return [explained(model).maps for _ in range(4)]

    with ThreadPoolExecutor(2) as pool:
        for maps, own in zip(pool.map(work, models), expected, strict=True):
            assert all(nets.relative_error(heatmap, own) < 1e-4 for heatmap in maps)
