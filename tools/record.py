"""Records the answers of the product, to show that a change of its structure changes nothing else.

`python -m tools.record write FOLDER` asks a service, the command line and the Python API, and writes each group of
answers as one npz of arrays and one JSON of the rest. `python -m tools.record compare FOLDER` asks the same again,
prints the differences, and exits with 1 if there are any. `--only GROUP` leaves out all other groups.

Answers are equal if they agree as follows:

- maps and tensors: to 1e-6 of the largest magnitude of the recorded array
- numbers of documents: to 1e-6 of their own magnitude, or of a thousandth of the largest of the same member
- both: to 1e-4 if the item names a method for which, according to the catalogue, rounding decides something
- drawings: to one level, except for one pixel in a thousand, whose colour rounding may decide
- problems: status, type and fields; if only words differ, this is reported and is not a failure
- everything else: exactly, except for values that change each time, such as times, ids, ports, addresses and versions
"""

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import requests
import torch
from safetensors.torch import save_file
from torchvision.models import get_model

from seewhy import (
    Explanation,
    HookSession,
    capture,
    compare,
    explain,
    explain_many,
    get_method,
    intervene,
    list_methods,
    list_models,
    load_model,
    rank_correlation,
    similar,
    sweep_channels,
    trace,
    wrap_model,
)
from tests import nets
from tools import questions
from tools.documents import Reader, binary_tensors, decoded, differences, load, write
from tools.load import METHODS
from tools.questions import CAT, COFFEE, EXAMPLES, HEADER, PICTURES, UNTRAINED, Question, question
from tools.service import service

COMMAND = "seewhy"
"""The module that is the command `seewhy`."""

ROOT = EXAMPLES.parent
TOLERANCE, ROUGH = 1e-6, 1e-4
WIDTH = 70
"""Maximum characters of a value in the table of differences."""

ROUNDED = {name for name in list_methods() if get_method(name).rounding}
OMITTED = {"Date", "Content-Length", "Last-Modified", "Connection"}
PRESENT = {"ETag", "X-Request-ID", HEADER, "RateLimit"}
"""Headers of which only the presence is compared."""

KEY = "seewhy_recorder"
OWN_MODELS = "".join(
    f'[models.{name}]\narchitecture = "shufflenet_v2_x0_5"\nweights = "{name}.safetensors"\nlabels = ["cat"]\n'
    'head = "sigmoid"\n'
    for name in ("single", "blank", "damaged")
)
"""A model with one logit, one that returns NaN, and one whose weights cannot be read."""

NARROW = {
    "SEEWHY_MAX_UPLOAD_BYTES": "120000",
    "SEEWHY_MAX_PIXELS": "40000",
    "SEEWHY_MAX_CAPTURE_BYTES": "100000",
    "SEEWHY_MAX_VALUES": "1000",
    "SEEWHY_MAX_JSON_VALUES": "1000",
    "SEEWHY_MAX_INSTANCES": "1",
    "SEEWHY_MAX_LAYERS": "1",
    "SEEWHY_MAX_TARGETS": "1",
    "SEEWHY_CORS_ORIGINS": "https://example.org",
    "SEEWHY_RATE_LIMIT": "100/day",
}
NETS: tuple[tuple[Any, ...], ...] = (
    *((kind,) for kind in (nets.Net, nets.OneLogit, nets.InPlaceModule, nets.InPlaceFunction, nets.AddsInto)),
    *((kind,) for kind in (nets.Twice, nets.PreActivation, nets.Stochastic, nets.TupleInside, nets.Skip)),
    *((kind,) for kind in (nets.InPlaceLater, nets.OneByOne, nets.NoGradAfter, nets.Fails)),
    (nets.SharedInside, 4, 5),
)
SMALL = {"occlusion": {"patch": "8", "stride": "8"}}
"""Options for pictures of 24 pixels, instead of those of `METHODS`."""

SLOW = {"xrai"}
"""Methods for a single net."""

