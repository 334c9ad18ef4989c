import base64
import gzip
import io
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from seewhy.app.pipeline.options import ExplainOptions
from tests import nets
from tests.app.conftest import encoded
from tests.app.serving import declare


def problem(response, status):
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/problem+json"
    body = response.get_json()
    assert body["status"] == status
    assert {"type", "title", "status", "detail"} <= set(body)
    assert body["type"].startswith("urn:seewhy:problem:")
    return body


def refused(response):
    """Return status, code and the fields at fault."""
    body = problem(response, response.status_code)
    return body["status"], body["type"].rpartition(":")[2], [error["field"] for error in body.get("errors", [])]


def faults(body):
    return {fault["field"] for fault in body["errors"]}


@pytest.mark.parametrize("path", ["/explain", "/predict"])
def test_no_picture(client, path):
    for data, words in (({}, "curl"), ({"model": "efficientnet_lite0"}, "There is no picture.")):
        detail = problem(client.post(path, data=data, content_type="multipart/form-data"), 400)["detail"]
        assert words in detail
    problem(client.post(path), 400)
    problem(client.post(path, json={}), 400)
    problem(client.post(path, data=b"", content_type="image/png"), 400)
    problem(client.post(path, data={"image": "not a file"}, content_type="multipart/form-data"), 400)


FORMS = ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"]


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_that_says_what_it_is_needs_no_content_type(client, cat, form):
    picture = encoded(Image.open(io.BytesIO(cat)).convert("RGB").resize((60, 40)), form)
    for kind in ("application/x-www-form-urlencoded", "application/octet-stream", None):
        response = client.post("/predict?top=2", data=picture, content_type=kind)
        assert response.status_code == 200, response.text
        assert len(response.get_json()["predictions"]) == 2
    hint = "is not supported for a body of text. Send it as the multipart file field"
    for body in (b"image=abc", b'{"image": "abc"}'):
        for kind in ("application/x-www-form-urlencoded", None):
            assert hint in problem(client.post("/predict", data=body, content_type=kind), 415)["detail"]
    body = problem(client.post("/predict", data=picture[4:]), 415)
    assert body["detail"] == "This is not a readable picture; use a JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF file."
    assert "second picture" in problem(client.post("/similar", data=picture), 400)["detail"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("HEIC", bytes([0, 0, 0, 24]) + b"ftypheic" + bytes(40)),
        ("HEIC", bytes([0, 0, 0, 24]) + b"ftypmif1" + bytes(40)),
        ("PDF", b"%PDF-1.7 and so on"),
        ("SVG", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"></svg>'),
    ],
)
def test_files_of_other_formats_are_to_be_converted(client, kind, body):
    for declared in (None, "image/png"):
        detail = problem(client.post("/predict", data=body, content_type=declared), 415)["detail"]
        assert detail.endswith(f"BMP or TIFF file. It is {kind}: convert it to JPEG or PNG first.")


def test_a_damaged_avif_is_no_heic(client):
    body = bytes([0, 0, 0, 24]) + b"ftypmif1" + bytes(4) + b"avifmif1" + bytes(40)
    assert problem(client.post("/predict", data=body), 415)["detail"].endswith("BMP or TIFF file.")


@pytest.mark.parametrize("name", ["target", "method", "model", "layer", "view", "samples", "proof"])
def test_an_empty_value_is_an_error_but_for_blank_fields_of_forms(client, post, cat, name):
    picture = base64.b64encode(cat).decode()
    for response in (
        client.post(f"/explain?{name}=", data=cat, content_type="image/png"),
        client.post("/explain", json={"image": picture, name: ""}),
        client.post("/explain", json={"image": picture, name: []}),
        client.post(f"/explain?{name}=", data={"image": (io.BytesIO(cat), "cat.png")}),
    ):
        (fault,) = problem(response, 422)["errors"]
        assert fault == {"field": name, "message": "It is empty; give a value, or leave the option out."}
    assert post(cat, **{name: ""}).status_code == 200
    assert client.post("/explain", json={"image": picture, name: None}).status_code == 200


def test_an_empty_value_among_others_is_an_error_and_so_are_those_of_other_protocols(client, cat):
    assert refused(client.post("/explain?layer=bn2&layer=", data=cat))[2] == ["layer"]
    assert refused(client.post("/explain?unheard=", data=cat))[2] == ["unheard"]
    assert "It is empty; give a value." in client.post("/hooks/capture?layer=", data=cat).text
    body = {"instances": [base64.b64encode(cat).decode()], "parameters": {"target": ""}}
    assert "It is empty" in client.post("/v1/models/efficientnet_lite0:explain", json=body).text
    assert "It is empty" in client.post("/predictions/efficientnet_lite0?top=", data=cat).text


