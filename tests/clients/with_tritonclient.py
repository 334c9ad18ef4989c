"""Ask a server by Triton's HTTP client and print the answers: `python with_tritonclient.py URL PICTURE`."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

MODEL = "efficientnet_lite0"


def tensor(name, values, datatype, binary=True):
    entry = triton.InferInput(name, list(values.shape), datatype)
    entry.set_data_from_numpy(values, binary_data=binary)
    return entry


def ask(url, picture):
    results = {}
    with triton.InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        results["ready"] = [client.is_server_live(), client.is_server_ready(), client.is_model_ready(MODEL)]
        results["version_ready"] = [client.is_model_ready(MODEL, "1"), client.is_model_ready(MODEL, "2")]
        results["server"] = client.get_server_metadata()["name"]
        metadata = client.get_model_metadata(MODEL)
        configuration = client.get_model_config(MODEL)
        results["configuration"] = [configuration["max_batch_size"], configuration["output"][0]["data_type"]]
        results["inputs"] = [[item["name"], item["datatype"], item["shape"]] for item in metadata["inputs"]]

        (before,) = client.get_inference_statistics(MODEL)["model_stats"]
        encoded = tensor("image", np.array([picture, picture], dtype=object), "BYTES")
        result = client.infer(MODEL, [encoded])  # all outputs, binary
        results["classes"] = [label.decode() for label in result.as_numpy("classes")[:, 0]]
        results["logits"] = result.as_numpy("logits")[0].tolist()

        (row,) = client.get_inference_statistics(MODEL)["model_stats"]
        assert row in client.get_inference_statistics()["model_stats"]
        results["inferences"] = row["inference_count"] - before["inference_count"]

        pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))[np.newaxis]
        for layout, values in (("hwc", pixels), ("chw", np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))):
            outputs = [triton.InferRequestedOutput("indices", binary_data=False)]
            result = client.infer(
                MODEL,
                [tensor("pixels", values, "UINT8")],
                outputs=outputs,
                request_id="7",
                model_version="1",
                request_compression_algorithm="gzip",
            )
            results[layout] = result.as_numpy("indices").tolist()
            results["id"] = result.get_response()["id"]
        grey = np.zeros(metadata["inputs"][2]["shape"][1:], dtype=np.float32)[np.newaxis]
        result = client.infer(MODEL, [tensor("input", grey, "FP32")])
        results["grey"] = list(result.as_numpy("probabilities").shape)
        named = [triton.InferRequestedOutput("probabilities", class_count=2)]
        results["named"] = [
            row.decode() for row in client.infer(MODEL, [encoded], outputs=named).as_numpy("probabilities")[0]
        ]
        try:
            client.infer(MODEL + "x", [encoded])
        except InferenceServerException as error:
            results["error"] = [error.status(), error.message()]

        # The client has no word for explain; its request is the same.
        body, length = client.generate_request_body([encoded], parameters={"target": "tabby"})
        headers = {"Inference-Header-Content-Length": length}
        response = client._post(f"v2/models/{MODEL}/explain", body, headers, None)
        length = int(response.get("Inference-Header-Content-Length"))
        explained = client.parse_response_body(response.read(), header_length=length)
        results["maps"] = list(explained.as_numpy("maps").shape)
        results["heatmaps"] = [list(explained.as_numpy("heatmaps").shape), float(explained.as_numpy("heatmaps").max())]
        results["targets"] = explained.as_numpy("targets").tolist()
    return results


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], Path(sys.argv[2]).read_bytes())))
