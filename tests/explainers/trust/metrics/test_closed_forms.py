"""Each metric by hand, on networks small enough for that."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.correlations import correlations, mean_ranks
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.metrics.base import Subject
from seewhy.explainers.trust.metrics.catalogue import METRICS, get_metric
from seewhy.explainers.trust.metrics.grids import joined, split
from seewhy.explainers.trust.metrics.measure import measure
from seewhy.explainers.trust.metrics.randomisation import entropy
from seewhy.explainers.trust.metrics.road import imputed
from tests import nets


def score(name: str, net: nn.Module, images: Tensor, maps: Tensor | str, truth: Tensor | None = None, **options):
    """Return the values of a metric for maps, or for those of a method, of class 0."""
    ask = Ask(torch.zeros(len(images), dtype=torch.int64))
    explainer = get_method(maps if isinstance(maps, str) else "saliency").build({})
    raw = explainer.explain(net, images, ask).maps if isinstance(maps, str) else maps
    with pose(net, images, ask) as question:
        return METRICS[name].build(options).score(Subject(question, explainer, raw, question.plain(), truth))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def linear() -> nn.Module:
    """Two classes, whose logits are weighted sums of all values of a picture of three channels."""
    return nets.Weighted((1.0, -2.0, 0.5), (0.25, 0.0, -1.0))


def contributions(net: nn.Module, images: Tensor) -> Tensor:
    """Return what each pixel adds to the logit of class 0."""
    return torch.einsum("c,nchw->nhw", net.conv.weight[0, :, 0, 0].detach(), images)


# faithfulness


def softmax(first: float, second: float = 0.0) -> float:
    return 1 / (1 + math.exp(second - first))


def test_insertion_and_deletion_of_four_pixels():
    """The logit is the sum of the pixels, 4 + 2 + 1 - 3: by size of the map they appear in the order 1, 4, -3, 2."""
    net = nets.Weighted((1.0,), (0.0,))
    images = torch.tensor([[[[4.0, 2.0], [1.0, -3.0]]]])
    maps = torch.tensor([[[0.3, 0.1], [0.9, 0.2]]])
    curves = {"insertion": (0, 1, 5, 2, 4), "deletion": (4, 3, -1, 2, 0)}
    for name, logits in curves.items():
        heights = [softmax(logit) for logit in logits]
        area = sum((first + second) / 2 for first, second in pairwise(heights)) / 4
        absolute = score(name, net, images, maps, steps=4, fill="zero", relative=False)
        assert absolute.item() == pytest.approx(area, abs=1e-6)
        relative = score(name, net, images, maps, steps=4, fill="zero")
        assert relative.item() == pytest.approx(area / softmax(4), abs=1e-6)


def test_levels_lie_closer_where_curves_bend():
    net, images = nets.Weighted((1.0,), (0.0,)), torch.ones(1, 1, 10, 10) / 25
    maps = torch.arange(100.0).view(1, 10, 10)
    shares = (0.03, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8)
    heights = [softmax(4 * share) for share in shares]
    area = sum((shares[i + 1] - shares[i]) * (heights[i] + heights[i + 1]) / 2 for i in range(len(shares) - 1)) / (
        shares[-1] - shares[0]
    )
    assert score("insertion", net, images, maps, fill="zero", relative=False).item() == pytest.approx(area, abs=1e-6)


def test_what_hides_is_the_blurred_picture(linear):
    """Of a picture of one colour blur hides nothing, so that its probability never changes."""
    images = torch.full((1, 3, 8, 8), 0.1)
    for name in ("insertion", "deletion"):
        assert score(name, linear, images, noise(1, 8, 8)).item() == pytest.approx(1, abs=1e-5)
        assert score(name, linear, images, noise(1, 8, 8), fill="zero").item() != pytest.approx(1, abs=1e-3)


def test_input_times_gradient_of_a_linear_network_is_perfect(linear):
    images = noise(3, 3, 12, 12)
    torch.testing.assert_close(score("sensitivity-n", linear, images, contributions(linear, images)), torch.ones(3))
    for scaled, factor in ((False, 1), (True, 7)):
        error = score("infidelity", linear, images, factor * contributions(linear, images), scaled=scaled)
        torch.testing.assert_close(error, torch.zeros(3), atol=1e-6, rtol=0)
    wrong = score("infidelity", linear, images, 2 * contributions(linear, images), scaled=False)
    assert (wrong > 1).all()


def test_hidden_sets_have_n_cells_and_squares_their_sides():
    sets = get_metric("sensitivity-n").build({"cells": 4, "share": 0.25, "masks": 9}).drawn(8, 12)
    assert sets.shape == (9, 8, 12)
    assert (sets.flatten(1).sum(dim=1) == 4 * 6).all()  # four cells of two by three pixels
    squares = get_metric("infidelity").build({"masks": 50, "share": 0.5}).drawn(8, 12)
    sides = squares.any(dim=1).sum(dim=1)
    assert torch.equal(sides, squares.any(dim=2).sum(dim=1))
    assert set(sides.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("imputation", ["exact", "fast"])
def test_imputation_continues_what_surrounds_it(imputation):
    """A plane is the mean of its neighbours everywhere, and so the solution inside its border."""
    plane = (torch.arange(16.0)[:, None] - 2 * torch.arange(16.0)).expand(1, 2, -1, -1) / 16
    removed = torch.zeros(1, 16, 16, dtype=torch.bool)
    removed[:, 2:9, 3:12] = True
    filled = imputed(plane, removed, imputation)
    torch.testing.assert_close(filled, plane, atol=1e-5 if imputation == "exact" else 0.05, rtol=0)
    assert torch.equal(filled[:, :, ~removed[0]], plane[:, :, ~removed[0]])
    nothing = torch.zeros_like(removed)
    assert torch.equal(imputed(plane, nothing, imputation), plane)


def test_a_single_pixel_is_the_weighted_mean_of_its_neighbours():
    images = torch.arange(18.0).view(1, 2, 3, 3) ** 2
    for place, weights in (((1, 1), [[1, 2, 1], [2, 0, 2], [1, 2, 1]]), ((0, 0), [[0, 2, 0], [2, 1, 0], [0, 0, 0]])):
        removed = torch.zeros(1, 3, 3, dtype=torch.bool)
        removed[0][place] = True
        parts = torch.tensor(weights) / torch.tensor(weights).sum()
        for imputation in ("exact", "fast"):
            filled = imputed(images, removed, imputation)
            torch.testing.assert_close(filled[0, :, *place], (images[0] * parts).sum(dim=(1, 2)))


def test_road_compares_the_map_with_its_opposite(linear):
    images = noise(2, 3, 10, 10)
    maps = contributions(linear, images)
    for imputation in ("exact", "fast"):
        value, opposite = (
            score("road", linear, images, sign * maps, noise=0, imputation=imputation) for sign in (1, -1)
        )
        torch.testing.assert_close(value, -opposite)
        assert (value > 0).all()


def test_road_of_one_spot():
    """Without the only bright pixel nothing is left of the class; without the dark ones it stays."""
    net, images = nets.Weighted((1.0,), (0.0,)), torch.zeros(1, 1, 10, 10)
    images[0, 0, 4, 5] = 3.0
    value = score("road", net, images, images[:, 0], noise=0, imputation="exact")
    without_most = 0.5
    with_least = []
    for share in (20, 40, 60, 80):
        removed = torch.ones(100, dtype=torch.bool)
        # Dark pixels are equal, so the later ones are the least important.
        kept = [45, *(place for place in range(100) if place != 45)][: 100 - share]
        removed[kept] = False
        with_least.append(softmax(imputed(images, removed.view(1, 10, 10), "exact").sum().item()))
    assert value.item() == pytest.approx((sum(with_least) / 4 - without_most) / 2, abs=1e-6)


def test_a_picture_seen_through_its_map(linear):
    """The map is halved nowhere but where it is half of its largest value, and hides where it is negative."""
    images = torch.zeros(1, 3, 1, 2)
    images[0, 0] = torch.tensor([2.0, 4.0])  # logits 6 and 1.5
    maps = torch.tensor([[[4.0, 2.0]]])  # seen are 2 and 2: logits 4 and 1
    expected = 1 - softmax(4, 1) / softmax(6, 1.5)
    assert score("average-drop", linear, images, maps).item() == pytest.approx(expected, abs=1e-6)
    assert score("average-increase", linear, images, maps).item() == 0
    images[0, 0] = torch.tensor([2.0, -4.0])  # the second pixel speaks against the class
    assert score("average-drop", linear, images, torch.tensor([[[1.0, -1.0]]])).item() == 0
    assert score("average-increase", linear, images, torch.tensor([[[1.0, -1.0]]])).item() == 1


def test_arcc_is_the_harmonic_mean_of_its_parts(linear):
    maps = get_method("centre").build({}).explain(linear, noise(2, 3, 10, 10)).maps
    images = (
        torch.stack([maps / 20, -maps / 20, torch.zeros_like(maps)], dim=1)
        * torch.tensor([1.0, -1.0])[:, None, None, None]
    )
    road = score("road", linear, images, maps, imputation="exact", noise=0)
    ask = Ask(torch.zeros(2, dtype=torch.int64))
    with pose(linear, images, ask) as question:
        subject = Subject(question, get_method("centre").build({}), maps, question.plain())
        value = METRICS["arcc"].build({"imputation": "exact", "noise": 0}).score(subject)
    # The map is that of any picture, so it is coherent.
    parts = [(2 * road).clamp(0, 1), torch.ones(2), 1 - maps.mean(dim=(1, 2)) / maps.amax(dim=(1, 2))]
    assert (road > 0.01).tolist() == [True, False]
    expected = torch.tensor([0.0 if min(row) == 0 else 3 / sum(1 / row) for row in torch.stack(parts, dim=1)])
    torch.testing.assert_close(value, expected)


# complexity


def test_sparseness_and_complexity_of_known_maps(linear):
    images = torch.zeros(4, 3, 1, 2)
    maps = torch.tensor([[[1.0, 0.0]], [[1.0, -1.0]], [[1.0, 3.0]], [[0.0, 0.0]]])
    torch.testing.assert_close(score("sparseness", linear, images, maps), torch.tensor([0.5, 0.0, 0.25, 0.0]))
    expected = [0.0, math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75), math.log(2)]
    torch.testing.assert_close(score("complexity", linear, images, maps), torch.tensor(expected))


# localisation


def test_pointing_and_energy_of_known_maps(linear):
    images = torch.zeros(4, 3, 2, 2)
    truth = torch.tensor([[[True, False], [True, False]]]).expand(4, -1, -1)
    maps = torch.tensor([[[3.0, 0], [0, 1]], [[1, -2], [0, 3]], [[2, 2], [0, 0]], [[0, 0], [0, 0]]])
    pointing = score("pointing-game", linear, images, maps, truth)
    torch.testing.assert_close(pointing, torch.tensor([1.0, 0.0, 0.5, 0.5]))
    energy = score("energy-in-box", linear, images, maps, truth)
    torch.testing.assert_close(energy, torch.tensor([0.75, 0.25, 0.5, 0.5]))


def colour() -> nn.Module:
    """Tells the colour by the mean of each channel."""
    return nets.Averaged(*(40 * torch.eye(5)).tolist())


def crowd(net: nn.Module, images: Tensor) -> Tensor:
    """Divide by the mean of all channels, and more."""
    return net.net(images) / (0.2 + images.mean(dim=(1, 2, 3)))[:, None]


def colours(count: int = 5) -> Tensor:
    """Return pictures (count, 5, 8, 8), each of one colour."""
    return torch.eye(5)[:count, :, None, None].expand(-1, -1, 8, 8).clone()


def of_mosaics(net: nn.Module, method: str, metric: str, images: Tensor | None = None, **options) -> dict[str, Tensor]:
    images = colours() if images is None else images
    explainers = {method: get_method(method).build({"patch": 4, "stride": 4} if method == "occlusion" else {})}
    return measure(net, images, explainers, {metric: METRICS[metric].build(options)}).values[method]


@pytest.mark.parametrize("size", ["input", "native"])
def test_a_network_of_single_pixels_wins_the_grid_pointing_game(size):
    for method in ("hirescam", "input-x-gradient"):
        values = of_mosaics(colour(), method, "gridpg", size=size)
        assert values.keys() == {"gridpg", "gridpg-top"}
        for value in values.values():
            torch.testing.assert_close(value, torch.ones(5), atol=0.2 if size == "input" else 1e-5, rtol=0)
    for value in of_mosaics(colour(), "centre", "gridpg", size=size).values():
        torch.testing.assert_close(value, torch.full((5,), 0.25), atol=0.02, rtol=0)


def test_the_score_of_disconnected_cells_is_that_of_the_right_cell():
    crowded = nets.Wired(crowd, net=colour())
    pointing = of_mosaics(crowded, "saliency", "gridpg", size="native")["gridpg"]
    assert (pointing < 0.7).all()  # every cell lowers the score of each
    for method in ("saliency", "gradcam", "occlusion"):
        values = of_mosaics(crowded, method, "difull")
        torch.testing.assert_close(values["difull"], torch.ones(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(of_mosaics(crowded, "centre", "difull")["difull"], torch.full((5,), 0.25))


def test_methods_that_read_layers_see_all_disconnected_cells():
    """Grad-CAM's weights are of the right cell, and its features those of all: what they have in common shows."""
    shared = colour()
    with torch.no_grad():
        shared.conv.weight.add_(10)  # each colour is a little of every feature
    value = of_mosaics(shared, "gradcam", "difull")["difull"]
    assert ((value > 0.3) & (value < 0.9)).all()


