"""The Open Inference Protocol."""

import base64
import io
import json
import struct
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from seewhy.app.compatible.inference import read_request
from seewhy.app.compatible.outputs import predicted_tensors
from seewhy.app.compatible.schemas import V2RequestedOutput
from seewhy.app.compatible.tensors import HEADER
from seewhy.app.errors import FieldError
from seewhy.app.http.in_flight import Admission
from seewhy.app.memory import account
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import MemoryBudget

MODEL = "efficientnet_lite0"


def test_the_configuration_has_the_tensors_of_a_model_without_the_axis_of_pictures(client, app):
    configuration = client.get(f"/v2/models/{MODEL}/config").get_json()
    assert client.get(f"/v2/models/{MODEL}/versions/1/config").get_json() == configuration
    assert configuration["max_batch_size"] == app.extensions["seewhy"].settings.max_instances
    assert configuration["input"] == [
        {"name": "image", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        {"name": "pixels", "data_type": "TYPE_UINT8", "dims": [-1, -1, 3], "optional": True},
        {"name": "input", "data_type": "TYPE_FP32", "dims": [3, 224, 224], "optional": True},
    ]
    described = client.get(f"/v2/models/{MODEL}").get_json()
    assert [row["name"] for row in configuration["output"]] == [row["name"] for row in described["outputs"]]
    assert configuration["output"][0] == {"name": "logits", "data_type": "TYPE_FP32", "dims": [1000]}
    assert configuration["platform"] == described["platform"]
    for path in (f"{MODEL}/versions/2/config", "no/such/config"):
        assert client.get(f"/v2/models/{path}").status_code == 404
    assert "model_configuration" in client.get("/v2").get_json()["extensions"]


def test_the_statistics_of_a_model_are_those_of_its_metrics(client, text):
    def statistics(path=f"/v2/models/{MODEL}/stats"):
        (row,) = client.get(path).get_json()["model_stats"]
        return row

    def ask(count, **parameters):
        tensor = {"name": "image", "datatype": "BYTES", "shape": [count], "data": [text] * count}
        body = {"inputs": [tensor], "parameters": parameters}
        return client.post(f"/v2/models/{MODEL}/infer", json=body).status_code

    def durations(row):
        return {"executions": {"count": row["execution_count"], "ns": 0}, **row["inference_stats"]}

    before, began = statistics(), time.time_ns()
    assert (ask(1), ask(2), ask(1, top=0)) == (200, 200, 400)
    after, took = statistics(f"/v2/models/{MODEL}/versions/1/stats"), time.time_ns() - began
    assert (after["name"], after["version"]) == (MODEL, "1")
    assert after["inference_count"] - before["inference_count"] == 3
    assert began // 10**6 <= after["last_inference"] <= time.time_ns() // 10**6
    counts = {name: value["count"] - durations(before)[name]["count"] for name, value in durations(after).items()}
    executions = counts.pop("executions")
    assert executions in (2, 3)  # the two pictures of one request can pass together
    assert counts == {
        "success": 2, "fail": 0, "queue": 2, "compute_input": 2, "compute_infer": 2, "compute_output": 0
    }  # fmt: skip  # the wrong option is refused before the model is looked up
    spent = {name: value["ns"] - durations(before)[name]["ns"] for name, value in durations(after).items()}
    assert min(spent["compute_infer"], spent["compute_input"]) > 0
    assert 0 < spent["success"] < took
    sizes = {row["batch_size"]: row["compute_infer"]["count"] for row in after["batch_stats"]}
    assert sum(sizes.values()) == after["execution_count"]
    assert sum(size * count for size, count in sizes.items()) == after["inference_count"]
    assert "statistics" in client.get("/v2").get_json()["extensions"]


def test_what_fails_is_no_success_and_what_only_describes_a_model_neither(client, text):
    def statistics():
        (row,) = client.get(f"/v2/models/{MODEL}/stats").get_json()["model_stats"]
        return row

    before = statistics()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    for parameters in ({"layer": "classifier"}, {"target": 5000}):  # the first fails as it runs
        body = {"inputs": [tensor], "parameters": parameters}
        assert client.post(f"/v2/models/{MODEL}/explain", json=body).status_code == 400
    assert client.get(f"/models/{MODEL}/layers").status_code == 200
    after = statistics()
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"] + 2
    assert after["inference_stats"]["success"] == before["inference_stats"]["success"]
    assert (after["execution_count"], after["batch_stats"]) == (before["execution_count"], before["batch_stats"])


def test_a_batch_of_many_passes_counts_once_and_an_answer_that_has_not_changed_not_at_all(client, cat, post):
    def statistics():
        (row,) = client.get(f"/v2/models/{MODEL}/stats").get_json()["model_stats"]
        return row["execution_count"], *(row["inference_stats"][part]["count"] for part in ("success", "fail"))

    executions, successes, failures = statistics()
    first = post(cat, method="rise", samples="40")
    assert statistics() == (executions + 1, successes + 1, failures)
    again = post(cat, method="rise", samples="40", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert statistics() == (executions + 1, successes + 1, failures)


def test_the_statistics_of_all_models_are_those_that_were_used(client, text):
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    assert client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]}).status_code == 200
    rows = {row["name"]: row for row in client.get("/v2/models/stats").get_json()["model_stats"]}
    assert rows[MODEL]["execution_count"] > 0
    (unused,) = client.get("/v2/models/vgg11/stats").get_json()["model_stats"]
    assert "vgg11" not in rows
    assert (unused["last_inference"], unused["execution_count"], unused["batch_stats"]) == (0, 0, [])
    assert all(value == {"count": 0, "ns": 0} for value in unused["inference_stats"].values())
    assert client.get("/v2/models/no/such/stats").status_code == 404
    assert client.get(f"/v2/models/{MODEL}/versions/2/stats").status_code == 404


