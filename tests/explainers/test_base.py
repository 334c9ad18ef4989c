"""Common properties of all methods: contrasts, smoothing, passes within a budget, several methods at once."""

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM, Saliency
from seewhy.explainers.core.ask import MOST_PROBABLE, NO_CONTRAST, Ask
from seewhy.explainers.core.projection import principal_component
from seewhy.explainers.errors import (
    ExplainerError,
    LayerError,
    ModelOutputError,
    NonFiniteError,
    TargetError,
    UnsuitableModelError,
)
from seewhy.explainers.execution.chunks import MOST, chunk_size, chunks
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.inspection.capture import capture_images
from seewhy.explainers.methods.cam.shared_pass import explain_jointly
from seewhy.explainers.methods.catalogue import METHODS, method
from seewhy.explainers.methods.explainer import AUGMENTATIONS
from seewhy.explainers.tasks.classification import Classification, ClassObjective
from seewhy.explainers.tasks.pose import named_ask, pose, predict
from tests import nets


@pytest.fixture
def net() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    )
    generator = torch.Generator().manual_seed(0)
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 3
    return net.eval()


class Bent(GradCAM):
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return super().weigh(activations, gradients).T


TARGETS, OTHERS = torch.tensor([0, 3, 2, 3]), torch.tensor([1, 4, 0, 0])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda net, images: GradCAM(layers="1").explain(net, images.numpy()), "got ndarray; give a torch.Tensor"),
        (lambda net, images: GradCAM(layers="1").explain(net, images[0]), r"`images\[None\]` adds the batch axis"),
        (lambda net, images: Bent(layers="1").explain(net, images), r"`Bent.weigh` .* shape \(6, 4\); .*\(4, 6\)"),
        (lambda net, images: capture_images(net, images, ("1",), ("outputs",)), "Unknown kinds .*choose from input"),
        (lambda net, images: method("gradcam", family="cam", summary="")(GradCAM), "Two methods are named"),
    ],
)
def test_mistakes_in_code_are_explainer_errors_and_value_errors(mistake, message, net, images):
    for kind in (ExplainerError, ValueError):
        with pytest.raises(kind, match=message):
            mistake(net, images)


@pytest.mark.parametrize(("targets", "hint"), [(1, r"\[1, 1\]"), ([3, 4], r"\[3, 4\]"), ("cat", r"\[281, 281\]")])
def test_targets_that_are_no_tensor_are_written_as_one(targets, hint, net, images):
    with pytest.raises(TargetError, match=rf"give torch\.tensor\({hint}\)\.$"):
        Saliency().explain(net, images[:2], targets)


def test_an_attribution_shows_itself_without_its_tensors(net, images):
    attribution = GradCAM(layers="1").explain(net, images, TARGETS)
    shape = tuple(attribution.maps.shape)
    assert repr(attribution) == f"Attribution(maps {shape}, targets [0, 3, 2, 3], layers 1)"


def test_the_objective_of_a_classifier_is_a_logit_or_the_lead_over_another():
    logits = torch.tensor([[1.0, 2.0, 4.0], [3.0, -1.0, 0.0]])
    task = Classification()
    objective = task.objective(logits, Ask(against=torch.tensor([0, 1])))
    assert objective.targets.tolist() == [2, 0]
    assert objective.scores(logits).tolist() == [3.0, 4.0]
    assert task.objective(logits, Ask(against=torch.tensor([NO_CONTRAST, 1]))).scores(logits).tolist() == [4.0, 4.0]
    rows = objective.rows(torch.tensor([1, 1, 0]))
    assert (rows.targets.tolist(), rows.against.tolist()) == ([0, 0, 2], [1, 1, 0])
    assert ClassObjective(torch.tensor([1, 1])).rows(torch.tensor([0])).against is None
    for targets, against in (([3, 0], None), ([0, -1], None), ([0, 0], [1, 3])):
        with pytest.raises(TargetError, match="out of range"):
            task.objective(logits, Ask(torch.tensor(targets), None if against is None else torch.tensor(against)))
    with pytest.raises(TargetError, match="contrasted with itself"):
        task.objective(logits, Ask(torch.tensor([1, 0]), torch.tensor([2, 0])))


def test_what_is_asked_of_each_picture_is_stacked_for_a_batch():
    batch = Ask.stacked([Ask.single(2), Ask.single(None, 1), Ask()])
    assert batch.targets.tolist() == [2, MOST_PROBABLE, MOST_PROBABLE]
    assert batch.against.tolist() == [NO_CONTRAST, 1, NO_CONTRAST]
    plain = Ask.stacked([Ask(), named_ask(Classification(("a", "b")), None)])
    assert (plain.targets, plain.against) == (None, None)
    named = named_ask(Classification(("a", "b")), "b", 0)
    assert (named.targets.tolist(), named.against.tolist()) == ([1], [0])


