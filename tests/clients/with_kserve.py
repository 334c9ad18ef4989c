"""Ask a server by KServe's client, V1 and V2, and print what came: `python with_kserve.py URL PICTURE`."""

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
    found = {}
    text = base64.b64encode(picture).decode()
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        found["v1_ready"] = await client.is_model_ready(url, MODEL)
        sent = {"instances": [{"image": {"b64": text}}, {"b64": text}], "parameters": {"top": 1}}
        found["v1_predictions"] = (await client.infer(url, sent, model_name=MODEL))["predictions"]
        explained = await client.explain(url, MODEL, {"instances": [text], "parameters": {"target": "tabby"}})
        found["v1_target"] = explained["explanations"][0]["explanations"][0]["target"]["label"]
        try:
            await client.infer(url, {"instances": []}, model_name=MODEL)
        except httpx.HTTPStatusError as error:
            found["v1_error"] = str(error)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found["v2_live"] = await client.is_server_live(url)
        found["v2_ready"] = await client.is_server_ready(url)
        found["v2_model_ready"] = await client.is_model_ready(url, MODEL)
        found["v2_no_model_ready"] = await client.is_model_ready(url, "nonesuch")
        sent = InferInput("image", [1], "BYTES")
        sent.set_data_from_numpy(np.array([picture], dtype=object), binary_data=True)
        request = InferRequest(
            MODEL,
            [sent],
            request_id="42",
            request_outputs=[RequestedOutput("classes"), RequestedOutput("logits", {"binary_data": True})],
        )
        answered = await client.infer(url, request, model_name=MODEL)
        found["v2_id"] = answered.id
        found["v2_classes"] = answered.outputs[0].data
        found["v2_logits"] = list(answered.outputs[1].as_numpy().shape)
        sent = InferInput("image", [1], "BYTES", [text])
        answered = await client.infer(url, InferRequest(MODEL, [sent]), model_name=MODEL)
        found["v2_outputs"] = {one.name: [one.datatype, *one.shape] for one in answered.outputs}
        try:
            await client.infer(url, InferRequest(MODEL, [InferInput("image", [2], "BYTES", [text])]), model_name=MODEL)
        except httpx.HTTPStatusError as error:
            found["v2_error"] = str(error)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(sys.argv[1], Path(sys.argv[2]).read_bytes()))))
