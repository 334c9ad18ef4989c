"""A model cut before its layers: its parts give the same results as the whole."""

import gc
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from seewhy.explainers import Classification, GradCAM, survey
from seewhy.explainers.errors import NonFiniteError, OptionError
from seewhy.explainers.execution import conversion
from seewhy.explainers.execution.accelerated import MOST_COMPILED, PICTURES_TO_COMPILE, AcceleratedModel
from seewhy.explainers.execution.accelerators import ACCELERATORS, choose
from seewhy.explainers.execution.conversion import convert
from seewhy.explainers.execution.cut import UncuttableError, cut_before
from seewhy.explainers.execution.runtime import openvino_run
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import predict
from seewhy.models import LoadedModel, load_model
from tests import nets
from tests.explainers.test_attention import build, pictures
from tests.explainers.test_process_wide import while_traced
from tests.grids import UNLIKE, few

SIZE = (3, 64, 64)
NETWORKS = {
    "resnet18": "layer4",
    "alexnet": "features.11",
    "mobilenet_v2": "features",
    "densenet121": "features",
    "squeezenet1_1": "features",
}
CPU = torch.device("cpu")
QUICK = ("eager", "openvino")
"""Those that compile in a moment."""


class Carried(LoadedModel):
    """A network as it is loaded, for pictures of 64 by 64."""

    def __init__(self, module: nn.Module, layers: tuple[str, ...], name: str) -> None:
        object.__setattr__(self, "module", module)
        vars(self)["accelerated"] = AcceleratedModel(module, SIZE, layers, Classification().outputs, name)
        self.accelerated.warm()

    default_layers = ()
    task = Classification()
    survey = Survey((), (), None)


