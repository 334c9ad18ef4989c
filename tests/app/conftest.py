import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import create_app
from app.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def app():
    made = create_app(Settings())
    yield made
    made.extensions["seewhy"].engine.stop()


@pytest.fixture(scope="session")
def service(app):
    return app.extensions["seewhy"]


@pytest.fixture
def client(app):
    return app.test_client()


@pytest.fixture(scope="session")
def cat():
    return (EXAMPLES / "cat.png").read_bytes()


@pytest.fixture(scope="session")
def coffee():
    return (EXAMPLES / "coffee.png").read_bytes()


@pytest.fixture
def post(client):
    """Post a picture as a multipart form; options are keywords, lists are repeated fields."""

    def send(picture, path="/explain", headers=None, **fields):
        data = {**fields, "image": (io.BytesIO(picture), "picture")}
        return client.post(path, data=data, content_type="multipart/form-data", headers=headers)

    return send


@pytest.fixture
def pixels():
    """Decode an answer into an (H, W, 3) array."""

    def decode(response):
        assert response.status_code == 200, response.get_data(as_text=True)
        return np.asarray(Image.open(io.BytesIO(response.data)).convert("RGB")).astype(int)

    return decode


def encoded(picture, form="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()