def test_a_method_or_metric_is_given_once(client, post, cat):
    for methods in ("gradcam,gradcam", ["gradcam", "GradCAM"]):
        response = post(cat, method=methods)
        assert refused(response) == (422, "bad-option", ["method"])
        assert "'gradcam' is given twice" in response.json["detail"]
    assert "is given twice" in post(cat, "/evaluate", method="cam,cam").json["detail"]
    assert "is given twice" in post(cat, "/evaluate", metrics="sparseness,sparseness").json["detail"]


def test_a_body_that_cannot_be_parsed_says_what_to_do(client):
    response = client.post("/predict", data=b"{image: 1}", content_type="application/json")
    assert "curl --json @request.json" in problem(response, 400)["detail"]
    response = client.post("/predict", data=b"abc", content_type="image/png", headers={"Content-Encoding": "gzip"})
    assert "compress it, or leave that header out." in problem(response, 400)["detail"]


@pytest.mark.parametrize(
    ("verb", "path", "status", "detail"),
    [
        ("PUT", "/predict", 405, "supports OPTIONS, POST. Send a picture in a POST request: curl --data-binary"),
        ("PUT", "/predict/cat.png", 404, "curl -T appends the name of the file to an address that ends in a slash."),
        ("POST", "/predict/", 404, "leave out the slash at its end."),
        ("GET", "/models/", 404, "leave out the slash at its end."),
        ("POST", "/predct/", 404, "GET /openapi.json lists the paths."),
        ("PUT", "/nowhere/cat.png", 404, "GET /openapi.json lists the paths."),
        ("POST", "/predict/cat.png", 404, "GET /openapi.json lists the paths."),
        ("DELETE", "/predict", 405, "This path supports OPTIONS, POST."),
        ("PUT", "/models", 405, "This path supports GET, HEAD, OPTIONS."),
    ],
)
def test_errors_about_paths_say_what_to_do(client, cat, verb, path, status, detail):
    text = problem(client.open(path, method=verb, data=cat), status)["detail"]
    assert detail in text
    assert ("curl" in text) == ("curl" in detail)


@pytest.mark.parametrize(("content", "detail"), [(b"", "empty"), (b"hello, I am no picture", "JPEG, PNG")])
def test_what_is_no_picture(post, content, detail):
    body = problem(post(content), 415)
    assert faults(body) == {"image"}
    assert detail in body["detail"]


def test_memory_that_does_not_suffice_for_a_picture_says_so(post, cat, monkeypatch):
    monkeypatch.setattr("seewhy.app.pipeline.decode.Probe", Mock(side_effect=MemoryError))
    body = problem(post(cat), 503)
    assert body["type"].endswith(":out-of-memory")
    assert "try again" in body["detail"]


def test_weights_that_are_not_at_hand(post, cat):
    response = post(cat, model="resnet50")
    body = problem(response, 503)
    assert "SEEWHY_WEIGHTS_DIR" in body["detail"]
    assert int(response.headers["Retry-After"]) > 0


def test_ambiguous_label_names_the_classes(post, cat):
    body = problem(post(cat, target="CARDIGAN"), 422)
    assert "264" in body["detail"]
    assert "474" in body["detail"]
    assert post(cat, target="Cardigan").headers["X-SeeWhy-Target"] == "264"  # the dog
    assert post(cat, target="cardigan").headers["X-SeeWhy-Target"] == "474"  # the knitwear