def normed() -> nn.Module:
    """A convolution, batch norm, ReLU and a layer: what comes before a layer can be fused."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.layer(net.stem(images)).mean((2, 3)))

    stem = nn.Sequential(nn.Conv2d(3, 6, 3, stride=4), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    layer, head = nn.Sequential(nn.Conv2d(6, 5, 3), nn.ReLU()), nn.Linear(5, 7)
    return nets.Wired(run, stem=stem, layer=layer, head=head)


@pytest.fixture
def warm() -> Carried:
    return Carried(nets.seeded(normed).requires_grad_(False), ("layer",), "openvino")


def steady(explainer: Explainer, module: nn.Module, images: Tensor) -> Tensor:
    """Return the pictures at which no unit is so near to a kink that rounding decides about its gradient."""
    noise = 1e-5 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    there, one_way, other_way = (explainer.explain(module, images + shift).maps for shift in (0, noise, -noise))
    places = [
        place
        for place, expected in enumerate(there)
        if max(nets.relative_error(maps[place], expected) for maps in (one_way, other_way)) < 1e-4
    ]
    assert len(places) > 1
    return images[places]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("network", few(NETWORKS, short=["resnet18"]))
def test_parts_and_maps_are_those_of_the_whole_model(network, name, images):
    module, layer = nets.seeded(torchvision.models.get_model, network).requires_grad_(False), NETWORKS[network]
    model = Carried(module, (layer,), name)
    for count in (1, 3, 4):
        parts, before = model.accelerated.parts((layer,), images[:count]), images.clone()
        assert nets.relative_error(parts(images[:count]), module(images[:count])) < 1e-5
        assert torch.equal(images, before)
    explainer = GradCAM(layers=(layer,))
    check(explainer, model, steady(explainer, module, images))


METHODS = {
    "gradcam": {},
    "layercam": {},
    "shapleycam": {},
    "smoothgradcam++": {"samples": 3},
    "eigencam": {},
    "scorecam": {},
}
"""One of each way to go through a model: a gradient, two, samples, no gradient, masked pictures."""


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_method_takes_the_parts(method, name, images):
    module = nets.seeded(normed).requires_grad_(False)
    explainer = get_method(method).build({"layers": ("layer",), **METHODS[method]})
    check(explainer, Carried(module, ("layer",), name), steady(explainer, module, images))


def check(explainer: Explainer, model: Carried, images: Tensor) -> None:
    """Compare the explanations of the accelerated model with those of its module."""
    expected, actual = (explainer.explain(carrier, images) for carrier in (model.module, model))
    assert nets.relative_error(actual.maps, expected.maps) < 1e-4
    assert nets.relative_error(actual.logits, expected.logits) < 1e-5
    assert torch.equal(actual.targets, expected.targets)
    assert actual.layers == expected.layers


def test_nothing_before_the_cut_runs_in_the_model(warm, images, monkeypatch):
    module, ran = warm.module, list[nn.Module]()
    call = nn.Module.__call__
    monkeypatch.setattr(nn.Module, "__call__", lambda self, *args, **kw: ran.append(self) or call(self, *args, **kw))
    warm.accelerated.parts(("stem",), images.repeat(PICTURES_TO_COMPILE, 1, 1, 1))
    ran.clear()
    GradCAM(layers=("stem",)).explain(warm, images)
    assert not {module.stem, *module.stem} & set(ran)
    assert {*module.layer, module.head} <= set(ran)
    ran.clear()
    GradCAM(layers=("layer",)).explain(warm, images)
    assert ran == []  # the head that follows has a closed form


@pytest.mark.parametrize(
    "layers", [("stem", "branch"), ("branch.0",), ("branch.1", "branch.2"), ("branch.2", "stem"), ("head",)]
)
def test_cuts_at_several_layers_and_inside_blocks(layers, images):
    module = nets.seeded(nets.Skip).requires_grad_(False)
    cut = cut_before(module, layers, images[:1])
    with torch.no_grad():
        assert nets.relative_error(cut.suffix(*cut.prefix(images.clone())), module(images)) == 0
    if layers != ("head",):
        explainer = GradCAM(layers=layers)
        check(explainer, Carried(module, layers, "openvino"), steady(explainer, module, images))


def sizes() -> nn.Module:
    """Hands a size, a tuple and the picture itself over the cut."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        first, second = net.stem(images).chunk(2, dim=1)
        count = images.shape[0]
        features = net.conv(first)
        pooled = functional.adaptive_avg_pool2d(features, 1) + second.mean((2, 3), keepdim=True)
        return net.head(torch.cat((pooled.reshape(count, -1), images.mean((2, 3))), dim=1))

    return nets.Wired(run, stem=nn.Conv2d(3, 8, 3, padding=1), conv=nn.Conv2d(4, 4, 3), head=nn.Linear(7, 5))


def untraceable() -> nn.Module:
    """Its path depends on a size."""
    return nets.Wired(lambda _, images: images * 2 if images.shape[2] > 7 else images)


