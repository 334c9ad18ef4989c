import numpy as np
import pytest
from cmap import Colormap
from PIL import Image

from seewhy.explainers import Explanation, Geometry
from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.explainers.imaging.render import (
    Style,
    colour,
    draw,
    fit,
    fitted,
    magnitude,
    normalize,
    panel,
)
from seewhy.explainers.tasks.classification import ClassPrediction

RED, BLUE = (255, 0, 0), (0, 0, 255)
WHOLE = Geometry(12, 8, (0.0, 0.0, 12.0, 8.0))


@pytest.fixture
def picture() -> Image.Image:
    """12 wide, 8 high: a red square on blue."""
    image = Image.new("RGB", (12, 8), BLUE)
    image.paste(RED, (2, 1, 6, 5))
    return image


@pytest.fixture
def heatmap() -> np.ndarray:
    """Hot on the red square only."""
    values = np.zeros((8, 12), np.float32)
    values[1:5, 2:6] = 1
    return values


def ends(colormap: str) -> tuple[tuple[int, ...], ...]:
    """Return the colours of 0, one half and 1."""
    table = Colormap(colormap).lut(256)
    return tuple(tuple(int(level * 255 + 0.5) for level in table[at][:3]) for at in (0, 128, 255))


def test_with_alpha_zero_the_picture_is_untouched(picture, heatmap):
    drawing = draw(picture, heatmap, WHOLE, False, Style(alpha=0))
    assert drawing.tobytes() == picture.tobytes()


def test_the_golden_red_object(picture, heatmap):
    drawing = draw(picture, heatmap, WHOLE, False, Style(alpha=0.5))
    cold, _, hot = ends("inferno")
    assert np.allclose(drawing.getpixel((3, 3)), [(a + b) / 2 for a, b in zip(RED, hot, strict=True)], atol=1)
    assert np.allclose(drawing.getpixel((9, 6)), [(a + b) / 2 for a, b in zip(BLUE, cold, strict=True)], atol=1)
    red, _, blue = drawing.getpixel((3, 3))
    assert red > blue, "channels are RGB"


def test_the_heatmap_view_hides_the_picture(picture, heatmap):
    cold, _, hot = ends("viridis")
    drawing = draw(picture, heatmap, WHOLE, False, Style("heatmap", "viridis", alpha=0))
    assert [drawing.getpixel((3, 3)), drawing.getpixel((0, 0))] == [hot, cold]


def test_side_by_side_is_twice_as_wide(picture, heatmap):
    pair = draw(picture, heatmap, WHOLE, False, Style("side-by-side"))
    assert pair.size == (24, 8)
    assert pair.crop((0, 0, 12, 8)).tobytes() == picture.tobytes()
    assert pair.crop((12, 0, 24, 8)).tobytes() == draw(picture, heatmap, WHOLE, False, Style()).tobytes()


@pytest.mark.parametrize("view", ["overlay", "heatmap"])
def test_what_the_model_never_saw_is_dimmed_and_grey(view, picture, heatmap):
    geometry = Geometry(12, 8, (4.0, 0.0, 12.0, 8.0))
    drawing = draw(picture, heatmap[geometry.window], geometry, False, Style(view, alpha=0))
    unseen = np.asarray(drawing)[:, :4]
    assert np.array_equal(unseen[..., 0], unseen[..., 2])
    assert np.all(unseen <= 0.3 * np.asarray(picture.convert("L"))[:, :4, None] + 1)
    if view == "overlay":
        assert np.array_equal(np.asarray(drawing)[:, 4:], np.asarray(picture)[:, 4:])


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("view", ["overlay", "heatmap", "side-by-side"])
@pytest.mark.parametrize("alpha", [0, 0.3, 1])
@pytest.mark.parametrize("box", [(0, 0, 40, 30), (5, 0, 35, 30), (0, 7, 40, 20), (9, 3, 10, 4), (-4, 5, 22, 44)])
def test_a_drawing_is_colours_blended_into_the_picture_in_a_dim_grey_frame(signed, view, alpha, box):
    random = np.random.default_rng(3)
    picture = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    geometry = Geometry(40, 30, tuple(map(float, box)))
    values = random.random((30, 40), dtype=np.float32) * 2 - 1 if signed else random.random((30, 40), dtype=np.float32)
    pixels = np.asarray(draw(picture, values[geometry.window], geometry, signed, Style(view, alpha=alpha))).astype(int)
    table = (Colormap("icefire" if signed else "inferno").lut(256)[:, :3] * 255 + 0.5).astype(np.uint8)
    colours = table[(((values + 1) / 2 if signed else values) * 255 + 0.5).astype(np.uint8)]
    expected = np.repeat(np.round(0.3 * np.asarray(picture.convert("L")))[..., None], 3, axis=2)
    covered = colours if view == "heatmap" else (1 - alpha) * np.asarray(picture) + alpha * colours
    expected[geometry.window] = covered[geometry.window]
    if view == "side-by-side":
        expected = np.concatenate([np.asarray(picture), expected], axis=1)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).max() <= 1


