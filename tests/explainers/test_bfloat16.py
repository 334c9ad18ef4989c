"""OpenVINO, in float32 and in bfloat16, and the choice of the fastest runtime."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers import AblationCAM, Classification, GradCAM, ReciproCAM
from seewhy.explainers.correlations import rank_correlations
from seewhy.explainers.execution import bfloat16, runtime
from seewhy.explainers.execution.accelerated import AcceleratedModel
from seewhy.models import LoadedModel, load_model, wrap_model
from tests import nets

SIZE = (3, 64, 64)
EXAMPLES = Path(__file__).parents[2] / "examples"


def net(offset: float = 0.0) -> nn.Module:
    """Return a network whose layer ``3`` adds an offset, which layer ``4`` subtracts."""

    def build() -> nn.Module:
        stem = nn.Conv2d(3, 6, 3, stride=4), nn.ReLU(), nn.Conv2d(6, 5, 3)
        there, back = (nets.Wired(lambda _, values, by=by: values + by) for by in (offset, -offset))
        head = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 7)
        return nn.Sequential(*stem, there, back, *head)

    return nets.seeded(build).requires_grad_(False)


def accelerated(module: nn.Module, bfloat16: bool = True) -> AcceleratedModel:
    model = AcceleratedModel(module, SIZE, ("3",), Classification().outputs, "openvino", bfloat16=bfloat16)
    model.warm()
    return model


@pytest.fixture
def faster_in_bfloat16(monkeypatch):
    """Any processor is fast in bfloat16."""
    monkeypatch.setattr(bfloat16, "faster", lambda runs, images: runs[1])


@pytest.mark.parametrize("count", [1, 3, 8])
def test_openvino_gives_what_pytorch_gives(count):
    module, model = net(), accelerated(net(), bfloat16=False)
    pictures = torch.randn(count, *SIZE, generator=torch.Generator().manual_seed(0))
    parts, before = model.parts(("3",), pictures), pictures.clone()
    assert parts.prefix.__qualname__.startswith("openvino")
    assert nets.relative_error(parts(pictures), module(pictures)) < 1e-5
    assert torch.equal(pictures, before)
    assert model.precision == "float32"


def test_results_of_openvino_stay_as_they_were_returned():
    model, images = accelerated(net(), bfloat16=False), torch.ones(1, *SIZE)
    prefix = model.parts(("3",), images).prefix
    (first,) = prefix(images)
    before = first.clone()
    prefix(-images)
    assert torch.equal(first, before)


def test_openvino_sends_no_telemetry():
    runtime.imported_openvino()
    assert "openvino.tools.ovc.telemetry_stub" in sys.modules
    assert "openvino_telemetry" not in sys.modules


def test_an_import_that_fails_hides_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    with pytest.raises(ImportError):
        runtime.imported_openvino()
    assert "openvino_telemetry" not in sys.modules


def test_pytorch_takes_over_where_openvino_fails(monkeypatch):
    def fail() -> None:
        raise ImportError("a library is missing")

    monkeypatch.setattr(runtime, "imported_openvino", fail)
    model = accelerated(net())
    assert model.precision == "float32"
    pictures = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0))
    assert model.whole(pictures).prefix.__qualname__.startswith("eager")
    assert nets.relative_error(model.whole(pictures)(pictures), net()(pictures)) < 1e-5


def test_large_batches_run_in_parts_whose_memory_is_bounded(monkeypatch):
    module, counts, compiled = net(), list[int](), runtime._Networks.compiled
    run = accelerated(module, bfloat16=False).whole(torch.zeros(1, *SIZE))
    run(torch.zeros(8, *SIZE))

    def recorded(networks: runtime._Networks, count: int, tensors: tuple[Tensor, ...]) -> object:
        counts.append(count)
        return compiled(networks, count, tensors)

    monkeypatch.setattr(runtime._Networks, "compiled", recorded)
    pictures = torch.randn(20, *SIZE, generator=torch.Generator().manual_seed(0))
    with ThreadPoolExecutor(1) as pool:  # a thread has requests of its own
        outputs = pool.submit(run, pictures).result()
    assert counts == [8, 1]
    assert nets.relative_error(outputs, module(pictures)) < 1e-5


@pytest.mark.parametrize("count", [1, 3, 8])
def test_each_graph_in_bfloat16_is_compared(count, monkeypatch, faster_in_bfloat16):
    def wrong(model: object, precision: str = "f32") -> runtime.Run:
        run = runtime.openvino_run(model)
        return lambda images: tuple(-values if len(images) == count else values for values in run(images))

    monkeypatch.setattr(bfloat16, "openvino_run", wrong)
    assert accelerated(net()).precision == "float32"


def test_the_first_part_is_rounded_where_explanations_stay_the_same(faster_in_bfloat16):
    model = accelerated(net())
    pictures = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0))
    error = nets.relative_error(model.whole(pictures)(pictures), net()(pictures))
    assert 1e-5 < error < 0.05
    assert model.precision == "bfloat16"


def test_a_model_that_rounding_changes_stays_in_float32(faster_in_bfloat16, caplog):
    """Rounded numbers of the size of the offset lose what the offset is added to."""
    caplog.set_level(logging.WARNING)
    model = accelerated(net(300.0))
    pictures = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0))
    assert model.precision == "float32"
    assert nets.relative_error(model.whole(pictures)(pictures), net(300.0)(pictures)) < 1e-3
    assert "stays in float32" in caplog.text


def test_a_model_that_is_not_faster_stays_in_float32(monkeypatch, caplog):
    monkeypatch.setattr(bfloat16, "faster", lambda runs, images: runs[0])
    assert accelerated(net()).precision == "float32"
    assert "It is not faster on this processor." in caplog.text


def test_a_model_that_leaves_bfloat16_leaves_it_before_all_layers(faster_in_bfloat16):
    module = net(300.0)
    model = AcceleratedModel(module, SIZE, ("0",), Classification().outputs, "openvino", bfloat16=True)
    model.warm()
    assert model.precision == "bfloat16"
    pictures = torch.randn(16, *SIZE, generator=torch.Generator().manual_seed(0))
    model.parts(("3",), pictures)
    assert model.precision == "float32"
    assert nets.relative_error(model.parts(("0",), pictures)(pictures), module(pictures)) < 1e-3


@pytest.mark.parametrize("where", ["class", "map"])
def test_what_counts_as_changed(where):
    cut = bfloat16.Cut("layer", nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)))
    with torch.no_grad():
        cut.suffix[1].weight.copy_(torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 3]]))
    exact = torch.tensor([[[[4.0, 3], [2, 1]]]])
    bfloat16._must_agree(cut, Classification().outputs, (exact,), (exact + 1e-3,))
    changed = exact[..., [1, 0]] if where == "map" else torch.tensor([[[[1.0, 2], [3, 9]]]])
    with pytest.raises(bfloat16.UnsuitableError, match={"map": "rank correlation", "class": "best output"}[where]):
        bfloat16._must_agree(cut, Classification().outputs, (exact,), (changed,))


@pytest.mark.parametrize(("times", "expected"), [((1, 2), 0), ((2, 1), 1), ((1, 1), 0)])
def test_the_fastest_runtime_is_measured(times, expected, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(runtime, "perf_counter", lambda: clock[0])

    def contestant(number: int) -> runtime.Run:
        def run(images: Tensor) -> tuple[Tensor, ...]:
            clock[0] += times[number]
            return (images,)

        return run

    runs = contestant(0), contestant(1)
    assert runtime.faster(runs, torch.zeros(1, *SIZE)) is runs[expected]


@pytest.mark.parametrize("explainer", [AblationCAM(), ReciproCAM()])
def test_replays_of_a_rounded_model_run(explainer, faster_in_bfloat16):
    """They run in float32, whose outputs are not those of the rounded model."""
    model = wrap_model(net(), input_size=SIZE[1:], accelerator="openvino")
    model = replace(model, bfloat16=True)
    model.accelerated.warm()
    pictures = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(0))
    assert model.precision == "bfloat16"
    actual, expected = (explainer.explain(carrier, pictures) for carrier in (model, model.module))
    assert nets.relative_error(actual.maps, expected.maps) < 0.05


@pytest.fixture
def rounded_lite0(faster_in_bfloat16) -> LoadedModel:
    model = load_model("efficientnet_lite0", dtype=torch.bfloat16)
    model.accelerated.warm()
    return model


@pytest.mark.slow
def test_maps_of_an_embedded_network_rank_as_in_float32(rounded_lite0, lite0):
    assert (rounded_lite0.accelerator, rounded_lite0.precision, lite0.precision) == ("openvino", "bfloat16", "float32")
    assert rounded_lite0.module.conv_stem.weight.dtype == torch.float32
    assert rounded_lite0.fingerprint != lite0.fingerprint
    pictures = [Image.open(EXAMPLES / f"{name}.png").convert("RGB") for name in ("cat", "coffee", "rocket")]
    images = torch.stack([lite0.preprocess(picture) for picture in pictures])
    actual, expected = (GradCAM().explain(model, images) for model in (rounded_lite0, lite0))
    assert torch.equal(actual.targets, expected.targets)
    assert (rank_correlations(actual.maps, expected.maps) > 0.99).all()
    assert not torch.equal(actual.maps, expected.maps)
