"""A model cut before its layers: what is computed of its parts is what is computed of the whole."""

import threading
from collections import OrderedDict

import onnx
import pytest
import torch
import torchvision
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from seewhy.explainers import Classification, GradCAM
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.question import predict
from seewhy.explainers.errors import OptionError
from seewhy.explainers.execution.accelerated import MOST_CUTS, PATIENCE, Accelerated, Parts
from seewhy.explainers.execution.accelerators import ACCELERATORS, _exported, _folded, choose, onnxruntime
from seewhy.explainers.execution.cut import UncuttableError, cut_before
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.methods.catalogue import get_method
from seewhy.models import LoadedModel, load_model
from tests import nets
from tests.grids import few

SIZE = (3, 64, 64)
LAYERS = {
    "resnet18": "layer4",
    "vgg11": "features.19",
    "mobilenet_v2": "features",
    "densenet121": "features",
    "squeezenet1_1": "features",
}
CPU = torch.device("cpu")
QUICK = ("eager", "onnxruntime")
"""Those that compile in a moment."""


def accelerated(module: nn.Module, layer: str, name: str) -> Accelerated:
    return Accelerated(module, SIZE, (layer,), name)


@pytest.fixture(scope="module", params=LAYERS)
def stock(request) -> tuple[nn.Module, str]:
    return nets.seeded(torchvision.models.get_model, request.param).requires_grad_(False), LAYERS[request.param]


@pytest.mark.parametrize("name", few(QUICK, short=["onnxruntime"]))
def test_parts_return_what_the_model_returns_for_any_number_of_pictures(name, stock, images):
    model = accelerated(stock[0], stock[1], name)
    model.warm()
    for count in (1, 3, 4):
        parts = model.parts((stock[1],), images[:count])
        before = images.clone()
        assert nets.relative_error(parts(images[:count]), stock[0](images[:count])) < 1e-5
        assert torch.equal(images, before)


class Carried(LoadedModel):
    """A network as it is loaded, for pictures of 64 by 64."""

    def __init__(self, module: nn.Module, layers: tuple[str, ...], name: str) -> None:
        object.__setattr__(self, "module", module)
        vars(self)["accelerated"] = Accelerated(module, SIZE, layers, name)
        self.accelerated.warm()

    default_layers = ()
    task = Classification()
    survey = Survey((), (), None)


def steady(explainer: Explainer, module: nn.Module, images: Tensor) -> Tensor:
    """Return the pictures at which no unit is so near to a kink that rounding decides about its gradient."""
    noise = 1e-5 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    there, one_way, other_way = (explainer.explain(module, images + shift).maps for shift in (0, noise, -noise))
    kept = [
        place
        for place, expected in enumerate(there)
        if max(nets.relative_error(found[place], expected) for found in (one_way, other_way)) < 1e-4
    ]
    assert len(kept) > 1
    return images[kept]


def networks_and_methods():
    """Yield stock networks with methods; in the short run, each of them once."""
    for network in LAYERS:
        for method in ("gradcam", "layercam", "shapleycam", "smoothgradcam++", "eigencam"):
            is_short = method == "gradcam" or network == "squeezenet1_1"
            yield pytest.param(network, method, marks=[] if is_short else [pytest.mark.slow])
    yield "squeezenet1_1", "scorecam"  # a pass for each channel: on one network


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(("stock", "method"), list(networks_and_methods()), indirect=["stock"])
def test_maps_are_those_of_the_whole_model(name, method, stock, images):
    options = {"samples": 3} if method == "smoothgradcam++" else {}
    explainer = get_method(method).build({"layers": (stock[1],), **options})
    images = images[:1] if method == "scorecam" else steady(explainer, stock[0], images)
    expected = explainer.explain(stock[0], images)
    model = Carried(stock[0], (stock[1],), name)
    found = explainer.explain(model, images)
    assert nets.relative_error(found.maps, expected.maps) < 1e-4
    assert nets.relative_error(found.logits, expected.logits) < 1e-5
    assert torch.equal(found.targets, expected.targets)


def test_nothing_before_the_cut_runs_in_the_model(images, monkeypatch):
    module = nets.seeded(torchvision.models.resnet18).requires_grad_(False)
    model = Carried(module, ("layer4",), "onnxruntime")
    ran: list[nn.Module] = []
    call = nn.Module.__call__
    monkeypatch.setattr(nn.Module, "__call__", lambda self, *args, **kw: ran.append(self) or call(self, *args, **kw))
    GradCAM(layers=("layer4",)).explain(model, images)
    assert not {module.conv1, module.layer1, module.layer4} & set(ran)
    assert module.fc in ran


