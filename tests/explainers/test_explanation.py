import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy.explainers import (
    GradCAM,
    Saliency,
    capture,
    compare,
    evaluate,
    explain,
    predict,
    rank_correlation,
    similar,
)
from seewhy.explainers.errors import (
    LayerError,
    OptionError,
    TargetError,
    UnreadablePictureError,
    UnsupportedModuleError,
)
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.tasks.classification import Classification, ClassPrediction
from seewhy.models import LoadedModel

PICTURE = Image.effect_noise((300, 200), 80).convert("RGB")
SATURATED = (0.99999, 0.00001)


def explanation_of(
    values: list[list[float]], probabilities: tuple[float, ...] = (0.6, 0.4), target: int = 0
) -> Explanation:
    ranked = [ClassPrediction(index, f"label {index}", value, value) for index, value in enumerate(probabilities)]
    array = np.array(values, np.float32)
    logits = torch.tensor(probabilities).logit() if len(probabilities) == 1 else torch.tensor(probabilities).log()
    height, width = array.shape
    return Explanation(
        picture=Image.new("RGB", (width, height)),
        geometry=Geometry(width, height, (0.0, 0.0, float(width), float(height))),
        map=array,
        signed=False,
        target=ranked[target],
        predictions=tuple(ranked),
        remarks=Classification().remarks(logits, target),
        method="gradcam",
        layers=("layer4",),
    )


def test_the_one_call_ties_everything_together(lite0: LoadedModel, untouched):
    untouched(lite0.module)
    result = explain(lite0, PICTURE, target="tabby")
    assert result.target.label == "tabby"
    assert result.target.index == lite0.labels.index("tabby")
    assert result.method == "gradcam"
    assert result.layers == lite0.default_layers
    assert result.map.shape == (7, 7)
    assert result.raw_heatmap.shape == result.heatmap.shape == (200, 300)
    assert result.heatmap.max() == 1
    assert result.heatmap.dtype == np.float32
    assert len(result.predictions) == 5
    images = lite0.preprocess(PICTURE)[None]
    expected = GradCAM().explain(lite0, images, torch.tensor([result.target.index]))
    assert np.array_equal(result.map, expected.maps[0].numpy())


def test_without_a_target_the_most_probable_class_is_explained(lite0):
    result = explain(lite0, PICTURE)
    assert result.target == result.predictions[0]


def test_methods_layers_and_options_are_passed_on(lite0):
    signed = explain(lite0, PICTURE, "saliency", sign="signed")
    assert signed.signed
    assert signed.heatmap.min() < 0
    images = lite0.preprocess(PICTURE)[None]
    assert np.array_equal(signed.map, Saliency(sign="signed").explain(lite0, images).maps[0].numpy())
    assert explain(lite0, PICTURE, layer="blocks.4").layers == ("blocks.4",)
    assert explain(lite0, PICTURE, layer=["blocks.[45]"]).layers == ("blocks.4", "blocks.5")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"picture": b"text"}, UnreadablePictureError),
        ({"method": "gradkam"}, OptionError),
        ({"method": "saliency", "layer": "blocks"}, OptionError),
        ({"signs": "signed"}, OptionError),
        ({"target": "tabbi"}, TargetError),
        ({"target": 1000}, TargetError),
        ({"layer": "block"}, LayerError),
    ],
)
def test_what_cannot_be_is_refused(arguments, error, lite0):
    with pytest.raises(error):
        explain(lite0, **{"picture": PICTURE, **arguments})


def test_several_targets_of_one_picture(lite0):
    images = lite0.preprocess(PICTURE)[None].expand(3, -1, -1, -1)
    geometry = lite0.preprocess.geometry(*PICTURE.size)
    rows = explanations(lite0, "gradcam", PICTURE, geometry, GradCAM().explain(lite0, images, torch.tensor([9, 5, 7])))
    assert [row.target.index for row in rows] == [9, 5, 7]
    assert np.allclose(rows[1].map, explain(lite0, PICTURE, target=5).map, rtol=1e-4, atol=1e-6)


