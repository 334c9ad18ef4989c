import math
from collections import OrderedDict
from itertools import islice, permutations
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers import GradCAM, get_method
from seewhy.explainers.core.ask import NO_CONTRAST
from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution.cut import cut_before
from seewhy.explainers.methods.cam.votes import averaged, detail_layers
from seewhy.explainers.tasks.pose import predict, survey
from seewhy.models import load_model
from tests import nets
from tests.grids import few

EXAMPLES = Path(__file__).parents[3] / "examples"
VOTES = ("votes", "votes-detail")


def votes(name="votes", **options):
    return get_method(name).build(options)


def codes(attribution):
    return {diagnostic.code for row in attribution.diagnostics for diagnostic in row}


def averages(features: Tensor) -> Tensor:
    return features.mean(dim=(2, 3))


def pooled(head: nn.Module, read=averages, see=lambda images: images) -> nn.Module:
    """A picture is its own features; a head reads their averages, or all of them."""
    layer = nets.Wired(lambda _, images: images * 1)
    return nets.Wired(lambda net, images: net.head(read(net.layer(see(images)))), layer=layer, head=head)


def listed(head: nn.Module) -> nn.Module:
    return pooled(head, lambda features: features.flatten(1))


def untraceable(head: nn.Module) -> nn.Module:
    return pooled(head, see=lambda images: images if images.sum() > -1e9 else -images)


