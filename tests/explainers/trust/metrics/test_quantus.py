"""Metrics equal those of quantus on the same maps, pictures and draws, wherever quantus has them.

Only these tests need quantus, and they are skipped without it. Its pictures have one channel here: it counts
each channel of a pixel as a feature of its own.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.marking import top_share
from seewhy.explainers.trust.metrics.base import Subject, probability
from seewhy.explainers.trust.metrics.catalogue import METRICS, get_metric
from seewhy.explainers.trust.metrics.curves import Deletion
from seewhy.explainers.trust.metrics.perturbing import Infidelity, SensitivityN
from seewhy.explainers.trust.metrics.randomisation import MPRT, EfficientMPRT, SmoothMPRT
from seewhy.explainers.trust.metrics.road import ROAD, imputed
from seewhy.explainers.trust.metrics.stability import MaxSensitivity
from tests import nets

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # quantus warns of its own parameters

SIDE = 10
CLASSES = np.array([0, 2, 1])
QUIET = {"disable_warnings": True, "display_progressbar": False}


@pytest.fixture(scope="module")
def quantus():
    """quantus: to import it takes seconds, also where these tests do not run."""
    return pytest.importorskip("quantus")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """A small classifier of grey pictures; all of its values vary with all pixels."""
    head = nn.Tanh(), nn.Flatten(), nn.Linear(6 * SIDE * SIDE, 3)
    return nets.seeded(nn.Sequential, nn.Conv2d(1, 6, 3, padding=1), *head)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(3, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def maps() -> Tensor:
    values = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return values / values.amax(dim=(1, 2), keepdim=True)


@pytest.fixture
def subject(net, images, maps):
    with pose(net, images, Ask(torch.from_numpy(CLASSES))) as question:
        yield Subject(question, get_method("saliency").build({}), maps, question.plain(), truth())


def truth() -> Tensor:
    places = torch.zeros(3, SIDE, SIDE, dtype=torch.bool)
    places[0, 2:8, 3:9] = places[1, :5] = places[2, 6:, 6:] = True
    return places


def gradients(model, inputs, targets, **_):
    """Explain as `saliency` does, for quantus."""
    values = torch.as_tensor(inputs, dtype=torch.float32)
    chosen = torch.as_tensor(targets)
    return get_method("saliency").build({}).explain(model, values, chosen).maps.numpy()[:, None]


def run(metric, net, images, maps, classes=CLASSES, **arguments):
    maps = None if maps is None else maps.numpy().copy()[:, None]
    pictures = images.numpy().copy()
    return metric(model=net, x_batch=pictures, y_batch=classes, a_batch=maps, device="cpu", **arguments)


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("sparseness", "Sparseness"), ("complexity", "Complexity")])
def test_shapes_of_maps(quantus, subject, net, images, maps, name, kind):
    close(get_metric(name).build({}).score(subject), run(getattr(quantus, kind)(**QUIET), net, images, maps))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pointing-game", "PointingGame"),
        ("energy-in-box", "RelevanceMassAccuracy"),
        ("energy-in-box", "AttributionLocalisation"),
    ],
)
def test_places_of_maps(quantus, subject, net, images, maps, name, kind):
    expected = run(getattr(quantus, kind)(**QUIET), net, images, maps, s_batch=truth()[:, None].numpy())
    close(METRICS[name].build({}).score(subject), expected)


def test_the_top_of_a_grid(quantus, maps):
    cell = torch.zeros(3, SIDE, SIDE, dtype=torch.bool)
    cell[:, : SIDE // 2, : SIDE // 2] = True
    metric = quantus.RelevanceRankAccuracy(**QUIET)
    expected = run(metric, None, torch.zeros(3, 1, SIDE, SIDE), maps, s_batch=cell[:, None].numpy())
    top = top_share(maps, 1 / 4)
    close((top & cell).sum(dim=(1, 2)) / top.sum(dim=(1, 2)), expected)


def test_deletion_is_pixel_flipping(quantus, subject, net, images, maps):
    steps = 25
    curve = Deletion(steps=steps, fill="zero", relative=False).curve(subject)
    metric = quantus.PixelFlipping(features_in_step=SIDE * SIDE // steps, perturb_baseline=0.0, **QUIET)
    close(curve[:, 1:], run(metric, net, images, maps, softmax=True))  # quantus has no step without any pixel


def test_exact_imputation_is_that_of_road(quantus, images, maps):
    removed = maps > 0.45
    actual = imputed(images, removed, "exact")
    for image, mask, filled in zip(images.numpy(), removed.numpy(), actual, strict=True):
        indices = np.nonzero(mask.flatten())[0]
        close(filled, quantus.functions.perturb_func.noisy_linear_imputation(image, indices, noise=0.0))


def test_road_without_noise(quantus, subject, net, images, maps):
    shares = [20, 40, 60, 80]
    expected = run(quantus.ROAD(percentages=shares, noise=0.0, **QUIET), net, images, maps)
    order = maps.flatten(1).argsort(dim=1, descending=True)
    without_most = ROAD(imputation="exact", noise=0.0).curves(subject)[:, 1]
    for number, share in enumerate(shares):
        removed = torch.zeros(3, SIDE * SIDE, dtype=torch.bool).scatter_(1, order[:, :share], True)
        outputs = net(imputed(images, removed.view_as(maps), "exact")).detach()
        close((outputs.argmax(dim=1) == torch.from_numpy(CLASSES)).float().mean(), expected[share])
        close(without_most[:, number], probability(subject.objective, outputs))


def test_sensitivity_n_is_faithfulness_correlation_of_the_same_sets(quantus, subject, net, images, maps, monkeypatch):
    metric = SensitivityN(masks=20, cells=SIDE, share=0.25)
    sets = [np.nonzero(mask.flatten().numpy())[0] for mask in metric.drawn(SIDE, SIDE)]
    draws = iter(sets)
    monkeypatch.setattr(np.random, "choice", lambda *_, **__: next(draws))
    peer = quantus.FaithfulnessCorrelation(nr_runs=20, subset_size=SIDE * SIDE // 4, perturb_baseline=0.0, **QUIET)
    for row, value in enumerate(metric.score(subject)):
        draws = iter(sets)
        part = slice(row, row + 1)
        close(value, run(peer, net, images[part], maps[part], CLASSES[part], softmax=False)[0])


def test_infidelity_of_the_same_hidden_parts(quantus, subject, net, images, maps):
    """quantus hides one block after the other, and multiplies maps by how far pixels move."""

    class Blocks(Infidelity):
        def drawn(self, height: int, width: int) -> Tensor:
            block = torch.arange(height)[:, None] // 5 * (width // 5) + torch.arange(width) // 5
            return block[None] <= torch.arange(int(block.max()) + 1)[:, None, None]

    peer = quantus.Infidelity(perturb_patch_sizes=[5], n_perturb_samples=1, perturb_baseline=0.0, **QUIET)
    expected = run(peer, net, images, maps)
    question = subject.question
    moved = Subject(question, subject.explainer, maps * images[:, 0], subject.plain)
    close(Blocks(scaled=False, fill="zero").score(moved), expected)


def test_max_sensitivity_of_the_same_noise(quantus, subject, net, images, maps, monkeypatch):
    metric = MaxSensitivity(samples=4, radius=0.2)
    generator = torch.Generator().manual_seed(0)
    noise = [0.2 * (2 * torch.rand(1, SIDE, SIDE, generator=generator) - 1) for _ in range(4)]
    draws = iter(noise)
    own = torch.from_numpy(gradients(net, images, CLASSES)[:, 0])
    value = metric.score(Subject(subject.question, subject.explainer, own, subject.plain))

    def draw(size: tuple[int, ...], **_: object) -> np.ndarray:
        return np.tile(next(draws).numpy().reshape(1, -1), (size[0], 1))

    monkeypatch.setattr(np.random, "uniform", draw)
    peer = quantus.MaxSensitivity(nr_samples=4, lower_bound=0.2, **QUIET)
    close(value, run(peer, net, images, own, explain_func=gradients))


def randomised_alike(quantus, monkeypatch, metric, subject, stages):
    """Let quantus randomise the network as we do."""

    def generator(self, order, seed):
        for number, network in enumerate(metric.networks(subject, stages)):
            yield str(number), network

    kind = quantus.helpers.model.pytorch_model.PyTorchModel
    monkeypatch.setattr(kind, "get_random_layer_generator", generator)
    monkeypatch.setattr(kind, "random_layer_generator_length", stages)


def test_mprt_of_the_same_networks(quantus, subject, net, images, monkeypatch):
    metric = MPRT(stages=2)
    own = torch.from_numpy(gradients(net, images, CLASSES)[:, 0])
    similarities = metric.similarities(replace(subject, raw=own))
    randomised_alike(quantus, monkeypatch, metric, subject, 2)
    expected = run(quantus.MPRT(**QUIET), net, images, own, explain_func=gradients)
    close(similarities[:, 0], expected["0"])
    close(similarities[:, 1], expected["1"])


def test_smooth_mprt_of_the_same_networks_and_noise(quantus, subject, net, images, monkeypatch):
    metric = SmoothMPRT(stages=2, samples=4, noise=0.1)
    similarities = metric.similarities(subject)
    randomised_alike(quantus, monkeypatch, metric, subject, 2)
    state = {"number": 0}

    def noise(*shape):
        if state["number"] % 3 == 0:
            state["generator"] = torch.Generator().manual_seed(0)
        state["number"] += 1
        return np.tile(torch.randn(1, SIDE, SIDE, generator=state["generator"]).numpy(), (shape[0], 1, 1, 1))

    monkeypatch.setattr(np.random, "randn", noise)
    peer = quantus.SmoothMPRT(nr_samples=4, noise_magnitude=0.1, abs=True, **QUIET)
    monkeypatch.setattr(quantus, "explain", gradients)
    expected = run(peer, net, images, None, explain_func=gradients)
    close(similarities[:, 0], expected["0"])
    close(similarities[:, 1], expected["1"])


def test_efficient_mprt_of_the_same_network(quantus, subject, net, images, monkeypatch):
    metric = EfficientMPRT()
    own = torch.from_numpy(gradients(net, images, CLASSES)[:, 0])
    value = metric.score(Subject(subject.question, subject.explainer, own, subject.plain))
    randomised_alike(quantus, monkeypatch, metric, subject, 1)
    close(value, run(quantus.EfficientMPRT(**QUIET), net, images, own, explain_func=gradients))