def opaque() -> nn.Module:
    """Holds a module that cannot be traced, but runs as a whole before the cut."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.conv(net.part(images)).relu().mean((2, 3)))

    return nets.Wired(run, part=untraceable(), conv=nn.Conv2d(3, 4, 3), head=nn.Linear(4, 5))


@pytest.mark.parametrize("kind", [sizes, opaque])
def test_what_is_no_tensor_is_computed_again_and_untraceable_modules_stay_whole(kind, images):
    module = nets.seeded(kind).requires_grad_(False)
    expected = GradCAM(layers=("conv",)).explain(module, images)
    model = Carried(module, ("conv",), "openvino")
    assert model.accelerated.parts(("conv",), images) is not None
    assert nets.relative_error(GradCAM(layers=("conv",)).explain(model, images).maps, expected.maps) < 1e-4


def test_what_cannot_be_cut_runs_whole(images):
    """Its control flow depends on a number in the picture, which no tracing can follow."""

    def branch(_: nn.Module, features: Tensor) -> Tensor:
        return features.relu() if float(features.detach().sum()) > 0 else features.tanh()

    module = nets.seeded(nets.Middle, branch).requires_grad_(False)
    with pytest.raises(UncuttableError):
        cut_before(module, ("conv",), images[:1])
    model = Carried(module, ("conv",), "openvino")
    assert model.accelerated.parts(("conv",), images) is None
    expected = GradCAM(layers=("conv",)).explain(module, images).maps
    assert torch.equal(GradCAM(layers=("conv",)).explain(model, images).maps, expected)


@pytest.mark.parametrize("paths", [("again",), ("conv", "unused")])
def test_layers_that_run_twice_or_never_are_not_cut(paths, images):
    with pytest.raises(UncuttableError, match="once"):
        cut_before(nets.seeded(nets.Twice), paths, images[:1])


@torch.fx.wrap
def _scaled(images: Tensor) -> Tensor:
    return images * float(len(images))


def test_parts_that_are_wrong_for_other_batch_sizes_are_found_out(images):
    """The module is right for the one picture that it is traced with, and wrong for two."""

    def run(net: nn.Module, images: Tensor) -> Tensor:
        return net.head(net.conv(_scaled(images)).relu().mean((2, 3)))

    module = nets.Wired(run, conv=nn.Conv2d(3, 4, 3), head=nn.Linear(4, 5)).eval().requires_grad_(False)
    expected = predict(module, images)
    model = Carried(module, ("conv",), "openvino")
    assert nets.relative_error(predict(model, images), expected) < 1e-5


@pytest.mark.parametrize("change", ["in-place", "data", "new", "module", "buffer"])
def test_changed_weights_run_whole(change, warm, images):
    conv, norm, _ = warm.module.stem
    if change == "in-place":
        conv.weight[1].mul_(2)
    elif change == "data":
        conv.weight.data.mul_(2)
    elif change == "new":
        conv.weight = nn.Parameter(conv.weight * 2, requires_grad=False)
    elif change == "module":
        warm.module.stem[0] = nn.Conv2d(3, 6, 1).requires_grad_(False)
    else:
        norm.running_mean.add_(1)
    expected, actual = (GradCAM(layers=("layer",)).explain(carrier, images) for carrier in (warm.module, warm))
    assert warm.accelerated.parts(("layer",), images) is None
    assert torch.equal(actual.maps, expected.maps)


@pytest.mark.parametrize("sealed", [False, True])
def test_hooks_of_others_are_run(warm, images, sealed):
    if sealed:
        warm.accelerated.seal()
    records: list[int] = []
    handle = warm.module.stem.register_forward_hook(lambda module, args, output: records.append(len(output)))
    GradCAM(layers=("layer",)).explain(warm, images)
    predict(warm, images)
    assert sum(records) >= 2 * len(images)
    handle.remove()
    assert warm.accelerated.parts(("layer",), images) is not None


def test_sealed_weights_are_not_checked(warm, images):
    warm.accelerated.seal()
    warm.module.stem[0].weight[1].mul_(2)
    assert warm.accelerated.parts(("layer",), images) is not None


def test_hooks_in_a_new_dictionary_are_seen(warm, images):
    part = warm.module.stem
    hooks, part._forward_hooks = part._forward_hooks, OrderedDict()
    handle = part.register_forward_hook(lambda module, args, output: None)
    try:
        assert warm.accelerated.parts(("layer",), images) is None
    finally:
        handle.remove()
        part._forward_hooks = hooks


@pytest.mark.parametrize(
    "pictures", [torch.zeros(2, 3, 64, 65), torch.zeros(2, 3, 64, 64, dtype=torch.float64)], ids=["size", "dtype"]
)
def test_other_pictures_run_whole(pictures, warm):
    assert warm.accelerated.parts(("layer",), pictures) is None


@pytest.mark.parametrize("place", ["where one was", "where none was"])
def test_modules_that_are_new_run_in_evaluation_mode(place, warm, images):
    parent, name = (warm.module.stem, "2") if place == "where one was" else (warm.module.layer[1], "extra")
    dropout = nn.Dropout()
    setattr(parent, name, dropout)
    modes: list[bool] = []
    handle = parent.register_forward_hook(lambda module, args, output: modes.append(dropout.training))
    predict(warm, images)
    handle.remove()
    assert set(modes) == {False}
    assert dropout.training


@pytest.mark.parametrize("name", QUICK)
def test_modes_stay_as_they_were(name, images):
    module = nets.seeded(normed).train()
    module.layer.eval()
    before = [part.training for part in module.modules()]
    model = Carried(module, ("layer",), name)
    assert model.accelerated.parts(("layer",), images) is not None
    assert [part.training for part in module.modules()] == before
    assert all(value.requires_grad for value in module.parameters())


def test_it_compiles_after_some_pictures_and_keeps_a_bounded_number(images):
    layers = (nn.Conv2d(3, 3, 1) for _ in range(MOST_COMPILED + 2))
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = AcceleratedModel(module.eval().requires_grad_(False), SIZE, (), Classification().outputs, "eager")
    few = images[:1]
    for _ in range(PICTURES_TO_COMPILE - 1):
        assert model.parts(("1",), few) is None
    assert model.parts(("1",), few) is not None
    assert model.whole(few) is None
    for number in range(2, MOST_COMPILED + 2):
        model.parts((str(number),), images.repeat(PICTURES_TO_COMPILE, 1, 1, 1))
    assert len(model._compiled) == MOST_COMPILED
    assert ("1",) not in model._compiled


def test_a_module_that_cannot_be_traced_does_not_hide_the_layers_beside_it(images):
    net = nn.Sequential(nn.Sequential(nn.Sequential(untraceable(), nn.Conv2d(3, 4, 1)), nn.Conv2d(4, 2, 1)), nn.ReLU())
    cut = cut_before(net.eval(), ("0.1",), images[:1])
    assert "0.0.1" in [step.target for step in cut.prefix.graph.nodes]


def test_a_runtime_that_fails_leaves_pytorch(images, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setitem(ACCELERATORS, "openvino", fail)
    model = Carried(nets.seeded(normed).requires_grad_(False), ("layer",), "openvino")
    assert model.accelerated.whole(images) is not None
    assert nets.relative_error(predict(model, images), predict(model.module, images)) < 1e-5


def test_nan_is_refused_by_an_accelerated_model_too(lite0):
    lite0.accelerated.warm()
    pictures = torch.zeros(2, 3, 224, 224)
    assert lite0.accelerated.whole(pictures) is not None
    pictures[1, 0, 5, 5] = float("nan")
    assert lite0.accelerated.whole(pictures) is None
    for method in ("gradcam", "saliency"):
        with pytest.raises(NonFiniteError):
            get_method(method).build({}).explain(lite0, pictures)


def test_names_of_accelerators(monkeypatch):
    assert choose("auto", CPU) == "openvino"
    assert choose("auto", torch.device("cuda")) == "eager"
    assert choose("eager", CPU) == "eager"
    with pytest.raises(OptionError, match="choose from auto, eager, openvino, compile"):
        choose("magic", CPU)
    with pytest.raises(OptionError, match="only runs on the CPU here"):
        choose("openvino", torch.device("cuda"))
    monkeypatch.setattr("seewhy.explainers.execution.accelerators.find_spec", lambda name: None)
    assert choose("auto", CPU) == "eager"
    with pytest.raises(OptionError, match="install"):
        choose("openvino", CPU)


def test_loaded_models_are_accelerated(lite0):
    assert lite0.accelerator == "openvino"
    assert load_model("squeezenet1_1", None, accelerator="eager").accelerator == "eager"
    pictures = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = GradCAM(layers=lite0.default_layers).explain(lite0.module, pictures).maps
    lite0.accelerated.warm()
    assert lite0.accelerated.whole(pictures) is not None
    assert nets.relative_error(GradCAM().explain(lite0, pictures).maps, expected) < 1e-4


def recording(graph: fx.GraphModule, inputs: object) -> Callable[..., tuple[Tensor, ...]]:
    """A backend of `torch.compile` that writes its results into the same memory each time, as CUDA graphs do."""
    memory: dict[torch.Size, Tensor] = {}

    def run(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(memory.setdefault(value.shape, value.clone()).copy_(value) for value in graph(*arguments))

    return run


@pytest.fixture(scope="module", params=few(["recording", "inductor"], short=["recording"]))
def compiled_net(request) -> Carried:
    """Compiled by TorchDynamo; what its backend makes of the graphs takes long."""
    compile_, backend = torch.compile, {"recording": recording}.get(request.param, request.param)
    # To try which instructions the compiler has takes longer than all else.
    options = {"cpp.vec_isa_ok": True} if backend == "inductor" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda part, mode: compile_(part, backend=backend, options=options))
        return Carried(nets.seeded(nets.Net).requires_grad_(False), ("conv",), "compile")


def test_a_compiled_part_serves_any_number_of_pictures(compiled_net):
    for count in (1, 3, 40):
        pictures = torch.randn(count, *SIZE, generator=torch.Generator().manual_seed(0))
        assert compiled_net.accelerated.parts(("conv",), pictures).prefix.__qualname__.startswith("compiled")
        check(GradCAM(layers=("conv",)), compiled_net, pictures)


def run_compiled(model: Carried, fill: float) -> Tensor:
    return model.accelerated.parts(("conv",), torch.zeros(1, *SIZE)).prefix(torch.full((2, *SIZE), fill))[0]


def test_a_compiled_part_keeps_no_memory_that_it_returned(compiled_net):
    first = run_compiled(compiled_net, 1.0)
    before = first.clone()
    run_compiled(compiled_net, 0.0)
    assert torch.equal(first, before)


def in_inference_mode(work: Callable[[], None]) -> None:
    with torch.inference_mode():
        work()


def in_another_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.mark.parametrize("compiled_net", ["recording"], indirect=True)
@pytest.mark.parametrize("where", [in_inference_mode, in_another_thread, while_traced])
def test_a_compiled_part_is_not_compiled_anew(where, compiled_net):
    actual, expected = list[Tensor](), run_compiled(compiled_net, 1.0)
    compiled_before = counters["stats"]["unique_graphs"]
    where(lambda: actual.append(run_compiled(compiled_net, 1.0)))
    assert torch.equal(*actual, expected)
    assert counters["stats"]["unique_graphs"] == compiled_before > 0


class SamePadding(nn.Conv2d):
    """Pads as TensorFlow does, by what it computes from the size of its input."""

    def forward(self, features: Tensor) -> Tensor:
        sides = features.shape[2], features.shape[3]
        height, width = ((-(-side // 2) - 1) * 2 + 3 - side for side in sides)
        top, left = height // 2, width // 2
        return super().forward(functional.pad(features, [left, width - left, top, height - top]))


def test_padding_computed_from_the_size_of_the_picture_is_converted(images):
    network = nn.Sequential(SamePadding(3, 4, 3, stride=2), SamePadding(4, 4, 3, stride=2), nn.ReLU())
    part = cut_before(network.eval().requires_grad_(False), ("2",), images[:1]).prefix
    run = openvino_run(convert(part, images[:1]))
    for count in (1, 4):
        assert nets.relative_error(run(images[:count])[0], part(images[:count])[0]) < 1e-5


def test_a_converted_part_that_is_dropped_frees_its_weights(images):
    def resident() -> int:
        gc.collect()
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def size_of_converted() -> int:
        network = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 1000), nn.ReLU())
        convert(cut_before(network.eval().requires_grad_(False), ("2",), images[:1]).prefix, images[:1])
        return network[1].weight.nbytes

    size, before = size_of_converted(), resident()
    for _ in range(8):
        size_of_converted()
    assert resident() - before < 4 * size


@pytest.fixture
def traces(monkeypatch) -> list[Any]:
    """What is traced by PyTorch."""
    traced, trace = list[Any](), torch.jit.trace
    monkeypatch.setattr(conversion, "_kept", OrderedDict())
    monkeypatch.setattr(torch.jit, "trace", lambda *args, **options: traced.append(args) or trace(*args, **options))
    return traced


class Configured(nn.Module):
    """A layer that no tracing by `torch.fx` can follow."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor if float(values.detach().sum()) else values