class Strides(nn.Module):
    """Grids of positions every 8, 16 and 32 pixels."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.eight = nn.Sequential(nn.Conv2d(3, 6, 8, stride=8), nn.ReLU())
        self.sixteen = nn.Sequential(nn.Conv2d(6, 7, 3, stride=2, padding=1), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(7, 8, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.sixteen(self.eight(images))).mean(dim=(2, 3)))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_two_classes_and_one_convolution_by_hand():
    conv, head = nets.pointwise([[1], [-1]]), nets.linear([[1, 0], [0, 2]], [0.5, -0.5])
    net = nets.Wired(lambda net, images: net.head(averages(net.conv(images).relu())), conv=conv, head=head)
    # Rectified features (2, 0) and (0, 1): the classes say 2 and 0, then 0 and 2; less their mean, 1 and -1, -1 and 1.
    picture = torch.tensor([[[[2.0, -1.0]]]]).expand(2, -1, -1, -1)
    attribution = votes(layers="conv").explain(net, picture, torch.tensor([0, 1]))
    expected = torch.tensor([[[2.0 + 1, -torch.inf]], [[-torch.inf, 2 - 1]]]).sigmoid()
    torch.testing.assert_close(attribution.maps, expected)
    assert not codes(attribution)


def by_formula(features: Tensor, weight: Tensor, bias: Tensor, target: int) -> Tensor:
    """The equations of the documentation, position by position."""
    weight, bias = weight.double() - weight.double().mean(dim=0), bias.double() - bias.double().mean()
    maps = torch.einsum("kc,chw->khw", weight, features.double())
    result = torch.zeros_like(maps[0])
    for row in range(maps.shape[1]):
        for column in range(maps.shape[2]):
            shares = []
            for number, values in enumerate(maps):
                rho = torch.corrcoef(torch.stack([values.flatten(), maps[target].flatten()]))[0, 1]
                share = 1 if number == target else min(1, 1 - float(rho)) ** 2
                shares.append(share * math.exp(values[row, column] + bias[number]))
            evidence = float(maps[target, row, column])
            result[row, column] = max(evidence, 0) * shares[target] / sum(shares)
    return result.float()


def test_votes_are_those_of_the_equations_in_a_batch_of_mixed_targets():
    weight, bias, images, targets = randn(6, 4), randn(6, seed=1), randn(3, 4, 3, 5, seed=2), torch.tensor([4, 0, 5])
    attribution = votes().explain(pooled(nets.linear(weight, bias)), images, targets)
    expected = [by_formula(picture, weight, bias, int(target)) for picture, target in zip(images, targets, strict=True)]
    assert nets.relative_error(attribution.maps, torch.stack(expected)) < 1e-5


@pytest.mark.parametrize("name", VOTES)
def test_a_vector_added_to_all_classes_changes_nothing(name):
    net, images = nets.seeded(Strides), randn(2, 3, 64, 96)
    maps = votes(name).explain(net, images, torch.tensor([1, 3])).maps
    assert maps.amax(dim=(1, 2)).min() > 0
    net.head.weight.data += 3 * randn(8, seed=1)
    net.head.bias.data += 2
    assert nets.relative_error(votes(name).explain(net, images, torch.tensor([1, 3])).maps, maps) < 1e-4


WEIGHT, BIAS = randn(6, 4), randn(6, seed=1)
LINEAR = nets.linear(WEIGHT, BIAS)


@pytest.mark.parametrize(
    "net",
    [
        pooled(nn.Sequential(nets.linear(torch.eye(4) * 2), nn.Identity(), nets.linear(WEIGHT / 2, BIAS))),
        listed(nets.linear((WEIGHT / 15).repeat_interleave(15, dim=1), BIAS)),
    ],
    ids=["two layers behind pooling", "a list of positions"],
)
def test_other_heads_that_are_linear_vote_as_a_linear_head(net, untouched):
    images, targets, against = randn(3, 4, 3, 5), torch.tensor([4, 0, 5]), torch.tensor([1, NO_CONTRAST, 2])
    expected = votes().explain(pooled(LINEAR), images, targets, against)
    attribution = votes().explain(untouched(net), images, targets, against)
    assert not codes(attribution)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-5
    alone = votes().explain(net, images[:1], targets[:1], against[:1])
    assert nets.relative_error(alone.maps, attribution.maps[:1]) < 1e-5


def test_a_head_behind_pooling_runs_at_each_position():
    head = nets.seeded(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 9), nn.Hardswish(), nn.Linear(9, 6)))
    images, target = randn(1, 4, 2, 3), torch.tensor([2])
    with torch.no_grad():
        empty = head(torch.zeros(1, 4))
        values = head(images[0].flatten(1).T) - empty
    expected = by_formula(values.T.reshape(6, 2, 3), torch.eye(6), empty[0], 2)
    assert nets.relative_error(votes().explain(pooled(head), images, target).maps[0], expected) < 1e-5


def test_what_stands_between_the_layer_and_the_pooling_is_run_at_each_position(monkeypatch):
    monkeypatch.setattr(torch.autograd, "grad", None)  # no backward pass
    rectified = pooled(LINEAR, lambda features: averages(functional.relu(features, inplace=True)))
    images, targets = randn(2, 4, 3, 5), torch.tensor([0, 3])
    expected = votes().explain(pooled(LINEAR), images.relu(), targets)
    attribution = votes().explain(rectified, images, targets)
    assert not codes(attribution)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-5


def test_a_head_of_listed_positions_is_differentiated_for_the_strongest_rivals():
    head = nets.seeded(lambda: nn.Sequential(nn.Linear(4 * 6, 9), nn.ReLU(), nn.Linear(9, 70)))
    images = randn(1, 4, 2, 3).requires_grad_()
    outputs = head(images.flatten(1))
    attribution = votes().explain(listed(head), images, torch.tensor([8]))
    classes = [8, *(index for index in outputs[0].argsort(descending=True).tolist() if index != 8)][:51]
    values = [(images * torch.autograd.grad(outputs[0, index], images, retain_graph=True)[0])[0] for index in classes]
    values = 6 * torch.stack(values).sum(dim=1).detach()
    rest = outputs[0, classes].detach() - values.mean(dim=(1, 2))
    assert nets.relative_error(attribution.maps[0], by_formula(values, torch.eye(51), rest, 0)) < 1e-5


def test_a_head_that_takes_no_single_position_prints_no_error(capsys):
    weight = randn(3, 4 * 6)
    net = nets.Wired(lambda net, images: net.layer(images).flatten(1) @ weight.T, layer=nn.Conv2d(4, 4, 1))
    votes(layers=("layer",)).explain(net, randn(1, 4, 2, 3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", VOTES)
@pytest.mark.parametrize(
    ("net", "layers", "targets"),
    [
        (nets.Transformer, (), torch.tensor([1, 2])),
        (Strides, ("sixteen",), torch.tensor([1, 2])),
        (Strides, ("last", "eight"), None),
        (Strides, (), lambda outputs: outputs[:, 0] - outputs[:, 1] / 2),
    ],
    ids=["class token", "convolution behind", "one of two layers", "function"],
)
def test_what_has_no_votes_has_the_map_of_gradcam_and_says_so(name, net, layers, targets, untouched):
    model, images = untouched(nets.seeded(net)), randn(2, 3, 64, 64)
    attribution = votes(name, layers=layers, sign="absolute").explain(model, images, targets)
    expected = GradCAM(layers=layers, sign="absolute").explain(model, images, targets)
    assert attribution.maps.abs().max() > 0
    assert torch.equal(attribution.maps, expected.maps)
    assert attribution.layers == expected.layers
    assert [[note.code for note in notes] for notes in attribution.diagnostics] == [["votes-unavailable"]] * 2


@pytest.mark.parametrize("stride", [8, 4])
def test_small_networks_have_their_detail_from_half_and_a_quarter_of_their_stride(stride):
    """Their maps are those of a network that sees the same, enlarged to a stride of 32."""
    small, large = nets.seeded(Strides), nets.seeded(Strides)
    side = stride // 4
    small.eight[0] = nn.Conv2d(3, 6, side, stride=side)
    large.eight[0].weight.data = functional.interpolate(small.eight[0].weight.data, (8, 8)) / (8 / side) ** 2
    large.eight[0].bias.data = small.eight[0].bias.data
    images, targets = randn(2, 3, 8 * side, 12 * side), torch.tensor([1, 3])
    enlarged = functional.interpolate(images, scale_factor=8 / side)
    attribution = votes("votes-detail").explain(small.eval(), images, targets)
    assert attribution.layers == ("eight", "sixteen", "last")
    assert not codes(attribution)
    assert nets.relative_error(attribution.maps, votes("votes-detail").explain(large, enlarged, targets).maps) < 1e-4


def test_several_layers_have_the_detail_of_the_coarsest():
    with torch.device("meta"):
        net = torchvision.models.resnet18().eval()
    surveyed = survey(net, (3, 224, 224))
    assert detail_layers(surveyed, ("layer4", "layer2")) == ("layer3", "layer2")
    assert detail_layers(surveyed, ("layer2",)) == ("layer1", "relu")


def test_detail_without_finer_layers_says_so():
    images, targets = randn(2, 4, 3, 5), torch.tensor([2, 1])
    attribution = votes("votes-detail").explain(pooled(LINEAR), images, targets)
    assert [[note.code for note in notes] for notes in attribution.diagnostics] == [["no-finer-layers"]] * 2
    strided = nets.seeded(Strides)
    assert not codes(votes("votes-detail").explain(strided, randn(1, 3, 64, 64)))
    own = votes("votes-detail", layers=("eight",)).explain(strided, randn(1, 3, 64, 64))  # which has no class maps
    assert codes(own) == {"votes-unavailable"}


def test_a_model_that_cannot_be_traced_votes_with_a_linear_head_alone():
    images, targets = randn(1, 4, 3, 5), torch.tensor([2])
    assert not codes(votes().explain(untraceable(LINEAR), images, targets))
    head = nn.Sequential(nets.linear(torch.eye(4)), nn.Tanh(), nets.linear(WEIGHT))
    assert not codes(votes().explain(pooled(head), images, targets))
    assert codes(votes().explain(untraceable(head), images, targets)) == {"votes-unavailable"}


@pytest.mark.parametrize("name", VOTES)
def test_a_class_that_is_not_there_has_a_blank_map(name):
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    attribution = votes(name).explain(pooled(nets.linear(weight)), randn(1, 2, 3, 3).abs(), torch.tensor([2]))
    assert torch.equal(attribution.maps, torch.zeros(1, 3, 3))


def test_a_single_logit_competes_with_its_absence():
    images = randn(1, 4, 3, 5)
    attribution = votes(sign="signed").explain(pooled(nets.linear(WEIGHT[:1], BIAS[:1])), images)
    evidence = torch.einsum("c,chw->hw", WEIGHT[0], images[0])
    assert nets.relative_error(attribution.maps[0], evidence / 2 * (evidence + BIAS[0]).sigmoid()) < 1e-5


def test_a_contrast_alone_competes():
    images = randn(1, 4, 3, 5)
    net = pooled(LINEAR)
    attribution = votes().explain(net, images, torch.tensor([4]), torch.tensor([1]))
    expected = by_formula(images[0], WEIGHT[[4, 1]], BIAS[[4, 1]], 0)
    assert nets.relative_error(attribution.maps[0], expected) < 1e-5


def test_constant_maps_and_a_grid_of_one_cell_are_plain_probabilities():
    cell = randn(1, 4, 1, 1)
    net = pooled(LINEAR)
    logits = net(cell)[0]
    expected = ((logits - BIAS) - (logits - BIAS).mean()).clamp_min(0) * logits.softmax(dim=0)
    for images in (cell, cell.expand(-1, -1, 3, 4)):
        for target in range(6):
            maps = votes(layers="layer").explain(net, images, torch.tensor([target])).maps
            torch.testing.assert_close(maps, expected[target].detach().expand_as(maps))


def shares_of(votes: Tensor, features: Tensor, head: nn.Linear, target: int) -> Tensor:
    """The share of the vote at each position that the target gets, where anything speaks for it."""
    speaks = torch.einsum("c,nchw->nhw", head.weight[target] - head.weight.mean(dim=0), features).clamp_min(0)
    return torch.where(speaks > 0, votes / speaks, 0.0).detach()


def evidence(
    net: Strides, images: Tensor, target: int, votes: Tensor, even=lambda gradients, stride: gradients
) -> list[Tensor]:
    """Return positive features times gradients, of the logit less the mean logit, on the grids of 8 and 16 pixels.

    What flows back from the last grid counts by its shares. `even` gets gradients and the stride to the last grid.
    """
    eight = net.eight(images).detach().requires_grad_()
    sixteen = net.sixteen(eight)
    last = net.last(sixteen)
    logits = net.head(last.mean(dim=(2, 3)))[0]
    (slopes,) = torch.autograd.grad(logits[target] - logits.mean(), last, retain_graph=True)
    gated = slopes * shares_of(votes, last, net.head, target)[:, None]
    parts = zip((eight, sixteen), torch.autograd.grad(last, (eight, sixteen), gated), (4, 2), strict=True)
    return [(part * even(gradients, stride)).clamp_min(0).sum(dim=1).detach() for part, gradients, stride in parts]


def test_detail_is_the_geometric_mean_of_the_factors_on_the_finest_grid():
    net, images, target = nets.seeded(Strides), randn(1, 3, 64, 96), torch.tensor([1])
    plain = votes().explain(net, images, target).maps
    factors = [plain, *evidence(net, images, 1, plain)]
    assert [tuple(factor.shape[1:]) for factor in factors] == [(2, 3), (8, 12), (4, 6)]
    factors = [
        functional.interpolate(factor[:, None] / factor.max(), (8, 12), mode="bilinear")[:, 0] for factor in factors
    ]
    attribution = votes("votes-detail").explain(net, images, target)
    assert attribution.layers == ("eight", "sixteen", "last")
    assert attribution.maps.max() > 0
    assert nets.relative_error(attribution.maps, torch.stack(factors).prod(dim=0) ** (1 / 3)) < 1e-5


SKIPPING = {
    "shortcuts": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 1, stride=2),
    "dilated": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 3, stride=2, dilation=2, padding=2),
    "pooled": lambda inputs, outputs: nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.MaxPool2d(1, 2)),
    "averaged": lambda inputs, outputs: nn.Sequential(nn.AvgPool2d(1, stride=(2, 2)), nn.Conv2d(inputs, outputs, 1)),
}
"""Layers that read every second row and column."""


@pytest.mark.parametrize("name", SKIPPING)
def test_positions_that_no_later_layer_reads_draw_no_lattice(name):
    net = nets.seeded(Strides)
    net.sixteen[0], net.last[0] = nets.seeded(SKIPPING[name], 6, 7), nets.seeded(SKIPPING[name], 7, 8)
    flat = randn(1, 3, 1, 1).expand(1, 3, 384, 384)
    maps = votes("votes-detail").explain(net, flat, net(flat).argmax(1)).maps[0, 20:28, 20:28]  # away from the padding
    assert maps.amin() > 0
    torch.testing.assert_close(maps, maps.mean().expand_as(maps))


def test_gradients_are_averaged_over_the_stride_only_where_positions_are_skipped():
    net, images, target = nets.seeded(Strides), randn(1, 3, 96, 128), torch.tensor([1])
    net.last[0] = nets.seeded(nn.Conv2d, 7, 8, (1, 2), 2)  # skips rows, but no columns
    plain = votes().explain(net, images, target).maps
    factors = [plain, *evidence(net, images, 1, plain, lambda gradients, stride: averaged(gradients, (stride, 1)))]
    factors = [
        functional.interpolate(factor[:, None] / factor.max(), (12, 16), mode="bilinear")[:, 0] for factor in factors
    ]
    attribution = votes("votes-detail").explain(net, images, target)
    assert nets.relative_error(attribution.maps, torch.stack(factors).prod(dim=0) ** (1 / 3)) < 1e-5


def test_an_average_over_a_period_is_by_hand():
    row = torch.tensor([[[[4.0, 0, 0, 0, 8, 0, 0, 0]]]])
    # The weights are 1/8, 1/4, 1/4, 1/4, 1/8; the first four go on to the left, and the last four to the right.
    torch.testing.assert_close(averaged(row, (1, 4)), torch.tensor([[[[1.0, 1, 1.5, 2, 2, 2, 2, 2]]]]))
    torch.testing.assert_close(averaged(row.mT, (2, 1)), torch.tensor([[[[2.0, 1, 0, 2, 4, 2, 0, 0]]]]).mT)
    torch.testing.assert_close(averaged(row, (1, 3)), torch.tensor([[[[4.0, 4, 0, 8, 8, 8, 0, 0]]]]) / 3)
    assert torch.equal(averaged(row, (2, 9)), row)  # a grid within one period
    for period in (2, 3, 4):
        lattice = torch.zeros(2, 3, 12, 24)
        lattice[:, :, ::period, ::period] = period**2
        torch.testing.assert_close(averaged(lattice, (period, period)), torch.ones_like(lattice))


class Averaging(nets.Transformer):
    """A transformer whose head reads the average of its patches."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.head(self.norm(self.blocks(tokens))[:, 1:].mean(dim=1))


