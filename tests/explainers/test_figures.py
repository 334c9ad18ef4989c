import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from seewhy.explainers import explain, intervene
from seewhy.explainers.errors import OptionError
from tests.explainers.test_explanation import explanation_of

matplotlib.use("Agg")
CAT = Path(__file__).parents[2] / "examples" / "cat.png"


@pytest.fixture(scope="module")
def cat(lite0):
    return explain(lite0, CAT)


def notebook_pixels(figure):
    return np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("RGB")).astype(int)


def test_a_notebook_shows_the_overlay_under_its_caption_and_above_its_colours(cat):
    pixels = notebook_pixels(cat)
    overlay = np.asarray(cat.overlay()).astype(int)
    height, width = overlay.shape[:2]
    assert pixels.shape == (height + 48, width, 3)
    assert np.array_equal(pixels[24:-24], overlay)
    assert pixels[:24].min() < 100 < pixels[:24, 1].max()  # black letters on white
    bar = pixels[-12]  # from black to the pale yellow of inferno, brighter all the way
    strip = bar[40:-60].sum(axis=1)
    assert (np.diff(strip) > -12).all()
    assert strip[-1] > strip[0] + 400


def test_signed_maps_have_zero_in_the_middle_of_the_bar(lite0):
    explanation = explain(lite0, CAT, "saliency", sign="signed")
    bar = notebook_pixels(explanation)[-12]
    middle = bar[len(bar) // 2]
    assert middle.sum() < 150  # icefire is dark at zero
    low, high = explanation.plot(Figure().subplots()).figure.axes[1].get_ylim()
    assert low == -high < 0


def test_what_has_regions_shows_these(lite0):
    explanation = explain(lite0, CAT, "dff")
    assert np.array_equal(notebook_pixels(explanation), np.asarray(explanation.overlay(max_side=800)).astype(int))


def test_a_few_pixels_are_shown_too():
    assert notebook_pixels(explanation_of([[0.0, 1.0]])).shape[1] == 2


def test_the_text_of_an_explanation_is_short(cat, lite0):
    assert repr(cat) == "Explanation(tiger cat 39.3% by gradcam, 451x300)"
    assert cat.caption == "tiger cat 39.3% by gradcam"
    assert explain(lite0, CAT, against="tabby").caption == "tiger cat 39.3% against tabby by gradcam"


def test_interventions_and_explanations_are_saved_alike(cat, lite0, tmp_path):
    edited = intervene(lite0, CAT, [{"layer": "bn2", "op": "zero"}])
    for figure, size in ((cat, (451, 300)), (edited, edited.panel().size)):
        path = figure.save(tmp_path / "one.webp", alpha=0.3)
        assert path == tmp_path / "one.webp"
        with Image.open(path) as image:
            assert (image.format, image.size) == ("WEBP", size)
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_plot_draws_into_the_axes_that_are_given(cat):
    figure = Figure()
    _, right = figure.subplots(1, 2)
    assert cat.plot(right, title="mine") is right
    assert right.get_title() == "mine"
    (image,) = right.images
    assert np.array_equal(image.get_array(), np.asarray(cat.overlay()))
    assert image.get_extent() == [-0.5, 450.5, 299.5, -0.5]
    bar = figure.axes[2]
    assert bar.get_ylabel() == "evidence for tiger cat"
    laid = cat.geometry.lay(cat.map)
    assert bar.get_ylim() == pytest.approx((0, laid.max()))
    figure.savefig(io.BytesIO())


def test_plot_of_a_smaller_copy_is_in_pixels_of_the_upload(cat):
    small = replace(cat, picture=cat.picture.resize((45, 30)))
    (image,) = small.plot(Figure().subplots()).images
    assert image.get_array().shape == (30, 45, 3)
    assert image.get_extent() == [-0.5, 450.5, 299.5, -0.5]


def test_plot_takes_a_scale_and_a_colormap_and_no_bar(cat, lite0):
    axes = cat.plot(Figure().subplots(), scale=(0.0, 50.0), colormap="viridis", view="heatmap")
    assert axes.figure.axes[1].get_ylim() == (0, 50)
    assert len(cat.plot(Figure().subplots(), colorbar=False).figure.axes) == 1
    with pytest.raises(OptionError, match="viridis"):
        cat.plot(Figure().subplots(), colormap="viridus")
    contrasted = explain(lite0, CAT, against="tabby").plot(Figure().subplots())
    assert contrasted.figure.axes[1].get_ylabel() == "evidence for tiger cat rather than tabby"


def test_plot_makes_a_figure_of_pyplot_only_where_no_axes_are_given(cat):
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    cat.plot(Figure().subplots())
    assert pyplot.get_fignums() == before
    axes = cat.plot()
    assert len(pyplot.get_fignums()) == len(before) + 1
    pyplot.close(axes.figure)


@pytest.mark.slow
def test_explaining_imports_no_matplotlib():
    code = (
        "import sys; from seewhy import explain, load_model; "
        f"explain(load_model('efficientnet_lite0'), {str(CAT)!r})._repr_png_(); print('matplotlib' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"