def test_statistics_are_work_that_is_refused_if_there_are_too_many_requests(client, monkeypatch):
    monkeypatch.setattr(Admission, "admit", lambda self: False)
    for path in ("/v2/models/stats", f"/v2/models/{MODEL}/stats", f"/v2/models/{MODEL}/versions/1/stats"):
        assert client.get(path).status_code == 503
    assert client.get("/metrics").status_code == 200


def test_binary_numbers_are_not_copied_and_items_are_counted():
    def parse(datatype, shape, binary):
        entry = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(binary)}}
        head = json.dumps({"inputs": [entry]}).encode()
        body = head + binary
        budget = MemoryBudget(10**6)
        account.begin(Account(budget))
        try:
            return body, read_request(body, str(len(head))).tensor, budget.occupancy
        finally:
            account.begin(account.Account(account.UNLIMITED))

    body, numbers, _ = parse("UINT8", [100, 100, 3], bytes(30_000))
    assert np.shares_memory(numbers, np.frombuffer(body, np.uint8))
    _, empty, least = parse("BYTES", [1], struct.pack("<I", 0))
    _, items, counted = parse("BYTES", [1], struct.pack("<I", 50_000) + bytes(50_000))
    assert (empty, items) == ([b""], [bytes(50_000)])
    assert 50_000 <= counted - least < 50_100


@pytest.fixture
def text(cat):
    return base64.b64encode(cat).decode()


@pytest.fixture
def pixels(cat):
    return np.asarray(Image.open(io.BytesIO(cat)).convert("RGB"))


@pytest.fixture
def ask(client):
    def run(body, verb="infer", name=MODEL):
        return client.post(f"/v2/models/{name}/{verb}", json=body)

    return run


@pytest.fixture
def ask_binary(client):
    """Post a request whose tensor is binary; `length` replaces the length said of it, `size` that of the JSON."""

    def run(array, datatype, verb="infer", shape=None, length=None, size=None, tail=b"", **members):
        binary = array if isinstance(array, bytes) else array.tobytes()
        shape = list(array.shape) if shape is None else shape
        parameters = {"binary_data_size": len(binary) if length is None else length}
        body = {"name": "x", "shape": shape, "datatype": datatype, "parameters": parameters}
        head = json.dumps({"inputs": [body], **members}).encode()
        headers = {HEADER: str(len(head) if size is None else size)}
        return client.post(f"/v2/models/{MODEL}/{verb}", data=head + binary + tail, headers=headers)

    return run


def tensor(text, **members):
    return {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]} | members]}


def outputs(response):
    assert response.status_code == 200, response.get_data(as_text=True)
    return {output["name"]: output for output in response.get_json()["outputs"]}


