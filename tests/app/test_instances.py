"""Pictures in the formats of other servers' routes, and several of them in one request."""

import base64
import io
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy.app.compatible.instances import PictureReader
from seewhy.app.errors import FieldError
from seewhy.app.pipeline.computation import PredictComputation
from seewhy.explainers.errors import PictureTooLargeError
from seewhy.explainers.view import view_of
from seewhy.models.preprocess import Preprocess
from tests import nets
from tests.app.serving import application, declare

MODEL = "efficientnet_lite0"
BYTES = b"\x00picture"
TEXT = base64.b64encode(BYTES).decode()


@pytest.fixture
def reader():
    return PictureReader(Preprocess((4, 5), (4, 5), mean=(0.5,) * 3, std=(0.25,) * 3), max_pixels=100, range=None)


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        f"data:image/png;base64,{TEXT}",
        {"b64": TEXT},
        {"image": TEXT},
        {"data": TEXT},
        {"image": {"b64": TEXT}},
        {"image_bytes": {"b64": TEXT}},
    ],
)
def test_a_picture_may_be_base64_in_many_places(reader, value):
    assert reader.from_json(value, "instances[0]") == BYTES


@pytest.mark.parametrize("transposed", [False, True])
def test_whole_numbers_are_levels_of_a_picture_of_any_size(reader, transposed):
    levels = np.arange(2 * 7 * 3).reshape(2, 7, 3)
    array = np.moveaxis(levels, 2, 0) if transposed else levels
    picture = reader.from_json({"image": array.tolist()}, "x")
    assert isinstance(picture, Image.Image)
    np.testing.assert_array_equal(np.asarray(picture), levels)


@pytest.mark.parametrize("transposed", [False, True])
def test_other_numbers_are_the_input_as_it_is(reader, transposed):
    values = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 4, 5)
    layout = np.moveaxis(values, 0, 2) if transposed else values
    array = reader.from_json(layout.tolist(), "x")
    assert isinstance(array, torch.Tensor)
    np.testing.assert_array_equal(array.numpy(), values)
    picture = np.asarray(view_of(array, reader.preprocess).picture).astype(float)
    np.testing.assert_allclose(picture, np.moveaxis(values * 0.25 + 0.5, 0, 2) * 255, atol=0.51)


def test_range_says_what_numbers_are(reader):
    levels = np.full((2, 2, 3), 0.5)
    unit = PictureReader(reader.preprocess, 100, "unit").from_array(levels, "x")
    assert np.asarray(unit).tolist() == np.full((2, 2, 3), 128).tolist()
    byte = PictureReader(reader.preprocess, 100, "byte").from_array(levels * 400, "x")
    assert np.asarray(byte).tolist() == np.full((2, 2, 3), 200).tolist()
    whole = PictureReader(reader.preprocess, 100, "normalized").from_array(np.zeros((3, 4, 5), dtype=int), "x")
    assert whole.dtype == torch.float32