class Recurrent(nn.GRU):
    """A layer whose weights OpenVINO wants as constants."""

    def __init__(self) -> None:
        super().__init__(62, 62, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.mean(dim=1))[0][:, None]


class Locked(Configured):
    """A layer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(2.0)
        self.lock = threading.Lock()


def converts(layer: nn.Module, images: Tensor, seed: int = 0) -> None:
    """Convert a network with a layer, and compare the results."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), layer, nn.ReLU()).requires_grad_(False).eval()
    part = cut_before(nn.Sequential(*network, nn.ReLU()), ("4",), images[:1]).prefix
    run = openvino_run(convert(part, images[:1]))
    for count in (1, 4):
        assert nets.relative_error(run(images[:count])[0], network(images[:count])) < 1e-5


def test_a_part_that_comes_again_is_traced_once(traces, images):
    for _ in range(2):
        converts(Configured(2.0), images)
        assert len(traces) == 1
    converts(Configured(2.0), images, seed=1)  # other weights
    assert len(traces) == 2


@pytest.mark.parametrize(
    "factors", [(2.0, 3.0), (2, 2.0), ((1,), (2,)), (torch.tensor(2.0), torch.tensor(3.0))], ids=str
)
def test_parts_that_look_alike_are_told_apart(factors, traces, images):
    for factor in factors:
        layer = Configured(factor)
        if isinstance(factor, tuple):
            layer.factor, layer.factors = 1.0, factor
        converts(layer, images)
    assert len(traces) == 2


