import base64
import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import Timings
from seewhy.explainers import explain
from seewhy.explainers.imaging.decode import Probe
from seewhy.models import load_model
from tests.app.conftest import encoded
from tests.grids import few


def arrays(response):
    assert response.status_code == 200, response.get_data(as_text=True)
    with np.load(io.BytesIO(response.data)) as loaded:
        return dict(loaded)


def test_answer_is_a_picture_as_large_as_the_upload_with_its_facts_in_the_headers(post, cat):
    response = post(cat)
    assert response.status_code == 200
    assert response.mimetype == "image/png"
    assert Image.open(io.BytesIO(response.data)).size == Image.open(io.BytesIO(cat)).size
    assert response.headers["X-SeeWhy-Model"] == "efficientnet_lite0"
    assert response.headers["X-SeeWhy-Method"] == "gradcam"
    assert response.headers["X-SeeWhy-Layers"] == "bn2"
    assert "cat" in response.headers["X-SeeWhy-Label"]
    assert 0 < float(response.headers["X-SeeWhy-Probability"]) <= 1
    stages = {part.split(";")[0].strip() for part in response.headers["Server-Timing"].split(",")}
    assert stages == {"decode", "queue", "explain", "render", "encode"}


def test_hot_region_of_the_cat_is_its_face(post, cat):
    heatmap = arrays(post(cat, format="npz"))["heatmaps"][0]
    face = np.zeros(heatmap.shape, dtype=bool)
    face[80:250, 120:330] = True  # eyes to chin of the 300×451 picture
    assert face.flat[heatmap.argmax()]
    assert heatmap[face].mean() > 1.5 * heatmap[~face].mean()


@pytest.mark.parametrize(("width", "height"), [(256, 512), (300, 300), (400, 300)])
def test_each_target_lights_its_own_half(post, cat, coffee, width, height):
    collage = Image.new("RGB", (2 * width, height))
    for place, upload in enumerate((cat, coffee)):
        collage.paste(ImageOps.fit(Image.open(io.BytesIO(upload)), (width, height)), (place * width, 0))
    content = arrays(post(encoded(collage), target=["tabby", "espresso"], format="npz"))
    tabby, espresso = content["heatmaps"]
    assert content["targets"].tolist() == [281, 967]
    assert tabby[:, :width].sum() >= 0.7 * tabby.sum()
    assert espresso[:, width:].sum() >= 0.7 * espresso.sum()


def test_the_three_carriers_give_the_same_answer(client, post, coffee):
    form = post(coffee, target="cup", format="npz")
    raw = client.post("/explain?target=cup&format=npz", data=coffee, content_type="image/png")
    body = {"image": base64.b64encode(coffee).decode(), "target": "cup", "format": "npz"}
    json = client.post("/explain", json=body)
    data_url = client.post("/explain", json={**body, "image": f"data:image/png;base64,{body['image']}"})
    expected = arrays(form)
    for response in (raw, json, data_url):
        for name, values in arrays(response).items():
            if name == "methods":
                assert values.tolist() == expected[name].tolist() == ["gradcam"]
            else:
                np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6)


def test_json_answer_has_the_documented_shape(post, cat):
    answer = post(cat, format="json", target="tabby", values="true").get_json()
    assert set(answer) == {
        "model",
        "method",
        "methods",
        "agreement",
        "layers",
        "predictions",
        "explanations",
        "timings_ms",
        "versions",
    }
    assert answer["model"]["sha256"].startswith("57934424")
    assert answer["model"]["precision"] == "float32"
    assert answer["method"] == {"name": "gradcam", "options": {"sign": "positive", "smooth": "none"}}
    assert len(answer["predictions"]) == 5
    (explanation,) = answer["explanations"]
    assert explanation["target"]["label"] == "tabby"
    assert set(explanation["target"]) == {"index", "label", "probability", "logit"}
    values = np.array(explanation["heatmap"]["values"])
    assert list(values.shape) == explanation["heatmap"]["shape"] == [300, 451]
    assert values.max() == pytest.approx(1)
    assert values.min() == 0
    assert explanation["heatmap"]["max"] > 0
    assert explanation["diagnostics"] == []
    overlay = base64.b64decode(explanation["overlay"].removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(overlay)).size == (451, 300)