@pytest.mark.parametrize("name", VOTES)
def test_tokens_whose_average_the_head_reads_vote(name, untouched):
    net, images, targets = untouched(nets.seeded(Averaging)), randn(2, 3, 16, 24), torch.tensor([1, 3])
    attribution = votes(name).explain(net, images, targets)
    assert "votes-unavailable" not in codes(attribution)
    tokens = net.norm(net.blocks(torch.cat([net.first.expand(2, -1, -1), net.patches(images).flatten(2).mT], dim=1)))
    grids = pooled(net.head).eval()
    expected = votes(name).explain(grids, tokens[:, 1:].mT.unflatten(2, (4, 6)).detach(), targets)
    assert nets.relative_error(attribution.maps, expected.maps) < 1e-4


def test_questions_about_one_picture_are_answered_as_one_by_one():
    net, images, targets = nets.seeded(Strides), randn(1, 3, 64, 96), torch.tensor([3, 1, 2])
    together = votes("votes-detail").explain(net, images.expand(3, -1, -1, -1), targets)
    assert together.maps.amax(dim=(1, 2)).min() > 0
    for row, target in enumerate(targets):
        alone = votes("votes-detail").explain(net, images, target[None])
        assert nets.relative_error(together.maps[row : row + 1], alone.maps) < 1e-5