def test_zero_of_a_signed_map_has_the_middle_colour():
    values = np.array([[-2.0, 0.0, 1.0]], np.float32)
    low, mid, _ = ends("icefire")
    image = colour(normalize(values, signed=True), signed=True)
    assert image.getpixel((0, 0)) == low
    assert image.getpixel((1, 0)) == mid
    assert np.allclose(image.getpixel((1, 0)), np.mean(image.getpixel((1, 0))), atol=12), "neutral"
    blue, red = np.subtract(image.getpixel((0, 0)), mid), np.subtract(image.getpixel((2, 0)), mid)
    assert blue[2] - blue[0] > 0 > red[2] - red[0], "against is bluish, for is reddish"


@pytest.mark.parametrize("signed", [False, True])
def test_a_map_of_zeros_stays_zero(signed):
    assert np.all(normalize(np.zeros((2, 2), np.float32), signed) == 0)


def test_each_map_is_divided_by_its_own_largest_magnitude():
    values = np.array([[-4.0, 0.0, 2.0]], np.float32)
    assert normalize(values, signed=True).tolist() == [[-1.0, 0.0, 0.5]]
    assert normalize(values.clip(0), signed=False).tolist() == [[0.0, 0.0, 1.0]]
    assert values.tolist() == [[-4.0, 0.0, 2.0]], "the caller's map is untouched"


def test_a_fixed_scale_makes_pictures_comparable():
    small, large = np.array([[0.0, 1.0]], np.float32), np.array([[0.0, 2.0, 9.0]], np.float32)
    assert normalize(small, False, (0, 4)).tolist() == [[0.0, 0.25]]
    assert normalize(large, False, (0, 4)).tolist() == [[0.0, 0.5, 1.0]]
    assert normalize(large, False, (1, 3)).tolist() == [[0.0, 0.5, 1.0]]
    signed = np.array([[-8.0, 0.0, 2.0]], np.float32)
    assert normalize(signed, True, (-1, 4)).tolist() == [[-1.0, 0.0, 0.5]]


@pytest.mark.parametrize("name", [*SEQUENTIAL, *DIVERGING])
def test_every_named_colormap_exists(name):
    assert colour(np.array([[0.0, 1.0]], np.float32), False, name).size == (2, 1)
    assert Style(colormap=name).colormap == name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("view", "upside-down", "choose from overlay"),
        ("colormap", "virdis", "Near matches: viridis"),
        ("colormap", "jet", "Choose from inferno"),
        ("alpha", 1.5, "between 0 and 1"),
        ("alpha", float("nan"), "between 0 and 1"),
        ("scale", (1.0, 1.0), "lo < hi"),
        ("scale", "percentile", "robust"),
        ("scale", (0.0, float("inf")), "finite"),
    ],
)
def test_a_style_that_cannot_be_is_refused_by_field(field, value, message):
    with pytest.raises(OptionError, match=message) as caught:
        Style(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        ((100, 50), None, (100, 50)),
        ((100, 50), 100, (100, 50)),
        ((100, 50), 40, (40, 20)),
        ((1, 900), 9, (1, 9)),
    ],
)
def test_pictures_are_made_smaller_never_larger(size, limit, expected):
    assert fit(Image.new("RGB", size), limit).size == expected


