"""Detectors: the targets of their boxes, written out with plain autograd on torchvision's own forward pass."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torchvision.models import get_model
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.ops import clip_boxes_to_image

from seewhy import (
    BoxHead,
    Candidates,
    HookSession,
    ModelError,
    Saliency,
    capture,
    compare,
    detect,
    explain,
    explain_many,
    intervene,
    trace,
    wrap_model,
)
from seewhy.explainers.errors import EditError, LayerError, OptionError, TargetError
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.tasks.box_target import ATTRIBUTES
from seewhy.explainers.tasks.candidates import overlaps
from seewhy.explainers.tasks.detection import BoxObjective
from tests.app.conftest import EXAMPLES
from tests.explainers.detectors import KINDS, LABELS, SIDE, WINDOWS, Windows, decode, detector
from tests.grids import few

CAT = EXAMPLES / "cat.png"
TWO_STAGES = ("Faster R-CNN", "Mask R-CNN", "Keypoint R-CNN")
ATTRIBUTES_OF = {
    kind: tuple(
        name
        for name in ATTRIBUTES
        if (name != "mask" or kind == "Mask R-CNN") and (name != "objectness" or kind in (*TWO_STAGES, "FCOS"))
    )
    for kind in KINDS
}


def of_windows(net):
    return wrap_model(net, ["dog", "cup", "tree"], SIDE, mean=(0, 0, 0), std=(1, 1, 1), head=WINDOWS)


def labels_of(kind):
    return LABELS[:2] if kind == "Keypoint R-CNN" else LABELS


@pytest.fixture(scope="module", params=few(KINDS, ["SSD"]))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def module(kind):
    return detector(kind)


@pytest.fixture(scope="module")
def model(kind, module):
    return wrap_model(module, labels_of(kind))


@pytest.fixture(scope="module")
def images():
    return torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


class Recorded:
    """One forward pass of torchvision's own module, and what its parts returned, with their graph."""

    def __init__(self, module, image):
        self.module, self.parts = module, {}
        self.leaf = image.clone().requires_grad_()
        handles = [
            part.register_forward_hook(lambda *call, path=path: self.parts.update({path: call[2]}))
            for path, part in module.named_modules()
        ]
        (self.result,) = module([self.leaf])
        for handle in handles:
            handle.remove()

    def values(self, number):
        """Return what can be asked of a box of the result, as scalars with their graph."""
        boxes, logits, further = self._two_stages(number) if "rpn" in self.parts else self._dense()
        label = int(self.result["labels"][number])
        boxes = boxes[:, label] if boxes.ndim == 3 else boxes
        distance = (clip_boxes_to_image(boxes, (SIDE, SIDE)) - self.result["boxes"][number]).abs().amax(dim=1)
        surplus = (self._scores(logits, further)[:, label] - self.result["scores"][number]).abs()
        candidate = int((distance + surplus).argmin())
        x1, y1, x2, y2 = boxes[candidate] / SIDE
        values = {"score": logits[candidate, label], "x1": x1, "y1": y1, "x2": x2, "y2": y2, "box": x2 - x1 + y2 - y1}
        return values | {name: function(candidate, label) for name, function in further.items()}

    def _scores(self, logits, further):
        if type(self.module) not in (FCOS, RetinaNet):
            return logits.softmax(dim=1)
        scores = logits.sigmoid()
        if "objectness" not in further:
            return scores
        objectness = torch.stack([further["objectness"](row, 0) for row in range(len(logits))])
        return (scores * objectness.sigmoid()[:, None]).sqrt()

    def _dense(self):
        head, (anchors,) = self.parts["head"], self.parts["anchor_generator"]
        coder = self.module.box_coder
        boxes = getattr(coder, "decode_single", coder.decode)(head["bbox_regression"][0], anchors)
        further = {}
        if "bbox_ctrness" in head:
            further["objectness"] = lambda candidate, _: head["bbox_ctrness"][0, candidate, 0]
        return boxes, head["cls_logits"][0], further

    def _two_stages(self, number):
        logits, offsets = self.parts["roi_heads.box_predictor"]
        (proposals,), _ = self.parts["rpn"]
        boxes = self.module.roi_heads.box_coder.decode(offsets, [proposals])

        def objectness(candidate, _):
            levels, deltas = self.parts["rpn.head"]
            (anchors,) = self.parts["rpn.anchor_generator"]
            flat = torch.cat([level[0].permute(1, 2, 0).flatten() for level in levels])
            moves = torch.cat([part[0].unflatten(0, (-1, 4)).permute(2, 3, 0, 1).reshape(-1, 4) for part in deltas])
            decoded = clip_boxes_to_image(self.module.rpn.box_coder.decode_single(moves, anchors), (SIDE, SIDE))
            return flat[(decoded - proposals[candidate]).abs().sum(dim=1).argmin()]

        further = {"objectness": objectness}
        if "roi_heads.mask_predictor" in self.parts:

            def mask(_candidate, label):
                values = self.parts["roi_heads.mask_predictor"][number, label]
                return values[values > 0].mean() if (values > 0).any() else values.mean()

            further["mask"] = mask
        return boxes, logits, further


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_those_of_the_detector_itself(kind, images):
    module = detector(kind)
    model = wrap_model(module, labels_of(kind))
    with torch.no_grad():
        results = module(list(images))
        outputs = model.task.outputs(model.module(images))
    for row, result in enumerate(results):
        shown = model.task.describe(outputs[row], top=1000)
        assert len(shown) == len(result["boxes"]) >= 10
        assert [box.index for box in shown] == result["labels"].tolist()
        assert [box.number for box in shown] == list(range(len(shown)))
        assert np.allclose([box.probability for box in shown], result["scores"], atol=1e-6)
        located = [box.located(Geometry(SIDE, SIDE, (0.0, 0.0, SIDE, SIDE))).box for box in shown]
        assert np.allclose(located, result["boxes"], atol=1e-3)
    boxes = detect(model, images[0])
    assert [box.label for box in boxes] == [labels_of(kind)[index] for index in results[0]["labels"]]
    assert np.allclose([box.box for box in boxes], results[0]["boxes"], atol=1e-3)


