"""Segmenters: the targets of their regions, written out with plain autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models import get_model, list_models, segmentation

from seewhy import (
    GradCAM,
    HiResCAM,
    InputXGradient,
    Saliency,
    capture,
    compare,
    explain,
    explain_many,
    intervene,
    read_picture,
    trace,
    wrap_model,
)
from seewhy.explainers.errors import ModelOutputError, TargetError
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.tasks.regions import Region
from seewhy.explainers.tasks.segmentation import Segmentation
from seewhy.models import ModelError
from tests.app.conftest import EXAMPLES
from tests.grids import few

CAT = EXAMPLES / "cat.png"
LABELS = ["ground", "cat", "cup", "sky"]
SIZE = (96, 128)
NETWORKS = [name for name in list_models(module=segmentation) if "101" not in name]
"""All but those that are others with a longer encoder."""


class Segmenter(nn.Module):
    """An encoder of two steps, a head, and logits as fine as the picture."""

    def __init__(self, seed=3):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        coarse, fine = nn.Conv2d(3, 8, 5, stride=4, padding=2), nn.Conv2d(8, 12, 3, padding=1)
        self.encoder = nn.Sequential(coarse, nn.ReLU(), fine, nn.ReLU())
        self.head = nn.Conv2d(12, 4, 1)
        for value in self.parameters():
            value.data = torch.randn(value.shape, generator=generator) / 4
        self.head.bias.data[3] = -100  # of a class that is never seen

    def forward(self, images):
        logits = self.head(self.encoder(images))
        return {"out": functional.interpolate(logits, size=images.shape[2:], mode="nearest")}


@pytest.fixture(scope="module")
def model():
    return wrap_model(Segmenter(), LABELS, input_size=SIZE)


@pytest.fixture(scope="module")
def inputs(model):
    return model.preprocess(explain(model, CAT).picture)[None]


def logits_of(model, inputs):
    with torch.no_grad():
        return model.module(inputs)["out"][0]


def largest(logits):
    return int(logits.argmax(0).flatten().bincount().argmax())


def test_the_largest_region_is_explained_by_its_mean_logit(model, inputs):
    result = explain(model, CAT, "gradcam")
    logits = logits_of(model, inputs)
    index = largest(logits)
    mask = logits.argmax(0) == index
    assert (result.target.index, result.target.label) == (index, LABELS[index])
    assert result.target.area == pytest.approx(mask.double().mean().item())
    assert result.target.logit == pytest.approx(logits[index][mask].mean().item(), rel=1e-4)
    assert result.predictions[0].index == index
    assert sum(row.area for row in result.predictions) == pytest.approx(1)
    assert result.caption == f"{LABELS[index]} on {result.target.area:.1%} by gradcam"


def test_an_explanation_keeps_no_logits_of_all_pixels(model):
    result = explain(model, CAT, "gradcam")
    assert result.origin.outputs is None
    assert "logits" not in result.arrays()


@pytest.mark.parametrize("part", ["region", "border", "picture"])
def test_maps_are_those_of_plain_autograd(part, model, inputs):
    logits = logits_of(model, inputs)
    index = largest(logits)
    mask = logits.argmax(0) == index
    if part == "border":
        inner = functional.max_pool2d(functional.pad((~mask).float()[None, None], (1, 1, 1, 1)), 3, stride=1)[0, 0]
        mask = mask & (inner > 0)
    if part == "picture":
        mask = torch.ones_like(mask)
    pixels = inputs.clone().requires_grad_()
    score = model.module(pixels)["out"][0, index][mask].mean()
    (gradient,) = torch.autograd.grad(score, pixels)
    name = LABELS[index] if part == "region" else f"label:{LABELS[index]}:{part}"
    result = explain(model, CAT, "saliency", target=name)
    expected = Saliency().project(gradient)[0].numpy()
    assert np.allclose(result.map, expected, atol=1e-5 * abs(expected).max())


def test_with_a_linear_head_a_regions_map_is_the_mean_of_its_pixels_maps(model, inputs):
    logits = logits_of(model, inputs)
    index = largest(logits)
    cells = (logits.argmax(0) == index)[::4, ::4].nonzero().tolist()[::20]
    masks = [np.zeros(SIZE, dtype=bool) for _ in cells]
    for mask, (row, column) in zip(masks, cells, strict=True):
        mask[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = True
    regions = tuple(Region(index, mask=mask) for mask in (*masks, np.any(masks, axis=0)))
    explainer = HiResCAM(layers=("encoder",), sign="signed")
    *parts, whole = explainer.explain(model, inputs.expand(len(regions), -1, -1, -1), regions).maps
    assert torch.allclose(whole, torch.stack(parts).mean(dim=0), atol=1e-5 * whole.abs().max())
    assert len(parts) > 10
    assert not torch.allclose(whole, parts[0], atol=0.1 * whole.abs().max())


def test_nothing_outside_the_receptive_field_is_marked(model, inputs):
    mask = np.zeros(SIZE, dtype=bool)
    mask[40:44, 60:64] = True
    gradient = Saliency(sign="absolute").explain(model, inputs, (Region(1, mask=mask),)).maps[0]
    assert gradient[34:50, 54:70].sum() == gradient.sum() > 0  # 4 of the cell, 4 for its neighbours, 2 for the kernel


def test_a_pixel_means_its_connected_region(model, inputs):
    result = explain(model, CAT, target="pixel:200,150")
    geometry, logits = result.geometry, logits_of(model, inputs)
    left, top, right, bottom = geometry.box
    row, column = int((150.5 - top) / (bottom - top) * SIZE[0]), int((200.5 - left) / (right - left) * SIZE[1])
    classes = logits.argmax(0)
    island, before = torch.zeros_like(classes, dtype=torch.bool), -1
    island[row, column] = True
    while (count := int(island.sum())) != before:  # grows by its four neighbours until it is whole
        before = count
        padded = functional.pad(island, (1, 1, 1, 1))
        near = padded[2:, 1:-1] | padded[:-2, 1:-1] | padded[1:-1, 2:] | padded[1:-1, :-2] | island
        island = near & (classes == classes[row, column])
    assert result.target.index == classes[row, column]
    assert result.target.area == pytest.approx(island.double().mean().item())
    assert result.target.logit == pytest.approx(logits[classes[row, column]][island].mean().item(), rel=1e-4)


def test_a_mask_of_the_picture_is_cut_and_scaled_like_it(model, inputs):
    picture = explain(model, CAT).picture
    mask = np.zeros((picture.height, picture.width), dtype=bool)
    left, top, right, bottom = (round(edge) for edge in explain(model, CAT).geometry.box)
    mask[top : (top + bottom) // 2, left:right] = True
    classes = logits_of(model, inputs).argmax(0)
    for marked, rows in ((mask, SIZE[0] // 2), (np.ones_like(mask), SIZE[0])):
        target = explain(model, CAT, target=marked).target
        found = (classes[:rows] == target.index).sum() / classes.numel()
        assert target.area == pytest.approx(found.item(), abs=0.02)


def test_an_area_is_what_the_class_covers_wherever_logits_are_averaged(model):
    absent = explain(model, CAT, target="sky:picture").target
    assert (absent.area, absent.text) == (0, "on 0.0%")
    usual = explain(model, CAT).target
    assert explain(model, CAT, target=":picture").target.text == usual.text != "on 100.0%"
    effect = intervene(model, CAT, [{"op": "set", "layer": "head", "channels": [usual.index], "value": -99}])
    assert effect.before.target.area == usual.area
    assert effect.after.target.text == "on 0.0%"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("pixel:0,150", "pixel:0,150 lies outside of what the model sees: x from"),
        ("pixel:9999,1", "outside of what the model sees"),
        ("pixel:a,b", "give pixel:X,Y"),
        ("dog", "no class 'dog'. It has ground, cat, cup, sky. Targets of a segmenter are label:NAME and pixel:X,Y"),
        (7, "out of range"),
        (np.zeros((300, 451), dtype=bool), "is empty"),
        (np.zeros((300, 451)), "float64"),
        (np.ones((30, 45), dtype=bool), "45x30 pixels, but the upright picture has 451x300"),
        ("sky:border", "predicts 'sky' nowhere in this picture"),
    ],
)
def test_what_is_not_there_cannot_be_asked(target, reason, model):
    with pytest.raises(TargetError, match=reason):
        explain(model, CAT, target=target)


def test_what_covers_everything_has_no_border():
    module = Segmenter()
    module.head.bias.data[1] += 1000
    with pytest.raises(TargetError, match="has no border"):
        explain(wrap_model(module, LABELS, input_size=SIZE), CAT, target="cat:border")


def test_a_contrast_is_the_difference_in_the_same_region(model, inputs):
    index = largest(logits_of(model, inputs))
    other = (index + 1) % 4
    mask = (logits_of(model, inputs).argmax(0) == index).numpy()
    explainer = InputXGradient(sign="signed")
    parts = [explainer.explain(model, inputs, (Region(label, mask=mask),)).maps[0] for label in (index, other)]
    result = explain(model, CAT, "input-x-gradient", against=other, sign="signed")
    assert result.against.label == LABELS[other]
    assert np.allclose(result.map, parts[0] - parts[1], atol=1e-5 * float(parts[0].abs().max()))
    with pytest.raises(TargetError, match="contrasted with itself"):
        explain(model, CAT, target=index, against=index)
    with pytest.raises(TargetError, match="is not a class to contrast"):
        explain(model, CAT, against="pixel:200,150")


@pytest.mark.parametrize("method", ["hirescam", "integrated-gradients", "lrp", "occlusion", "finercam", "dff"])
def test_methods_of_every_family_explain_regions(method, model):
    alone = explain(model, CAT, method)
    assert np.abs(alone.map).max() > 0
    again = compare(model, CAT, ["gradcam", method])[1]
    assert np.allclose(again.map, alone.map, atol=1e-4 * np.abs(alone.map).max())


def test_mirrored_pictures_have_mirrored_regions(model, inputs):
    """The mean over mirror images of a symmetric network is symmetric where the picture and the region are."""
    images = (inputs + inputs.flip(3)) / 2
    symmetric = Segmenter()
    for conv in (symmetric.encoder[0], symmetric.encoder[2]):
        conv.weight.data = (conv.weight.data + conv.weight.data.flip(3)) / 2
    mask = np.zeros(SIZE, dtype=bool)
    mask[:, :40] = True
    model = wrap_model(symmetric, LABELS, input_size=SIZE, head="segmentation")
    regions = (Region(1, mask=mask),), (Region(1, mask=mask[:, ::-1].copy()),)
    maps = [Saliency(smooth="tta").explain(model, images, region).maps[0] for region in regions]
    assert maps[0][:, 50:].abs().max() < 1e-6 * maps[0].max()
    assert torch.allclose(maps[0], maps[1].flip(1), atol=1e-2 * float(maps[0].max()))


def test_pictures_in_company_have_the_maps_of_their_own(model):
    pairs = [(CAT, None), (EXAMPLES / "coffee.png", "pixel:300,200"), (EXAMPLES / "rocket.png", None)]
    for (picture, target), result in zip(pairs, explain_many(model, pairs), strict=True):
        alone = explain(model, picture, target=target)
        assert result.target == alone.target or result.target.area == pytest.approx(alone.target.area)
        assert np.allclose(result.map, alone.map, atol=1e-4 * abs(alone.map).max())


@pytest.mark.parametrize("name", few(NETWORKS, ["lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"]))
def test_torchvisions_segmenters_are_explained_at_the_end_of_their_encoder(name):
    torch.manual_seed(0)
    options = {} if "lraspp" in name else {"aux_loss": False}
    module = get_model(name, weights=None, weights_backbone=None, num_classes=4, **options)
    model = wrap_model(module, LABELS, input_size=SIZE, head="segmentation")
    (layer,) = model.default_layers
    assert layer == ("backbone.layer4" if "resnet" in name else "backbone.16")
    images = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    mask = np.zeros(SIZE, dtype=bool)
    mask[10:60, 20:90] = True
    attribution = GradCAM(sign="signed").explain(model, images, (Region(2, mask=mask),) * 2)
    features = []
    module.eval()
    with module.get_submodule(layer).register_forward_hook(lambda *call: features.append(call[2])):
        scores = module(images)["out"][:, 2][:, torch.from_numpy(mask)].mean(dim=1)
    (gradients,) = torch.autograd.grad(scores.sum(), features[0])
    expected = (gradients.mean(dim=(2, 3), keepdim=True) * features[0]).sum(dim=1)
    assert torch.allclose(attribution.maps, expected, atol=1e-5 * float(expected.detach().abs().max()))


def test_hooks_see_segmenters(model):
    assert trace(model, CAT).events
    assert capture(model, CAT, ["encoder.2"]).tensors
    effect = intervene(model, CAT, [{"op": "zero", "layer": "encoder.2"}])
    assert effect.score_change == pytest.approx(effect.after.target.logit - effect.before.target.logit)
    assert effect.probability_change is None


@pytest.mark.parametrize("name", few(NETWORKS, ["lraspp_mobilenet_v3_large"]))
def test_hooks_see_torchvisions_segmenters(name):
    generator = torch.Generator().manual_seed(0)
    module = get_model(name, weights=None, weights_backbone=None, num_classes=4)
    for value in module.parameters():
        value.data = torch.randn(value.shape, generator=generator) * value.detach().std().nan_to_num(0.1)
    model = wrap_model(module.eval(), LABELS, input_size=(48, 64), head="segmentation")
    (layer,) = model.default_layers
    view = model.preprocess(read_picture(CAT))[None]
    with torch.no_grad():
        logits = module(view)["out"][0]
    index = largest(logits)
    where = logits.argmax(0) == index
    seen, leaf, part = {}, view.clone().requires_grad_(), module.get_submodule(layer)
    with part.register_forward_hook(lambda _, __, output: seen.update(output=output)):
        score = module(leaf)["out"][0, index][where].mean()
        (gradient,) = torch.autograd.grad(score, seen["output"])
    captured = capture(model, CAT, [layer], kinds=("output", "grad_output"))
    tensors = {row.kind: row.tensor for row in captured.tensors}
    close_to(tensors["output"], seen["output"])
    close_to(tensors["grad_output"], gradient)
    events = {event.kind: event.tensors for event in trace(model, CAT, layers=(layer,)).events}
    norms = [events[kind][0].statistics.norm for kind in ("after_forward", "output_gradient")]
    assert norms == pytest.approx([seen["output"].norm().item(), gradient.norm().item()], rel=1e-4)
    with torch.no_grad(), part.register_forward_hook(lambda _, __, output: output * 0):
        edited = module(view)["out"][0]
    effect = intervene(model, CAT, [{"op": "zero", "layer": layer}])
    assert effect.before.target.logit == pytest.approx(float(logits[index][where].mean()), rel=1e-3, abs=1e-4)
    assert effect.after.target.logit == pytest.approx(float(edited[index][where].mean()), rel=1e-3, abs=1e-4)


def close_to(values, expected):
    expected = expected.detach()
    assert torch.allclose(values, expected, atol=1e-5 * float(expected.abs().max()))


class Lesions(nn.Module):
    """A logit for each position, as U-Nets of two classes have it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 1, 1)
        for value in self.parameters():
            value.data = torch.randn(value.shape, generator=torch.Generator().manual_seed(2))

    def forward(self, images):
        return self.head(self.conv(images).relu())