def test_mosaics_show_each_sure_picture_once_among_other_classes():
    images = torch.cat([colours(), colours(2), torch.zeros(1, 5, 8, 8)])  # the last one is nothing for sure
    with pose(colour(), images) as question:
        subject = Subject(question, get_method("centre").build({}), torch.zeros(8, 1, 1), question.plain())
        mosaics = METRICS["gridpg"].build({}).mosaics(subject)
        again = METRICS["gridpg"].build({}).mosaics(subject)
        other = METRICS["gridpg"].build({"seed": 1}).mosaics(subject)
    targets = mosaics.members.gather(1, mosaics.places[:, None])[:, 0]
    assert targets.tolist() == list(range(7))
    assert all(len(set(row)) == 4 for row in mosaics.classes[mosaics.members].tolist())
    assert torch.equal(mosaics.members, again.members)
    assert not torch.equal(mosaics.members, other.members)
    joint = mosaics.join(images)
    assert joint.shape == (7, 5, 16, 16)
    for row in range(7):
        cell = mosaics.cell(16, 16)[row]
        assert torch.equal(joint[row][:, cell].view(5, 8, 8), images[row])


def test_cells_are_joined_and_split():
    cells = noise(2 * 9, 3, 4, 5)
    mosaic = joined(cells, 3)
    assert torch.equal(mosaic[1, :, 4:8, 10:15], cells[9 + 5])
    assert torch.equal(split(mosaic, 3), cells)


