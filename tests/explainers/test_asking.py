"""What `explain` and `explain_many` take in Python: several targets, modules as layers, tensors, files, loaders."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from seewhy import explain, explain_many, list_methods, wrap_model
from seewhy.explainers.errors import (
    LayerError,
    OptionError,
    TargetError,
    UnreadablePictureError,
)
from seewhy.explainers.methods.catalogue import METHODS
from tests import nets

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


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"target": []}, TargetError, "No target is given"),
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
    with CAT.open("r", encoding="latin-1") as text, pytest.raises(UnreadablePictureError, match="mode 'rb'"):
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
        (torch.rand(3, 32, 32), "0 to 1 only.*Normalise with mean"),
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


class Grey(nets.InPlaceModule):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 4, 3, padding=1)


class Bands(nets.Net):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(5, 4, 3, padding=1)


@pytest.mark.parametrize("method", list_methods())
def test_every_method_explains_a_network_that_sees_grey(method):
    model = wrap_model(nets.seeded(Grey), LABELS, input_size=32, mean=(0.5,), std=(0.25,))
    quick = {"samples", "steps", "evaluations"} & set(METHODS[method].options)
    result = explain(model, CAT, method, **dict.fromkeys(quick, 160))
    assert np.isfinite(result.map).all()
    assert result.heatmap.shape == (300, 451)


def test_a_network_of_other_channels_takes_tensors():
    model = wrap_model(nets.seeded(Bands), LABELS, input_size=32, mean=(0.0,) * 5, std=(1.0,) * 5)
    image = torch.randn(5, 32, 32, generator=torch.Generator().manual_seed(0))
    result = explain(model, image)
    assert result.heatmap.shape == (32, 32)
    with pytest.raises(UnreadablePictureError, match=r"5 channels.*give a tensor \(5, H, W\)"):
        explain(model, CAT)
