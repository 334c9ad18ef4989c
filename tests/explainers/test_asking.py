"""Arguments of `explain` and `explain_many` in Python: several targets, modules as layers, tensors, files, loaders."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from seewhy import GradCAM, compare, explain, explain_many, predict, wrap_model
from seewhy.explainers.errors import (
    LayerError,
    OptionError,
    TargetError,
    UnreadablePictureError,
    UnsuitableModelError,
)
from seewhy.explainers.methods.catalogue import METHODS
from tests import nets
from tests.grids import CONVOLUTIONAL, few

CAT = Path(__file__).parents[2] / "examples" / "cat.png"
LABELS = ["cat", "dog", "cow"]


@pytest.fixture(scope="module")
def model():
    return wrap_model(nets.seeded(nets.Net), LABELS, input_size=32)


def same(first, second):
    return first.target.index == second.target.index and np.allclose(
        first.map, second.map, atol=1e-4 * abs(second.map).max()
    )


@pytest.mark.parametrize("against", [None, "dog"])
def test_several_targets_are_those_alone(model, against):
    results = explain(model, CAT, target=["cow", 0], against=against)
    assert [result.target.label for result in results] == ["cow", "cat"]
    assert all(same(result, explain(model, CAT, target=result.target.index, against=against)) for result in results)


def test_top_explains_the_most_probable(model):
    results = explain(model, CAT, top=2)
    assert [result.target for result in results] == list(results[0].predictions[:2])
    assert all(same(result, explain(model, CAT, target=result.target.index)) for result in results)


def test_top_of_a_model_with_fewer_classes_is_all_of_them(model):
    results = explain(model, CAT, top=900)
    assert len(results) == len(model.labels) < 900
    assert [row.index for row in predict(model, CAT, top=900)] == [result.target.index for result in results]


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"target": []}, TargetError, "list of targets is empty"),
        ({"layer": []}, LayerError, "list of layers is empty"),
        ({"method": ""}, OptionError, "There is no method ''"),
        ({"target": "cat", "top": 2}, OptionError, "not both"),
        ({"top": 0}, OptionError, "1 or more"),
        ({"target": ["cat", "cta"]}, TargetError, "cat"),
        ({"layer": torch.nn.ReLU()}, LayerError, "no such module as this ReLU"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, error, reason, model):
    with pytest.raises(error, match=reason):
        explain(model, CAT, **options)


@pytest.mark.parametrize("several", [False, True])
def test_a_module_is_a_layer(model, several):
    stem = model.module.stem
    result = explain(model, CAT, layer=[stem, "conv"] if several else stem)
    assert result.layers == (("stem", "conv") if several else ("stem",))
    (explanation,) = explain_many(model, [CAT], layer=[stem, "conv"] if several else stem)
    assert same(explanation, result)


def test_files_that_are_open_and_their_bytes_are_pictures(model):
    expected = explain(model, CAT)
    with CAT.open("rb") as file:
        assert same(explain(model, file), expected)
    assert same(explain(model, io.BytesIO(CAT.read_bytes())), expected)
    with CAT.open("r", encoding="latin-1") as text, pytest.raises(UnreadablePictureError, match="binary mode"):
        explain(model, text)


def test_a_tensor_is_the_models_input_and_shows_its_picture(model):
    picture = Image.open(CAT).convert("RGB").resize((32, 32))
    image = model.preprocess(picture)
    result = explain(model, image)
    assert result.heatmap.shape == (32, 32)
    assert abs(np.asarray(result.picture, int) - np.asarray(picture, int)).max() <= 1
    assert same(result, explain(model, picture))
    assert same(explain(model, image[None].double()), result)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.rand(3, 32, 32), "from 0 to 1.*Normalise with mean"),
        (torch.randn(4, 32, 32), r"\(3, H, W\)"),
        (torch.randn(2, 3, 32, 32), r"\(3, H, W\)"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), "float and normalised"),
    ],
)
def test_a_tensor_of_another_kind_is_refused(tensor, reason, model):
    with pytest.raises(UnreadablePictureError, match=reason):
        explain(model, tensor)


def test_pictures_may_have_their_own_targets(model):
    results = list(explain_many(model, [(CAT, "cow"), CAT, (CAT, 0)], target="dog", against=None))
    assert [result.target.label for result in results] == ["cow", "dog", "cat"]
    assert all(same(result, explain(model, CAT, target=result.target.index)) for result in results)
    failed, right = explain_many(model, [(CAT, "cta"), (CAT, "cat")], on_error="yield")
    assert isinstance(failed, TargetError)
    assert right.target.label == "cat"


@pytest.mark.parametrize("labelled", [False, True])
def test_loaders_of_inputs_are_taken_apart(model, labelled, capsys):
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 2, 1, 0])
    loader = DataLoader(TensorDataset(images, targets) if labelled else images, batch_size=2)
    results = list(explain_many(model, loader, batch_size=3, progress=True))
    assert "5/5" in capsys.readouterr().err
    assert len(results) == 5
    if labelled:
        assert [result.target.index for result in results] == targets.tolist()
    for image, result in zip(images, results, strict=True):
        assert same(result, explain(model, image, target=result.target.index))


def test_a_batch_with_another_number_of_targets_is_refused(model):
    with pytest.raises(OptionError, match="2 pictures has 3 targets"):
        list(explain_many(model, [(torch.randn(2, 3, 32, 32), torch.zeros(3))]))


def of_channels(count):
    net = nets.seeded(nets.InPlaceModule)
    net.stem = nets.seeded(torch.nn.Conv2d, count, 4, 3, 1, 1)
    return wrap_model(net, LABELS, input_size=32, mean=(0.5,) * count, std=(0.25,) * count)


@pytest.mark.parametrize("method", few(CONVOLUTIONAL, {"gradcam", "saliency", "lrp", "occlusion", "dff"}))
def test_every_method_explains_a_network_that_sees_grey(method):
    quick = {"samples", "steps", "evaluations"} & set(METHODS[method].options)
    result = explain(of_channels(1), CAT, method, **dict.fromkeys(quick, 160))
    assert np.isfinite(result.map).all()
    assert result.heatmap.shape == (300, 451)


def test_a_network_of_other_channels_takes_tensors():
    model = of_channels(5)
    image = torch.randn(5, 32, 32, generator=torch.Generator().manual_seed(0))
    result = explain(model, image)
    assert result.heatmap.shape == (32, 32)
    with pytest.raises(UnreadablePictureError, match=r"5 channels.*give a tensor \(5, H, W\)"):
        explain(model, CAT)


def lead(outputs):
    return outputs[:, 2] - outputs[:, 1]


@pytest.mark.parametrize("method", ["gradcam", "occlusion", "lrp", "deeplift", "scorecam", "dff"])
def test_a_function_of_the_outputs_is_explained(method, model):
    options = {"score": "logit"} if method == "occlusion" else {}
    result = explain(model, CAT, method, target=lead, **options)
    expected = explain(model, CAT, method, target=2, against=1, **options)
    assert np.allclose(result.map, expected.map, atol=1e-4 * abs(expected.map).max())
    logits = {row.index: row.logit for row in result.predictions}
    assert result.target.value == pytest.approx(logits[2] - logits[1], rel=1e-4)
    assert result.caption.startswith(f"lead {result.target.value:.4g} by")


def test_functions_stand_beside_other_targets(model):
    results = explain(model, CAT, target=["cow", lead, lambda outputs: outputs.logsumexp(dim=1)])
    assert [result.target.label for result in results] == ["cow", "lead", "function of the outputs"]
    assert same(results[0], explain(model, CAT, target="cow"))
    assert same(results[1], explain(model, CAT, target=lead))
    (alone,) = compare(model, CAT, ["gradcam"], target=lead)
    assert same(alone, results[1])


def test_many_pictures_are_asked_the_same_function(model):
    results = list(explain_many(model, [CAT] * 3, target=lead, batch_size=2))
    assert all(same(result, explain(model, CAT, target=lead)) for result in results)
    with pytest.raises(TargetError, match="not pairs"):
        list(explain_many(model, [(CAT, 1)], target=lead))


def test_bare_modules_are_asked_functions(model):
    images = torch.rand(3, 3, 32, 32)
    attribution = GradCAM().explain(model.module, images, lead)
    expected = GradCAM().explain(model.module, images, torch.tensor([2] * 3), torch.tensor([1] * 3))
    assert torch.allclose(attribution.maps, expected.maps, atol=1e-6)
    assert attribution.targets.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda outputs: outputs[:, 7], "raised IndexError for outputs of shape"),
        (lambda outputs: outputs.sum(), r"a tensor \(1,\), not \(\)"),
        (lambda outputs: outputs.argmax(dim=1), "not.*int64"),
        (lambda outputs: 3.0, "not float"),
        (lambda outputs: outputs.detach()[:, 0], "lost the gradient"),
    ],
)
def test_functions_that_cannot_be_explained_are_refused(function, reason, model):
    with pytest.raises(TargetError, match=reason):
        explain(model, CAT, target=function)


@pytest.mark.parametrize("method", ["finercam", "shapleycam"])
def test_methods_that_compare_classes_refuse_functions(method, model):
    with pytest.raises(UnsuitableModelError, match="custom scores do not have"):
        explain(model, CAT, method, target=lead)


def test_a_function_has_no_contrast(model):
    with pytest.raises(TargetError, match="subtract the other score"):
        explain(model, CAT, target=lead, against=1)


@pytest.mark.parametrize("target", [1.0, True, None, {}, lead])
def test_hooks_and_pairs_take_indices_and_labels(target, model):
    with pytest.raises(TargetError, match="index or the label of a class"):
        model.task.target(target)


def test_indices_may_be_those_of_other_libraries(model):
    assert (
        explain(model, CAT, target=np.int64(2)).target.index == explain(model, CAT, target=torch.tensor(2)).target.index
    )


def test_results_are_saved_as_numbers(model, tmp_path):
    result = explain(model, CAT, target="cow", against="cat")
    document = json.loads(result.save(tmp_path / "out.json").read_text())
    (part,) = document["explanations"]
    assert part["target"] == vars(result.target)
    assert part["against"]["label"] == "cat"
    assert np.allclose(part["heatmap"]["values"], result.heatmap)
    assert part["heatmap"]["shape"] == list(result.heatmap.shape)
    with np.load(result.save(tmp_path / "out.npz")) as arrays:
        assert np.array_equal(arrays["heatmaps"], result.heatmap[None])
        assert np.array_equal(arrays["maps"], result.map[None])
        assert arrays["targets"].tolist() == [2]
    with pytest.raises(OptionError, match="is not drawn by options; leave 'view' out"):
        result.save(tmp_path / "out.npz", view="heatmap")
    with pytest.raises(OptionError, match=r"\.png, \.jpg, \.jpeg, \.webp, \.json, \.npz, \.html"):
        result.save(tmp_path / "out.numbers")