# stability and randomisation


def test_max_sensitivity_of_a_linear_network_is_that_of_the_noise(linear):
    images = noise(2, 3, 6, 6)
    ask = Ask(torch.zeros(2, dtype=torch.int64))
    explainer = get_method("input-x-gradient").build({"sign": "signed"})
    maps = explainer.explain(linear, images, ask).maps
    torch.testing.assert_close(maps, contributions(linear, images))
    generator = torch.Generator().manual_seed(3)
    steps = [0.5 * (2 * torch.rand(3, 6, 6, generator=generator) - 1) for _ in range(4)]
    moves = torch.stack([contributions(linear, step[None]).norm() for step in steps])
    expected = moves.max() / maps.flatten(1).norm(dim=1)
    with pose(linear, images, ask) as question:
        subject = Subject(question, explainer, maps, question.plain())
        metric = METRICS["max-sensitivity"].build({"samples": 4, "radius": 0.5, "seed": 3})
        torch.testing.assert_close(metric.score(subject), expected)
        blank = replace(subject, raw=torch.zeros_like(maps))
        assert metric.score(blank).isnan().all()


@pytest.mark.parametrize("control", ["edges", "centre"])
def test_a_map_that_ignores_the_network_is_found_out(control):
    net, images = nets.seeded(nets.Net), noise(3, 3, 12, 12)
    names = ("mprt", "smooth-mprt", "efficient-mprt")
    metrics = {name: METRICS[name].build({}) for name in names}
    values = measure(net, images, {control: get_method(control).build({})}, metrics).values[control]
    torch.testing.assert_close(values["mprt"], torch.ones(3))
    torch.testing.assert_close(values["smooth-mprt"], torch.ones(3))
    torch.testing.assert_close(values["efficient-mprt"], torch.zeros(3))


