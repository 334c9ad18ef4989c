import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor

from seewhy.explainers import explain, get_method
from seewhy.explainers.errors import LayerError, OptionError
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.methods.cam.layer_tensors import collect
from seewhy.explainers.methods.concept.dff import DFF, factorize, nonnegative_factors, regions_of
from seewhy.explainers.tasks.pose import pose
from tests import nets
from tests.explainers.test_perturbing import EXAMPLES

BY_HAND = nets.Pooled(nets.linear([[1, 0, 0], [0, 2, 0], [0, 0, 1]]))
"""The layer is the picture; class 0 is the mean of channel 0, class 1 that of channel 1 twice."""


@pytest.fixture
def corners() -> Tensor:
    """Each channel is one region: a rectangle of its own brightness."""
    picture = torch.zeros(1, 3, 6, 8)
    picture[0, 0, :3, :4] = 2
    picture[0, 1, 3:, 1:5] = 1
    picture[0, 2, 1:4, 5:] = 3
    return picture


@pytest.mark.parametrize("target", [0, 1, 2])
def test_the_map_is_the_region_that_gives_the_target_the_highest_score(target, corners, untouched):
    attribution = DFF(layers=("layer",), concepts=3).explain(untouched(BY_HAND), corners, torch.tensor([target]))
    torch.testing.assert_close(attribution.maps, corners[:, target], rtol=1e-3, atol=1e-3)
    assert attribution.layers == ("layer",)
    assert not attribution.signed


def test_negative_activations_count_as_zero(corners):
    explainer, target = DFF(layers=("layer",), concepts=3), torch.tensor([0])
    maps = explainer.explain(BY_HAND, torch.where(corners > 0, corners, -0.1), target).maps
    torch.testing.assert_close(maps, explainer.explain(BY_HAND, corners, target).maps)