@pytest.mark.parametrize("layer", [Recurrent, Locked])
def test_parts_that_cannot_be_kept_are_converted(layer, traces, images):
    converts(layer(), images)
    assert not conversion._kept


def test_the_traces_that_are_kept_are_few(traces, images, monkeypatch):
    monkeypatch.setattr(conversion, "MOST_KEPT", 2)
    for factor in (1.0, 2.0, 3.0, 2.0, 1.0):
        converts(Configured(factor), images)
        assert len(conversion._kept) <= 2
    assert len(traces) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
def test_classifiers_of_each_kind_can_be_cut(name):
    model = load_model(name, weights=None)
    layers = model.default_layers or model.survey.last_weighted
    picture = torch.randn(1, *model.spec.image_shape, generator=torch.Generator().manual_seed(0))
    cut = cut_before(model.module, layers, picture)
    with torch.no_grad():
        values = cut.prefix(picture.clone())
        assert nets.relative_error(cut.suffix(*values), model.module(picture)) < 1e-5


def test_attention_before_the_layer_is_converted(untouched):
    vit = build("vit")
    (layer,) = survey(vit, (3, 32, 32)).default_layers
    accelerated = AcceleratedModel(untouched(vit), (3, 32, 32), (layer,), Classification().outputs, "openvino")
    accelerated.warm()
    images = pictures(32, count=3)
    parts = accelerated.parts((layer,), images)
    assert parts is not None
    assert nets.relative_error(parts(images), vit(images)) < 1e-5


DROPPED = """
import gc, signal, torch
from seewhy import explain_many, wrap_model
from tests import nets

models = [wrap_model(nets.seeded(nets.Net), input_size=32, accelerator="openvino") for _ in range(2)]
for model in models:
    list(explain_many(model, torch.randn(40, 3, 32, 32)))
del model
while models:  # the first one first
    del models[0]
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.slow
def test_a_signal_is_handled_after_accelerated_models_were_dropped():
    """A core of OpenVINO gives its thread a stack for signals and puts back the last one, which may be a freed one."""
    result = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "handled\n"), result.stderr