def test_detail_of_one_grid_is_the_square_root_of_two_factors():
    net, images, target = pooled(LINEAR), randn(1, 4, 3, 5), torch.tensor([1])
    attribution = votes("votes-detail").explain(net, images, target)
    plain = votes().explain(net, images, target).maps
    factor = (images * (WEIGHT[1] - WEIGHT.mean(dim=0))[None, :, None, None]).clamp_min(0).sum(dim=1)
    factor = factor * shares_of(plain, images, net.head, 1)
    expected = (plain / plain.max() * factor / factor.max()).sqrt()
    assert attribution.layers == ("layer",)
    assert attribution.maps.max() > 0
    assert nets.relative_error(attribution.maps, expected) < 1e-5


def test_detail_of_a_single_logit_is_that_against_its_absence():
    images = randn(1, 4, 3, 5)
    contributions = images * WEIGHT[0][None, :, None, None]
    logits = contributions.sum(dim=1)
    shares = (logits + BIAS[0]).sigmoid()
    plain, factor = logits.clamp_min(0) * shares, contributions.clamp_min(0).sum(dim=1) * shares * (logits > 0)
    attribution = votes("votes-detail").explain(pooled(nets.linear(WEIGHT[:1], BIAS[:1])), images)
    assert nets.relative_error(attribution.maps, (plain / plain.max() * factor / factor.max()).sqrt()) < 1e-5


