"""Tables of methods and metrics, with intervals and controls."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn
from tqdm.auto import tqdm

import seewhy
from seewhy import ExcitationBackprop, GradCAM, Insertion, Saliency, evaluate, explain, wrap_model
from seewhy.explainers.errors import (
    ExplainerError,
    LayerError,
    MaskError,
    OptionError,
    TargetError,
    UnsupportedModuleError,
    UnsupportedOperationError,
)
from seewhy.explainers.results.evaluation import Column, Evaluation
from tests import nets


def brightness() -> nn.Module:
    """Tells red, green, blue and grey by the mean of the channels."""
    conv = nets.pointwise([[20, -10, -10], [-10, 20, -10], [-10, -10, 20], [2, 2, 2]], [0] * 4)
    return nets.Wired(lambda net, images: net.conv(images).mean(dim=(2, 3)), conv=conv).eval()


LABELS = ["red", "green", "blue", "grey"]
QUICK = ["insertion", "sparseness"]


@pytest.fixture(scope="module")
def model():
    return wrap_model(brightness(), LABELS, 16, mean=(0, 0, 0), std=(1, 1, 1), name="brightness")


def spots(count: int = 4) -> list[Image.Image]:
    """Return grey pictures of 16 by 16 with a spot of a colour, always of the same place."""
    pictures = []
    for number in range(count):
        pixels = np.full((16, 16, 3), 90, dtype=np.uint8)
        pixels[2:8, 2:8] = 0
        pixels[2:8, 2:8, number % 3] = 255 - number
        pictures.append(Image.fromarray(pixels))
    return pictures


@pytest.fixture(scope="module")
def table(model):
    return evaluate(model, spots(), ["hirescam", "saliency"], [*QUICK, "pointing-game"], boxes=[(2, 2, 8, 8)] * 4)


def test_a_table_has_methods_controls_and_columns(table):
    assert table.methods == ("hirescam", "saliency", "random", "edges", "centre")
    assert table.controls == ("random", "edges", "centre")
    assert [column.name for column in table.columns] == ["insertion", "sparseness", "pointing-game"]
    assert all(table.values[method, column.name].shape == (4,) for method in table.methods for column in table.columns)
    assert table["hirescam", "pointing-game"].mean == 1
    assert table["centre", "pointing-game"].mean == 0.25  # one of the four pixels in the middle is in the box
    cell = table["hirescam", "insertion"]
    assert cell.low <= cell.mean <= cell.high
    assert cell.count == 4


def test_a_mean_is_that_of_the_pictures_one_by_one(model, table):
    for row, picture in enumerate(spots()):
        alone = evaluate(model, [picture], ["hirescam"], QUICK, controls=False)
        for column in QUICK:
            value = alone["hirescam", column]
            assert value.mean == pytest.approx(table.values["hirescam", column][row], abs=1e-5)
            assert (value.low, value.high, value.beats_controls) == (None, None, None)


def made_of(columns: dict[str, list[list[float]]], better="higher") -> Evaluation:
    """Return an evaluation of the methods a, b and the control c."""
    names = ("a", "b", "c")
    return Evaluation(
        model="m",
        pictures=("1", "2", "3"),
        methods=names,
        controls=("c",),
        columns=tuple(Column(name, name, "faithfulness", better) for name in columns),
        values={(names[row], name): np.array(values[row]) for name, values in columns.items() for row in range(3)},
        failures={},
    )


def test_a_method_beats_the_controls_picture_by_picture():
    values = [[0.1, 0.5, 0.9], [0.3, 0.1, 0.9], [0.0, 0.4, 0.8]]
    higher, lower = made_of({"x": values}), made_of({"x": values}, "lower")
    assert higher["a", "x"].beats_controls is True  # by 0.1 each, however much the pictures differ
    assert higher["b", "x"].beats_controls is False
    assert lower["a", "x"].beats_controls is False
    assert higher["c", "x"].beats_controls is None
    assert higher.best(higher.columns[0]) == "a"
    assert lower.best(lower.columns[0]) == "b"  # 0.433, and the control's 0.4 does not count


def test_an_interval_is_that_of_resampled_means():
    values = np.random.default_rng(1).normal(size=200)
    many = Evaluation(
        "m", ("p",) * 200, ("a",), (), (Column("x", "x", "complexity", "lower"),), {("a", "x"): values}, {}
    )
    cell = many["a", "x"]
    error = 1.96 * values.std() / 200**0.5
    assert cell.low == pytest.approx(values.mean() - error, abs=0.02)
    assert cell.high == pytest.approx(values.mean() + error, abs=0.02)
    assert many["a", "x"] == cell


def test_undefined_values_are_left_out():
    table = made_of({"x": [[np.nan, 2.0, 4.0], [np.nan] * 3, [1.0, 1.0, 1.0]]})
    cell = table["a", "x"]
    assert (cell.mean, cell.low, cell.high, cell.count) == (3, 2, 4, 2)
    assert table["b", "x"] == type(table["b", "x"])(None, None, None, 0, None)
    document = json.loads(json.dumps(table.document(), allow_nan=False))
    assert document["methods"][0]["metrics"]["x"]["values"] == [None, 2.0, 4.0]
    assert document["methods"][1]["metrics"]["x"]["mean"] is None
    assert "-" in repr(table)
    table.plot()


def test_means_leave_out_shares_of_a_small_probability(model):
    pictures, targets = spots(4), ["red", "red", "blue", "red"]
    pairs = list(zip(pictures, targets, strict=True))
    likely = [explain(model, picture, target=target).target.probability >= 0.3 for picture, target in pairs]
    assert likely == [True, False, True, True]
    table = evaluate(model, pairs, ["hirescam"], ["insertion", "sparseness"], batch_size=3)
    values = table.values["hirescam", "insertion"]
    assert np.isfinite(values).all()
    assert table["hirescam", "insertion"].mean == pytest.approx(values[likely].mean())
    assert table["hirescam", "insertion"].count == 3
    assert table["hirescam", "sparseness"].count == 4
    assert table.document()["left_out"] == {"insertion": ["picture 2"]}
    assert table.document()["methods"][0]["metrics"]["insertion"]["values"] == values.tolist()
    (note,) = table.notes
    assert note.startswith("Means of insertion leave out 1 of 4 pictures: ")
    assert note in repr(table)
    assert "leave out 1 of 4" in table._repr_html_()
    alone = evaluate(model, [pairs[0], *pairs[2:]], ["hirescam"], ["insertion"])
    assert alone["hirescam", "insertion"] == table["hirescam", "insertion"]
    assert not alone.notes
    absolute = evaluate(model, pairs, ["hirescam"], [Insertion(relative=False)])
    assert absolute["hirescam", "insertion"].count == 4
    assert not absolute.notes


def test_files_hold_the_table(table, tmp_path):
    rows = list(csv.DictReader(io.StringIO(table.save(tmp_path / "table.csv").read_text())))
    assert [row["method"] for row in rows] == list(table.methods)
    assert [row["control"] for row in rows] == ["false", "false", "true", "true", "true"]
    assert float(rows[0]["insertion"]) == table["hirescam", "insertion"].mean
    assert float(rows[0]["insertion low"]) == table["hirescam", "insertion"].low
    document = json.loads(table.save(tmp_path / "table.json").read_text())
    assert document["metrics"][0] == {
        "name": "insertion",
        "metric": "insertion",
        "aspect": "faithfulness",
        "better": "higher",
    }
    assert document["methods"][0]["metrics"]["insertion"]["values"] == table.values["hirescam", "insertion"].tolist()
    assert document["pictures"] == ["picture 1", "picture 2", "picture 3", "picture 4"]
    for suffix in ("pdf", "svg"):
        first, second = (table.save(tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert len(first) > 1000
        if suffix == "pdf":
            assert first == second
    with Image.open(table.save(tmp_path / "table.png")) as picture:
        assert min(picture.size) > 200
    with pytest.raises(OptionError, match="suffix"):
        table.save(tmp_path / "table.xyz")


def test_a_notebook_shows_the_table(table):
    html = table._repr_html_()
    assert html.count("<tr") == 1 + len(table.methods)
    assert "<b>" in html
    assert "insertion ↑" in html
    escaped = Evaluation(
        "<m>", (), ("<a>",), (), (Column("x", "x", "complexity", "lower"),), {("<a>", "x"): np.array([1.0])}, {}
    )
    assert "<m>" not in escaped._repr_html_()
    assert "<a>" not in escaped._repr_html_()
    assert repr(table).splitlines()[2].startswith("hirescam")


def test_methods_are_names_explainers_or_a_mapping(model):
    both = evaluate(model, spots(2), [GradCAM(layers=("conv",)), "saliency"], ["sparseness"], controls=False)
    assert both.methods == ("gradcam", "saliency")
    named = evaluate(
        model, spots(2), {"fine": Saliency(sign="signed"), "plain": "saliency"}, ["sparseness"], controls=False
    )
    assert named.methods == ("fine", "plain")
    assert named.values["plain", "sparseness"].tolist() == both.values["saliency", "sparseness"].tolist()
    assert evaluate(model, spots(1), None, ["sparseness"], controls=False).methods == ("gradcam",)


def test_options_go_to_methods_and_metrics(model):
    options = {"insertion.steps": 2, "smooth": "tta"}
    table = evaluate(model, spots(2), ["saliency"], ["insertion"], controls=False, **options)
    same = evaluate(model, spots(2), [Saliency(smooth="tta")], [Insertion(steps=2)], controls=False)
    assert table.values["saliency", "insertion"].tolist() == same.values["saliency", "insertion"].tolist()


def test_pictures_have_targets_of_their_own_and_are_read_in_batches(model):
    pairs = [(picture, label) for picture, label in zip(spots(3), ("green", 0, "blue"), strict=True)]
    table = evaluate(model, pairs, ["hirescam"], ["average-drop"], controls=False, batch_size=2)
    for row, (picture, target) in enumerate(pairs):
        alone = evaluate(model, [picture], ["hirescam"], ["average-drop"], target, controls=False)
        assert alone["hirescam", "average-drop"].mean == pytest.approx(table.values["hirescam", "average-drop"][row])


def test_masks_and_boxes_say_where_targets_lie(model):
    mask = np.zeros((16, 16), dtype=bool)
    mask[2:8, 2:8] = True
    boxes = [(2, 2, 8, 8), [(2, 2, 8, 5), (2, 5, 8, 8)], None, (9, 9, 12, 12)]
    masks = [mask, mask, None, ~mask]
    names = ["energy-in-box", "pointing-game"]
    by_boxes = evaluate(model, spots(), ["hirescam"], names, boxes=boxes, controls=False)
    by_masks = evaluate(model, spots(), ["hirescam"], names, masks=masks, controls=False)
    energy = by_boxes.values["hirescam", "energy-in-box"]
    assert energy[0] == energy[1] > 0.9
    assert np.isnan(energy[2])
    assert energy[3] == 0
    np.testing.assert_allclose(by_masks.values["hirescam", "energy-in-box"][:2], energy[:2])
    assert by_boxes["hirescam", "pointing-game"].count == 3


def test_mosaics_are_made_of_all_pictures(model):
    grey = Image.new("RGB", (16, 16), (128, 128, 128))
    colours = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    # Grey is seen with a logit of 2 over 0: less sure than the others.
    options = {"gridpg.sure": 0.8, "difull.sure": 0.8}
    pictures = [*colours, grey]
    methods = ["hirescam", "fullgrad"]
    table = evaluate(model, pictures, methods, ["gridpg", "difull", "sparseness"], batch_size=2, **options)
    assert [column.name for column in table.columns] == ["gridpg", "gridpg-top", "difull", "difull-top", "sparseness"]
    assert table["hirescam", "gridpg"].mean > 0.8
    assert table["centre", "gridpg"].mean == pytest.approx(0.25, abs=0.01)
    assert table["hirescam", "difull"].mean > 0.6
    assert table["hirescam", "gridpg"].count == 4
    cell = table["fullgrad", "difull"]
    assert (cell.mean, cell.count) == (None, 0)
    assert "has 4 rows for 1 pictures" in cell.reason
    assert table.reasons == {("fullgrad", "difull"): cell.reason}
    assert table.document()["methods"][1]["metrics"]["difull-top"]["reason"] == cell.reason
    assert [row["reasons"] for row in csv.DictReader(io.StringIO(table.to_csv()))] == [
        "",
        f"difull: {cell.reason}",
        "",
        "",
        "",
    ]
    assert "has 4 rows" in table._repr_html_()


def test_a_control_that_a_metric_cannot_measure_need_not_be_beaten():
    table = made_of({"x": [[0.1, 0.5, 0.9], [0.3, 0.1, 0.9], [np.nan] * 3]})
    assert table["a", "x"].beats_controls is False
    assert replace(table, reasons={("c", "x"): "It is random."})["a", "x"].beats_controls is None


def test_what_cannot_be_read_is_skipped_on_demand(model, tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    spots(1)[0].save(good)
    bad.write_bytes(b"no picture")
    with pytest.raises(ExplainerError):
        evaluate(model, [good, bad], ["saliency"], ["sparseness"])
    table = evaluate(model, [bad, good, str(good)], ["saliency"], ["sparseness"], on_error="skip", progress=True)
    assert table.pictures == (str(good), str(good))
    assert list(table.failures) == [str(bad)]
    with pytest.raises(OptionError, match="no pictures to measure"):
        evaluate(model, [bad], ["saliency"], ["sparseness"], on_error="skip")


def test_the_bar_of_a_single_picture_moves_with_its_passes(model, monkeypatch):
    places = []

    class Bar(tqdm):
        def update(self, n=1):
            super().update(n)
            places.append(self.n)

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    evaluate(model, spots(1), ["saliency"], ["insertion"], progress=True)
    assert {place < 1 for place in places if place} == {True, False}
    assert places[-1] == 1


def test_a_control_that_a_model_does_not_allow_is_left_out():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)).eval()
    model = wrap_model(linear, LABELS, 16)
    assert evaluate(model, spots(2), ["saliency"], ["sparseness"]).controls == ("edges", "centre")


def test_a_method_without_a_rule_for_the_model_leaves_its_row_empty(monkeypatch):
    smooth = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Mish(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
    )
    model = wrap_model(smooth.eval(), LABELS, 16)
    metrics = ["sparseness", "insertion"]
    attempts, attribution = [], ExcitationBackprop.attribution
    monkeypatch.setattr(
        ExcitationBackprop, "attribution", lambda self, question: attempts.append(1) or attribution(self, question)
    )
    table = evaluate(model, spots(4), ["excitation-backprop", "gradcam"], metrics, batch_size=2)
    assert len(attempts) == 2  # with the others and alone, on the first batch only
    alone = evaluate(model, spots(4), ["gradcam"], metrics, batch_size=2)
    for metric in metrics:
        assert np.isnan(table.values["excitation-backprop", metric]).all()
        assert (
            "'excitation-backprop' has no rule for the operation 'mish'" in table.reasons["excitation-backprop", metric]
        )
        np.testing.assert_allclose(table.values["gradcam", metric], alone.values["gradcam", metric], rtol=1e-5)
    with pytest.raises(UnsupportedOperationError):
        evaluate(model, spots(2), ["excitation-backprop"], ["sparseness"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": ["gradcma"]}, OptionError, "Near matches: gradcam"),
        ({"methods": ["gradcam", "gradcam"]}, OptionError, "given twice; give a mapping"),
        ({"methods": [3]}, OptionError, "a name or an explainer, not int"),
        ({"metrics": ["sparsness"]}, OptionError, "Near matches: sparseness"),
        ({"metrics": ["pointing-game"]}, OptionError, "where the targets lie"),
        ({"boxes": [(0, 0, 5, 5)]}, OptionError, "pictures is 2, but the number of boxes or masks is 1; give one"),
        ({"boxes": [(0, 0, 5, 5)] * 2, "masks": [None] * 2}, OptionError, "not both"),
        ({"boxes": [(0, 0, 5)] * 2}, OptionError, "A box must be left, top, right and bottom"),
        ({"boxes": [(20, 20, 30, 30)] * 2}, OptionError, "No pixel of the picture of 16x16"),
        ({"masks": [np.ones((3, 3), dtype=bool)] * 2}, MaskError, "a mask of the same size"),
        ({"batch_size": 0}, OptionError, "1 or more"),
        ({"on_error": "yield"}, OptionError, "'raise' or 'skip'"),
        ({"pictures": "folder"}, OptionError, "Give several pictures"),
        ({"layer": 3}, LayerError, "A layer is a dotted path, such as 'layer4', or a module, not 3"),
        ({"pictures": []}, OptionError, "no picture"),
        ({"target": "purple"}, TargetError, "no class 'purple'"),
        ({"stepz": 3}, OptionError, "no option 'stepz'"),
        ({"methods": [Saliency()], "sign": "signed"}, OptionError, "sign can only be used with methods given by name"),
        ({"methods": {"mine": 3}}, OptionError, "A method is given by its name"),
        ({"metrics": ["gridpg"]}, OptionError, r"needs pictures of 4 classes .* \d found in 2 pictures"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(model, arguments, error, message):
    defaults = {"pictures": spots(2), "methods": ["gradcam"], "metrics": ["sparseness"]}
    with pytest.raises(error, match=message):
        evaluate(model, **{**defaults, **arguments})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"2 by 2 needs pictures of 4 classes whose .* 0\.9; \d found in 2 pictures.*lower `gridpg\.sure`",
        ),
        ({"gridpg.side": 3}, r"needs pictures of 9 classes, and this model has only 4: choose a lower `gridpg\.side`"),
    ],
)
def test_other_metrics_are_measured_where_no_mosaic_can_be_made(model, options, message):
    table = evaluate(model, spots(2), "gradcam", ["gridpg", "sparseness"], **options)
    assert all(re.search(message, table[method, "gridpg"].reason) for method in table.methods)
    assert table["gradcam", "gridpg-top"].mean is None
    assert table["gradcam", "sparseness"].count == 2


def test_mosaics_of_few_classes_are_no_matter_of_pictures():
    few = wrap_model(nets.seeded(nets.Net), ("a", "b", "c"), input_size=32)
    with pytest.raises(
        OptionError, match=r"needs pictures of 4 classes, and this model has only 3: leave gridpg out\."
    ):
        evaluate(few, spots(2), "gradcam", "gridpg", controls=False)


def test_one_name_is_one_method_and_one_metric(model):
    table = evaluate(model, spots(1), "gradcam", "sparseness", controls=False)
    assert (table.methods, [column.name for column in table.columns]) == (("gradcam",), ["sparseness"])


@pytest.mark.parametrize("methods", [[], (), {}])
def test_no_method_is_not_the_default_one(model, methods):
    with pytest.raises(OptionError, match="list of methods is empty; name one or more"):
        evaluate(model, spots(1), methods, ["sparseness"])


def test_a_bare_module_has_no_pictures():
    with pytest.raises(UnsupportedModuleError, match="wrap_model"):
        evaluate(nets.seeded(nets.Net), spots(1))


def test_an_unknown_cell_is_named(table):
    with pytest.raises(OptionError, match=r"no 'insertoin'\. Near matches: insertion"):
        table["hirescam", "insertoin"]
    with pytest.raises(OptionError, match=r"no 'hires'\. Near matches: hirescam"):
        table["hires", "insertion"]


def test_names_are_public():
    assert seewhy.evaluate is evaluate
    assert {"insertion", "gridpg"} <= set(seewhy.list_metrics())
    assert seewhy.get_metric("ROAD").name == "road"
    assert Path(seewhy.explainers.__file__).with_name("__init__.pyi").exists()