def test_a_contrast_chooses_the_region_for_the_one_against_the_other(corners):
    """Both classes see channel 1; class 0 also sees channel 0."""
    net, explainer = nets.Pooled(nets.linear([[1, 3, 0], [0, 3, 0]])), DFF(layers=("layer",), concepts=3)
    plain = explainer.explain(net, corners, torch.tensor([0])).maps
    contrast = explainer.explain(net, corners, torch.tensor([0]), torch.tensor([1])).maps
    torch.testing.assert_close(plain, corners[:, 1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(contrast, corners[:, 0], rtol=1e-3, atol=1e-3)


def test_one_concept_is_the_first_singular_pair(resnet18, images):
    maps = DFF(layers=("layer3",), concepts=1).explain(resnet18, images).maps
    with HookSession(resnet18) as hooks, torch.no_grad():
        hooks.record("layer3", kinds="output")
        resnet18(images)
    matrices = hooks.outputs["layer3"][0].flatten(2).mT.double()
    left, strengths, _ = torch.linalg.svd(matrices, full_matrices=False)
    expected = (left[:, :, 0] * strengths[:, :1]).abs().reshape(4, 4, 4).float()
    assert nets.relative_error(maps, expected) < 1e-4


def test_factors_are_found_again_and_as_good_as_those_of_scikit_learn(generator):
    from sklearn.decomposition import NMF

    left, right = torch.rand(2, 30, 3, generator=generator), torch.rand(2, 3, 20, generator=generator)
    left, right = left * (left > 0.5), right * (right > 0.5)
    exact = left @ right
    result = nonnegative_factors(exact, 3, 500, 0)
    assert nets.relative_error(result[0] @ result[1], exact.double()) < 1e-2
    noisy = torch.rand(1, 49, 40, generator=generator)
    left, right = nonnegative_factors(noisy, 5, 300, 0)
    assert left.min() >= 0
    assert right.min() >= 0
    peer = NMF(5, max_iter=2000, init="random", random_state=0).fit(noisy[0].numpy())
    assert (noisy - left @ right).norm() < 1.01 * peer.reconstruction_err_


def test_blank_activations_have_a_blank_map():
    attribution = DFF(layers=("layer",)).explain(BY_HAND, torch.zeros(1, 3, 4, 6))
    assert torch.equal(attribution.maps, torch.zeros(1, 4, 6))


@pytest.mark.parametrize(
    ("layers", "message"), [(("layer[34]",), "several layers"), (("fc",), "not a grid"), (("conv1",), None)]
)
def test_layers_that_cannot_be_factorised_are_refused(layers, message, resnet18, images, untouched):
    if message is None:
        resnet18, layers, message = BY_HAND, ("layer",), "mostly negative"
        images = -images.abs()
    with pytest.raises(LayerError, match=message):
        DFF(layers=layers).explain(untouched(resnet18), images)


def test_two_layers_are_no_option():
    with pytest.raises(OptionError, match="at most 1 are allowed") as caught:
        get_method("dff").build({"layers": ["a", "b"]})
    assert caught.value.field == "layer"


def test_a_channels_last_layer_runs_on_with_its_parts(generator, untouched):
    swin = nets.seeded(torchvision.models.SwinTransformer, [4, 4], 16, [1, 1], [2, 2], [4, 4])
    swin.norm.bias.data += 1
    images = torch.randn(2, 3, 32, 64, generator=generator)
    first, last = (
        DFF(layers=(layer,), concepts=2).explain(untouched(swin), images, torch.tensor([5, 6])).maps
        for layer in ("permute", "norm")
    )
    assert first.shape == (2, 4, 8)
    assert nets.relative_error(first, last) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_one_region_equals_that_of_pytorch_grad_cam_where_channels_reach_zero(resnet18, images):
    """It subtracts each channel's minimum first, and adds it to the concept afterwards: then their product is no
    longer the activations. Of several regions both find one of many local optima; the best single one is unique.
    """
    from pytorch_grad_cam.feature_factorization.deep_feature_factorization import dff

    with HookSession(resnet18) as hooks, torch.no_grad():
        hooks.record("layer3", kinds="output")
        resnet18(images[:1])
    activations = hooks.outputs["layer3"][0]
    activations = activations - activations.amin(dim=(2, 3), keepdim=True)
    concepts, regions = dff(activations.numpy(), n_components=1)
    left, right = nonnegative_factors(activations.flatten(2).mT, 1, 100, 0)
    result = (left * right.norm())[0, :, 0].float()
    assert nets.relative_error(result, torch.from_numpy(regions * np.linalg.norm(concepts)).flatten().float()) < 1e-3


def test_all_regions_of_a_picture_have_their_classes_and_a_labelled_drawing(lite0, tmp_path):
    explanation = explain(lite0, EXAMPLES / "coffee.png", method="dff", concepts=4, target="espresso")
    assert explanation.layers == ("bn2",)
    gains = [region.gain for region in explanation.regions]
    assert len(gains) == 4
    assert gains == sorted(gains, reverse=True)
    assert [len(region.predictions) for region in explanation.regions] == [5] * 4
    assert explanation.target.label == explanation.regions[0].predictions[0].label == "espresso"
    np.testing.assert_array_equal(explanation.map, explanation.regions[0].map)
    with Image.open(explanation.save(tmp_path / "factors.png", max_side=400)) as sheet:
        assert 100 < max(sheet.size) <= 400


def test_gains_of_a_linear_head_are_what_the_regions_add_to_the_logit(lite0):
    with Image.open(EXAMPLES / "coffee.png") as picture:
        images = lite0.preprocess(picture.convert("RGB"))[None]
    with pose(lite0, images) as question:
        tensors = collect(question, ("bn2",), None)
        regions, concepts = factorize(question, tensors, 8, 300, 0)
        result = regions_of(question, tensors, regions, concepts)
    weight, bias = (value.detach() for value in lite0.module.classifier.parameters())
    target = int(tensors.objective.targets[0])
    features = torch.einsum("khw,kc->kc", regions[0], concepts[0]) / 49
    expected = (features @ weight[target]).sort(descending=True).values
    torch.testing.assert_close(result.gains[0], expected, rtol=1e-3, atol=1e-3)
    # What the factorisation leaves, and the bias, make up the rest of the logit.
    assert abs(float(result.gains.sum() + bias[target] - tensors.outputs[0, target])) < 2
    torch.testing.assert_close(concepts.norm(dim=2), torch.ones(1, 8))


@pytest.mark.parametrize("options", [{"concepts": 0}, {"iterations": 0}, {"iterations": 1001}])
def test_numbers_out_of_bounds_are_refused(options):
    with pytest.raises(OptionError) as caught:
        get_method("dff").build(options)
    assert caught.value.field == next(iter(options))


def test_the_factorisation_ends_when_a_report_raises(corners):
    reports = []

    def report(done: int, total: int) -> None:
        reports.append((done, total))
        if len(reports) == 7:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        DFF(layers=("layer",), concepts=3, iterations=1000).explain(BY_HAND, corners, progress=Progress(report=report))
    assert reports == [(0, 7)] * 7


def test_iterations_are_no_passes(corners, monkeypatch):
    monkeypatch.setattr("seewhy.explainers.execution.chunks.MOST", 14)
    reports = []
    pictures, progress = corners.expand(2, -1, -1, -1), Progress(report=lambda *pair: reports.append(pair))
    DFF(layers=("layer",), concepts=3, iterations=4).explain(BY_HAND, pictures, progress=progress)
    assert reports == [(0, 14)] * 5 + [(14, 14)]