def test_values_are_left_out_unless_asked_for_and_map_is_the_raw_map_and_where_it_lies(post, cat, lite0):
    (plain,) = post(cat, format="json").get_json()["explanations"]
    assert not {"values", "map"} & set(plain["heatmap"])
    (explanations,) = post(cat, format="json", values="map").get_json()["explanations"]
    heatmap, arrays_of = explanations["heatmap"], arrays(post(cat, format="npz"))
    assert "values" not in heatmap
    np.testing.assert_allclose(heatmap["map"], arrays_of["maps"][0], rtol=1e-5, atol=1e-6)
    geometry = lite0.preprocess.geometry(451, 300)
    assert heatmap["box"] == pytest.approx(geometry.box)
    laid = geometry.lay_back(np.array(heatmap["map"], np.float32))
    np.testing.assert_allclose(laid / laid.max(), arrays_of["heatmaps"][0], atol=1e-5)


@pytest.mark.parametrize("sign", ["positive", "signed"])
@pytest.mark.parametrize("scale", ["image", "robust", "-0.1,0.3"])
def test_drawn_says_which_values_have_the_first_and_the_last_colour(post, cat, sign, scale):
    answer = post(cat, format="json", sign=sign, scale=scale, view="heatmap", values="map").get_json()
    (explanations,) = answer["explanations"]
    drawing, heatmap = explanations["drawn"], explanations["heatmap"]
    largest = max(heatmap["max"], -heatmap["min"])
    high = {"image": largest, "robust": np.percentile(np.abs(heatmap["map"]), 99), "-0.1,0.3": 0.3}[scale]
    low = -0.1 if scale == "-0.1,0.3" else 0
    assert heatmap["signed"] is (sign == "signed")
    assert (drawing["low"], drawing["high"]) == pytest.approx((-high, high) if heatmap["signed"] else (low, high))
    assert drawing["colormap"] == ("icefire" if heatmap["signed"] else "inferno")
    meanings = {
        "positive": "Bright: evidence for 'tiger cat'.",
        "signed": "Left: evidence against 'tiger cat'; right: evidence for it.",
    }
    assert drawing["meaning"] == meanings[sign]


def test_colours_of_a_drawing_are_those_of_its_colour_map(client, post, cat):
    maps = {colormap["name"]: colormap for colormap in client.get("/colormaps").get_json()["colormaps"]}
    assert {name for name, colormap in maps.items() if colormap["diverging"]} == {"icefire", "berlin", "vik", "balance"}
    assert {len(colormap["colors"]) for colormap in maps.values()} == {256}
    (explanations,) = post(cat, format="json", view="heatmap", colormap="viridis").get_json()["explanations"]
    picture = Image.open(io.BytesIO(base64.b64decode(explanations["overlay"].partition(",")[2])))
    left, top, right, bottom = (round(edge) for edge in explanations["heatmap"]["box"])
    heatmap = picture.crop((left + 1, top + 1, right - 1, bottom - 1))
    colours = {f"#{bytes(colour).hex()}" for colour in np.asarray(heatmap).reshape(-1, 3)}
    assert colours <= set(maps["viridis"]["colors"])
    assert maps["viridis"]["colors"][-1] in colours


def test_npz_holds_each_class_as_if_asked_for_alone(post, cat):
    content = arrays(post(cat, format="npz", top=3))
    assert content["heatmaps"].shape == (3, 300, 451)
    assert content["heatmaps"].dtype == content["maps"].dtype == content["logits"].dtype == np.float32
    assert content["maps"].shape == (3, 7, 7)
    assert content["logits"].shape == (1000,)
    assert content["targets"].tolist() == np.argsort(-content["logits"])[:3].tolist()
    for row, index in enumerate(content["targets"]):
        alone = arrays(post(cat, format="npz", target=str(index)))
        np.testing.assert_allclose(content["maps"][row], alone["maps"][0], rtol=1e-4, atol=1e-6)