def test_a_gradient_depends_on_the_network_and_nothing_is_left_behind():
    net, images = nets.seeded(nets.Net), noise(3, 3, 12, 12)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    metrics = {"mprt": METRICS["mprt"].build({"stages": 3})}
    value = measure(net, images, {"saliency": get_method("saliency").build({})}, metrics).values["saliency"]["mprt"]
    assert (value < 0.9).all()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())


def test_efficient_mprt_is_the_rise_of_entropy():
    assert entropy(np.array([[0.0, 1.0], [1.0, 1.0]])) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    net, images = nets.seeded(nets.Net), noise(2, 3, 12, 12)
    explainer, metric = get_method("saliency").build({}), METRICS["efficient-mprt"].build({})
    with pose(net, images, Ask(torch.tensor([0, 2]))) as question:
        maps = explainer.attribution(question).maps
        value = metric.score(Subject(question, explainer, maps, question.plain()))
        (network,) = metric.networks(Subject(question, explainer, maps, question.plain()), 1)
    after = explainer.explain(network, images, torch.tensor([0, 2])).maps
    pairs = [(entropy(first.numpy()), entropy(second.numpy())) for first, second in zip(maps, after, strict=True)]
    assert value.tolist() == pytest.approx([(second - first) / first for first, second in pairs], abs=1e-5)