@pytest.mark.parametrize(
    "layers", [("layer1", "layer4"), ("layer3.0.conv1",), ("layer3.0.bn1", "layer3.1"), ("conv1",), ("fc",)]
)
def test_cuts_at_several_layers_and_inside_blocks(layers, images):
    module = nets.seeded(torchvision.models.resnet18).requires_grad_(False)
    cut = cut_before(module, layers, images[:1])
    with torch.no_grad():
        assert nets.relative_error(cut.suffix(*cut.prefix(images.clone())), module(images)) == 0
    if layers != ("fc",):
        explainer = GradCAM(layers=layers)
        expected = explainer.explain(module, images)
        found = explainer.explain(Carried(module, layers, "onnxruntime"), images)
        assert nets.relative_error(found.maps, expected.maps) < 1e-4
        assert found.layers == expected.layers


class Branches(nets.Net):
    """Its control flow depends on a number in the picture, which no tracing can follow."""

    def middle(self, features: Tensor) -> Tensor:
        return features.relu() if float(features.detach().sum()) > 0 else features.tanh()


class Sizes(nn.Module):
    """Hands a size, a tuple and the picture itself over the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 4, 3), nn.Linear(7, 5)

    def forward(self, images: Tensor) -> Tensor:
        first, second = self.stem(images).chunk(2, dim=1)
        count = images.shape[0]
        features = self.conv(first)
        pooled = functional.adaptive_avg_pool2d(features, 1) + second.mean((2, 3), keepdim=True)
        return self.head(torch.cat((pooled.reshape(count, -1), images.mean((2, 3))), dim=1))


class Opaque(nn.Module):
    """Holds a module that cannot be traced, but runs as a whole before the cut."""

    def __init__(self) -> None:
        super().__init__()

        class Picky(nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                if images.shape[2] > 7:
                    images = images * 2
                return images

        self.picky, self.conv, self.head = Picky(), nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(self.picky(images)).relu().mean((2, 3)))


@pytest.mark.parametrize("kind", [Sizes, Opaque])
def test_what_is_no_tensor_is_computed_again_and_untraceable_modules_stay_whole(kind, images):
    module = nets.seeded(kind).requires_grad_(False)
    expected = GradCAM(layers=("conv",)).explain(module, images)
    model = Carried(module, ("conv",), "onnxruntime")
    assert model.accelerated.parts(("conv",), images) is not None
    assert nets.relative_error(GradCAM(layers=("conv",)).explain(model, images).maps, expected.maps) < 1e-4


def test_what_cannot_be_cut_runs_whole(images):
    module = nets.seeded(Branches).requires_grad_(False)
    with pytest.raises(UncuttableError):
        cut_before(module, ("conv",), images[:1])
    model = Carried(module, ("conv",), "onnxruntime")
    assert model.accelerated.parts(("conv",), images) is None
    expected = GradCAM(layers=("conv",)).explain(module, images).maps
    assert torch.equal(GradCAM(layers=("conv",)).explain(model, images).maps, expected)


class Twice(nets.Net):
    def middle(self, features: Tensor) -> Tensor:
        return self.same(self.same(features))

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.ReLU()


@pytest.mark.parametrize("paths", [("same",), ("conv", "unused")])
def test_layers_that_run_twice_or_never_are_not_cut(paths, images):
    with pytest.raises(UncuttableError, match="once"):
        cut_before(nets.seeded(Twice), paths, images[:1])


class FixedAtOne(nn.Module):
    """Right for the one picture that it is traced with, and wrong for two."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(_scaled(images)).relu().mean((2, 3)))


@torch.fx.wrap
def _scaled(images: Tensor) -> Tensor:
    return images * float(len(images))


def test_parts_that_are_wrong_for_other_batch_sizes_are_found_out(images):
    module = nets.seeded(FixedAtOne).requires_grad_(False)
    expected = predict(module, images)
    model = Carried(module, ("conv",), "onnxruntime")
    assert nets.relative_error(predict(model, images), expected) < 1e-5


@pytest.fixture
def warm(images) -> Carried:
    module = nets.seeded(torchvision.models.resnet18).requires_grad_(False)
    model = Carried(module, ("layer4",), "onnxruntime")
    assert isinstance(model.accelerated.parts(("layer4",), images), Parts)
    return model


@pytest.mark.parametrize("change", ["in-place", "data", "new", "module", "buffer"])
def test_changed_weights_run_whole(change, warm, images):
    module = warm.module
    if change == "in-place":
        module.layer1[0].conv1.weight.mul_(2)
    elif change == "data":
        module.layer1[0].conv1.weight.data.mul_(2)
    elif change == "new":
        module.layer1[0].conv1.weight = nn.Parameter(module.layer1[0].conv1.weight * 2, requires_grad=False)
    elif change == "module":
        module.layer1[0].conv1 = nn.Conv2d(64, 64, 1, padding=0, bias=False).requires_grad_(False)
    else:
        module.bn1.running_mean.add_(1)
    expected = GradCAM(layers=("layer4",)).explain(module, images)
    found = GradCAM(layers=("layer4",)).explain(warm, images)
    assert warm.accelerated.parts(("layer4",), images) is None
    assert torch.equal(found.maps, expected.maps)