Answers = Iterator[tuple[str, Any]]
"""Names and documents."""


@dataclass(frozen=True)
class Place:
    """The place of the questions.

    Attributes:
        url: URL of a service.
        folder: folder of weights, pictures, and output of commands.
    """

    url: str
    folder: Path

    def ask(self, question: Question) -> tuple[str, Any]:
        """Return a question's name and the service's answer."""
        name, arguments = question
        response = requests.request(
            **{**arguments, "url": self.url + arguments["url"]}, timeout=900, allow_redirects=False
        )
        status, headers = response.status_code, {**response.headers}
        for header in headers.keys() & (PRESENT | ({"Retry-After"} if status == 429 else set())):
            headers[header] = "present"
        if HEADER in headers:
            body = binary_tensors(response.content, int(response.headers[HEADER]))
        else:
            body = decoded(headers.get("Content-Type", "").partition(";")[0], response.content or b"null")
        if "Allow" in headers:
            headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        headers = {header: re.sub(r";dur=[\d.]+", "", headers[header]) for header in sorted(headers.keys() - OMITTED)}
        return name, {"status": status, "headers": headers, "body": body}

    def run(self, line: str) -> Any:
        """Return the output of a command, its exit status, and the files that it writes."""
        folder = self.folder / "commands"
        command = [sys.executable, "-m", COMMAND, *shlex.split(line)]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
        paths = [path for path in sorted(folder.rglob("*")) if "seewhy" in path.name or path.parent.name == "out"]
        files = {str(path.relative_to(folder)): decoded(path.suffix[1:], path.read_bytes()) for path in paths}
        for path in paths:
            path.unlink()
        stdout = process.stdout if process.stdout.startswith("{") else process.stdout.splitlines()
        return {"status": process.returncode, "stdout": stdout, "stderr": process.stderr, "files": files}

    def saved(self, result: Any, *suffixes: str) -> Any:
        """Return the contents of the files that a result is saved as."""
        paths = [Path(result.save(self.folder / f"result{suffix}")) for suffix in suffixes]
        return {"text": repr(result), **{path.suffix: decoded(path.suffix[1:], path.read_bytes()) for path in paths}}


def routes(place: Place) -> Answers:
    """Ask every GET route."""
    described = requests.get(f"{place.url}/openapi.json", timeout=60).json()
    yield from map(place.ask, questions.routes(described["paths"]))
    etag = requests.post(f"{place.url}/explain", files={"image": CAT}, timeout=60).headers["ETag"]
    yield "an answer that is unchanged", place.ask(question(f"/explain -- If-None-Match: {etag}"))[1]
    lines = requests.get(f"{place.url}/metrics", timeout=60).text.splitlines()
    yield "metrics", sorted(line for line in lines if line.startswith("# TYPE"))


def explanations(place: Place) -> Answers:
    """Ask for explanations by every method."""
    methods = requests.get(f"{place.url}/methods", timeout=60).json()["methods"]
    yield from map(place.ask, questions.explanations([method["name"] for method in methods]))


def limits(place: Place) -> Answers:
    """Ask services with narrow limits."""
    keys = place.folder / "keys.toml"
    keys.write_text(f'tester = "sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"\n')
    with service(**NARROW, SEEWHY_API_KEYS=str(keys), SEEWHY_DEADLINE="3600") as running:
        narrow = Place(running.url, place.folder)
        for name, arguments in questions.limits(f"Bearer {KEY}"):
            yield narrow.ask((name, arguments))
        keys.unlink()
        yield "keys that are gone", narrow.ask(question("GET /methods", Authorization=f"Bearer {KEY}"))[1]
    with service(SEEWHY_DEADLINE="0.001") as running:
        for path in ("/explain", "/predict", "/hooks/trace"):
            yield f"{path} in no time", Place(running.url, place.folder).ask(question(path))[1]


