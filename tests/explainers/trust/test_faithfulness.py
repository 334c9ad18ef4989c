import math

import pytest
import torch
from torch import Tensor, nn

from seewhy import GradCAM, explain, wrap_model
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.tasks.box_target import BoxTarget
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.trial import Trial
from tests import nets
from tools.planted.drawings import draw
from tools.planted.training import load

SLOPE = 1.5

MEAN = Trial(fill="mean")


def brightness() -> nn.Module:
    """The mean of all positions: class 0 for light, class 1 for dark."""
    return nets.Averaged((SLOPE,), (-SLOPE,))


def bright_corner(count: int = 1) -> Tensor:
    """A picture of the mean 1 whose light is all in its upper left quarter."""
    images = torch.zeros(count, 1, 8, 8)
    images[..., :4, :4] = 4
    return images


def light_meter():
    module = nets.Averaged((SLOPE,))
    return wrap_model(module, input_size=8, head="value", labels=["light"], units="lux", mean=(0.5,), std=(0.5,))


def faithfulness(network, images, trial=MEAN, ask=Ask()):  # noqa: B008
    attribution = GradCAM(layers=("conv",), sign="absolute").explain(network, images, ask)
    (proved,) = prove(network, images, [attribution], trial, Ask(function=ask.function))
    return proved.faithfulness


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_the_score_of_a_convolution_is_that_computed_by_hand():
    picture = bright_corner()
    picture[..., :4, 4:] = 2  # the quarter to the right of the marked one; the opposite one stays dark
    part = faithfulness(brightness(), picture, Trial(fill="mean", full=True))
    light = {mean: sigmoid(2 * SLOPE * mean) for mean in (0, 0.5, 1, 1.5)}
    assert (float(part.whole), float(part.kept)) == pytest.approx((light[1.5], light[1]))
    assert (float(part.dropped), float(part.turned_dropped)) == pytest.approx((light[0.5], light[1.5]))
    assert float(part.score) == pytest.approx((light[1] - light[0.5]) / light[1.5])
    assert part.copy_scores is not None
    turned, mirrored = (light[0] - light[1.5]) / light[1.5], (light[0.5] - light[1]) / light[1.5]
    assert part.copy_scores.tolist() == [pytest.approx([turned, mirrored])]
    assert part.forwards == 6


def test_blur_changes_nothing_of_a_plain_picture_whose_map_is_blank():
    part = faithfulness(brightness(), torch.full((1, 1, 8, 8), 0.7), Trial())
    assert float(part.kept) == pytest.approx(float(part.whole)) == pytest.approx(float(part.dropped))
    assert bool(part.are_blank)


def test_values_are_measured_by_how_far_they_change_when_all_is_hidden():
    model = light_meter()
    up = faithfulness(model, bright_corner())
    assert (float(up.whole), float(up.kept), float(up.dropped)) == pytest.approx((SLOPE, SLOPE, 0))
    assert (float(up.hidden), float(up.score), up.forwards) == (0, pytest.approx(1), 3)
    down = faithfulness(model, bright_corner(), ask=Ask.single(~0))
    assert (float(down.whole), float(down.score)) == pytest.approx((-SLOPE, -1))


def test_leads_and_functions_are_measured_in_the_same_way():
    network, light = brightness(), sigmoid(2 * SLOPE)
    lead = faithfulness(network, bright_corner(), ask=Ask.single(0, against=1))
    assert (float(lead.whole), float(lead.hidden), float(lead.score)) == pytest.approx((2 * light - 1, 0, 1))
    function = faithfulness(network, bright_corner(), ask=Ask(function=lambda outputs: 10 + outputs[:, 0]))
    assert (float(function.whole), float(function.score)) == pytest.approx((10 + SLOPE, 1))


def test_the_scale_is_never_zero():
    flat = faithfulness(light_meter(), bright_corner() * 0)
    assert float(flat.score) == 0
    sure = faithfulness(brightness(), 200 * bright_corner(), ask=Ask.single(1))
    assert float(sure.whole) == 0
    assert math.isfinite(float(sure.score))


