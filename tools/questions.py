"""The questions of `tools.record`: the lines of questions.txt, and those that are not text."""

import base64
import io
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from PIL import Image

from tools.load import METHODS

Question = tuple[str, dict[str, Any]]
"""A name, and the arguments of `requests.request`; the URL is a path."""

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
LITE, RESNET = "efficientnet_lite0", "resnet18"
LAYERS = {LITE: ("blocks.0", "blocks.4"), RESNET: ("layer1", "layer3")}
"""An early layer of each model, with few channels, and a later one."""

UNTRAINED = (RESNET, "mobilenet_v3_small")
"""The models of the questions, with fixed random weights, which are made here."""

HEADER = "Inference-Header-Content-Length"


def picture(name: str = "cat", form: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """Return a small copy of an example as a file of a format."""
    file = io.BytesIO()
    Image.open(EXAMPLES / f"{name}.png").resize((225, 150)).convert(mode).save(file, form, **options)
    return file.getvalue()


CAT, COFFEE = picture(), picture("coffee")
TURNED = Image.Exif()
TURNED[0x0112] = 6
PICTURES = {
    "a turned JPEG": picture(form="JPEG", exif=TURNED),
    "a grey JPEG": picture(form="JPEG", mode="L"),
    "a CMYK JPEG": picture(form="JPEG", mode="CMYK"),
    "a palette PNG": picture(mode="P"),
    "a PNG of 16 bits": picture(mode="I;16"),
    "a transparent PNG": picture(mode="LA"),
    "a GIF": picture(form="GIF"),
    "a BMP": picture(form="BMP"),
    "a TIFF": picture(form="TIFF", compression="tiff_lzw"),
    "a lossless WebP": picture(form="WEBP", lossless=True),
}
BROKEN = {
    "nothing": b"",
    "text": b"I am no picture.",
    "half a JPEG": picture(form="JPEG")[:2000],
    "half a PNG": CAT[: len(CAT) // 2],
    "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "a PDF": b"%PDF-1.7\n",
    "zeros": bytes(64),
    "a PNG that says it is huge": CAT[:16] + (60_000).to_bytes(4, "big") * 2 + CAT[24:],
}
PIXELS = [[[(3 * row + column + level) % 256 for level in range(3)] for column in range(40)] for row in range(30)]
WORDS = {"CAT": json.dumps(base64.b64encode(CAT).decode()), "PIXELS": json.dumps(PIXELS), "LITE": LITE}


def lines(section: str) -> list[str]:
    """Return the lines of a section of questions.txt, one for each choice."""
    start = LINES.index(f"[{section}]") + 1
    stop = next((number for number in range(start, len(LINES)) if LINES[number].startswith("[")), len(LINES))
    choices = [re.split("<(.*?)>", line) for line in LINES[start:stop] if line]
    splits = [[part.split("|") if place % 2 else [part] for place, part in enumerate(parts)] for parts in choices]
    return ["".join(parts) for split in splits for parts in product(*split)]


def question(line: str, image: bytes = CAT, **headers: str) -> Question:
    """Return the question of a line."""
    text, _, header = line.partition(" -- ")
    headers |= dict([header.split(": ", 1)]) if header else {}
    if text.startswith("/"):
        path, _, query = text.partition("?")
        fields = parse_qs(query)
        files = {"image": image} | {name: COFFEE for name in ("other", "reference") if fields.pop(name, None)}
        return line, {"method": "POST", "url": path, "data": fields, "files": files, "headers": headers}
    verb, path, *rest = text.split(" ", 2)
    path = path.replace("LITE", LITE)
    if verb != "JSON":
        return line, {"method": verb, "url": path, "headers": headers}
    body = re.sub("|".join(WORDS), lambda match: WORDS[match[0]], rest[0]).encode()
    headers = {"Content-Type": "application/json"} | headers
    return line, {"method": "POST", "url": path, "data": body, "headers": headers}


def section(name: str, **headers: str) -> Iterator[Question]:
    """Yield the questions of a section."""
    return (question(line, **headers) for line in lines(name))


def routes(paths: dict[str, dict[str, Any]]) -> Iterator[Question]:
    """Yield the GET routes among the paths of an OpenAPI document, and the pages."""
    reads = {path.replace("{version}", "1") for path in paths if "get" in paths[path]} - {"/metrics"}
    reads = {path.replace("{name}", name) for path, name in product(reads, (LITE, RESNET))}
    pages = {"/", "/docs", "/docs/assets/swagger-ui.css", "/static/index.html", "/static/js/page.js"}
    listings = {"/models?source=embedded", "/models?source=torchvision", "/models/timm/resnet18", "/models/single"}
    yield from (question(f"GET {path}") for path in sorted(reads | pages | listings))
    for verb, path in product(("HEAD", "OPTIONS"), ("/explain", "/models", "/healthz")):
        yield question(f"{verb} {path}")


def explanations(methods: list[str]) -> Iterator[Question]:
    """Yield every method on two models, every kind of picture, and the ways to send it."""
    for model, name in product((LITE, RESNET), methods):
        layers = dict(zip(("early", "late"), LAYERS[model], strict=True))
        options = {option: layers.get(value, value) for option, value in METHODS.get(name, {}).items()}
        line, arguments = question(f"/explain?format=npz&model={model}")
        yield f"{line} by {name}", arguments | {"data": {**arguments["data"], "method": name, **options}}
    for (name, image), path in product(PICTURES.items(), ("/explain?format=npz", "/predict")):
        yield f"{path} of {name}", question(path, image)[1]
    for path in ("/explain?target=tabby&format=npz", "/predict?top=3"):
        headers = {"Content-Type": "image/png"}
        yield f"a raw picture for {path}", {"method": "POST", "url": path, "data": CAT, "headers": headers}
    yield from section("explanations")


def compatible() -> Iterator[Question]:
    """Yield the requests of other servers' clients."""
    yield from section("compatible")
    tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(CAT) + 4}}
    head = json.dumps({"id": "7", "parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    body, headers = head + len(CAT).to_bytes(4, "little") + CAT, {HEADER: str(len(head))}
    for path in (f"/v2/models/{LITE}/infer", f"/v2/models/{LITE}/explain"):
        yield f"binary {path}", {"method": "POST", "url": path, "data": body, "headers": headers}
    for verb, path in product(("POST", "PUT"), (f"/predictions/{LITE}", f"/predictions/{RESNET}/1.0?top=2")):
        yield f"form {verb} {path}", {"method": verb, "url": path, "files": {"data": CAT}}
        yield f"bytes {verb} {path}", {"method": verb, "url": path, "data": CAT}
    for accept, query in product(("application/json", "image/png"), ("", "?method=gradcam", "?target=tabby")):
        path, headers = f"/explanations/{LITE}{query}", {"Accept": accept}
        arguments = {"method": "POST", "url": path, "data": CAT, "headers": headers}
        yield f"{path} by integrated-gradients as {accept}", arguments


def errors() -> Iterator[Question]:
    """Yield requests that are refused."""
    yield from section("errors")
    for name, content in BROKEN.items():
        yield f"/explain of {name}", question("/explain", content)[1]
    start = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc'
    for name, body, kind, coding in (
        ("text", CAT, "text/plain", ""),
        ("no type", CAT, "", ""),
        ("no body", b"", "", ""),
        ("an empty picture", b"", "image/png", ""),
        ("an empty form", b"", "multipart/form-data", ""),
        ("half a form", start, "multipart/form-data; boundary=b", ""),
        ("an unknown coding", CAT, "image/png", "br"),
        ("no gzip", CAT, "image/png", "gzip"),
        ("deep lists", b"[" * 100_000, "application/json", ""),
        ("a long name", b'{"image": "", "target": "%s"}' % (b"a" * 201), "application/json", ""),
        ("many targets", b'{"image": "", "target": ["a"%s]}' % (b', "a"' * 2000), "application/json", ""),
        ("many values", b'{"image": "", "target": [0%s]}' % (b", 0" * 200_000), "application/json", ""),
    ):
        headers = {"Content-Type": kind} | ({"Content-Encoding": coding} if coding else {})
        yield name, {"method": "POST", "url": "/explain", "data": body, "headers": headers}
        yield f"{name} for /hooks/trace", {"method": "POST", "url": "/hooks/trace", "data": body, "headers": headers}
    pairs = {"another field": [("picture", CAT)], "two pictures": [("image", CAT), ("image", CAT)]}
    pairs |= {"a file as option": [("image", CAT), ("target", b"tabby")], "no file": [("target", (None, "tabby"))]}
    for name, files in pairs.items():
        yield name, {"method": "POST", "url": "/explain", "files": files}
    yield "an option in both places", question("/explain?target=cup")[1] | {"url": "/explain?target=tabby"}
    wrong = {"method": "POST", "url": f"/v2/models/{LITE}/infer", "data": b"{}", "headers": {HEADER: "9"}}
    yield f"{HEADER} beyond the body", wrong
    for name, arguments in {"no picture": {"data": b""}, "another field": {"files": {"image": CAT}}}.items():
        yield f"{name} for /predictions", {"method": "POST", "url": f"/predictions/{LITE}", **arguments}


def limits(key: str) -> Iterator[Question]:
    """Yield the questions to a service with narrow limits; the key is the header's value."""
    for path, value in product(("/methods", "/v1/models", "/ping", "/nowhere"), ("", "Bearer nope", "Basic eA==", key)):
        yield f"{path} with {value!r}", question(f"GET {path}", **({"Authorization": value} if value else {}))[1]
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin in ("https://example.org", "https://example.com"):
        yield f"preflight of {origin}", question("OPTIONS /explain", Origin=origin, **asks)[1]
    bomb = io.BytesIO()
    Image.new("RGB", (300, 300)).save(bomb, "PNG")
    for name, image in {"too many bytes": bytes(200_000), "too many pixels": bomb.getvalue()}.items():
        yield name, question("/explain", image, Authorization=key)[1]
    for number, line in enumerate(lines("limits")):
        yield f"{line} as {number}", question(line, Authorization=key)[1]