@pytest.mark.parametrize("kind", few(KINDS, ["Mask R-CNN", "FCOS", "SSD"]))
def test_a_box_is_explained_by_what_plain_autograd_gives(kind, images):
    module = detector(kind)
    model = wrap_model(module, labels_of(kind))
    recorded = Recorded(module, images[0])
    number = 2
    values = recorded.values(number)
    assert set(values) == set(ATTRIBUTES_OF[kind])
    features = [recorded.parts[path] for path in model.default_layers]
    results = iter(explain(model, images[0], "saliency", target=[f"box:{number}:{name}" for name in values]))
    for attribute, value in values.items():
        gradient, *at_layers = torch.autograd.grad(value, [recorded.leaf, *features], retain_graph=True)
        result = next(results)
        expected = Saliency().project(gradient[None])[0].numpy()
        assert np.allclose(result.map, expected, atol=1e-5 * abs(expected).max()), attribute
        factor = SIDE if attribute in ("x1", "y1", "x2", "y2", "box") else 1
        assert result.target.value == pytest.approx(value.item() * factor, rel=1e-4, abs=1e-4)
        assert result.target.name == f"box:{number}" + (f":{attribute}" if attribute != "score" else "")
        if attribute not in ("score", "mask"):
            continue
        for path, feature, slope in zip(model.default_layers, features, at_layers, strict=True):
            cam = explain(model, images[0], "hirescam", f"box:{number}:{attribute}", layer=path, sign="signed")
            expected = (slope * feature).sum(dim=1)[0].detach().numpy()
            assert np.allclose(cam.map, expected, atol=1e-5 * abs(expected).max()), (attribute, path)


def test_several_boxes_share_one_forward_pass(module, model, images, monkeypatch):
    calls, scored, names = [], [], ["box:0", "box:3:x1", "box:2"]
    scores = BoxObjective.scores
    monkeypatch.setattr(BoxObjective, "scores", lambda part, rows: scored.append(len(rows)) or scores(part, rows))
    with HookSession(model) as hooks:
        hooks.before_forward(lambda _, args: calls.append(len(args[0])), "backbone")
        results = explain(model, images[0], "gradcam", target=names, sign="signed")
    assert calls == [1]
    assert scored == [1, 1, 1]  # each backward pass is of its own box's outputs
    for name, result in zip(names, results, strict=True):
        alone = explain(model, images[0], "gradcam", target=name, sign="signed")
        assert result.target.name == alone.target.name == name
        assert np.allclose(result.map, alone.map, atol=1e-4 * abs(alone.map).max())