def test_signed_detail_is_refused():
    with pytest.raises(OptionError, match="'positive' or 'absolute'"):
        votes("votes-detail", sign="signed")


ENDS = {
    "resnet18": ("layer3", "layer2"),
    "mobilenet_v2": ("features.13", "features.6"),
    "densenet121": ("features.denseblock3", "features.denseblock2"),
    "vgg11": ("features.19", "features.14"),
    "squeezenet1_1": ("features", "features.7"),
    "convnext_tiny": ("features.5", "features.3"),
    "swin_t": ("features.5", "features.3"),
}
"""The last blocks with a position every 16 and every 8 pixels."""


@pytest.mark.parametrize("name", few(ENDS, {"resnet18"}))
@pytest.mark.parametrize("size", [(224, 224), (225, 128)])
def test_the_layers_of_the_detail_are_the_ends_of_the_stages(name, size):
    with torch.device("meta"):
        net = torchvision.models.get_model(name).eval()
    surveyed = survey(net, (3, *size))
    assert detail_layers(surveyed, surveyed.default_layers) == ENDS[name]


@pytest.mark.parametrize("name", few(["mobilenet_v2", "squeezenet1_1", "vgg11"], ()))
def test_architectures_have_votes(name):
    net = nets.seeded(torchvision.models.get_model, name)
    assert not codes(votes().explain(net, randn(1, 3, 64, 64)))