@pytest.mark.parametrize(
    ("field", "value", "detail"),
    [
        ("model", "resnet5O", "resnet50"),
        ("model", ["efficientnet_lite0", "mobilenet_v2"], ""),
        ("layer", "blocks.66", "blocks.6"),
        ("layer", "classifier", ""),
        ("layer", "global_pool", ""),
        ("target", "tiger kat", "tiger cat"),
        ("target", "1000", "0 to 999"),
        ("target", "-1", "0 to 999"),
        ("target", "1000000000000", "0 to 999"),
        ("against", "tiger kat", "tiger cat"),
        ("against", ["1", "2"], ""),
        ("method", "gradcan", "gradcam"),
        ("method", "gradcam,nope", ""),
        ("method", ",", ""),
        ("alpha", "2", "less than or equal to 1"),
        ("alpha", "nan", ""),
        ("alpha", "much", ""),
        ("view", "sideways", ""),
        ("colormap", "jet", ""),
        ("colormap", ["inferno", "viridis"], ""),
        ("format", "gif", ""),
        ("scale", "1", ""),
        ("scale", "2,1", ""),
        ("scale", "nan,1", ""),
        ("scale", "0,inf", ""),
        ("sign", "both", ""),
        ("smooth", "more", ""),
        ("top", "0", ""),
        ("top", "many", ""),
        ("top", "17", ""),
        ("values", "perhaps", ""),
        ("samples", "3", ""),
        ("alhpa", "0.5", "alpha"),
        ("layers", "bn2", ""),
    ],
)
def test_a_bad_value_or_option_names_its_field_and_near_matches(post, cat, field, value, detail):
    body = problem(post(cat, **{field: value}), 422)
    assert faults(body) == {field}
    assert len(body["detail"]) > 10
    assert detail in body["detail"].removeprefix(field)


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"target": "tabby", "top": "2"}, "top", "not both"),
        ({"method": "gradcam,saliency", "target": [str(index) for index in range(9)]}, "method", ""),
        ({"method": "gradcam,saliency", "samples_of": "3"}, "samples_of", ""),
        ({"method": "saliency", "layer": "bn2"}, "layer", ""),
        ({"target": "tabby", "against": "281"}, "against", ""),
    ],
)
def test_options_that_cannot_be_together(post, cat, fields, field, detail):
    body = problem(post(cat, **fields), 422)
    assert faults(body) == {field}
    assert detail in body["detail"]


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"foo": {"a": 1}}, "foo: There is no such option."),
        ({"alhpa": [1, {}]}, "alhpa: There is no such option. Near matches: alpha."),
        ({"sampels": {"a": 1}}, "sampels: There is no such option. Near matches: samples."),
        ({"target": "a" * 201}, "target: It is too long; at most 200 characters are allowed."),
        ({"target": 1.5}, "target: It must be an integer or text."),
        ({"target": {}}, "target: It must be an integer or text."),
        ({"against": {}}, "against: It must be an integer or text."),
        ({"layer": 1.5}, "layer: It must be text."),
        ({"values": "MAP"}, "values: It must be true, false or 'map'."),
        ({"proof": "FULL"}, "proof: It must be true, false or 'full'."),
        ({"scale": {}}, "scale: It must be 'image', 'robust' or two numbers lo,hi."),
        ({"scale": "a,b"}, "scale: It must be a number."),
        ({"samples": {}}, "samples: It must be text, an integer, a number, true, false or a list."),
        ({"samples": [[1]]}, "samples: It must be text, an integer, a number, true or false."),
        ({"alpha": "nan"}, "alpha: It must be a finite number."),
        ({"method": "rise", "probability": "nan"}, "Option 'probability' of method 'rise': It must be a finite"),
    ],
)
def test_what_is_said_of_an_option_is_what_is_wrong_with_it(client, cat, options, detail):
    body = {"image": base64.b64encode(cat).decode(), **options}
    assert problem(client.post("/explain", json=body), 422)["detail"].startswith(detail)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc', "boundary=b"),
        (b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc\r\n--b--', "boundary=c"),
        (gzip.compress(b"--b--"), "boundary=b"),
    ],
    ids=["cut short", "another boundary", "compressed"],
)
def test_a_form_that_cannot_be_read_is_told_as_such(client, body, kind):
    answer = client.post("/explain", data=body, content_type=f"multipart/form-data; {kind}")
    assert "The form" in problem(answer, 400)["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", 2.5),
        ("target", True),
        ("layer", 3),
        ("alpha", "x"),
        ("model", 5),
        ("scale", [1]),
        ("image", "%%%"),
        ("image", 7),
        ("image", "https://example.org/cat.jpg"),
    ],
)
def test_json_with_values_of_wrong_types(client, cat, field, value):
    image = base64.b64encode(cat).decode()
    body = problem(client.post("/explain", json={"image": image, field: value}), 422)
    assert faults(body) == {field}
    assert ("Addresses and paths are not opened" in body["detail"]) is str(value).startswith("https:")


def test_body_that_carries_no_picture(client, cat):
    assert "image" in problem(client.post("/explain", data=cat, content_type="text/plain"), 415)["detail"]