def test_a_single_logit_tells_two_classes():
    model = wrap_model(Lesions(), ["rest", "lesion"], input_size=SIZE, head="segmentation")
    inputs = model.preprocess(read_picture(CAT))[None]
    pixels = inputs.clone().requires_grad_()
    logits = model.module(pixels)[0, 0]
    where = logits > 0
    assert 0.05 < where.double().mean() < 0.95
    result = explain(model, CAT, "saliency", target="lesion", against="rest")
    assert result.target.area == pytest.approx(where.double().mean().item())
    assert result.target.logit - result.against.logit == pytest.approx(logits[where].mean().item(), rel=1e-4)
    (gradient,) = torch.autograd.grad(logits[where].mean(), pixels)
    close_to(torch.from_numpy(result.map), Saliency().project(gradient)[0])
    outputs = model.task.outputs(logits[None, None])
    assert torch.allclose(outputs.softmax(dim=1)[0, 1], logits.sigmoid(), atol=1e-6)
    rest = explain(model, CAT, "saliency", target="rest")
    assert rest.map.max() > 0
    with pytest.raises(ModelError, match="needs two labels, the one for the rest first"):
        wrap_model(Lesions(), ["lesion"], input_size=SIZE, head="segmentation")


def test_outputs_are_found_or_refused():
    grid = torch.zeros(1, 4, 8, 8)
    task = Segmentation()
    assert task.outputs(grid) is task.outputs({"out": grid, "aux": grid}) is task.outputs([grid]) is grid
    with pytest.raises(ModelOutputError, match=r"found 2 such tensors in its tuple"):
        task.outputs((grid, grid))