def test_networks_are_randomised_from_the_end():
    net, images = nets.seeded(nets.Net), noise(1, 3, 12, 12)
    with pose(net, images) as question:
        subject = Subject(question, get_method("centre").build({}), torch.zeros(1, 1, 1), question.plain())
        changed = [
            [name for name, value in network.named_parameters() if not torch.equal(value, net.get_parameter(name))]
            for network in METRICS["mprt"].build({}).networks(subject, 4)
        ]
    parts = [{name.partition(".")[0] for name in names} for names in changed]
    assert parts == [{"head"}, {"head", "unused"}, {"head", "unused", "conv"}, {"head", "unused", "conv", "stem"}]


def test_correlations_and_ranks():
    first = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    second = torch.tensor([[2.0, 4.0, 6.0], [1.0, 2.0, 3.0], [1.0, 0.0, 1.0]])
    torch.testing.assert_close(correlations(first, second), torch.tensor([1.0, 0.0, -1.0]))
    assert mean_ranks(torch.tensor([[3.0, 1.0, 3.0, 2.0]])).tolist() == [[3.5, 1.0, 3.5, 2.0]]


def test_ranks_of_one_map_for_all_pictures_warn_of_nothing():
    torch.set_warn_always(True)
    try:
        assert mean_ranks(torch.tensor([[3.0, 1.0]]).expand(2, -1)).tolist() == [[2.0, 1.0]] * 2
    finally:
        torch.set_warn_always(False)