def test_levels_are_not_blown_up(reader):
    levels = np.full((2000, 1000, 3), 7, dtype=np.uint8)
    large = PictureReader(reader.preprocess, levels.size, None)
    tracemalloc.start()
    picture = large.from_array(levels, "x")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * levels.nbytes
    assert picture.getpixel((999, 1999)) == (7, 7, 7)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must be base64"),
        (7, "must be base64"),
        (True, "must be base64"),
        ("?", "not valid base64"),
        ({}, "has no picture"),
        ({"picture": TEXT}, "has no picture"),
        ({"b64": TEXT, "key": "1"}, "'key'"),
        ({"b64": 3}, "must be base64"),
        ({"image": {"b64": 3}}, "must be a base64 string"),
        ({"image": {"b64": TEXT, "x": 1}}, "BASE64"),
        ({"image": {"image": {"b64": TEXT}}}, "BASE64"),
        ([], "shape [0]"),
        ([[]], "shape [1, 0]"),
        ([1, 2], "shape [2]"),
        ([[1, 2], [3]], "equal lengths"),
        ([["a" * 100_000] + [""] * 100_000], "only numbers"),
        ([[None]], "only numbers"),
        ([[[True, False, True]]], "only numbers"),
        ([[[1, 2, 2**70]]], "only numbers"),
        ([[[[1, 2, 3]]]], "shape [1, 1, 1, 3]"),
        ([[[0, 0, 256]]], "outside 0 to 255"),
        ([[[0, 0, -1]]], "outside 0 to 255"),
        ([[[0.0, 0.5, 1.0]]], "[3, 4, 5] or [4, 5, 3]"),
        (np.full((3, 4, 5), 255.0).tolist(), "its black is -2.00, its white 2.00"),
        (np.full((3, 4, 5), 1e300).tolist(), "outside the range"),
        (np.full((3, 4, 5), np.nan).tolist(), "outside the range"),
    ],
)
def test_what_is_no_picture_is_refused(reader, value, message):
    with pytest.raises(FieldError) as refused:
        reader.from_json(value, "instances[2]")
    assert message in str(refused.value)
    assert refused.value.field.startswith("instances[2]")


def test_nesting_has_an_end(reader):
    value = [1]
    for _ in range(900):
        value = [value]
    with pytest.raises(FieldError):
        reader.from_json(value, "x")


def test_pixels_have_a_limit(reader):
    with pytest.raises(PictureTooLargeError, match="110 pixels"):
        reader.from_array(np.zeros((11, 10, 3), dtype=np.uint8), "x")


@pytest.fixture
def pixels(cat):
    return np.asarray(Image.open(io.BytesIO(cat)).convert("RGB"))


@pytest.fixture
def normalized(lite0, cat):
    return lite0.preprocess(Image.open(io.BytesIO(cat)).convert("RGB")).numpy()


def predict(client, *instances, **parameters):
    body = {"instances": list(instances), "parameters": parameters}
    response = client.post(f"/v1/models/{MODEL}:predict", json=body)
    assert response.status_code == 200, response.get_data(as_text=True)
    return response.get_json()["predictions"]


def test_all_ways_to_send_a_picture_say_the_same(client, cat, pixels, normalized):
    text = base64.b64encode(cat).decode()
    predictions = predict(client, text, pixels.tolist(), normalized.tolist(), output="logits")
    np.testing.assert_allclose(predictions[1], predictions[0], atol=1e-4)
    np.testing.assert_allclose(predictions[2], predictions[0], atol=1e-4)
    assert int(np.argmax(predictions[0])) == 282


@pytest.fixture
def unit():
    """Levels of 0 to 1 as one would send them by mistake, of the size that the test model takes."""
    return np.linspace(0, 1, 60, dtype=np.float32).reshape(3, 4, 5)


@pytest.mark.parametrize("transposed", [False, True])
def test_levels_of_0_to_1_are_no_normalised_input(reader, unit, transposed):
    array = np.moveaxis(unit, 0, 2) if transposed else unit
    for value in (array.tolist(), {"data": (array / 2 + 0.25).tolist()}):
        with pytest.raises(FieldError) as caught:
            reader.from_json(value, "x")
        for hint in ("black is -2.00", "white 2.00", "0 to 255", "range=unit", "[0.5, 0.5, 0.5]", "[0.25, 0.25, 0.25]"):
            assert hint in str(caught.value)


def test_what_is_or_is_said_to_be_normalised_is_taken(reader, unit):
    tensor = PictureReader(reader.preprocess, 100, "normalized").from_array(unit, "x")
    np.testing.assert_array_equal(tensor.numpy(), unit)
    for value in (unit - 0.001, unit + 0.001):
        assert isinstance(reader.from_array(value, "x"), torch.Tensor)
    blank = np.broadcast_to(np.float32([0.0, 0.3, 1.0])[:, None, None], (3, 4, 5))
    assert isinstance(reader.from_array(blank, "x"), torch.Tensor)
    raw = PictureReader(Preprocess((4, 5), (4, 5), mean=(0.0,) * 3, std=(1.0,) * 3), 100, None)
    assert isinstance(raw.from_array(unit, "x"), torch.Tensor)