def test_a_mask_beyond_the_input_is_refused():
    mask = np.zeros((100, 200), dtype=bool)
    mask[:, :20] = True
    with pytest.raises(TargetError, match="sees nothing of the mask"):
        Region(None, mask=mask).placed(Geometry(200, 100, (50.0, 0.0, 150.0, 100.0)))


def test_without_a_method_segmenters_are_explained_by_hirescam(model):
    assert explain(model, CAT).method == "hirescam"
    assert next(explain_many(model, [CAT])).method == "hirescam"
    assert intervene(model, CAT, [{"op": "zero", "layer": "encoder.2"}]).before.method == "hirescam"
    assert explain(model, CAT, target=lambda logits: logits[:, 0].mean(dim=(1, 2))).method == "hirescam"


@pytest.mark.parametrize(
    ("target", "same"),
    [
        ("label:cat:border", "cat:border"),
        (":picture", "{largest}:picture"),
        (":border", "{largest}:border"),
        (" {largest} :region", "{largest}"),
    ],
)
def test_a_suffix_says_where_logits_are_averaged(target, same, model, inputs):
    name = LABELS[largest(logits_of(model, inputs))]
    explanations = [explain(model, CAT, target=text.format(largest=name)) for text in (target, same)]
    first, second = (explanation.target for explanation in explanations)  # alike, whichever part was compiled first
    assert first == replace(second, logit=pytest.approx(second.logit, rel=1e-5))
    np.testing.assert_allclose(*[part.map for part in explanations], rtol=1e-4, atol=1e-6)