def test_several_targets_come_as_one_panel(post, cat):
    response = post(cat, target=["tabby", "282"])
    assert response.headers["X-SeeWhy-Target"] == "281, 282"
    assert response.headers["X-SeeWhy-Label"] == "tabby, tiger cat"
    width, height = Image.open(io.BytesIO(response.data)).size
    assert width == 2 * 451
    assert height > 300


@pytest.mark.parametrize(
    ("accept", "form", "mimetype"),
    [
        ("*/*", None, "image/png"),
        ("image/webp", None, "image/webp"),
        ("application/json", None, "application/json"),
        ("image/jpeg;q=0.9, application/json;q=0.1", None, "image/jpeg"),
        ("application/x-npz", None, "application/x-npz"),
        ("application/json", "png", "image/png"),
        ("*/*", "jpeg", "image/jpeg"),
        ("*/*", "webp", "image/webp"),
    ],
)
def test_the_format_or_else_accept_chooses_the_format(post, cat, accept, form, mimetype):
    response = post(cat, headers={"Accept": accept}, **({"format": form} if form else {}))
    assert response.mimetype == mimetype
    if mimetype.startswith("image/"):
        assert Image.open(io.BytesIO(response.data)).get_format_mimetype() == mimetype


def test_unacceptable_accept_is_refused(post, cat):
    assert post(cat, headers={"Accept": "text/plain"}).status_code == 406


def test_views_and_strength_and_what_the_crop_never_saw_is_dimmed(post, pixels, cat):
    original = np.asarray(Image.open(io.BytesIO(cat)).convert("RGB")).astype(int)
    inside = np.s_[40:260, 120:330]  # what the crop saw, with a margin
    plain = pixels(post(cat, alpha="0"))
    assert np.abs(plain[inside] - original[inside]).max() == 0
    for border in (np.s_[:, :60], np.s_[:, -60:], np.s_[:10], np.s_[-10:]):
        assert plain[border].mean() < 0.5 * original[border].mean()
    np.testing.assert_array_equal(pixels(post(cat, alpha="1"))[inside], pixels(post(cat, view="heatmap"))[inside])
    pair = pixels(post(cat, view="side-by-side"))
    assert pair.shape == (300, 902, 3)
    np.testing.assert_array_equal(pair[:, :451], original)


def test_red_stays_red(post, pixels):
    red = Image.new("RGB", (300, 200), (250, 20, 10))
    centre = pixels(post(encoded(red), alpha="0.1"))[100, 150]
    assert centre[0] > 200 > 60 > centre[2]


