"""Segmenters behind the routes of other servers."""

import base64
import json

import numpy as np
import pytest
import torch

from seewhy.app import create_app
from seewhy.app.settings import Settings
from tests.explainers.test_segmentation import CAT, LABELS, SIZE, Segmenter

IMAGE = base64.b64encode(CAT.read_bytes()).decode()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    torch.save(Segmenter().state_dict(), folder / "w.pth")
    (folder / "models.toml").write_text(
        '[models.scene]\narchitecture = "tests.explainers.test_segmentation:Segmenter"\nweights = "w.pth"\n'
        f'input_size = {list(SIZE)}\nhead = "segmentation"\nlabels = {json.dumps(LABELS)}\n'
    )
    app = create_app(Settings(models=folder / "models.toml", default_model="scene"))
    yield app.test_client()
    app.extensions["seewhy"].models.stop()


@pytest.fixture(scope="module")
def predictions(client):
    return client.post("/predict", data=CAT.read_bytes(), content_type="image/png").json["predictions"]


def test_v1_gives_regions(client, predictions):
    response = client.post("/v1/models/scene:predict", json={"instances": [IMAGE]})
    assert (response.status_code, response.json) == (200, {"predictions": [predictions]})


def test_v2_gives_regions(client, predictions):
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [IMAGE]}
    indices, classes = client.post("/v2/models/scene/infer", json={"inputs": [tensor]}).json["outputs"]
    assert indices["data"] == [row["index"] for row in predictions]
    assert classes["data"] == [row["label"] for row in predictions]


def test_pictures_of_different_numbers_of_classes_are_not_a_tensor(client):
    pictures = np.zeros((2, 40, 40, 3), dtype=np.uint8)
    pictures[1] = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
    tensor = {"name": "pixels", "shape": pictures.shape, "datatype": "UINT8", "data": pictures.ravel().tolist()}
    response = client.post("/v2/models/scene/infer", json={"inputs": [tensor]})
    assert response.status_code == 400
    assert "different numbers of predictions" in response.json["error"]


def test_torchserve_gives_regions(client, predictions):
    answer = client.post("/predictions/scene", data=CAT.read_bytes(), content_type="image/png").json
    assert set(answer) == {row["label"] for row in predictions}