def test_an_ask_is_asked_as_its_parts_are(net, images):
    explainer = GradCAM(layers=("1",), sign="signed")
    attribution, parts = (
        explainer.explain(net, images, Ask(TARGETS, OTHERS)),
        explainer.explain(net, images, TARGETS, OTHERS),
    )
    assert torch.equal(attribution.maps, parts.maps)
    assert torch.equal(attribution.against, OTHERS)
    with pytest.raises(TargetError, match="already contains the contrast"):
        explainer.explain(net, images, Ask(TARGETS), OTHERS)


@pytest.mark.parametrize("against", [torch.tensor([0]), torch.tensor([0.0, 1.0, 1.0, 1.0])])
def test_contrasts_of_the_wrong_shape_are_refused(against, net, images):
    with pytest.raises(TargetError, match="one integer target per image"):
        Saliency().explain(net, images, TARGETS, against)


@pytest.mark.parametrize("shape", [(2, 5, 3, 2), (2, 3, 4, 5), (2, 1, 3, 3)])
def test_the_principal_component_is_the_first_of_a_singular_value_decomposition(shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 0.3
    result = principal_component(values)
    for activation, projected in zip(values, result, strict=True):
        matrix = activation.flatten(1).T
        vector = torch.linalg.svd(matrix.double()).Vh[0]
        expected = (matrix.double() @ vector).reshape(shape[2:])
        expected = expected * torch.sign((expected * activation.sum(dim=0)).sum())
        torch.testing.assert_close(projected.double(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(principal_component(torch.zeros(shape)), torch.zeros(shape[0], *shape[2:]))
    with pytest.raises(NonFiniteError):
        principal_component(torch.full(shape, torch.nan))


def test_one_channel_is_its_own_principal_component():
    values = torch.randn(3, 1, 4, 5)
    torch.testing.assert_close(principal_component(values), values[:, 0], rtol=1e-5, atol=1e-6)


def test_tta_is_the_mean_over_augmentations_for_the_class_of_the_plain_picture(net, images):
    plain = GradCAM(layers=("1",))
    targets = plain.explain(net, images).targets
    expected = torch.zeros(4, 64, 64)
    for flip, factor in AUGMENTATIONS:
        maps = plain.explain(net, (images.flip(3) if flip else images) * factor, targets).maps
        expected += (maps.flip(2) if flip else maps) / len(AUGMENTATIONS)
    finished = []
    attribution = GradCAM(layers=("1",), smooth="tta").explain(
        net, images, progress=Progress(report=lambda *pair: finished.append(pair))
    )
    torch.testing.assert_close(attribution.maps, expected)
    assert torch.equal(attribution.targets, targets)
    torch.testing.assert_close(attribution.logits, net(images))


def test_a_pass_holds_what_memory_allows(monkeypatch, net, images):
    from seewhy.explainers.execution import chunks as room

    assert chunk_size(net, images, backward=True) == chunk_size(net, images, backward=True, copies=2) == MOST
    largest = 6 * 64 * 64 * 4  # of the convolution
    footprint = images[0].nbytes + 2 * largest + 2 * 6 * 4 + 5 * 4
    monkeypatch.setattr(room, "MOST", 32)
    monkeypatch.setattr(room, "MEMORY", 10 * 2 * footprint)
    assert chunk_size(net, images, backward=True) == 10
    assert chunk_size(net, images, backward=True, copies=2) == 5
    monkeypatch.setattr(room, "MEMORY", 7 * 4 * largest)
    assert chunk_size(net, images, backward=False) == 7
    monkeypatch.setattr(room, "MEMORY", 1)
    assert chunk_size(net, images, backward=False) == 1


def test_passes_report_before_each_and_at_the_end():
    reports = []
    assert list(chunks(5, 2, Progress(lambda *pair: reports.append(pair)))) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert reports == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_methods_of_one_pass_share_it(net, images):
    calls: list[int] = []
    with torch.no_grad():
        explainers = (GradCAM(layers=("1",)), GradCAM(layers=("1",), sign="signed"), Saliency())
        net.register_forward_hook(lambda module, args, output: calls.append(len(output)))
        together = explain_jointly(explainers, net, images)
        assert calls == [4, 4]
        assert explain_jointly((GradCAM(layers=("0", "1")), GradCAM(layers=("1",))), net, images)
        assert calls == [4] * 4
    net._forward_hooks.clear()
    for explainer, attribution in zip(explainers, together, strict=True):
        alone: Tensor = explainer.explain(net, images).maps
        assert torch.equal(attribution.maps, alone)


def test_methods_explain_the_class_that_the_first_one_finds(net, images):
    first, second = explain_jointly(
        (Saliency(), GradCAM(layers=("1",), smooth="tta")), net, images, Ask(against=OTHERS)
    )
    assert torch.equal(first.targets, second.targets)
    assert torch.equal(second.against, OTHERS)
    assert nets.relative_error(first.logits, second.logits) < 1e-6


def test_some_targets_may_be_left_to_the_model(net, images):
    logits = net(images).detach()
    targets = torch.tensor([3, MOST_PROBABLE, 1, MOST_PROBABLE])
    attribution = GradCAM(layers=("1",)).explain(net, images, targets)
    assert attribution.targets.tolist() == [3, int(logits[1].argmax()), 1, int(logits[3].argmax())]
    with pytest.raises(TargetError, match="-1 is out of range"):
        GradCAM(layers=("1",)).explain(net, images, torch.tensor([3, -1, 1, 0]))


def test_passes_without_gradients_make_tensors_in_inference_mode_only_to_drop_them(images):
    """What a model makes once and keeps must serve a backward pass that comes later."""

    modes: list[bool] = []

    class Keeps(nets.Net):
        grid: Tensor | None = None

        def forward(self, images: Tensor) -> Tensor:
            modes.append(torch.is_inference_mode_enabled())
            if self.grid is None:
                self.grid = torch.linspace(0.5, 1.5, images.shape[3])
            return super().forward(images * self.grid)

    net = nets.seeded(Keeps)
    logits = predict(net, images)
    torch.testing.assert_close(logits, net(images).detach())
    assert not logits.is_inference()
    assert modes == [False, True, False]
    Saliency().explain(net, images)


def ending(kind, end):
    """Return a network that does something with its logits."""
    net = nets.seeded(kind)
    forward = net.forward
    net.forward = lambda images: end(forward(images))
    return net


@pytest.mark.parametrize("rows", [0.5, 2])
@pytest.mark.parametrize("name", ["gradcam", "saliency", "scorecam", "lrp", "rise", "fullgrad"])
def test_a_model_that_returns_another_number_of_rows_is_refused(name, rows, images):
    """It drops the pictures that it thinks nothing of, or says two things of each."""
    net = ending(nets.Net, lambda logits: torch.cat([logits] * 2)[: int(rows * len(logits))])
    with pytest.raises(ModelOutputError, match=rf"shape \({int(rows * 2)}, 3\) for 2 pictures: it must return one row"):
        METHODS[name].build({}).explain(net, images[:2, :, :16, :16])


@pytest.mark.parametrize(
    ("kind", "end", "name"),
    [
        *((nets.Net, nn.Softmax(1), name) for name in ("cam", "deeplift", "excitation-backprop", "fullgrad")),
        *((nets.Net, nn.Softmax(1), name) for name in ("deconvnet", "guided-backprop", "guided-gradcam")),
        *((nets.Net, nn.LogSoftmax(1), name) for name in ("deeplift", "lrp")),
        *((nets.OneLogit, nn.Sigmoid(), name) for name in ("cam", "excitation-backprop", "fullgrad")),
    ],
)
def test_a_softmax_in_the_network_is_named_where_a_method_fails_for_it(kind, end, name, images):
    with pytest.raises(ExplainerError, match=r"returns probabilities.*Return the logits before it"):
        METHODS[name].build({}).explain(ending(kind, end), images[:1, :, :16, :16])


class Positioned(nets.Net):
    """Ends in a softmax, and keeps a table that its first pass makes."""

    table = None

    def forward(self, images):
        if self.table is None:
            self.table = torch.ones(1)
        return super().forward(images * self.table).softmax(dim=1)


def test_a_layer_that_is_lacking_is_no_matter_of_a_softmax_and_costs_no_pass(images):
    net = nets.seeded(Positioned)
    with pytest.raises(LayerError) as caught:
        GradCAM(layers=("none",)).explain(net, images)
    assert "probabilities" not in str(caught.value)
    assert net.table is None


def test_the_look_for_a_softmax_leaves_tensors_that_can_be_trained_on(images):
    net = nets.seeded(Positioned)
    with pytest.raises(UnsuitableModelError, match="returns probabilities"), pose(net, images[:1]):
        raise UnsuitableModelError("No gradient flows.")
    assert not net.table.is_inference()