def test_exif_rotated_upload_answers_upright(post, cat, pixels):
    upright = Image.open(io.BytesIO(cat)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its left side
    rotated = encoded(upright.transpose(Image.Transpose.ROTATE_90), exif=exif)
    assert np.abs(pixels(post(rotated)) - pixels(post(cat))).mean() < 1


def test_on_a_fixed_scale_a_map_that_is_far_below_its_end_is_nearly_black(post, pixels, cat):
    inside = np.s_[40:260, 120:330]  # what the crop saw, with a margin
    actual, usual = (pixels(post(cat, view="heatmap", **scale))[inside] for scale in ({"scale": "0,100"}, {}))
    assert actual.mean() < 0.1 * usual.mean()


def test_layer_and_saliency_and_options(post, cat):
    assert post(cat, layer="blocks.5", format="npz").headers["X-SeeWhy-Layers"] == "blocks.5"
    fused = post(cat, layer=["blocks.4", "blocks.6"], format="npz")
    assert fused.headers["X-SeeWhy-Layers"] == "blocks.4, blocks.6"
    assert arrays(fused)["maps"].shape == (1, 14, 14)
    assert arrays(post(cat, method="saliency", format="npz"))["maps"].shape == (1, 224, 224)
    signed = arrays(post(cat, method="saliency", sign="signed", format="npz"))["heatmaps"]
    assert signed.min() < 0 < signed.max()
    assert np.abs(signed).max() == pytest.approx(1)


def test_a_picture_that_the_client_has_is_not_even_decoded(post, cat, monkeypatch):
    first = post(cat)
    changed_answer = post(cat, headers={"If-None-Match": first.headers["ETag"]}, alpha="0.4")
    assert changed_answer.status_code == 200
    assert changed_answer.headers["ETag"] != first.headers["ETag"]
    monkeypatch.setattr("seewhy.app.pipeline.decode.Probe", lambda *_: pytest.fail("decoded"))
    again = post(cat, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


# Large uploads


@pytest.fixture(scope="module")
def large(cat):
    """The cat as a JPEG of 3200 by 2128 pixels, lying on its side, and what it is upright."""
    upright = Image.open(io.BytesIO(cat)).convert("RGB").resize((3200, 2128), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(upright.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=exif), upright


@pytest.fixture
def small_answers(app_of):
    return app_of(max_side=800)


@pytest.mark.slow
def test_a_large_jpeg_is_explained_as_in_python(small_answers, large, lite0):
    upload, _ = large
    expected = explain(lite0, upload, target="tabby")
    client = small_answers.test_client()
    content = arrays(client.post("/explain?target=tabby&format=npz", data=upload, content_type="image/jpeg"))
    assert content["heatmaps"].shape == (1, 2128, 3200)
    assert np.corrcoef(content["heatmaps"][0].ravel(), expected.heatmap.ravel())[0, 1] > 0.99
    assert content["logits"][281] == pytest.approx(expected.target.logit, abs=0.2)


def test_a_large_jpeg_is_drawn_as_from_all_its_pixels(small_answers, large, pixels):
    upload, upright = large
    client = small_answers.test_client()
    samples = pixels(client.post("/explain?view=side-by-side", data=upload, content_type="image/jpeg"))
    beside = upright.resize((400, 266), Image.Resampling.LANCZOS)
    assert samples.shape == (266, 800, 3)
    assert np.abs(samples[:, :400] - np.asarray(beside)).mean() < 1.5


def test_a_large_jpeg_is_decoded_at_the_scale_that_is_enough(small_answers, large, lite0, monkeypatch):
    service = small_answers.extensions["seewhy"]
    sizes = []
    decode = Probe.decode
    monkeypatch.setattr(Probe, "decode", lambda probe: sizes.append((picture := decode(probe)).size) or picture)
    upload = service.decode(large[0], lite0, Timings(), Deadline.after(60))
    plain = service.decode(large[0], lite0, Timings(), Deadline.after(60), drawn=False)
    assert sizes == [(1600, 1064), (800, 532)]
    assert upload.picture.size == (800, 532)
    assert upload.geometry == plain.geometry == lite0.preprocess.geometry(3200, 2128)
    assert (upload.image - plain.image).abs().mean() < 0.02


def test_blank_form_fields_count_as_left_out(post, cat):
    assert post(cat, target="", model="", layer="").headers["X-SeeWhy-Target"] == "282"


@pytest.mark.slow
def test_another_embedded_model(post, cat):
    response = post(cat, model="efficientnet_lite1")
    assert response.headers["X-SeeWhy-Model"] == "efficientnet_lite1"
    assert "cat" in response.headers["X-SeeWhy-Label"] or response.headers["X-SeeWhy-Label"] == "tabby"


def test_predict(post, cat):
    answer = post(cat, "/predict").get_json()
    assert answer["model"]["name"] == "efficientnet_lite0"
    assert [prediction["label"] for prediction in answer["predictions"]][:3] == ["tiger cat", "Egyptian cat", "tabby"]
    assert len(post(cat, "/predict", top=2).get_json()["predictions"]) == 2


@pytest.mark.parametrize("view", ["overlay", "side-by-side"])
@pytest.mark.parametrize("top", few([1, 2, 5], short=[5]))
def test_no_answer_is_longer_than_the_setting(cat, app_of, view, top):
    client, fields = app_of(max_side=300).test_client(), {"view": view, "top": str(top)}
    image = Image.open(io.BytesIO(client.post("/explain", data={"image": (io.BytesIO(cat), "cat.png"), **fields}).data))
    assert 100 < max(image.size) <= 300
    body = {"image": (io.BytesIO(cat), "cat.png"), **fields, "format": "json"}
    for explanation in client.post("/explain", data=body).get_json()["explanations"]:
        overlay = Image.open(io.BytesIO(base64.b64decode(explanation["overlay"].partition(",")[2])))
        assert 250 < max(overlay.size) <= 300


def test_a_glob_takes_the_layers_that_a_cam_can_use(post, cat):
    response = post(cat, layer="blocks.6*", format="npz")
    layers = response.headers["X-SeeWhy-Layers"].split(", ")
    assert {"blocks.6", "blocks.6.0", "blocks.6.0.conv_pw"} <= set(layers)
    assert "blocks.6.0.drop_path" not in layers
    assert post(cat, layer="*").status_code == 422


def test_attention_is_no_grid():
    layers = {layer.path: layer.cam for layer in load_model("timm/vit_tiny_patch16_224", weights=None).survey.layers}
    assert not any(layers[f"blocks.11.attn.{part}"] for part in ("q_norm", "k_norm", "attn_drop") if part in layers)
    assert not layers["head"]
    assert layers["patch_embed.proj"]
    assert layers["blocks.11"]


def test_an_improbable_class_is_diagnosed_in_the_answer_and_in_a_header(post, cat):
    assert "X-SeeWhy-Diagnostics" not in post(cat).headers
    response = post(cat, target="espresso", format="json")
    assert "improbable-target" in response.headers["X-SeeWhy-Diagnostics"]
    (explanation,) = response.get_json()["explanations"]
    assert "improbable-target" in {diagnostic["code"] for diagnostic in explanation["diagnostics"]}


def test_the_first_frame_of_several_is_diagnosed(post, cat):
    with Image.open(io.BytesIO(cat)) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").resize((64, 64)).save(
            buffer, "GIF", save_all=True, append_images=[picture], duration=100
        )
    assert "first-frame" in post(buffer.getvalue()).headers["X-SeeWhy-Diagnostics"].split(", ")


# Several methods, and contrasts


def test_several_methods_in_one_request_with_their_agreement(post, cat, client):
    fields = {"target": ["tabby", "lynx"], "sign": "signed", "layer": "bn2"}
    response = post(cat, method="gradcam,Saliency", format="json", **fields)
    answer = response.get_json()
    assert response.headers["X-SeeWhy-Method"] == "gradcam, saliency"
    assert response.headers["X-SeeWhy-Target"] == "281, 287"
    assert [entry["name"] for entry in answer["methods"]] == ["gradcam", "saliency"]
    assert answer["method"] == answer["methods"][0]
    pairs = [(explanation["method"], explanation["target"]["label"]) for explanation in answer["explanations"]]
    assert pairs == [(method, label) for label in ("tabby", "lynx") for method in ("gradcam", "saliency")]
    assert [(agreement["target"], agreement["methods"]) for agreement in answer["agreement"]] == [
        (281, ["gradcam", "saliency"]),
        (287, ["gradcam", "saliency"]),
    ]
    assert all(-1 <= agreement["rank_correlation"] <= 1 for agreement in answer["agreement"])
    again = post(cat, method="gradcam,saliency", format="json", **{**fields, "target": ["tabby", "281"]}).get_json()
    assert len(again["explanations"]) == 4
    assert [agreement["target"] for agreement in again["agreement"]] == [281]
    content = arrays(post(cat, method=["gradcam", "saliency"], format="npz", **fields))
    assert content["heatmaps"].shape == (4, 300, 451)
    assert content["methods"].tolist() == ["gradcam", "saliency"] * 2
    assert content["targets"].tolist() == [281, 281, 287, 287]
    assert (content["maps_0"].shape, content["maps_1"].shape) == ((7, 7), (224, 224))
    for number, method in enumerate(("gradcam", "saliency")):
        alone = {**fields, "target": "tabby"} if method == "gradcam" else {"target": "tabby", "sign": "signed"}
        expected = arrays(post(cat, method=method, format="npz", **alone))
        np.testing.assert_allclose(content["heatmaps"][number], expected["heatmaps"][0], rtol=1e-4, atol=1e-5)


def test_a_panel_of_methods_has_a_column_for_each(post, cat):
    with Image.open(io.BytesIO(post(cat, method="gradcam,saliency", target=["tabby", "lynx", "cup"]).data)) as panel:
        width, height = panel.size
    assert width == 2 * 451
    assert height > 3 * 300


def test_a_contrast(post, cat, lite0):
    fields = {"target": "tabby", "sign": "signed", "format": "npz"}
    tabby, tiger = (arrays(post(cat, **{**fields, "target": label}))["maps"] for label in ("tabby", "tiger cat"))
    response = post(cat, against="tiger cat", **fields)
    np.testing.assert_allclose(arrays(response)["maps"], tabby - tiger, rtol=1e-3, atol=1e-5)
    assert response.headers["X-SeeWhy-Against"] == "tiger cat"
    assert response.headers["X-SeeWhy-Target"] == "281"
    answer = post(cat, target="tabby", against="282", format="json").get_json()
    assert answer["explanations"][0]["against"]["label"] == "tiger cat"
    python = explain(lite0, cat, target="tabby", against="tiger cat", sign="signed")
    assert python.against.label == "tiger cat"
    np.testing.assert_allclose(python.map, tabby[0] - tiger[0], rtol=1e-3, atol=1e-5)


def test_smoothing_composes(post, cat):
    plain, eigen, tta = (
        arrays(post(cat, smooth=smooth, target="tabby", format="npz"))["maps"] for smooth in ("none", "eigen", "tta")
    )
    assert plain.shape == eigen.shape == tta.shape
    for heatmap in (eigen, tta):
        assert heatmap.max() > 0
        assert np.corrcoef(plain.ravel(), heatmap.ravel())[0, 1] > 0.5
        assert not np.allclose(plain, heatmap)


def test_regions_with_their_classes(post, coffee):
    answer = post(coffee, method="dff", concepts="3", target="espresso", format="json").get_json()
    regions = answer["explanations"][0]["regions"]
    assert len(regions) == 3
    assert regions[0]["predictions"][0]["label"] == "espresso"
    assert regions[0]["gain"] > regions[1]["gain"]
    content = arrays(post(coffee, method="dff", concepts="3", target="espresso", format="npz"))
    assert content["regions"].shape == (1, 3, 7, 7)
    np.testing.assert_array_equal(content["regions"][0, 0], content["maps"][0])
    with Image.open(io.BytesIO(post(coffee, method="gradcam,dff", concepts="3").data)) as panel:
        assert panel.width == 2 * 600
    with Image.open(io.BytesIO(post(coffee, method="dff", concepts="3", target="espresso").data)) as panel:
        assert panel.width > 400


def test_the_contrast_is_left_out_of_the_most_probable_classes(post, cat):
    best = post(cat, format="json", top="3").get_json()["explanations"]
    second = best[1]["target"]["label"]
    explanations = post(cat, format="json", top="3", against=second).get_json()["explanations"]
    assert [explanation["target"]["label"] for explanation in explanations] == [
        best[0]["target"]["label"],
        best[2]["target"]["label"],
    ]
    refused = post(cat, against=best[0]["target"]["label"])
    assert refused.status_code == 422
    assert [error["field"] for error in refused.get_json()["errors"]] == ["against"]