def test_pictures_in_company_have_the_maps_of_their_own(model, images):
    pairs = [(images[0], "box:1"), (images[1], None), (images[1], "box:2:box"), (images[0], "region:0,0,40,40")]
    for (picture, target), result in zip(pairs, explain_many(model, pairs, "saliency"), strict=True):
        alone = explain(model, picture, "saliency", target=target)
        assert result.target.name == alone.target.name
        assert np.allclose(result.map, alone.map, atol=1e-4 * abs(alone.map).max())


def test_a_class_means_each_of_its_boxes(kind, model, images):
    boxes = detect(model, images[0])
    label = boxes[3].label
    numbers = [f"box:{box.index}" for box in boxes if box.label == label]
    results = explain(model, images[0], "saliency", target=f"label:{label}")
    assert [result.target.name for result in results] == numbers
    assert [result.target.label for result in results] == [label] * len(numbers)
    again = explain(model, images[0], "saliency", target=[f"label:{label}:x1", "box:0"])
    assert [result.target.name for result in again] == [f"{number}:x1" for number in numbers] + ["box:0"]


def test_edges_mean_the_nearest_box(model, images):
    box = detect(model, images[0])[4]
    x1, y1, x2, y2 = box.box
    inset = (x2 - x1) / 10
    result = explain(model, images[0], target=f"box:{x1 + inset:.2f},{y1:.2f},{x2:.2f},{y2:.2f}:{box.label}")
    assert result.target.label == box.label
    first, others = result.target.box, [other.box for other in detect(model, images[0]) if other.label == box.label]
    assert first in others
    with pytest.raises(TargetError, match=r"There is no box at .*: the nearest is box:\d+, '\w+', whose overlap"):
        explain(model, images[0], target="box:0,0,64,2")


def test_a_region_asks_why_there_is_no_box(kind, module, model, images):
    """The candidate with the largest logit of the class, among those with their middle in the region."""
    label = labels_of(kind)[1]
    result = explain(model, images[0], "saliency", target="region:8,8,40,40", label=label)
    with torch.no_grad():
        raw = model.module(images[:1])
    boxes = raw.boxes[0] * SIDE
    boxes = boxes[:, 1] if boxes.ndim == 3 else boxes
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = ((middles >= 8) & (middles < 40)).all(dim=1) & (boxes[:, 2] > boxes[:, 0])
    assert result.target.label == label
    assert result.target.logit == pytest.approx(raw.logits[0, :, 1][inside].max().item(), rel=1e-5)
    if result.target.number is None:
        assert result.diagnostics[-1].code == "box-not-shown"
    best = explain(model, images[0], "saliency", target="region:8,8,40,40")
    assert best.target.logit >= result.target.logit - 1e-6


def test_a_contrast_is_the_difference_of_two_logits_of_a_candidate(kind, model, images):
    names = labels_of(kind)
    target = explain(model, images[0], "input-x-gradient", target="box:0", sign="signed")
    other = next(name for name in names if name != target.target.label)
    lead = explain(model, images[0], "input-x-gradient", target="box:0", against=other, sign="signed")
    assert lead.against.label == other
    assert not np.allclose(lead.map, target.map)
    with pytest.raises(TargetError, match="contrasted with itself"):
        explain(model, images[0], target="box:0", against=target.target.label)
    with pytest.raises(TargetError, match="Only the score of a box"):
        explain(model, images[0], target="box:0:x1", against=other)


@pytest.mark.parametrize(
    ("target", "further", "reason"),
    [
        ("box:99", {}, r"There is no box:99. It finds box:0 \(\w+\), box:1"),
        ("box:0", {"label": "__background__"}, "leave the label out. It finds box:0"),
        ("box:1,2,3", {}, "four numbers in pixels"),
        ("box:30,1,20,40", {}, "has no area"),
        ("box:900,900,950,950", {}, "box:900,900,950,950 lies outside of what the model sees: x from 0 to 64"),
        ("label:dgo", {}, "no class 'dgo'. Near matches: dog."),
        ("lable:dog", {}, "Targets of a detector are box:N, "),
        (99, {}, "out of range"),
        ("region:63,63,64,64", {"label": "dog"}, "has no candidate centred in"),
        ("box:0:objectnes", {}, "is not an attribute of a box .Near matches: objectness"),
        ("box:0", {"against": "box:1"}, "is not a class to contrast"),
    ],
)
def test_what_is_not_there_cannot_be_asked(target, further, reason):
    model = wrap_model(detector("Faster R-CNN"), LABELS)
    picture = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with pytest.raises(TargetError, match=reason):
        explain(model, picture, target=target, **further)