def test_the_map_of_a_rotated_upload_lands_on_the_upright_picture(lite0):
    upright = Image.new("RGB", (300, 200), (90, 90, 90))
    upright.paste(Image.effect_noise((60, 60), 90).convert("RGB"), (200, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    upright.transpose(Image.Transpose.ROTATE_90).save(buffer, "PNG", exif=exif)
    rotated, straight = explain(lite0, buffer.getvalue()), explain(lite0, upright)
    assert rotated.picture.size == (300, 200)
    assert np.array_equal(rotated.heatmap, straight.heatmap)
    assert rotated.overlay().tobytes() == straight.overlay().tobytes()


def test_the_overlay_dims_what_was_not_seen(lite0):
    result = explain(lite0, Image.new("RGB", (300, 100), "white"))
    pixels = np.asarray(result.overlay(alpha=0))
    rows, columns = result.geometry.window
    assert np.all(pixels[:, : columns.start] < 100)
    assert np.all(pixels[rows, columns] == 255)
    assert np.all(result.heatmap[:, : columns.start] == 0)


def test_an_overlay_may_be_made_smaller(lite0):
    result = explain(lite0, PICTURE)
    assert result.overlay().size == (300, 200)
    assert result.overlay(max_side=30).size == (30, 20)
    assert result.overlay("side-by-side", max_side=30).size == (60, 20)


def test_it_saves_itself_and_shows_itself(lite0, tmp_path):
    result = explain(lite0, PICTURE)
    file = result.save(tmp_path / "out.png", alpha=1.0)
    assert Image.open(file).tobytes() == result.overlay(alpha=1.0).tobytes()
    assert result._repr_png_().startswith(b"\x89PNG")
    for suffix in ("", ".npy", ".gif"):  # the command line writes no GIF either
        with pytest.raises(OptionError, match=r"use \.png, \.jpg, \.jpeg, \.webp, \.json, \.npz, \.html\."):
            result.save(tmp_path / f"a{suffix}")
    assert [*tmp_path.iterdir()] == [file]


def test_a_fixed_scale_reaches_the_picture():
    weak, strong = explanation_of([[0.0, 1.0]]), explanation_of([[0.0, 2.0]])
    assert weak.overlay("heatmap").tobytes() == strong.overlay("heatmap").tobytes()
    fixed = [result.overlay("heatmap", scale=(0, 2)).tobytes() for result in (weak, strong)]
    assert fixed[0] != fixed[1]


@pytest.mark.parametrize(
    ("target", "remedies"), [(0, "sign=signed or another layer."), (1, "or a more probable class.")]
)
def test_a_blank_map_of_the_best_class_does_not_suggest_a_more_probable_one(target, remedies):
    (blank,) = [
        note for note in explanation_of([[0.0, 0.0]], SATURATED, target=target).diagnostics if note.code == "blank-map"
    ]
    assert blank.message.endswith(remedies)


@pytest.mark.parametrize(
    ("result", "codes"),
    [
        (explanation_of([[0.0, 1.0]]), []),
        (explanation_of([[0.0, 0.0]]), ["blank-map"]),
        (explanation_of([[0.0, 1.0]], SATURATED), ["saturated-softmax"]),
        (explanation_of([[0.0, 1.0]], (0.7, 0.3), target=1), ["improbable-target"]),
        (explanation_of([[0.0, 1.0]], (0.99999,)), ["one-logit"]),
        (explanation_of([[0.0, 1.0]], (0.4,)), ["one-logit", "improbable-target"]),
        (explanation_of([[0.0, 0.0]], SATURATED, target=1), ["blank-map", "saturated-softmax", "improbable-target"]),
    ],
)
def test_diagnostics_say_what_a_reader_should_know(result, codes):
    assert [diagnostic.code for diagnostic in result.diagnostics] == codes
    assert all(len(diagnostic.message) > 40 for diagnostic in result.diagnostics)


def test_several_methods_explain_the_same_class(lite0):
    picture = Path(__file__).parents[2] / "examples" / "cat.png"
    results = compare(lite0, picture, ("gradcam", "hirescam", "saliency"), layer="bn2", sign="signed")
    assert [result.method for result in results] == ["gradcam", "hirescam", "saliency"]
    assert len({result.target.index for result in results}) == 1
    alone = explain(lite0, picture, method="hirescam", layer="bn2", sign="signed")
    np.testing.assert_allclose(results[1].map, alone.map, rtol=1e-5)
    assert repr(results) == (
        "Comparison(tiger cat 39.3% by gradcam, hirescam, saliency; rank correlations "
        f"{min(results.agreement.values()):.2f} to 1.00; gradcam and hirescam have the same map)"
    )
    # The head sees only the mean of the last layer, so the two are the same there.
    assert rank_correlation(results[0].map, results[1].map) > 0.999
    with pytest.raises(OptionError, match="None of these methods has an option 'sing'"):
        compare(lite0, picture, ("gradcam", "saliency"), sing="signed")
    with pytest.raises(OptionError, match="`compare` takes several"):
        explain(lite0, picture, method=["gradcam"])
    with pytest.raises(OptionError, match="empty"):
        compare(lite0, picture, [])
    with pytest.raises(OptionError, match="'gradcam' is given twice; name each once"):
        compare(lite0, picture, ["gradcam", "gradcam"])


def test_a_comparison_is_one_value(lite0, tmp_path):
    results = compare(lite0, PICTURE, ("gradcam", "saliency", "hirescam"), target="tabby")
    assert results.target == results[0].target
    assert [row.label for row in results.predictions] == [row.label for row in results[1].predictions]
    assert results[1:] == results.explanations[1:]
    assert list(results.agreement) == [("gradcam", "saliency"), ("gradcam", "hirescam"), ("saliency", "hirescam")]
    first, second = results[:2]
    assert results.agreement["gradcam", "saliency"] == rank_correlation(first.map, second.map)

    shown = Image.open(io.BytesIO(results._repr_png_()))
    assert max(shown.size) <= 1200
    assert shown.size == results.overlay(max_side=1200).size
    large = np.asarray(results.overlay())
    assert large.shape[1] == 2 * 300
    tile = np.asarray(results[1].overlay())
    bar = (large.shape[0] - 2 * 200) // 3  # of the title, and above each row
    np.testing.assert_array_equal(large[2 * bar : 2 * bar + 200, 300:], tile)

    with Image.open(results.save(tmp_path / "maps.png", max_side=400)) as drawing:
        assert max(drawing.size) <= 400
    document = json.loads(results.save(tmp_path / "maps.json").read_text())
    assert [part["method"] for part in document["explanations"]] == list(results.methods)
    assert document["agreement"][0] == {
        "target": results.target.index,
        "methods": ["gradcam", "saliency"],
        "rank_correlation": results.agreement["gradcam", "saliency"],
    }
    with np.load(results.save(tmp_path / "maps.npz")) as file:
        assert file["heatmaps"].shape == (3, 200, 300)
        np.testing.assert_array_equal(file["maps_1"], second.map)
        assert file["methods"].tolist() == list(results.methods)
        assert file["targets"].tolist() == [results.target.index] * 3
    with pytest.raises(
        OptionError, match=r"'.xyz' is not an output format; use .png, .jpg, .jpeg, .webp, .json, .npz, .html"
    ):
        results.save(tmp_path / "maps.xyz")


def test_predictions_of_a_picture(lite0):
    rows = predict(lite0, PICTURE, top=3)
    assert [row.label for row in rows] == [row.label for row in explain(lite0, PICTURE).predictions[:3]]
    assert rows[0].probability > rows[1].probability > rows[2].probability
    assert len(predict(lite0, PICTURE)) == 5
    with pytest.raises(OptionError, match="top is 0"):
        predict(lite0, PICTURE, top=0)
    with pytest.raises(UnsupportedModuleError):
        predict(lite0.module, PICTURE)


@pytest.mark.parametrize("ask", [explain, predict, capture, similar, evaluate], ids=lambda ask: ask.__name__)
def test_swapped_arguments_are_named_so(lite0, ask):
    further = {capture: ["bn2"], similar: [PICTURE]}
    for model in (lite0, lite0.module):
        with pytest.raises(UnsupportedModuleError, match=r"The model comes first.* swap the two"):
            ask("cat.png", model, *further.get(ask, []))
    with pytest.raises(UnsupportedModuleError, match="name of a model"):
        ask("efficientnet_lite0", PICTURE, *further.get(ask, []))
