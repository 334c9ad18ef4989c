"""Third-party clients, and a generated one, against the real service."""

import base64
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.conftest import EXAMPLES

CLIENTS = Path(__file__).parents[1] / "clients"
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
CAT = EXAMPLES / "cat.png"
BEST = {"index": 282, "label": "tiger cat", "probability": pytest.approx(0.3928, abs=1e-3)}


@pytest.fixture
def ask(url):
    """Run a script in the environment of the clients; return what it prints."""
    if not PYTHON.exists():
        assert "CI" not in os.environ, "make test makes .venv/clients"
        pytest.skip("there is no environment .venv/clients; make test makes it")

    def run(script):
        process = subprocess.run([PYTHON, CLIENTS / script, url, CAT], capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_the_client_of_kserve(ask):
    answer = ask("with_kserve.py")
    assert answer["v1_live"] is True
    assert answer["v1_ready"] is True
    assert answer["v1_predictions"] == [[BEST]] * 2
    assert answer["v1_target"] == "tabby"
    assert "There is no picture" in answer["v1_error"]
    assert "400" in answer["v1_error"]
    assert [answer["v2_live"], answer["v2_ready"], answer["v2_model_ready"]] == [True] * 3
    assert answer["v2_no_model_ready"] is False
    assert answer["v2_id"] == "42"
    assert answer["v2_classes"][:2] == ["tiger cat", "Egyptian cat"]
    assert answer["v2_logits"] == [1, 1000]
    assert answer["v2_outputs"] == {
        "logits": ["FP32", 1, 1000],
        "probabilities": ["FP32", 1, 1000],
        "indices": ["INT64", 1, 5],
        "classes": ["BYTES", 1, 5],
    }
    assert "The shape [2] has 2 items; data has 1." in answer["v2_error"]


def test_the_client_of_triton(ask):
    answer = ask("with_tritonclient.py")
    assert answer["ready"] == [True] * 3
    assert answer["version_ready"] == [True, False]
    assert answer["server"] == "seewhy"
    assert answer["configuration"] == [16, "TYPE_FP32"]
    assert answer["inputs"][2] == ["input", "FP32", [-1, 3, 224, 224]]
    assert answer["classes"] == ["tiger cat"] * 2
    assert answer["inferences"] == 2
    assert max(range(1000), key=answer["logits"].__getitem__) == 282
    assert answer["hwc"] == answer["chw"]
    assert answer["hwc"][0][:3] == [282, 285, 281]
    assert answer["id"] == "7"
    assert answer["grey"] == [1, 1000]
    value, index, label = answer["named"][0].split(":")
    assert (float(value), index, label) == (BEST["probability"], "282", "tiger cat")
    status, message = answer["error"]
    assert status == "404"
    assert "Near matches: efficientnet_lite0" in message
    assert answer["maps"] == [2, 1, 7, 7]
    assert answer["heatmaps"] == [[2, 1, 300, 451], 1.0]
    assert answer["targets"] == [[281], [281]]


@pytest.fixture(scope="module")
def generated(url, tmp_path_factory):
    """The package that a generator makes of /openapi.json, without a warning."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "client.yml").write_text("content_type_overrides:\n  image/*: application/octet-stream\n")
    command = f"openapi-python-client generate --url {url}/openapi.json --config client.yml --fail-on-warning"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        [*command.split(), "--meta", "none", "--output-path", "generated_client"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "WARNING" not in (process.stdout + process.stderr).upper()
    sys.path.insert(0, str(folder))
    yield importlib.import_module
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "generated_client"]:
        del sys.modules[name]


@pytest.fixture
def client(generated, url):
    with generated("generated_client").Client(base_url=url, timeout=60) as api_client:
        yield api_client


@pytest.fixture
def call(generated, client):
    """Call an operation of the generated client; return the typed answer."""

    folder = Path(generated("generated_client.api").__file__).parent

    def run(operation, *place, **arguments):
        (file,) = folder.glob(f"*/{operation}.py")
        module = generated(f"generated_client.api.{file.parent.name}.{operation}")
        response = module.sync_detailed(*place, client=client, **arguments)
        return response.status_code, response.parsed

    return run


@pytest.fixture
def models(generated):
    return generated("generated_client.models")


@pytest.fixture
def upload(generated):
    file = generated("generated_client.types").File
    return lambda: file(payload=io.BytesIO(CAT.read_bytes()), file_name="cat.png", mime_type="image/png")


@pytest.mark.slow
def test_a_generated_client_explains(call, models, upload):
    status, answer = call(
        "explain",
        body=models.ExplainFilesBody(image=upload()),
        format_=models.ExplainFormat.JSON,
        method=["gradcam", "saliency"],
        target=["tabby"],
    )
    assert status == 200
    assert type(answer) is models.ExplainAnswer
    assert [explanation.method for explanation in answer.explanations] == ["gradcam", "saliency"]
    assert answer.explanations[0].target.label == "tabby"
    assert answer.explanations[0].heatmap.shape == [300, 451]
    assert answer.predictions[0].to_dict() == BEST


@pytest.mark.slow
def test_a_generated_client_predicts_in_each_way(call, models, upload):
    as_json = models.PredictJsonBody(image=base64.b64encode(CAT.read_bytes()).decode(), top=2)
    for body in (models.PredictFilesBody(image=upload()), as_json, upload()):
        status, answer = call("predict", body=body)
        assert status == 200, body
        assert type(answer) is models.PredictAnswer
        assert answer.predictions[0].to_dict() == BEST
    assert len(call("predict", body=as_json)[1].predictions) == 2


@pytest.mark.slow
def test_a_generated_client_reads_the_catalogue_and_errors(call, models, upload):
    status, answer = call("methods")
    assert status == 200
    assert type(answer) is models.MethodsAnswer
    results = {method.name: method for method in answer.methods}
    assert results["integrated-gradients"].paper.year == 2017
    assert results["gradcam"].cost["forwards"] == "1"
    status, answer = call("model", "efficientnet_lite0")
    assert (status, answer.labels[282]) == (200, "tiger cat")
    status, answer = call("predict", body=models.PredictFilesBody(image=upload()), model="efficientnet_lite")
    assert status == 422
    assert type(answer) is models.Problem
    assert "efficientnet_lite0" in answer.detail


@pytest.mark.slow
def test_a_generated_client_speaks_the_other_protocols(call, models, upload):
    text = base64.b64encode(CAT.read_bytes()).decode()
    status, answer = call("v1_predict", "efficientnet_lite0", body=models.V1Request(instances=[text]))
    assert (status, type(answer)) == (200, models.V1Predictions)
    assert answer.predictions[0][0].label == "tiger cat"
    request = models.V2Request(inputs=[models.V2Input(name="image", shape=[1], datatype="BYTES", data=[text])])
    status, answer = call("v2_infer", "efficientnet_lite0", body=request)
    assert (status, type(answer)) == (200, models.V2Answer)
    assert answer.outputs[3].data[0] == "tiger cat"
    status, answer = call("torchserve_predict", "efficientnet_lite0", body=upload())
    assert (status, answer["tiger cat"]) == (200, BEST["probability"])
    status, answer = call("v1_predict", "nonesuch", body=models.V1Request(instances=[text]))
    assert (status, type(answer)) == (404, models.ProtocolError)