def test_a_mask_may_come_with_a_class_and_have_a_border(model, inputs):
    mask = np.zeros((300, 451), dtype=bool)
    mask[60:220, 100:300] = True
    logits = logits_of(model, inputs)
    index = 3 - largest(logits) % 3
    whole = explain(model, CAT, target=model.task.target(LABELS[index], mask))
    edge = explain(model, CAT, target=model.task.target(f"{index}:border", mask))
    assert whole.target.index == edge.target.index == index
    geometry = whole.geometry
    placed = Region(None, mask=mask).placed(geometry).mask
    share = functional.interpolate(torch.from_numpy(placed)[None, None].float(), SIZE, mode="area")[0, 0]
    region = share >= 0.5
    inner = functional.max_pool2d(functional.pad((~region).float()[None, None], (1, 1, 1, 1)), 3, stride=1)[0, 0] > 0
    for result, where in ((whole, region), (edge, region & inner)):
        assert result.target.logit == pytest.approx(logits[index][where].mean().item(), rel=1e-4)
    with pytest.raises(TargetError, match="two different regions"):
        model.task.target("pixel:3,4", mask)


def test_the_share_of_the_map_outside_the_region_is_told(model, inputs):
    mask = np.zeros((300, 451), dtype=bool)
    mask[60:220, 100:300] = True
    result = explain(model, CAT, "saliency", target=mask)
    region = Region(None, mask=mask).placed(result.geometry).mask
    region = functional.interpolate(torch.from_numpy(region)[None, None].float(), SIZE, mode="area")[0, 0] >= 0.5
    sizes = np.abs(result.map)
    assert result.outside == pytest.approx(sizes[~region.numpy()].sum() / sizes.sum(), rel=1e-5)
    assert 0 < result.outside < 0.2  # what the receptive field adds to the region
    assert result.document()["explanations"][0]["outside"] == result.outside
    assert explain(model, CAT, target=":picture").outside == 0
    blank = explain(model, CAT, "saliency", target=model.task.target("sky", np.ones_like(mask)))
    assert blank.outside in (None, 0)


def test_a_contrast_is_described_in_the_region_of_its_target(model, inputs):
    logits = logits_of(model, inputs)
    index = largest(logits)
    result = explain(model, CAT, against="sky")  # which the model gives no position
    where = logits.argmax(0) == index
    assert result.against.logit == pytest.approx(logits[3][where].mean().item(), rel=1e-4)
    assert (result.against.area, result.against.text) == (0, "on 0.0%")