def test_a_smaller_copy_is_fitted_as_the_upload_itself():
    assert fit(Image.new("RGB", (1008, 750)), 300, (4031, 3001)).size == fitted(4031, 3001, 300) == (300, 223)
    assert fit(Image.new("RGB", (1008, 756)), 300, (4031, 3025)).size == (300, 225)
    small = Image.new("RGB", (10, 10))
    assert fit(small, 10, (10, 10)) is small


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 3, 2)])
def test_a_panel_is_a_near_square_grid_of_captioned_tiles(count, columns, rows):
    tiles = [Image.new("RGB", (140, 60), (10 * number, 0, 0)) for number in range(count)]
    sheet = panel(tiles, [f"class {number}" for number in range(count)])
    bar = 14
    assert sheet.size == (columns * 140, rows * (60 + bar))
    for number in range(count):
        left, top = number % columns * 140, number // columns * (60 + bar)
        assert sheet.getpixel((left + 70, top + bar + 30)) == (10 * number, 0, 0)
        caption = np.asarray(sheet.crop((left, top, left + 140, top + bar)).convert("L"))
        assert caption.min() < 100, "there is text"
        assert caption.max() == 255


def test_captions_say_their_text_and_long_ones_stay_on_their_tile():
    tiles = [Image.new("RGB", (140, 20))] * 2
    bars = {text: panel(tiles, [text, ""]).crop((0, 0, 280, 14)) for text in ("tabby", "lynx", "long " * 40)}
    assert bars["tabby"].tobytes() != bars["lynx"].tobytes()
    assert np.asarray(bars["long " * 40])[:, 140:].min() == 255


@pytest.mark.parametrize("text", ["tabby", "difference x10.5: +0.3 points", "Donaudampfschifffahrtsgesellschaft on 2%"])
def test_captions_may_take_several_lines_of_which_none_is_cut(text):
    tiles, bar = [Image.new("RGB", (60, 20))] * 2, 14
    font = render.font_for(text, bar * 0.62)
    lines = render._wrapped(text, font, 60 - bar / 2)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(font.getlength(line) <= 60 - bar / 2 for line in lines)
    assert panel(tiles, [text, "a"], wraps=True).size == (120, 20 + len(lines) * bar)
    assert (len(lines) > 1) is (text != "tabby")


def test_a_robust_scale_is_not_ruled_by_a_few_extreme_pixels():
    values = np.ones((100, 100), dtype=np.float32)
    values[:50] = 0.5
    values[0, 0] = 1000
    assert magnitude(values) == 1000
    assert render.ends(values, "robust") == render.ends(-values, "robust") == (0, 1)
    robust = normalize(values, False, render.ends(values, "robust"))
    assert (robust[99, 99], robust[10, 10], robust[0, 0]) == (1, 0.5, 1)
    assert normalize(-values, True, render.ends(-values, "robust")).min() == -1
    sparse = np.zeros((100, 100), dtype=np.float32)
    sparse[3, :9] = 5  # the 99th percentile of all is zero
    sparse[3, 9] = 1000
    assert 5 <= magnitude(sparse, "robust") < 1000
    assert render.ends(0 * sparse, "robust") == (0, 1)
    assert render.ends(values, None) is None
    assert render.ends(values, (1.0, 2.0)) == (1, 2)


def test_what_the_model_never_saw_does_not_count_for_a_robust_scale():
    values = np.linspace(0.5, 1, 400, dtype=np.float32).reshape(20, 20)
    picture = Image.new("RGB", (400, 20))
    geometry = Geometry(400, 20, (190.0, 0.0, 210.0, 20.0))
    certain = ClassPrediction(0, "a", 1.0, 1.0)
    image = Explanation(picture, geometry, values, False, certain, (certain,), 2, "any", ()).overlay(
        "heatmap", scale="robust"
    )
    brightest = np.asarray(image.crop((190, 0, 210, 20)))[-1, -2]
    np.testing.assert_array_equal(brightest, np.asarray(colour(np.ones((1, 1), np.float32), False))[0, 0])