def test_all_routes_refuse_levels_of_0_to_1_and_say_what_to_send(client):
    levels = np.random.default_rng(0).random((3, 224, 224)).round(2)
    v2 = {"name": "x", "datatype": "FP32", "shape": list(levels.shape), "data": levels.ravel().tolist()}
    for path, body in (
        (f"/v1/models/{MODEL}:predict", {"instances": [levels.tolist()]}),
        (f"/v1/models/{MODEL}:explain", {"instances": [levels.tolist()]}),
        (f"/v2/models/{MODEL}/infer", {"inputs": [v2]}),
        (f"/v2/models/{MODEL}/explain", {"inputs": [v2]}),
        (f"/predictions/{MODEL}", {"data": levels.tolist()}),
    ):
        response = client.post(path, json=body)
        assert response.status_code == 400, path
        assert "range=unit" in response.get_data(as_text=True), path
    accepted = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [v2], "parameters": {"range": "unit"}})
    assert accepted.status_code == 200


def test_pictures_of_one_request_share_a_pass(client, cat, coffee, monkeypatch):
    passes, run = [], PredictComputation.run
    monkeypatch.setattr(
        PredictComputation, "run", lambda *arguments: passes.append(len(arguments[2])) or run(*arguments)
    )
    texts = [base64.b64encode(content).decode() for content in (cat, coffee, cat, coffee)]
    predictions = predict(client, *texts, top=1)
    assert [prediction[0]["label"] for prediction in predictions] == ["tiger cat", "espresso"] * 2
    assert passes == [4]


@pytest.mark.slow
def test_a_request_may_hold_more_pictures_than_the_queue(app_of, cat):
    client = app_of(queue_size=3, max_instances=6).test_client()
    assert len(predict(client, *[base64.b64encode(cat).decode()] * 6, top=1)) == 6


@pytest.mark.slow
def test_gradients_of_channels_are_those_of_captum(client, lite0, cat, normalized):
    from captum.attr import IntegratedGradients  # takes seconds, also where this test does not run

    response = client.put(f"/explanations/{MODEL}?target=281", data=cat)
    values = np.array(response.get_json())
    image = torch.from_numpy(normalized)[None]
    expected = IntegratedGradients(lite0.module).attribute(image, target=281, n_steps=15)[0].detach().numpy()
    assert values.shape == (3, 224, 224)
    np.testing.assert_allclose(values, expected, atol=1e-3 * np.abs(expected).max())


class Grey(nets.Net):
    def forward(self, x):
        return super().forward(x.expand(-1, 3, -1, -1))


def test_numbers_of_one_channel_are_drawn_as_grey(tmp_path):
    torch.save(nets.seeded(Grey).state_dict(), tmp_path / "w.pth")
    models = declare(tmp_path, "tests.app.test_instances:Grey", input_size=8, mean=[0.5], std=[0.25])
    values = np.linspace(-2, 2, 64).reshape(1, 8, 8)
    body = {"instances": [values.tolist()], "parameters": {"view": "side-by-side"}}
    with application(models=models, default_model="mine") as app:
        answer = app.test_client().post("/v1/models/mine:explain", json=body)
    overlay = answer.json["explanations"][0]["explanations"][0]["overlay"]
    with Image.open(io.BytesIO(base64.b64decode(overlay.partition(",")[2]))) as drawing:
        shown = np.asarray(drawing)[:, :8].astype(float)
    np.testing.assert_allclose(shown, np.repeat((values[0] * 0.25 + 0.5)[..., None] * 255, 3, axis=2), atol=1)