def test_the_share_and_the_fill_are_options():
    corner = bright_corner()
    corner[..., :2, :4] *= 1.5
    corner[..., 2:4, :4] *= 0.5
    eighth = faithfulness(brightness(), corner, Trial(area=0.125, fill="mean"))
    assert float(eighth.kept) == pytest.approx(sigmoid(2 * SLOPE * 0.75))
    assert float(eighth.dropped) == pytest.approx(sigmoid(2 * SLOPE * 0.25))


@pytest.mark.parametrize("name", ["classifier", "segmenter", "detector"])
def test_a_picture_fares_alone_as_in_a_batch(name):
    network = load(name)
    drawings = draw(4, "outside", torch.Generator().manual_seed(3))
    labels = [str(number) for number in range(6)]
    if name == "detector":
        model, images = wrap_model(network, input_size=64, labels=labels[:5], head="detection"), drawings.pictures
    elif name == "segmenter":
        model, images = wrap_model(network, input_size=64, labels=labels, head="segmentation"), drawings.images
    else:
        model, images = network, drawings.images
    layers = {} if name != "classifier" else {"layers": ("features.4",)}
    (whole,) = prove(model, images, [GradCAM(**layers).explain(model, images)], Trial(full=True))
    rows = whole.rows()
    for number, row in enumerate(rows):
        image = images[number : number + 1]
        (alone,) = prove(model, image, [GradCAM(**layers).explain(model, image)], Trial(full=True))
        torch.testing.assert_close(alone.faithfulness.score, row.faithfulness.score, atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(alone.faithfulness.copies, row.faithfulness.copies, atol=2e-3, rtol=1e-3)
    assert bool(whole.faithfulness.are_probabilities.all())


def test_an_edge_of_a_box_is_no_probability():
    model = wrap_model(load("detector"), input_size=64, labels=list("01234"), head="detection")
    images = draw(2, "inside", torch.Generator().manual_seed(3)).pictures
    edges = Ask((BoxTarget(attribute="x1"), BoxTarget()))
    (proved,) = prove(model, images, [GradCAM().explain(model, images, edges)], Trial())
    part = proved.faithfulness
    assert part.are_probabilities.tolist() == [False, True]
    assert part.scale.tolist() == pytest.approx([abs(float(part.whole[0] - part.hidden[0])), float(part.whole[1])])


def test_several_methods_share_passes():
    network, images = brightness(), bright_corner(2)
    calls = []
    network.conv.register_forward_hook(lambda _module, args, _output: calls.append(len(args[0])))
    attributions = [GradCAM(layers=("conv",)).explain(network, images) for _ in range(2)]
    calls.clear()
    first, second = prove(network, images, attributions, MEAN)
    torch.testing.assert_close(first.faithfulness.score, second.faithfulness.score)
    assert sum(calls) <= 2 * 2 * 2 + 1  # the first picture once more, to count its activations
    assert max(calls) == 8


def test_a_picture_is_proved_only_where_that_is_asked_for():
    result = explain(light_meter(), bright_corner()[0], layer="conv")
    assert result.proof is None


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["integrated-gradients", "guided-ig", "deeplift"])
def test_the_gap_is_what_the_map_misses_of_its_sum(name):
    network, images = nets.seeded(nets.Net), IMAGES
    explainer = METHODS[name].build({"steps": 3} if name != "deeplift" else {})
    attribution = explainer.explain(network, images)
    (proved,) = prove(network, images, [attribution], Trial(), explainers=[explainer])
    scores, zero = (network(part).gather(1, attribution.targets[:, None])[:, 0] for part in (images, 0 * images))
    expected = (attribution.maps.sum((1, 2)) - (scores - zero)).abs() / (scores - zero).abs()
    torch.testing.assert_close(proved.faithfulness.gap, expected, atol=1e-4, rtol=1e-3)
    assert (float(proved.faithfulness.gap.max()) > 0.01) == (name != "deeplift")  # three steps are too few
    assert proved.faithfulness.forwards == 3


def test_methods_without_a_sum_promise_none():
    network, images = nets.seeded(nets.Net), IMAGES
    for explainer in (GradCAM(layers=("conv",)), METHODS["deeplift"].build({"sign": "positive"})):
        (proved,) = prove(network, images, [explainer.explain(network, images)], Trial(), explainers=[explainer])
        assert proved.faithfulness.gap is None