def test_the_label_of_a_place_is_the_class_of_that_name(images):
    """Whatever it is called: an option is no part of the target's text."""
    model = wrap_model(detector("SSD"), ["__background__", "x1", "cup", "tree"])
    result = explain(model, images[0], target="region:8,8,40,40", label="x1")
    assert (result.target.label, result.target.attribute) == ("x1", "score")
    edge = explain(model, images[0], target="region:8,8,40,40", label="x1", attribute="x1")
    assert (edge.target.label, edge.target.attribute) == ("x1", "x1")
    assert {row.target.label for row in explain(model, images[0], label="cup")} == {"cup"}
    message = "label:cup names 'cup', but the label is 'tree'; leave one of them out"
    with pytest.raises(TargetError, match=message) as caught:
        explain(model, images[0], target="label:cup", label="tree")
    assert caught.value.field == "label"


def test_attributes_that_a_detector_lacks_are_refused(kind, model, images):
    for attribute in set(ATTRIBUTES) - set(ATTRIBUTES_OF[kind]):
        with pytest.raises(OptionError, match=f"This detector has no {attribute}; it has score, x1") as caught:
            explain(model, images[0], attribute=attribute)
        assert caught.value.field == "attribute"
    with pytest.raises(OptionError, match=r"There is no attribute 'scor'; it has .* Near matches: score"):
        explain(model, images[0], attribute="scor")


def test_other_models_have_no_boxes():
    classifier = wrap_model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), input_size=16)
    picture = torch.randn(3, 16, 16)
    with pytest.raises(OptionError, match="is not a detector"):
        detect(classifier, picture)
    for further in ({"attribute": "x1"}, {"label": "dog"}):
        with pytest.raises(OptionError, match="Only a detector's boxes have"):
            explain(classifier, picture, **further)


def test_an_attribute_may_be_an_option(model, images):
    for target in ("box:1", None):
        result = explain(model, images[0], "saliency", target=target, attribute="y2")
        named = explain(model, images[0], "saliency", target=f"{target or 'box:0'}:y2")
        assert result.target == named.target
        assert np.array_equal(result.map, named.map)


def test_top_boxes_are_the_surest(model, images):
    results = explain(model, images[0], "gradcam", top=3)
    assert [result.target.name for result in results] == ["box:0", "box:1", "box:2"]


def test_methods_of_every_family_explain_boxes(model, images):
    for method in ("gradcam", "integrated-gradients", "occlusion", "finercam", "rise", "eigencam"):
        options = {"rise": {"samples": 40, "cells": 4}, "integrated-gradients": {"steps": 2}}.get(method, {})
        first, second = (explain(model, images[0], method, target=f"box:{n}", sign="signed", **options) for n in (0, 5))
        assert np.abs(first.map).max() > 0, method
        assert (method == "eigencam") == np.array_equal(first.map, second.map), method
    joint = compare(model, images[0], ["gradcam", "saliency"], target="box:2:x1")
    assert [result.target.name for result in joint] == ["box:2:x1"] * 2


def test_mirrored_pictures_have_mirrored_boxes():
    """The mean over mirror images of a symmetric network is that of the mirrored picture, mirrored."""
    net = Windows()
    net.see.weight.data = (net.see.weight.data + net.see.weight.data.flip(3)) / 2
    net.say.weight.data[3:7] = net.say.weight.data[[5, 4, 3, 6]]  # left and right reach alike
    model, options = of_windows(net), {"label": "cup", "smooth": "tta"}
    image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    result = explain(model, image, "saliency", "region:8,8,16,16", attribute="x1", **options)
    mirror = explain(model, image.flip(2), "saliency", "region:48,8,56,16", attribute="x2", **options)
    assert np.abs(result.map).max() > 0
    assert np.allclose(result.map, mirror.map[:, ::-1], atol=1e-5 * np.abs(result.map).max())


@pytest.fixture(scope="module")
def windows():
    return of_windows(Windows())