def test_two_pictures(client, cat):
    data = {"image": [(io.BytesIO(cat), "a.png"), (io.BytesIO(cat), "b.png")]}
    problem(client.post("/explain", data=data, content_type="multipart/form-data"), 422)


def test_answer_of_too_many_numbers(cat, app_of):
    client = app_of(max_values=100_000, max_json_values=100_000).test_client()
    for fields in ({"format": "npz"}, {"format": "json", "values": "1"}):
        response = client.post("/explain", data={"image": (io.BytesIO(cat), "cat.png"), **fields})
        assert "100,000" in problem(response, 413)["detail"]


def test_unknown_paths_and_methods(client):
    problem(client.get("/nowhere"), 404)
    assert "resnet50" in problem(client.get("/models/resnet5O"), 404)["detail"]
    problem(client.get("/models/nothing/layers"), 404)
    response = client.get("/explain")
    problem(response, 405)
    assert "POST" in response.headers["Allow"]
    assert faults(problem(client.get("/models?source=hub"), 422)) == {"source"}


def test_a_failure_of_ours_tells_nothing_about_the_inside_and_is_found_in_the_log_by_its_id(
    service, client, monkeypatch, caplog, cat
):
    monkeypatch.setattr(service, "explain", Mock(side_effect=RuntimeError("/secret/path is broken")))
    data = {"image": (io.BytesIO(cat), "cat.png")}
    response = client.post("/explain", data=data, headers={"X-Request-ID": "find-me"})
    body = problem(response, 500)
    assert body["detail"].startswith("The server has logged the cause.")
    for inside in ("secret", "Traceback", "RuntimeError", ".py", "broken"):
        assert inside not in response.get_data(as_text=True)
    assert body["instance"] == "urn:seewhy:request:find-me"
    assert "Request find-me failed" in [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_an_error_changes_nothing(post, cat, service):
    before = post(cat).data
    module = service.models.engine.loaded("efficientnet_lite0")
    for fields in ({"layer": "classifier"}, {"target": "nothing"}, {"sign": "both"}):
        assert post(cat, **fields).status_code == 422
    assert post(cat).data == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.module.modules())


@pytest.mark.parametrize("field", ["model", "method", "target", "layer", "colormap", "sign", "x" * 5000])
def test_endless_names_are_refused_and_not_echoed(client, cat, field):
    image = base64.b64encode(cat).decode()
    response = client.post("/explain", json={"image": image, field: "a" * 100_000})
    problem(response, 422)
    assert len(response.data) < 20_000


def test_the_same_option_in_the_query_and_in_the_form(client, cat):
    data = {"image": (io.BytesIO(cat), "cat.png"), "target": "tabby"}
    assert faults(problem(client.post("/explain?target=cup", data=data), 422)) == {"target"}


def test_null_is_the_default(client, cat):
    image = base64.b64encode(cat).decode()
    nothing = dict.fromkeys([*ExplainOptions.model_fields, "sign"])
    assert client.post("/explain", json={"image": image, **nothing}).status_code == 200


def test_a_star_for_the_etag_is_no_answer(client):
    headers = {"If-None-Match": "*"}
    problem(client.post("/explain?nonsense=1", data=b"x", content_type="image/png", headers=headers), 422)


def test_an_etag_ends_with_the_declaration_it_came_from(tmp_path, cat, app_of):
    torch.save(nets.seeded(nets.Net).state_dict(), tmp_path / "w.pth")
    tags = []
    for labels in (["a", "b", "c"], ["b", "a", "c"]):
        client = app_of(models=declare(tmp_path, labels=labels)).test_client()
        data = {"image": (io.BytesIO(cat), "cat.png"), "model": "mine"}
        tags.append(client.post("/explain", data=data).headers["ETag"])
    assert tags[0] != tags[1]


def test_characters_that_no_encoding_has(client, cat):
    body = {"\ud800": 1, "image": base64.b64encode(cat).decode()}
    problem(client.post("/explain", json=body), 422)


def test_misspelt_option_of_predict(post, cat):
    body = problem(post(cat, "/predict", topp="3"), 422)
    assert faults(body) == {"topp"}
    assert "top" in body["detail"].removeprefix("topp")


@pytest.mark.parametrize("name", ["file", "img"])
def test_a_picture_under_another_name_is_told_the_right_one(client, cat, name):
    body = problem(client.post("/explain", data={name: (io.BytesIO(cat), "cat.png")}), 422)
    assert faults(body) == {name}
    assert f"is 'image', not '{name}'" in body["detail"]