def command(place: Place) -> Answers:
    """Run the command line."""
    folder = place.folder / "commands"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name, content in {"cat": CAT, "coffee": COFFEE, "broken": b"no picture", "pictures/cat": CAT}.items():
        (folder / f"{name}.png").write_bytes(content)
    helps = [f"{match[1]} --help" for line in place.run("--help")["stdout"] if (match := re.match(r"  (\w+)  ", line))]
    for line in [*questions.lines("command"), *helps]:
        yield f"seewhy {line}", place.run(line)


def attempt(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of work, or its exception."""
    try:
        return work(*arguments, **options)
    except Exception as error:
        return {"exception": type(error).__name__, "message": str(error)}


def described(*arguments: Any, **options: Any) -> Any:
    """Return an explanation as a document; the arguments are those of `explain`."""
    return _described(explain(*arguments, **options))


def _described(result: Explanation) -> Any:
    arrays = {"map": result.map, "raw": result.raw_heatmap, "heatmap": result.heatmap, "drawing": result.overlay()}
    facts = {"text": repr(result), "target": result.target, "predictions": result.predictions}
    return {**arrays, **facts, "layers": result.layers, "diagnostics": result.diagnostics}


def _options(name: str) -> dict[str, str]:
    """Return cheap options of a method, at its default layer."""
    return {
        option: value for option, value in (METHODS.get(name, {}) | SMALL.get(name, {})).items() if option != "layer"
    }


def attributions(_: Place) -> Answers:
    """Explain tensors by the class of every method, on small nets each with a peculiarity."""
    images = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    for (kind, *arguments), name in product(NETS, list_methods()):
        if name in SLOW and kind is not nets.Net:
            continue
        explainer, net = get_method(name).build(_options(name)), nets.seeded(kind, *arguments)
        yield f"{name} of {kind.__name__}", attempt(explainer.explain, net, images, torch.tensor([0, 0]))


def python(place: Place) -> Answers:
    """Use the functions and classes for Python."""
    yield "list_models", list_models()
    yield "list_methods", list_methods()
    small = wrap_model(nets.seeded(nets.Net), input_size=24, labels=["cat", "cup", "rocket"])
    embedded = load_model("efficientnet_lite0", device="cpu")
    for name in list_methods():
        yield f"explain by {name}", attempt(described, small, CAT, name, **_options(name))
    for name, image in PICTURES.items():
        yield f"explain {name}", described(embedded, image, target="tabby", against=285)
    for name, model in (("wrapped", small), ("embedded", embedded)):
        layer = model.default_layers[0]
        edit = {"layer": layer, "op": "zero"}
        results = compare(model, CAT, ["gradcam", "layercam", "saliency"], sign="signed", target=1)
        yield f"compare, {name}", [*map(_described, results), rank_correlation(results[0].map, results[1].map)]
        many = explain_many(model, [CAT, b"no picture", COFFEE, CAT], method="hirescam", batch_size=2, on_error="yield")
        yield (
            f"explain_many, {name}",
            [_described(answer) if isinstance(answer, Explanation) else type(answer).__name__ for answer in many],
        )
        yield f"explain, {name}", place.saved(explain(model, CAT), ".png")
        yield f"similar, {name}", place.saved(similar(model, CAT, COFFEE), ".json", ".npz", ".png")
        yield f"trace, {name}", place.saved(trace(model, CAT), ".svg", ".png")
        yield f"capture, {name}", place.saved(capture(model, CAT, layer, ["output", "grad_output"]), ".npz", ".png")
        yield f"sweep_channels, {name}", place.saved(sweep_channels(model, CAT, edit), ".csv", ".png")
        yield f"intervene, {name}", place.saved(intervene(model, CAT, [edit | {"channels": [0]}]), ".png")
        for line in ({"target": "nope"}, {"method": "nope"}, {"layer": "nope"}, {"samples": 3}, {"target": 10_000}):
            yield f"explain with {line}, {name}", attempt(explain, model, CAT, **line)
    for kind, *arguments in NETS:
        yield f"session on {kind.__name__}", attempt(recorded, nets.seeded(kind, *arguments))


def recorded(net: torch.nn.Module) -> Any:
    """Return the records of a session on a net, with an edit by a hook."""
    images = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    with HookSession(net) as hooks:
        hooks.record("*")
        hooks.after_forward(lambda module, args, output: output * 2, "head")
        net(images)[:, 0].sum().backward()
    documents = (hooks.inputs, hooks.outputs, hooks.grad_inputs, hooks.grad_outputs)
    return dict(zip(("inputs", "outputs", "grad_inputs", "grad_outputs"), documents, strict=True))


GROUPS: dict[str, Callable[[Place], Answers]] = {
    "routes": routes,
    "explanations": explanations,
    "drawings": lambda place: map(place.ask, questions.section("drawings")),
    "hooks": lambda place: map(place.ask, questions.section("hooks")),
    "compatible": lambda place: map(place.ask, questions.compatible()),
    "errors": lambda place: map(place.ask, questions.errors()),
    "limits": limits,
    "command": command,
    "attributions": attributions,
    "python": python,
}


def prepare(folder: Path) -> None:
    """Write the weights of models that are made here, and hide all others."""
    for name in [name for name in os.environ if name.startswith("SEEWHY_")]:
        del os.environ[name]
    caches = dict.fromkeys(("TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME"), str(folder / "cache"))
    files = {"SEEWHY_WEIGHTS_DIR": str(folder), "SEEWHY_MODELS": str(folder / "models.toml")}
    os.environ.update(caches | files | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)})
    for name in UNTRAINED:
        save_file(nets.seeded(get_model, name).state_dict(), folder / f"{name}.safetensors")
    weights = nets.seeded(lambda: get_model("shufflenet_v2_x0_5", num_classes=1)).state_dict()
    save_file(weights, folder / "single.safetensors")
    save_file(weights | {"fc.bias": weights["fc.bias"] * np.nan}, folder / "blank.safetensors")
    (folder / "damaged.safetensors").write_bytes(b"no weights")
    (folder / "models.toml").write_text(OWN_MODELS)


def report(group: str, recorded: dict[str, Any], present: dict[str, Any]) -> int:
    """Print the differences between the items of a group, and return their number, without those of words."""
    count = 0
    for name in {**recorded, **present}:
        if name not in recorded or name not in present:
            rows = [("", *("there" if name in items else "nothing" for items in (recorded, present)))]
        else:
            tolerance = ROUGH if ROUNDED.intersection(re.split(r"[^\w+-]+", name)) else TOLERANCE
            rows = list(differences(recorded[name], present[name], tolerance))
            words = [*map(str, (recorded[name].words, present[name].words))]
            if words[0] != words[1]:
                print(f"{group} | {name} | words differ\n    {words[0]}\n    {words[1]}")
        for row in rows:
            print(" | ".join([group, name, *(str(value)[:WIDTH] for value in row)]), flush=True)
        count += len(rows)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, or compare with a record; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.record", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=GROUPS, help="group to record; repeatable")
    options = parser.parse_args(arguments)
    if options.verb == "write":
        options.folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        with service(SEEWHY_DEADLINE="3600") as running:
            place = Place(running.url, folder)
            for group in options.only or GROUPS:
                started = time.monotonic()
                reader = Reader(
                    {str(folder): "FOLDER", str(ROOT): "ROOT", place.url: "URL", f"python -m {COMMAND}": "seewhy"}
                )
                items = {name: reader.read(document) for name, document in GROUPS[group](place)}
                print(f"{group}: {len(items)} items, {time.monotonic() - started:.0f} s", flush=True)
                if options.verb == "write":
                    write(options.folder / group, items)
                else:
                    count += report(group, load(options.folder / group), items)
    if options.verb == "compare":
        print(f"{count} differences")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