def test_a_detector_of_ones_own_is_read_by_a_function(windows, images):
    candidates = decode(windows.module(images[:1]))
    scores = (candidates.logits.sigmoid() * candidates.objectness.sigmoid()[..., None])[0]
    boxes = detect(windows, images[0])
    best = int(scores.argmax())
    assert boxes[0].score == pytest.approx(scores.max().item())
    assert boxes[0].label == windows.labels[best % 3]
    assert np.allclose(boxes[0].box, candidates.boxes[0, best // 3].clamp(0, SIDE).tolist(), atol=1e-4)
    assert all(box.score > 0.2 for box in boxes)
    assert len(boxes) < int((scores > 0.2).sum())
    for box in boxes:
        rivals = [other.box for other in boxes if other.label == box.label and other.index != box.index]
        assert not rivals or float(overlaps(torch.tensor(rivals), torch.tensor(box.box)).max()) <= 0.1


def test_nothing_outside_the_window_of_a_box_is_marked(windows, images):
    for attribute in ("score", "x1", "y1", "x2", "y2", "box", "objectness"):
        result = explain(windows, images[0], "saliency", target="region:16,24,24,32", label="cup", attribute=attribute)
        inside = np.zeros((SIDE, SIDE), dtype=bool)
        rows, columns = (int(middle // 8 * 8) for middle in (28, 20))
        inside[rows : rows + 8, columns : columns + 8] = True
        marked = result.map > 0
        assert marked.any()
        assert not (marked & ~inside).any()


def test_boxes_lie_in_the_upload(windows):
    model = wrap_model(Windows(), ["dog", "cup", "tree"], SIDE, head=WINDOWS)
    (first, *_) = detect(model, CAT)
    result = explain(model, CAT)
    assert result.target.box == first.box
    left, top, right, bottom = result.geometry.box
    x1, y1, x2, y2 = first.box
    assert left - 1 < x1 < x2 < right + 1
    assert top - 1 < y1 < y2 < bottom + 1
    assert x2 - x1 > (right - left) / 10
    again = explain(model, CAT, target=f"box:{x1:.1f},{y1:.1f},{x2:.1f},{y2:.1f}")
    assert again.target.name == "box:0"
    with pytest.raises(TargetError, match="box:0,0,10,10 lies outside of what the model sees"):
        explain(model, CAT, target="box:0,0,10,10")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"head": BoxHead(lambda raw: raw)}, "`decode` must return Candidates"),
        ({"head": BoxHead(lambda raw: Candidates(raw, raw))}, "it returned Candidates of .*8, 8, 8"),
        ({"head": BoxHead(lambda raw: raw.boxes)}, "raised AttributeError"),
        ({"head": "detection"}, r"pass head=BoxHead\(decode\)"),
        ({"head": WINDOWS, "labels": ["dog"]}, "has 3 classes, but 1 label is given"),
    ],
)
def test_heads_that_do_not_fit_are_refused(arguments, reason):
    with pytest.raises(ModelError, match=reason):
        wrap_model(Windows(), **{"input_size": SIDE, **arguments})


def test_a_detector_of_one_class_needs_no_other_head():
    def one_class(raw):
        candidates = decode(raw)
        return Candidates(candidates.boxes, candidates.logits[..., :1], candidates.objectness)

    model = wrap_model(Windows(), ["dog"], SIDE, head=BoxHead(one_class, threshold=0.2))
    assert {box.label for box in detect(model, CAT)} == {"dog"}


def test_a_detector_of_torchvision_needs_no_head_or_normalisation():
    module = detector("SSD")
    for arguments, reason in (({"mean": (0, 0, 0)}, "resize and normalise"), ({"head": "softmax"}, "omit `head`")):
        with pytest.raises(ModelError, match=reason):
            wrap_model(module, LABELS, **arguments)
    model = wrap_model(module, LABELS)
    assert (model.preprocess.size, model.preprocess.resize) == ((SIDE, SIDE), "exact")
    larger = wrap_model(detector("FCOS"), LABELS, input_size=96)
    assert (larger.preprocess.size, larger.preprocess.resize) == ((96, 96), "longer")
    assert len(detect(larger, CAT)) > 0


def test_default_layers_are_the_pyramid(kind, model):
    steps, pyramid = ("features", "extra.0"), ("fpn.layer_blocks.0", "fpn.layer_blocks.1")
    expected = steps if kind.startswith("SSD") else pyramid
    assert model.default_layers == tuple(f"backbone.{part}" for part in expected)


def test_hooks_work_on_detectors(kind, module, model, images):
    (layer, *_) = model.default_layers
    events = trace(model, CAT, target="box:1").events
    assert {event.path for event in events} <= {path for path, _ in module.named_modules()}
    record = capture(model, CAT, [layer], ["output", "grad_output"], target="box:1:x2")
    assert record.tensors
    effect = intervene(model, CAT, [{"op": "zero", "layer": layer}])
    assert effect.before.target.name == "box:0"
    assert effect.after.target.probability != effect.before.target.probability
    with HookSession(module) as hooks:  # torchvision's own forward pass, with its dictionaries
        hooks.record("", layer, kinds=("output",))
        module(list(images))
    assert set(hooks.outputs[""][0][0]) >= {"boxes", "labels", "scores"}