def binary_outputs(response):
    """Decode an answer by the letter of the protocol."""
    assert response.status_code == 200, response.get_data(as_text=True)
    length = int(response.headers[HEADER])
    rest, actual = response.data[length:], {}
    for output in json.loads(response.data[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        part, rest = rest[:size], rest[size:]
        if output["datatype"] == "BYTES":
            actual[output["name"]] = []
            while part:
                (count,) = struct.unpack("<I", part[:4])
                actual[output["name"]].append(part[4 : 4 + count])
                part = part[4 + count :]
        else:
            dtype = {"FP32": "<f4", "INT64": "<i8"}[output["datatype"]]
            actual[output["name"]] = np.frombuffer(part, dtype).reshape(output["shape"])
    assert rest == b""
    return actual


def refused(response, status=400):
    assert response.status_code == status, response.get_data(as_text=True)
    assert set(response.get_json()) == {"error"}
    return response.get_json()["error"]


def test_server_and_models(client):
    assert set(client.get("/v2").get_json()) == {"name", "version", "extensions"}
    assert client.get("/v2/health/live").get_json() == {"live": True}
    assert client.get("/v2/health/ready").status_code in (200, 503)
    assert MODEL in client.get("/v2/models").get_json()["models"]
    for path in (f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/versions/1"):
        document = client.get(path).get_json()
        assert (document["name"], document["versions"]) == (MODEL, ["1"])
        assert [item["datatype"] for item in document["inputs"]] == ["BYTES", "UINT8", "FP32"]
        assert document["outputs"][0] == {"name": "logits", "datatype": "FP32", "shape": [-1, 1000]}
        assert client.get(f"{path}/ready").get_json() == {"name": MODEL, "ready": True}
    assert client.get("/v2/models/timm/resnet50/ready").status_code == 503


def test_inference(ask, text, post, cat):
    response = ask(tensor(text) | {"id": "seven", "parameters": {"top": 2}})
    tensors = outputs(response)
    assert {name: (output["datatype"], output["shape"]) for name, output in tensors.items()} == {
        "logits": ("FP32", [1, 1000]),
        "probabilities": ("FP32", [1, 1000]),
        "indices": ("INT64", [1, 2]),
        "classes": ("BYTES", [1, 2]),
    }
    assert tensors["classes"]["data"] == ["tiger cat", "Egyptian cat"]
    assert tensors["indices"]["data"] == [282, 285]
    answer = response.get_json()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("seven", MODEL, "1")
    best = post(cat, "/predict").get_json()["predictions"][0]
    assert tensors["probabilities"]["data"][282] == pytest.approx(best["probability"], abs=1e-5)


def test_versions_of_the_path(client, text):
    assert client.post(f"/v2/models/{MODEL}/versions/1/infer", json=tensor(text)).status_code == 200
    assert "no version '2'" in refused(client.post(f"/v2/models/{MODEL}/versions/2/infer", json=tensor(text)), 404)
    refused(client.get(f"/v2/models/{MODEL}/versions/2"), 404)


def test_arrays_in_each_layout_and_encoding_say_the_same(ask, ask_binary, pixels, text, lite0, cat):
    expected = np.array(outputs(ask(tensor(text)))["logits"]["data"])
    batch = pixels[np.newaxis]
    input_ = lite0.preprocess(Image.open(io.BytesIO(cat)).convert("RGB")).numpy()[np.newaxis]
    options = {"outputs": [{"name": "logits"}]}
    responses = [
        ask_binary(batch, "UINT8", **options),
        ask_binary(pixels, "UINT8", **options),
        ask_binary(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)), "UINT8", **options),
        ask_binary(batch.astype("<i8"), "INT64", **options),
        ask_binary((batch / 255).astype("<f4"), "FP32", parameters={"range": "unit"}, **options),
        ask_binary(input_.astype("<f4"), "FP32", **options),
        ask_binary(np.ascontiguousarray(input_.transpose(0, 2, 3, 1)).astype("<f8"), "FP64", **options),
        ask(tensor(None, shape=list(batch.shape), datatype="UINT8", data=batch.ravel().tolist()) | options),
        ask(tensor(None, shape=list(input_.shape), datatype="FP32", data=input_.tolist()) | options),
    ]
    for response in responses:
        np.testing.assert_allclose(outputs(response)["logits"]["data"], expected, atol=1e-3)
    half = outputs(ask_binary(input_.astype("<f2"), "FP16", **options))["logits"]["data"]
    np.testing.assert_allclose(half, expected, atol=0.1)


def test_binary_in_and_out(ask_binary, cat, coffee):
    encoded = b"".join(struct.pack("<I", len(picture)) + picture for picture in (cat, coffee))
    tensors = binary_outputs(
        ask_binary(encoded, "BYTES", shape=[2, 1], parameters={"binary_data_output": True, "priority": 3, "timeout": 9})
    )
    assert tensors["logits"].shape == (2, 1000)
    assert tensors["indices"][:, 0].tolist() == [282, 967]
    assert [tensors["classes"][0], tensors["classes"][5]] == [b"tiger cat", b"espresso"]
    mixed = ask_binary(
        encoded,
        "BYTES",
        shape=[2],
        parameters={"binary_data_output": True},
        outputs=[{"name": "classes", "parameters": {"binary_data": False}}],
    )
    assert HEADER not in mixed.headers
    assert outputs(mixed)["classes"]["data"][0] == "tiger cat"


def test_classification_extension(ask, text):
    requested = [{"name": name, "parameters": {"classification": 2}} for name in ("probabilities", "logits")]
    tensors = outputs(ask(tensor(text) | {"outputs": requested}))
    assert tensors["probabilities"]["shape"] == [1, 2]
    assert [row.split(":")[1:] for row in tensors["logits"]["data"]] == [["282", "tiger cat"], ["285", "Egyptian cat"]]
    assert 0.39 < float(tensors["probabilities"]["data"][0].split(":")[0]) < 0.4


def test_explanation(ask, text, post, cat):
    parameters = {"target": ["tabby", "lynx"]}
    tensors = outputs(ask(tensor(text) | {"parameters": parameters}, "explain"))
    with np.load(io.BytesIO(post(cat, format="npz", **parameters).data)) as expected:
        for name in ("maps", "heatmaps", "targets"):
            values = np.array(tensors[name]["data"]).reshape(tensors[name]["shape"])
            np.testing.assert_allclose(values[0], expected[name], atol=1e-3)
    assert tensors["labels"]["data"] == ["tabby", "lynx"]
    assert tensors["methods"]["shape"] == tensors["probabilities"]["shape"] == [1, 2]


def test_explanations_of_several_pictures_binary(ask_binary, cat):
    encoded = (struct.pack("<I", len(cat)) + cat) * 3
    parameters = {"binary_data_output": True, "explain_parameters": {"top": 2}}
    tensors = binary_outputs(ask_binary(encoded, "BYTES", "explain", shape=[3], parameters=parameters))
    assert tensors["heatmaps"].shape == (3, 2, 300, 451)
    assert tensors["heatmaps"].max() == 1
    assert tensors["targets"].tolist() == [[282, 285]] * 3


def test_drawings_and_documents_for_who_asks(ask, text, pixels):
    options = {"outputs": [{"name": "overlays"}, {"name": "explanation"}]}
    tensors = outputs(ask(tensor(text) | options, "explain"))
    assert tensors["overlays"]["parameters"] == {"content_type": "base64"}
    image = Image.open(io.BytesIO(base64.b64decode(tensors["overlays"]["data"][0])))
    assert image.size == (451, 300)
    assert tensors["explanation"]["shape"] == [1]
    assert json.loads(tensors["explanation"]["data"][0])["explanations"][0]["target"]["label"] == "tiger cat"


def test_each_map_comes_with_its_proof(ask, text):
    options = {"parameters": {"proof": "true", "target": ["tabby", "lynx"]}}
    proofs = outputs(ask(tensor(text) | options, "explain"))["proofs"]
    assert (proofs["datatype"], proofs["shape"]) == ("BYTES", [1, 2])
    sentences = [json.loads(part)["sentence"] for part in proofs["data"]]
    assert ["'tabby'" in sentences[0], "'lynx'" in sentences[1]] == [True, True]
    for output, status in {"maps": 400, "explanation": 200, "proofs": 200}.items():
        response = ask(tensor(text) | options | {"outputs": [{"name": output}]}, "explain")
        assert response.status_code == status
    assert "needs the parameter `proof`" in refused(ask(tensor(text) | {"outputs": [{"name": "proofs"}]}, "explain"))


def test_pictures_of_several_sizes(ask, text, coffee):
    body = tensor(None, shape=[2], data=[text, base64.b64encode(coffee).decode()])
    assert "differ in size" in refused(ask(body, "explain"))
    tensors = outputs(ask(body | {"outputs": [{"name": "maps"}, {"name": "labels"}]}, "explain"))
    assert tensors["maps"]["shape"] == [2, 1, 7, 7]
    assert tensors["labels"]["data"] == ["tiger cat", "espresso"]
    methods = {"parameters": {"method": "gradcam,saliency"}, "outputs": [{"name": "maps"}]}
    assert "one method at a time" in refused(ask(tensor(text) | methods, "explain"))


def test_null_is_what_was_left_out(ask, text):
    """As clients write it that have all members of the protocol in a class."""
    body = tensor(text, parameters=None) | {"id": None, "parameters": None, "outputs": None}
    assert set(outputs(ask(body))) == {"logits", "probabilities", "indices", "classes"}
    tensors = outputs(ask(body | {"outputs": [{"name": "classes", "parameters": None}]}))
    assert tensors["classes"]["data"][0] == "tiger cat"
    assert len(outputs(ask(body | {"outputs": [{"name": "logits", "parameters": {"classification": None}}]}))) == 1


HOSTILE = [
    ({}, "inputs"),
    ([], "object"),
    (7, "object"),
    ({"inputs": None}, "inputs"),
    ({"inputs": []}, "Send one input"),
    ({"inputs": [{}]}, "inputs[0].name"),
    ({"inputs": tensor("AAAA")["inputs"] * 2}, "Send one input"),
    (tensor("AAAA", shape="1"), "inputs[0].shape"),
    (tensor("AAAA", shape=[1.5]), "inputs[0].shape[0]"),
    (tensor("AAAA", shape=[True]), "inputs[0].shape[0]"),
    (tensor("AAAA", shape=[-1]), "must be 1 or more"),
    (tensor("AAAA", shape=[0]), "must be 1 or more"),
    (tensor("AAAA", shape=[2**40]), "1 or more"),
    (tensor("AAAA", shape=[2**30] * 8), "items"),
    (tensor("AAAA", shape=[1] * 9), "inputs[0].shape"),
    (tensor("AAAA", shape=[2]), "has 2 items; data has 1"),
    (tensor("AAAA", datatype="bytez"), "Near matches: BYTES"),
    (tensor("AAAA", datatype="BOOL"), "There is no datatype"),
    (tensor("AAAA", datatype=3), "inputs[0].datatype"),
    (tensor("AAAA", data=None), "The input has no data"),
    (tensor("AAAA", data="AAAA"), "The input has no data"),
    (tensor("AAAA", data=[None]), "inputs[0].data[0]"),
    (tensor("AAAA", data=["?"]), "not valid base64"),
    (tensor("AAAA", data=[""]), "empty"),
    (tensor("AAAA"), "not a readable picture"),
    (tensor("AAAA", parameters={"binary_data_size": 4}), "binary_data_size is 4"),
    (tensor("AAAA", parameters={"binary_data_size": -1}), "binary_data_size is -1"),
    (tensor("AAAA", parameters={"shared_memory_region": "x"}), "Shared memory"),
    (tensor("AAAA", parameters=3), "parameters"),
    (tensor(None, shape=[1, 2, 2, 3], datatype="UINT8", data=[0] * 11), "has 12 numbers; data has 11"),
    (tensor(None, shape=[1, 2, 2, 3], datatype="UINT8", data=[0] * 11 + [256]), "outside 0 to 255"),
    (tensor(None, shape=[1, 2, 2, 3], datatype="UINT8", data=[0] * 11 + [0.5]), "integers"),
    (tensor(None, shape=[1, 2, 2, 3], datatype="UINT8", data=[0] * 11 + ["0"]), "only numbers"),
    (tensor(None, shape=[1, 2, 2, 3], datatype="FP32", data=[0.0] * 12), "normalised input"),
    (tensor(None, shape=[12], datatype="FP32", data=[0.0] * 12), "is not a batch of pictures"),
    (tensor(None, shape=[], datatype="UINT8", data=[1]), "is not a batch of pictures"),
    (tensor("AAAA") | {"id": 7}, "id"),
    (tensor("AAAA") | {"parameters": 7}, "parameters"),
    (tensor("AAAA") | {"parameters": {"model": "x"}}, "The path names the model"),
    (tensor("AAAA") | {"parameters": {"tob": 1}}, "tob"),
    (tensor("AAAA") | {"parameters": {"explain_parameters": 1}}, "explain_parameters"),
    (tensor("AAAA") | {"parameters": {"binary_data_output": "yes"}}, ""),
    (tensor("AAAA") | {"outputs": [{"name": "map"}]}, "There is no output 'map'"),
    (tensor("AAAA") | {"outputs": [{"name": "logits"}] * 2}, "requested twice"),
    (tensor("AAAA") | {"outputs": 3}, "outputs"),
]


@pytest.mark.parametrize(("body", "message"), HOSTILE)
def test_a_mistake_is_told(ask, body, message):
    assert message in refused(ask(body, ("infer", "explain")[len(message) % 2]))  # which read requests alike


@pytest.mark.parametrize("count", [0, -1, 1001, "2", True, 1.5])
def test_bad_classifications(ask, text, count):
    requested = {"name": "logits", "parameters": {"classification": count}}
    assert "1 to 1000" in refused(ask(tensor(text) | {"outputs": [requested]}))


@pytest.mark.parametrize("verb", ["infer", "explain"])
def test_lies_about_binary_data_are_told(ask_binary, client, verb):
    grey = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    lies = [
        ask_binary(grey, "UINT8", verb, length=11),
        ask_binary(grey, "UINT8", verb, length=-12),
        ask_binary(grey, "UINT8", verb, length="12"),
        ask_binary(grey, "UINT8", verb, length=True),
        ask_binary(grey, "UINT8", verb, length=2**70),
        ask_binary(grey, "UINT8", verb, tail=b"more"),
        ask_binary(grey, "UINT8", verb, shape=[2**31 - 1] * 8),
        ask_binary(grey, "FP32", verb),
        ask_binary(b"\x05", "BYTES", verb, shape=[1]),
        ask_binary(b"\xff\xff\xff\xff", "BYTES", verb, shape=[1]),
        ask_binary(b"", "BYTES", verb, shape=[1]),
        ask_binary(b"\0\0\0\0", "BYTES", verb, shape=[1]),
        ask_binary(b"\0\0\0\0" * 5000, "BYTES", verb, shape=[5000], length=20_000),
        *(ask_binary(grey, "UINT8", verb, size=size) for size in (0, -1, 3, 10**9, "9" * 5000, "abc", "", "１")),
    ]
    for number, response in enumerate(lies):
        assert response.status_code in (400, 413), number
        assert set(response.get_json()) == {"error"}, number
    body = json.dumps(tensor("AAAA", data=None)).encode()
    refused(client.post(f"/v2/models/{MODEL}/{verb}", data=body + b"tail", headers={HEADER: str(len(body))}))


def test_numbers_that_would_break_the_model_are_told(ask_binary):
    for value in (np.nan, np.inf, -np.inf, 3e38, 1e4):
        assert "normalised" in refused(ask_binary(np.full((1, 3, 224, 224), value, dtype="<f4"), "FP32"))


def test_limits_are_told(text, app_of):
    client = app_of(max_instances=2, max_json_values=100_000, max_values=200_000).test_client()
    three = tensor(None, shape=[3], data=[text] * 3)
    assert "3 pictures" in refused(client.post(f"/v2/models/{MODEL}/infer", json=three), 413)
    assert "values" in refused(client.post(f"/v2/models/{MODEL}/explain", json=tensor(text)), 413)
    binary = tensor(text) | {"parameters": {"binary_data_output": True}}
    assert client.post(f"/v2/models/{MODEL}/explain", json=binary).status_code == 200


def test_unknown_models_and_paths(client, ask, text):
    assert "Near matches" in refused(ask(tensor(text), name="efficientnet_lite00"), 404)
    refused(client.get("/v2/models/nonesuch/ready"), 404)
    refused(client.post("/v2/repository/index"), 404)
    for path in (MODEL, f"{MODEL}/versions/1", "timm/resnet50"):
        refused(client.get(f"/v2/models/{path}/infer"), 405)
        assert client.options(f"/v2/models/{path}/explain").allow.as_set() == {"options", "post"}
    refused(client.delete("/v2"), 405)


def test_pictures_of_different_numbers_of_predictions_are_not_a_tensor():
    results = [SimpleNamespace(predictions=[SimpleNamespace(index=0)] * count) for count in (1, 2)]
    with pytest.raises(FieldError, match="different numbers of predictions"):
        predicted_tensors(results, [V2RequestedOutput(name="indices")])
    (tensor,) = predicted_tensors(results[1:], [V2RequestedOutput(name="indices")])
    assert tensor.values.tolist() == [[0, 0]]