def test_hooks_of_others_are_run(warm, images):
    seen: list[int] = []
    handle = warm.module.layer1.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    GradCAM(layers=("layer4",)).explain(warm, images)
    predict(warm, images)
    assert sum(seen) >= 2 * len(images)
    handle.remove()
    assert warm.accelerated.parts(("layer4",), images) is not None


@pytest.mark.parametrize(
    "given", [torch.zeros(2, 3, 64, 65), torch.zeros(2, 3, 64, 64, dtype=torch.float64)], ids=["size", "dtype"]
)
def test_other_pictures_run_whole(given, warm):
    assert warm.accelerated.parts(("layer4",), given) is None


def test_modes_stay_as_they_were(images):
    module = nets.seeded(torchvision.models.vgg11).train()
    module.features.eval()
    before = [part.training for part in module.modules()]
    for name in QUICK:
        model = Carried(module, ("features.19",), name)
        assert model.accelerated.parts(("features.19",), images) is not None
        assert [part.training for part in module.modules()] == before
        assert all(value.requires_grad for value in module.parameters())


def test_it_compiles_after_some_pictures_and_keeps_a_bounded_number(images, monkeypatch):
    module = nets.seeded(torchvision.models.resnet18).requires_grad_(False)
    model = Accelerated(module, SIZE, (), "eager")
    few = images[:1]
    for _ in range(PATIENCE - 1):
        assert model.parts(("layer4",), few) is None
    assert model.parts(("layer4",), few) is not None
    assert model.whole(few) is None
    for path in ("conv1", "bn1", "layer1", "layer2", "layer3", "layer1.0", "layer2.0", "layer3.0", "layer4.0"):
        model.parts((path,), images.repeat(PATIENCE, 1, 1, 1))
    assert len(model._parts) == MOST_CUTS
    assert ("layer4",) not in model._parts