def gist(call):
    """Return what a hook saw of a call, as shapes."""
    return [tuple(leaf.shape) for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_a_detector_can_be_hooked(kind, images):
    """Under torchvision's own forward pass, with all gradients (proposals are detached); its results do not change."""
    module, seen = detector(kind), {}
    handles = [
        part.register_forward_hook(lambda *call, path=path: seen.setdefault(path, []).append(gist(call[2])))
        for path, part in module.named_modules()
    ]
    with torch.no_grad():
        plain = module(list(images))
    for handle in handles:
        handle.remove()
    containers = {path for path, part in module.named_modules() if isinstance(part, nn.ModuleList | nn.ModuleDict)}
    assert seen.keys() == {path for path, _ in module.named_modules()} - containers
    with HookSession(module) as hooks:
        hooks.record("*", kinds=("input", "output", "grad_output"))
        results = module(list(images))
        hooks.backward(sum(values.sum() for values in results[0].values() if values.requires_grad))
    assert all(
        torch.equal(plain[row][name], values) for row, result in enumerate(results) for name, values in result.items()
    )
    assert {path: list(map(gist, calls)) for path, calls in hooks.outputs.items() if calls} == seen
    assert all(hooks.inputs[path] for path in seen)
    unreached = {path for path, calls in hooks.grad_outputs.items() if calls and not any(map(gist, calls))}
    assert unreached == {path for path in seen if path == "transform" or path.startswith("rpn.head")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_runs_the_parts_of_a_detector(kind, images):
    """All but those that hold others in two stages, and the keypoints, which nothing explained depends on."""
    module = detector(kind)
    model = wrap_model(module, labels_of(kind))
    containers = {path for path, part in module.named_modules() if isinstance(part, nn.ModuleList | nn.ModuleDict)}
    idle = {path for path, _ in module.named_modules() if path in ("rpn", "roi_heads") or "keypoint" in path}
    traced = trace(model, images[0], layers=("*",))
    assert set(traced.summary.not_run) == containers | idle
    assert {layer.path for layer in model.survey.layers} == {
        path for path, _ in module.named_modules()
    } - containers - idle
    for path in idle & {"rpn", "roi_heads.keypoint_head"}:
        for inspection, fault in (
            (lambda path=path: trace(model, images[0], layers=(path,)), LayerError),
            (lambda path=path: capture(model, images[0], [path]), LayerError),
            (lambda path=path: intervene(model, images[0], [{"op": "zero", "layer": path}]), EditError),
            (lambda path=path: explain(model, images[0], "eigencam", layer=path), LayerError),
        ):
            with pytest.raises(fault, match=f"'{path}' never runs for this picture .its parts may run without it"):
                inspection()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"]
)
def test_detectors_with_the_backbones_of_torchvision_show_its_own_boxes(name, images):
    torch.manual_seed(0)
    arguments = {"min_size": 128, "max_size": 256} if "ssd" not in name else {}
    arguments |= {} if "keypoint" in name else {"num_classes": len(LABELS)}
    module = get_model(name, weights=None, weights_backbone=None, **arguments).eval()
    model = wrap_model(module)
    with torch.no_grad():
        (result,) = module([images[0]])
    boxes = detect(model, images[0])
    assert np.allclose([box.box for box in boxes], result["boxes"].tolist(), atol=1e-3)
    assert explain(model, images[0], "odam").layers == model.default_layers
    levels = 2 if "mobilenet_v3" in name and "ssd" not in name else 3  # that are more than a pooling of another
    assert len(model.default_layers) == len(set(model.default_layers)) >= levels


def test_proposals_have_no_second_derivatives(images):
    model = wrap_model(detector("Faster R-CNN"), LABELS)
    with pytest.raises(LayerError, match=r"no second derivatives .* use gradcam"):
        explain(model, images[0], "shapleycam")


def test_nothing_is_left_on_the_detector(kind, module, model, images, untouched):
    untouched(module)
    explain(model, images[0], "gradcam", target="box:1")
    explain(model, images[0], "saliency", attribute="x1")
    with pytest.raises(TargetError):
        explain(model, images[0], target="box:500")
