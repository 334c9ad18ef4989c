"""Captures: the tensors by hand and by torch's own hooks, their keys, the limit in bytes, and refusals."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from seewhy.explainers import GradCAM, capture, errors
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import CaptureTooLargeError, LayerError, NonFiniteError, OptionError, TargetError
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.kinds import KINDS
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.capture import Capture, CapturedTensor, capture_images, contact_sheet, strongest
from seewhy.models import LoadedModel
from tests import nets

CAT = Path(__file__).parents[2] / "examples" / "cat.png"
ROWS = ((1.0, 2.0, 3.0), (4.0, 5.0, -6.0))
ONES = torch.ones(1, 3, 4, 4)


def bytes_of(captured: Capture) -> int:
    return sum(tensor.nbytes for tensor in captured.arrays.values())


def keys(captured: Capture) -> list[str]:
    return [tensor.key for tensor in captured.tensors]


# By hand


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_all_kinds_by_hand(frozen, train, untouched):
    net = untouched(nets.Weighted(*ROWS).requires_grad_(not frozen).train(train))
    tensors = capture_images(net, ONES, ("conv",), KINDS, ask=Ask.single(1))
    assert keys(tensors) == [f"conv/{kind}/0" for kind in KINDS[:4]] + ["conv/parameter_grad/weight"]
    arrays = tensors.arrays
    assert torch.equal(arrays["conv/input/0"], ONES)
    assert arrays["conv/output/0"][0, :, 0, 0].tolist() == [6, 3]
    assert torch.equal(arrays["conv/grad_output/0"], torch.tensor([0.0, 1.0])[None, :, None, None].expand(1, 2, 4, 4))
    assert arrays["conv/grad_input/0"][0, :, 2, 3].tolist() == list(ROWS[1])
    assert arrays["conv/parameter_grad/weight"][:, :, 0, 0].tolist() == [[0, 0, 0], [16, 16, 16]]
    assert (tensors.target, tensors.logits.tolist(), tensors.image_size) == (1, [96, 48], (4, 4))
    assert capture_images(net, ONES, ("conv",)).target == 0


def test_the_model_itself_is_the_layer_dot():
    tensors = capture_images(nets.Weighted(*ROWS), ONES, ("",), ("input", "output", "grad_output"))
    assert keys(tensors) == ["./input/0", "./output/0", "./grad_output/0"]
    assert tensors.arrays["./output/0"].tolist() == [[96, 48]]
    assert tensors.arrays["./grad_output/0"].tolist() == [[1, 0]]


@pytest.mark.parametrize("kind", [nets.Net, nets.InPlaceModule, nets.AddsInto, nets.PreActivation, nets.Skip])
def test_against_autograd(kind, picture, untouched):
    net = untouched(nets.seeded(kind))
    arrays = capture_images(net, picture, ("stem", "conv", "head"), KINDS, ask=Ask.single(2)).arrays
    leaf = picture.clone().requires_grad_()
    features = net.stem(leaf)
    into = net.conv(features)
    logits = net.head(net.middle(into.clone()).mean(dim=(2, 3)))
    leaves = [leaf, features, into, net.stem.weight, net.conv.bias, net.head.weight]
    names = ["stem/grad_input/0", "stem/grad_output/0", "conv/grad_output/0"]
    names += ["stem/parameter_grad/weight", "conv/parameter_grad/bias", "head/parameter_grad/weight"]
    for name, gradient in zip(names, torch.autograd.grad(logits[0, 2], leaves), strict=True):
        assert nets.relative_error(arrays[name], gradient) < 1e-5, name
    assert torch.equal(arrays["conv/grad_input/0"], arrays["stem/grad_output/0"])
    assert torch.equal(arrays["conv/output/0"], into.detach()), "before anything overwrote it"
    assert torch.equal(arrays["head/output/0"], logits.detach())


def test_calls_and_names_are_in_the_keys_and_in_order(picture):
    tensors = capture_images(nets.seeded(nets.Twice), picture, ("again", "stem"), ("grad_output", "output"))
    assert keys(tensors) == [
        *("stem/output/0", "stem/grad_output/0"),
        *("again/output/0", "again/output/1", "again/grad_output/0", "again/grad_output/1"),
    ]
    entry = tensors.tensors[-1]
    assert (entry.layer, entry.kind, entry.call, entry.name) == ("again", "grad_output", 1, None)
    parameter = capture_images(nets.seeded(nets.Twice), picture, ("again",), ("parameter_grad",)).tensors[0]
    assert (parameter.call, parameter.name, parameter.key) == (None, "weight", "again/parameter_grad/weight")


def test_a_gradient_is_named_as_the_tensor_that_it_belongs_to(picture):
    """The module is called with a picture, a number and a tensor, the last two by keyword."""
    tensors = capture_images(nets.seeded(nets.TupleInside), picture, ("pair",), KINDS[:4])
    shapes = {tensor.key: None if tensor.tensor is None else tuple(tensor.tensor.shape) for tensor in tensors.tensors}
    assert shapes == {
        "pair/input/0/0": (1, 3, 16, 16),
        "pair/input/0/2": (1, 1, 14, 14),
        "pair/output/0/0": (1, 4, 14, 14),
        "pair/output/0/1": (1, 4, 14, 14),
        "pair/grad_input/0/0": (1, 3, 16, 16),
        "pair/grad_input/0/1": None,
        "pair/grad_input/0/2": (1, 1, 14, 14),
        "pair/grad_output/0/0": (1, 4, 14, 14),
        "pair/grad_output/0/1": (1, 4, 14, 14),
    }


def test_features_beside_a_number_can_be_ranked_by_effect(picture):
    numbered = nets.Wired(lambda _, features: (2.0, features.relu()))
    net = nets.seeded(lambda: nets.Middle(lambda net, features: net.numbered(features)[1] * 2.0, numbered=numbered))
    tensors = capture_images(net, picture, ("numbered",), ("output", "grad_output"))
    assert [tensor.key for tensor in tensors.tensors if tensor.tensor is not None] == [
        "numbered/output/0/1",
        "numbered/grad_output/0/1",
    ]
    assert len(strongest(tensors, 3, by_effect=True)) == 3


def test_a_module_of_several_names_is_captured_under_each(picture):
    net = nets.seeded(nets.SharedInside, 4, 5)
    for layers in (("relu",), ("blocks.1.relu",), ("*relu",)):
        tensors = capture_images(net, picture, layers)
        names = ["relu", "blocks.0.relu", "blocks.1.relu"] if layers == ("*relu",) else layers
        assert list(tensors.arrays) == [f"{name}/output/{call}" for name, call in itertools.product(names, range(4))]
        assert capture_images(net, picture, layers, max_bytes=bytes_of(tensors)).arrays.keys() == tensors.arrays.keys()
        with pytest.raises(CaptureTooLargeError):
            capture_images(net, picture, layers, max_bytes=bytes_of(tensors) - 1)


# Gradients that do not flow


@pytest.mark.parametrize("trainable", [False, True])
def test_no_gradient_is_none_and_not_zero(trainable, picture):
    def beside(net: nn.Module, features: Tensor) -> Tensor:
        net.side(features)
        return features.relu()

    net = nets.Middle(beside, side=nn.Conv2d(5, 2, 1)).eval().requires_grad_(trainable)
    tensors = capture_images(net, picture, ("side", "conv"), KINDS)
    by_key = {entry.key: entry.tensor for entry in tensors.tensors}
    absent = [key for key, tensor in by_key.items() if tensor is None]
    kinds = ("grad_input/0", "grad_output/0", "parameter_grad/weight", "parameter_grad/bias")
    assert absent == [f"side/{kind}" for kind in kinds]
    assert set(tensors.arrays) == set(by_key) - set(absent)
    assert by_key["conv/grad_output/0"].any()


def test_parameters_of_a_layer_that_never_runs_have_no_gradient(picture):
    tensors = capture_images(nets.seeded(nets.Net), picture, ("unused",), ("parameter_grad",))
    assert [(tensor.key, tensor.tensor) for tensor in tensors.tensors] == [
        ("unused/parameter_grad/weight", None),
        ("unused/parameter_grad/bias", None),
    ]


# The limit in bytes


@pytest.mark.parametrize(
    ("kinds", "layers"),
    [
        (("output",), ("conv",)),
        (("input",), ("*",)),
        (("output", "grad_output"), ("conv", "head")),
        (KINDS, ("stem", "conv", "head")),
        (("parameter_grad",), ("stem", "head")),
        (("grad_input",), (nn.Conv2d,)),
        (("output",), (lambda module: isinstance(module, nn.Linear),)),
    ],
    ids=nets.label,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=nets.label)
def test_the_limit_is_exact(kinds, layers, dtype, picture):
    net = nets.seeded(nets.InPlaceModule).to(dtype)
    net.unused = None
    need = bytes_of(capture_images(net, picture.to(dtype), layers, kinds))
    assert need > 0
    assert bytes_of(capture_images(net, picture.to(dtype), layers, kinds, max_bytes=need)) == need
    with pytest.raises(CaptureTooLargeError, match=f"{need:,} bytes, more than the {need - 1:,}"):
        capture_images(net, picture.to(dtype), layers, kinds, max_bytes=need - 1)


def look_up(net: nn.Module, features: Tensor) -> Tensor:
    """Whole numbers have no gradient."""
    return features + net.table(torch.tensor([2]))[:, :, None, None]


@pytest.mark.parametrize("kinds", [("grad_input",), ("grad_output",), ("input", "grad_input"), KINDS])
def test_the_limit_knows_what_can_have_a_gradient(kinds, picture):
    net = nets.Middle(look_up, table=nn.Embedding(4, 5)).eval()
    need = bytes_of(capture_images(net, picture, ("table",), kinds))
    capture_images(net, picture, ("table",), kinds, max_bytes=need)
    with pytest.raises(CaptureTooLargeError) if need else pytest.raises(ValueError, match="x"):
        capture_images(net, picture, ("table",), kinds, max_bytes=need - 1) if need else int("x")


def test_a_capture_that_is_too_large_is_refused_before_the_backward_pass(picture, untouched):
    net, calls = untouched(nets.seeded(nets.Net)), []
    watching = net.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    with watching, pytest.raises(CaptureTooLargeError):
        capture_images(net, picture, ("conv",), KINDS, max_bytes=0)
    assert calls == [False]


# What is refused, and what is left behind


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("conv3",), "Near matches: conv"),
        (("unused",), "never runs"),
        (("stem", "unused"), "never runs"),
        (("unus*",), "never runs"),
        ((nn.Conv3d,), "no module of the type"),
        ((lambda module: False,), "predicate"),
    ],
    ids=nets.label,
)
def test_layers_that_are_not_there_or_never_run(layers, message, picture, untouched):
    net = untouched(nets.seeded(nets.Net))
    for kinds in (("output",), KINDS):
        with pytest.raises(LayerError, match=message):
            capture_images(net, picture, layers, kinds)


def test_globs_and_types_may_match_layers_that_never_run(picture):
    tensors = capture_images(nets.seeded(nets.Net), picture, ("*",))
    assert [tensor.layer for tensor in tensors.tensors] == ["", "stem", "conv", "head"]
    tensors = capture_images(nets.seeded(nets.Net), picture, (nn.Conv2d,))
    assert [entry.layer for entry in tensors.tensors] == ["stem", "conv"]


def test_other_faults(picture, untouched):
    net = untouched(nets.seeded(nets.Net))
    for target in (3, -1):
        with pytest.raises(TargetError):
            capture_images(net, picture, ("conv",), ask=Ask.single(target))
    with pytest.raises(ValueError, match="grad_inputs"):
        capture_images(net, picture, ("conv",), ("grad_inputs",))
    detached = nets.Wrapped(net, torch.detach)
    (result,) = capture_images(detached, picture, ("net.conv",), ("grad_output",)).tensors
    assert result.tensor is None
    with torch.no_grad():
        nan = nets.seeded(nets.Net)
        nan.head.bias[0] = float("nan")
    with pytest.raises(NonFiniteError):
        capture_images(nan, picture, ("conv",))


@pytest.mark.parametrize(("allowed", "passes"), [(0, 1), (1, 2)])
def test_a_check_may_end_the_capture_between_its_passes(allowed, passes, picture, untouched):
    calls = itertools.count()
    ran = []

    def check() -> None:
        if next(calls) == allowed:
            raise TimeoutError

    net = untouched(nets.seeded(nets.Net))
    with HookSession(net) as hooks:
        hooks.before_forward(lambda *_: ran.append("forward"), "conv")
        hooks.output_gradient(lambda _: ran.append("backward"), "conv")
        with pytest.raises(TimeoutError):
            capture_images(net, picture, ("conv",), ("output", "grad_output"), progress=Progress(cancel=check))
    assert ran == ["forward"] * passes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_whatever_the_callers_mode(mode, picture, untouched):
    net = untouched(nets.seeded(nets.Stochastic).train())
    expected = capture_images(net, picture, ("*",), KINDS, ask=Ask.single(0)).arrays
    with mode():
        result = capture_images(net, picture.clone(), ("*",), KINDS, ask=Ask.single(0)).arrays
    assert list(result) == list(expected)
    for key, tensor in result.items():
        assert torch.equal(tensor, expected[key]), key
        assert not tensor.requires_grad
        assert not tensor.is_inference()


# The strongest maps


def test_the_strongest_maps_by_hand():
    kinds = ("output", "grad_output", "input")
    tensors = capture_images(nets.Weighted(*ROWS), ONES, ("conv",), kinds, ask=Ask.single(1))
    maps = strongest(tensors, 9)
    assert [(feature.source.key, feature.channel, feature.strength) for feature in maps] == [
        ("conv/output/0", 0, 6),
        ("conv/output/0", 1, 3),
        ("conv/input/0", 0, 1),
        ("conv/input/0", 1, 1),
        ("conv/input/0", 2, 1),
        ("conv/grad_output/0", 1, 1),
        ("conv/grad_output/0", 0, 0),
    ]
    assert torch.equal(maps[0].map, torch.full((4, 4), 6.0))
    assert [(feature.channel, feature.strength) for feature in strongest(tensors, 1)] == [(0, 6)]
    by_effect = strongest(tensors, 9, by_effect=True)
    assert [(feature.source.key, feature.channel, feature.strength) for feature in by_effect] == [
        ("conv/output/0", 1, 48),
        ("conv/output/0", 0, 0),
    ]


def test_effects_add_up_to_what_the_gradient_says(picture):
    net = nets.seeded(nets.Net)
    tensors = capture_images(net, picture, ("conv",), ("output", "grad_output"))
    output, gradient = tensors.arrays["conv/output/0"], tensors.arrays["conv/grad_output/0"]
    maps = strongest(tensors, 99, by_effect=True)
    assert sum(feature.strength for feature in maps) == pytest.approx(float((output * gradient).sum()), rel=1e-5)
    sizes = [abs(feature.strength) for feature in maps]
    assert sizes == sorted(sizes, reverse=True)
    for feature in maps:
        assert torch.equal(feature.map, output[0, feature.channel])


def test_maps_with_the_channels_last(images):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torchvision.models.SwinTransformer([4, 4], 16, [2], [2], [4, 4], num_classes=5).eval()
    tensors = capture_images(net, images[:1, :, :32, :32], ("norm",), ("output", "grad_output"))
    output = tensors.arrays["norm/output/0"]
    assert output.shape == (1, 8, 8, 16)
    for by_effect in (False, True):
        for feature in strongest(tensors, 16, by_effect):
            assert torch.equal(feature.map, output[0, :, :, feature.channel])


def test_without_a_map_there_is_none_to_show(picture):
    tensors = capture_images(nets.seeded(nets.Net), picture, ("head",), ("output", "grad_output", "parameter_grad"))
    with pytest.raises(LayerError, match="grid"):
        strongest(tensors, 5)
    with pytest.raises(LayerError):
        strongest(capture_images(nets.seeded(nets.Net), picture, ("conv",)), 5, by_effect=True)
    kernel = CapturedTensor("conv", "parameter_grad", None, "weight", torch.ones(1, 4, 3, 3))
    kernels = Capture((kernel,), 0, tensors.logits, (9, 9))
    with pytest.raises(LayerError):
        strongest(kernels, 5)


# The real model


def test_a_capture_of_the_embedded_model(lite0: LoadedModel, untouched):
    untouched(lite0.module)
    tensors = capture(lite0, CAT, ["bn2", "classifier"], ["output", "grad_output"], target="tabby")
    assert tensors.target == lite0.labels.index("tabby")
    assert torch.equal(tensors.arrays["classifier/output/0"][0], tensors.logits)
    gradient = tensors.arrays["classifier/grad_output/0"]
    assert gradient[0, tensors.target] == 1
    assert gradient.count_nonzero() == 1
    images = lite0.preprocess(read_picture(CAT))[None]
    cam = GradCAM(layers=("bn2",), sign="signed").explain(lite0, images, torch.tensor([tensors.target]))
    weights = tensors.arrays["bn2/grad_output/0"].mean(dim=(2, 3))
    by_hand = torch.einsum("nc,nchw->nhw", weights, tensors.arrays["bn2/output/0"])
    assert nets.relative_error(cam.maps, by_hand) < 1e-4
    assert len(strongest(tensors, 20, by_effect=True)) == 20


def test_one_layer_or_kind_may_be_given_as_a_string(lite0: LoadedModel):
    assert list(capture(lite0, CAT, "bn2", "output").arrays) == ["bn2/output/0"]
    assert list(capture(lite0, CAT, lite0.module.bn2).arrays) == ["bn2/output/0"]
    with pytest.raises(TypeError, match="Name layers by paths"):
        capture(lite0, CAT, 14)
    with pytest.raises(CaptureTooLargeError):
        capture(lite0, CAT, "bn2", max_bytes=1280 * 49 * 4 - 1)
    assert capture(lite0, CAT, "bn2", max_bytes=1280 * 49 * 4).arrays["bn2/output/0"].shape == (1, 1280, 7, 7)
    with pytest.raises(TargetError):
        capture(lite0, CAT, ["bn2"], target="tabbi")


def test_a_capture_is_saved_as_arrays(lite0, tmp_path):
    tensors = capture(lite0, CAT, "bn2", kinds=("output", "grad_output"), target="tabby")
    assert repr(tensors) == "Capture(bn2/output/0, bn2/grad_output/0; target 281)"
    with np.load(tensors.save(tmp_path / "a.npz")) as arrays:
        assert set(arrays) == set(tensors.arrays)
        np.testing.assert_array_equal(arrays["bn2/output/0"], tensors.arrays["bn2/output/0"].numpy())
    torch.testing.assert_close(load_file(tensors.save(tmp_path / "a.SAFETENSORS")), tensors.arrays, rtol=0, atol=0)
    with pytest.raises(OptionError, match="safetensors"):
        tensors.save(tmp_path / "a.pickle")
    with pytest.raises(OptionError, match="is not drawn by options; leave 'top' out"):
        tensors.save(tmp_path / "b.npz", top=3)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_capture_is_drawn_as_a_sheet(lite0, tmp_path):
    tensors = capture(lite0, CAT, "bn2", ["output", "grad_output"], target="tabby")
    upright = read_picture(CAT)
    geometry = lite0.preprocess.geometry(upright.width, upright.height)
    style = Style(view="heatmap", max_side=400)
    for rank in ("activation", "effect"):
        by_effect = rank == "effect"
        expected = contact_sheet(strongest(tensors, 5, by_effect), upright, geometry, style, by_effect)
        path = tensors.save(tmp_path / f"{rank}.png", top=5, rank=rank, view="heatmap", max_side=400)
        with Image.open(path) as image:
            assert np.array_equal(np.asarray(image), np.asarray(expected))
    values = capture(lite0, CAT, "bn2")
    for wrong, field in (({"rank": "size"}, "rank"), ({"top": 0}, "top"), ({"view": "x"}, "view")):
        with pytest.raises(OptionError) as caught:
            tensors.sheet(**wrong)
        assert caught.value.field == field
    with pytest.raises(OptionError, match="capture both"):
        values.sheet(rank="effect")
    images = lite0.preprocess(upright)[None]
    with pytest.raises(errors.PictureError, match="only a tensor"):
        capture_images(lite0, images, ("bn2",)).sheet()
    with pytest.raises(LayerError, match="grid"):
        capture(lite0, CAT, "classifier").sheet()
    assert len(list(tmp_path.iterdir())) == 2


def test_parameters_of_a_layer_without_any_are_refused(resnet18, images):
    with pytest.raises(LayerError, match="relu has no parameters"):
        capture_images(resnet18, images[:1], ("relu",), ("parameter_grad",))
