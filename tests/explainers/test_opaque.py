"""Compiled and scripted modules: refused by name if they are requested, and otherwise passed over."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from seewhy.explainers import FullGrad, GradCAM, survey
from seewhy.explainers.errors import UnsuitableModelError, UnsupportedModuleError, UnsupportedOperationError
from seewhy.explainers.hooks.registered import count_hooks
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.inspection.capture import capture_images
from seewhy.explainers.inspection.trace import trace_images
from seewhy.explainers.methods.catalogue import METHODS
from tests import nets
from tests.explainers.test_catalogue import FEW
from tests.grids import CONVOLUTIONAL, diagonal, few

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


class WithStem(nets.InPlaceModule):
    """A linear stem that may be opaque, and layers after it that are not."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=bias), nn.Conv2d(4, 4, 3, padding=1, bias=bias))
        del self.unused


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


OPAQUE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda module: torch.compile(module, backend="eager"),
    "compiled in place": in_place,
    "scripted": torch.jit.script,
}


def with_opaque_stem(kind: str) -> nn.Module:
    net = nets.seeded(WithStem).eval()
    net.stem = OPAQUE[kind](net.stem)
    return net


def test_a_module_compiled_in_place_is_refused_and_its_copy_is_not(images):
    net = nets.seeded(WithStem).eval()
    expected = GradCAM().explain(net, images).maps
    net.compile(backend="eager")
    for use in (lambda: HookSession(net), lambda: GradCAM().explain(net, images), lambda: survey(net, (3, 8, 8))):
        with pytest.raises(UnsupportedModuleError, match=r"module\.compile\(\).*copy\.copy\(module\)"):
            use()
    assert torch.equal(GradCAM().explain(copy.copy(net), images).maps, expected)
    assert count_hooks(net) == 0


@pytest.mark.parametrize("kind", sorted(OPAQUE))
def test_what_is_out_of_reach_is_refused_by_name_and_passed_over_by_patterns(kind, images):
    net = with_opaque_stem(kind)
    inside = next(path for path, part in net.named_modules() if path.startswith("stem") and path.endswith("0"))
    with HookSession(net) as hooks:
        for use in (hooks.record, hooks.cut, lambda *where: hooks.after_forward(print, *where)):
            with pytest.raises(UnsupportedModuleError, match=f"cannot reach '{inside}': it belongs to 'stem'"):
                use(inside)
        with pytest.raises(UnsupportedModuleError, match="cannot reach"):
            hooks.record(f"{inside[:-1]}*")
        assert [path for path in hooks.record("*") if path.startswith("stem.")] == []
        assert set(hooks.record(nn.Conv2d)) == {"conv"}
        assert set(hooks.record(lambda part: True)) >= {"", "conv", "relu", "head"}
        hooks.backward(net(images)[:, 0].sum())
    assert len(hooks.grad_outputs["conv"]) == 1


@pytest.mark.parametrize("kind", sorted(OPAQUE))
def test_hooks_of_every_session_run_around_what_is_opaque(kind, images):
    net = with_opaque_stem(kind)
    for _ in range(3):
        with HookSession(net) as hooks:
            hooks.record(nn.Module, kinds=["output"])
            net(images)
        calls = {path: len(outputs) for path, outputs in hooks.outputs.items() if path != "stem"}
        assert calls == {"": 1, "conv": 1, "relu": 1, "head": 1}


@pytest.mark.parametrize("kind", sorted(OPAQUE))
def test_the_survey_passes_over_what_is_opaque(kind):
    layers = survey(with_opaque_stem(kind), (3, 8, 8))
    assert layers.default_layers == ("relu",)
    assert not [layer.path for layer in layers.layers if layer.path.startswith("stem.")]


def explained_around(name: str, kind: str) -> None:
    method = METHODS[name]
    explainer = method.build({option: value for option, value in FEW.items() if option in method.options})
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    net = with_opaque_stem(kind)
    if kind == "scripted" and (method.family == "rule" or name in ("attnlrp", "dave")):
        with pytest.raises(UnsupportedOperationError, match=r"'convolution'.*'stem', which is TorchScript"):
            explainer.explain(net, images)
    else:
        expected = explainer.explain(nets.seeded(WithStem).eval(), images)
        attribution = explainer.explain(net, images)
        torch.testing.assert_close(attribution.maps, expected.maps, rtol=1e-4, atol=1e-6)
        assert attribution.layers == expected.layers
    assert count_hooks(net) == 0


@pytest.mark.parametrize("kind", few(sorted(OPAQUE), short=["compiled", "scripted"]))
@pytest.mark.parametrize("name", few(["deeplift", "fullgrad", "gradcam"], short=["gradcam"]))
def test_methods_explain_a_model_with_an_opaque_part_as_without(name, kind):
    explained_around(name, kind)


@pytest.mark.parametrize("kind", few(sorted(OPAQUE), short=["compiled in place"]))
@pytest.mark.parametrize("method", [FullGrad(), GradCAM(), GradCAM(layers=("conv",))])
def test_a_part_that_becomes_opaque_after_an_explanation_is_noticed(method, kind, images):
    net = nets.seeded(WithStem).eval()
    expected = method.explain(net, images)
    net.stem = OPAQUE[kind](net.stem)
    torch.testing.assert_close(method.explain(net, images).maps, expected.maps)


def test_a_part_that_is_wrapped_after_an_explanation_is_noticed(images):
    net = nets.seeded(WithStem, True).eval()
    expected = FullGrad().explain(net, images)
    net.stem = nn.Sequential(net.stem)
    torch.testing.assert_close(FullGrad().explain(net, images).maps, expected.maps)


def test_the_default_layer_is_found_anew_once_it_is_compiled_in_place(images):
    net = nets.seeded(WithStem).eval()
    assert GradCAM().explain(net, images).layers == ("relu",)
    net.relu.compile(backend="eager")
    assert GradCAM().explain(net, images).layers == ("conv",)


@pytest.mark.parametrize("kind", ["compiled in place", "scripted"])
def test_biases_that_fullgrad_cannot_see_are_refused_with_what_hides_them(kind, images):
    net = nets.seeded(WithStem, True).eval()
    net.stem = OPAQUE[kind](net.stem)
    with pytest.raises(UnsuitableModelError, match="Hooks see nothing inside 'stem', which "):
        FullGrad().explain(net, images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),  # RefineCAM goes through the layers of the stem
    diagonal(sorted({*CONVOLUTIONAL} - {"refinecam"}), sorted(OPAQUE)),
)
def test_all_methods_explain_a_model_with_an_opaque_part_as_without(name, kind):
    explained_around(name, kind)


@pytest.mark.parametrize("kind", sorted(OPAQUE))
def test_traces_and_captures_pass_over_what_is_opaque(kind):
    net = with_opaque_stem(kind)
    images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert "conv" in {event.path for event in trace_images(net, images).events}
    assert "conv/output/0" in capture_images(net, images, ("*",)).arrays
