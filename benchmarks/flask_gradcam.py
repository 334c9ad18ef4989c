"""A typical server: Flask around pytorch-grad-cam. `benchmarks.service` runs it under gunicorn.

The model, its preprocessing and the layer are SeeWhy's; the drawing is pytorch-grad-cam's.
"""

import io
import os

import cv2
import numpy as np
from flask import Flask, Response, request
from PIL import Image
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.image import show_cam_on_image

from seewhy.models import load_model

MAX_SIDE = int(os.environ.get("MAX_SIDE", "1024"))
"""Longest side of an answer, in pixels."""

app = Flask(__name__)
model = load_model("efficientnet_lite0")
network = model.module.requires_grad_(True)
cam = GradCAM(model=network, target_layers=[network.get_submodule(model.default_layers[0])])


@app.post("/explain")
def explain() -> Response:
    """Answer with the picture under the heatmap of its most probable class."""
    picture = Image.open(request.files["image"].stream).convert("RGB")
    heatmap = cam(input_tensor=model.preprocess(picture)[None], targets=None)[0]
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    pixels = np.asarray(picture, dtype=np.float32) / 255
    overlay = show_cam_on_image(pixels, cv2.resize(heatmap, picture.size), use_rgb=True)
    answer = io.BytesIO()
    Image.fromarray(overlay).save(answer, "PNG")
    return Response(answer.getvalue(), mimetype="image/png")