@pytest.mark.parametrize("name", few(["resnet18", "alexnet", "densenet121", "convnext_tiny", "swin_t"], ()))
def test_votes_of_architectures_stand_alone_and_ignore_what_all_classes_gain(name):
    net = nets.seeded(torchvision.models.get_model, name)
    images, targets = randn(2, 3, 96, 96), torch.tensor([1, 3])
    maps = {method: votes(method).explain(net, images, targets).maps for method in VOTES}
    *_, head = (module for module in net.modules() if isinstance(module, nn.Linear))
    head.weight.data += 3 * head.weight.std() * randn(head.in_features, seed=1)
    head.bias.data += 2
    for method, expected in maps.items():
        assert expected.isfinite().all()
        assert expected.amax() > 0
        alone = votes(method).explain(net, images[1:], targets[1:])
        assert not codes(alone)
        assert nets.relative_error(alone.maps, expected[1:]) < 1e-4


def test_detail_is_cut_where_a_layer_holds_its_details():
    """A cut is at no layer inside another one: the last part of MobileNetV2's `features` stands for all of it."""
    net, images = nets.seeded(Strides), randn(2, 3, 64, 64)
    parts = OrderedDict((name, getattr(net, name)) for name in ("eight", "sixteen", "last"))
    inside = nets.Pooled(net.head, nn.Sequential(parts)).eval()
    attribution = votes("votes-detail").explain(inside, images)
    assert attribution.layers == ("layer.eight", "layer.sixteen", "layer.last")
    assert cut_before(inside, attribution.layers, images[:1]).layer == "layer.eight"
    assert torch.equal(attribution.maps, votes("votes-detail").explain(net, images).maps)


def right_shares(maps: Tensor) -> Tensor:
    """Return which shares of the maps (4, h, w) of the cells of a mosaic lie in their cells, (2, 4).

    They are those of the sum, and of the highest quarter of the positions.
    """
    maps = functional.interpolate(maps[:, None], (224, 224), mode="bilinear")[:, 0]
    highest = maps.flatten(1).argsort(dim=1, descending=True).argsort(dim=1).reshape_as(maps) < 112 * 112
    shares = [part.unflatten(1, (2, 112)).unflatten(3, (2, 112)).sum(dim=(2, 4)).flatten(1) for part in (maps, highest)]
    return torch.stack([part.diagonal() / part.sum(dim=1) for part in shares])


@pytest.mark.slow
def test_votes_lie_on_the_right_picture_of_a_mosaic_more_than_other_maps_do():
    model = load_model("efficientnet_lite0")
    pictures = [Image.open(path).convert("RGB") for path in sorted(EXAMPLES.glob("*.png"))]
    cells = torch.stack([model.preprocess(picture) for picture in pictures])
    classes = predict(model, cells).argmax(dim=1)
    cells = functional.interpolate(cells, (112, 112), mode="bilinear", antialias=True)
    results = {method: [] for method in ("gradcam", *VOTES)}
    for order in islice(permutations(range(4)), 0, None, 3):
        mosaic = torch.cat([torch.cat([cells[place] for place in row], dim=2) for row in (order[:2], order[2:])], dim=1)
        for method, shares in results.items():
            maps = votes(method).explain(model, mosaic.expand(4, -1, -1, -1), classes[list(order)]).maps
            shares.append(right_shares(maps).mean(dim=1))
    means = {method: torch.stack(shares).mean(dim=0) for method, shares in results.items()}
    for method, least in zip(VOTES, (0.85, 0.8), strict=True):
        assert means[method][0] > max(least, means["gradcam"][0] + 0.1)
        assert means[method][1] > means["gradcam"][1]