def test_other_threads_run_models_while_one_is_traced(images):
    module, other = nets.seeded(torchvision.models.resnet18), nets.seeded(nets.Net)
    expected, errors, stop = other(images).detach(), list[str](), threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                if not torch.equal(other(images).detach(), expected):
                    errors.append("another result")
            except Exception as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        cut_before(module, ("layer4",), images[:1])
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_runtime_that_fails_leaves_pytorch(images, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setitem(ACCELERATORS, "onnxruntime", fail)
    module = nets.seeded(torchvision.models.resnet18).requires_grad_(False)
    model = Carried(module, ("layer4",), "onnxruntime")
    assert nets.relative_error(predict(model, images), predict(module, images)) < 1e-5


def test_names_of_accelerators(monkeypatch):
    assert choose("auto", CPU) == "onnxruntime"
    assert choose("auto", torch.device("cuda")) == "eager"
    assert choose("eager", CPU) == "eager"
    with pytest.raises(OptionError, match="choose from auto, eager, onnxruntime, compile"):
        choose("magic", CPU)
    with pytest.raises(OptionError, match="processor"):
        choose("onnxruntime", torch.device("cuda"))
    monkeypatch.setattr("seewhy.explainers.execution.accelerators.find_spec", lambda name: None)
    assert choose("auto", CPU) == "eager"
    with pytest.raises(OptionError, match="install"):
        choose("onnxruntime", CPU)


def test_loaded_models_are_accelerated():
    model = load_model("efficientnet_lite0")
    plain = load_model("efficientnet_lite0", accelerator="eager")
    assert (model.accelerator, plain.accelerator) == ("onnxruntime", "eager")
    pictures = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = explain_maps(plain, pictures)
    model.accelerated.warm()
    assert model.accelerated.whole(pictures) is not None
    assert nets.relative_error(explain_maps(model, pictures), expected) < 1e-4


def test_hooks_in_a_new_dictionary_are_seen(warm, images):
    part = warm.module.layer1
    kept, part._forward_hooks = part._forward_hooks, OrderedDict()
    handle = part.register_forward_hook(lambda module, args, output: None)
    try:
        assert warm.accelerated.parts(("layer4",), images) is None
    finally:
        handle.remove()
        part._forward_hooks = kept


@pytest.fixture(scope="module")
def compiled_net() -> tuple[nn.Module, LoadedModel]:
    module = nets.seeded(nets.Net).eval().requires_grad_(False)
    return module, Carried(module, ("conv",), "compile")


@pytest.mark.parametrize("count", few([1, 3, 40], short=[3]))
def test_a_compiled_part_serves_any_number_of_pictures(count, compiled_net):
    module, model = compiled_net
    pictures = torch.randn(count, *SIZE, generator=torch.Generator().manual_seed(0))
    assert model.accelerated.parts(("conv",), pictures).prefix.__qualname__.startswith("compiled")
    found = GradCAM(layers=("conv",)).explain(model, pictures)
    expected = GradCAM(layers=("conv",)).explain(module, pictures)
    assert nets.relative_error(found.maps, expected.maps) < 1e-4
    assert nets.relative_error(found.logits, expected.logits) < 1e-5


def test_a_compiled_part_keeps_no_memory_that_it_returned(compiled_net):
    run = compiled_net[1].accelerated.parts(("conv",), torch.zeros(1, *SIZE)).prefix
    first = run(torch.ones(2, *SIZE))[0]
    before = first.clone()
    run(torch.zeros(2, *SIZE))
    assert torch.equal(first, before)


def test_a_compiled_part_is_not_compiled_anew_for_inference_mode(compiled_net):
    run = compiled_net[1].accelerated.parts(("conv",), torch.zeros(1, *SIZE)).prefix
    expected = run(torch.ones(2, *SIZE))[0]
    compiled_before = counters["stats"]["unique_graphs"]
    with torch.inference_mode():
        assert torch.equal(run(torch.ones(2, *SIZE))[0], expected)
    assert counters["stats"]["unique_graphs"] == compiled_before > 0


def test_a_compiled_part_is_not_compiled_anew_while_another_model_is_traced(compiled_net):
    class Traced(nets.Net):
        def forward(self, images: Tensor) -> Tensor:
            if isinstance(images, fx.Proxy):
                thread = threading.Thread(target=lambda: found.extend(run(torch.ones(2, *SIZE))))
                thread.start()
                thread.join()
            return super().forward(images)

    run, found = compiled_net[1].accelerated.parts(("conv",), torch.zeros(1, *SIZE)).prefix, list[Tensor]()
    expected = run(torch.ones(2, *SIZE))[0]
    compiled_before = counters["stats"]["unique_graphs"]
    cut_before(nets.seeded(Traced).eval(), ("conv",), torch.zeros(1, *SIZE))
    assert torch.equal(found[0], expected)
    assert counters["stats"]["unique_graphs"] == compiled_before > 0


def test_a_compiled_part_runs_in_other_threads_too(compiled_net):
    run = compiled_net[1].accelerated.parts(("conv",), torch.zeros(1, *SIZE)).prefix
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.extend(run(torch.ones(2, *SIZE))))
    thread.start()
    thread.join()
    assert nets.relative_error(found[0], run(torch.ones(2, *SIZE))[0]) < 1e-5


class SamePadding(nn.Conv2d):
    """Pads as TensorFlow does, by what it computes from the size of its input."""

    def forward(self, features: Tensor) -> Tensor:
        sides = features.shape[2], features.shape[3]
        height, width = ((-(-side // 2) - 1) * 2 + 3 - side for side in sides)
        top, left = height // 2, width // 2
        return super().forward(functional.pad(features, [left, width - left, top, height - top]))


def test_padding_computed_from_the_size_of_the_picture_is_folded(images):
    network = nn.Sequential(SamePadding(3, 4, 3, stride=2), SamePadding(4, 4, 3, stride=2), nn.ReLU())
    part = cut_before(network.eval().requires_grad_(False), ("2",), images[:1]).prefix
    exported = _exported(part, images[:1])
    steps = [{step.op_type for step in onnx.load_from_string(one).graph.node} for one in (exported, _folded(exported))]
    assert {"Shape", "Conv"} <= steps[0]
    assert "Conv" in steps[1]
    assert "Shape" not in steps[1]
    run = onnxruntime(part, images[:1])
    for count in (1, 4):
        assert nets.relative_error(run(images[:count])[0], part(images[:count])[0]) < 1e-5


def explain_maps(model: LoadedModel, pictures: Tensor) -> Tensor:
    return GradCAM().explain(model, pictures).maps


@pytest.mark.slow
@pytest.mark.parametrize("name", torchvision.models.list_models(module=torchvision.models))
def test_every_classifier_of_torchvision_can_be_cut(name):
    model = load_model(name, weights=None)
    layers = model.default_layers or model.survey.last_weighted
    picture = torch.randn(1, *model.spec.image_shape, generator=torch.Generator().manual_seed(0))
    cut = cut_before(model.module, layers, picture)
    with torch.no_grad():
        values = cut.prefix(picture.clone())
        assert nets.relative_error(cut.suffix(*values), model.module(picture)) < 1e-5
