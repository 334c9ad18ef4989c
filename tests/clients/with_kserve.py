"""Ask a server by KServe's client, V1 and V2, and print the answers: `python with_kserve.py URL PICTURE`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MODEL = "efficientnet_lite0"


async def ask(url, picture):
    results = {}
    text = base64.b64encode(picture).decode()
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        results["v1_live"] = await client.is_server_live(url)
        results["v1_ready"] = await client.is_model_ready(url, MODEL)
        body = {"instances": [{"image": {"b64": text}}, {"b64": text}], "parameters": {"top": 1}}
        results["v1_predictions"] = (await client.infer(url, body, model_name=MODEL))["predictions"]
        explained = await client.explain(url, MODEL, {"instances": [text], "parameters": {"target": "tabby"}})
        results["v1_target"] = explained["explanations"][0]["explanations"][0]["target"]["label"]
        try:
            await client.infer(url, {"instances": []}, model_name=MODEL)
        except httpx.HTTPStatusError as error:
            results["v1_error"] = str(error)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        results["v2_live"] = await client.is_server_live(url)
        results["v2_ready"] = await client.is_server_ready(url)
        results["v2_model_ready"] = await client.is_model_ready(url, MODEL)
        results["v2_no_model_ready"] = await client.is_model_ready(url, "nonesuch")
        body = InferInput("image", [1], "BYTES")
        body.set_data_from_numpy(np.array([picture], dtype=object), binary_data=True)
        request = InferRequest(
            MODEL,
            [body],
            request_id="42",
            request_outputs=[RequestedOutput("classes"), RequestedOutput("logits", {"binary_data": True})],
        )
        answered = await client.infer(url, request, model_name=MODEL)
        results["v2_id"] = answered.id
        results["v2_classes"] = answered.outputs[0].data
        results["v2_logits"] = list(answered.outputs[1].as_numpy().shape)
        body = InferInput("image", [1], "BYTES", [text])
        answered = await client.infer(url, InferRequest(MODEL, [body]), model_name=MODEL)
        results["v2_outputs"] = {output.name: [output.datatype, *output.shape] for output in answered.outputs}
        try:
            await client.infer(url, InferRequest(MODEL, [InferInput("image", [2], "BYTES", [text])]), model_name=MODEL)
        except httpx.HTTPStatusError as error:
            results["v2_error"] = str(error)
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(sys.argv[1], Path(sys.argv[2]).read_bytes()))))
