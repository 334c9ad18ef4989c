"""Names for shell completion and for checks of options, without PyTorch.

Names of methods, options and metrics are read from source code, because importing it imports PyTorch. Names of models
and layers are cached.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.models.errors import ModelError

_TEXT = re.compile(r'""".*?"""', re.DOTALL)
_FIELD = re.compile(r"^    (\w+): (?!ClassVar)", re.MULTILINE)


def method_names() -> list[str]:
    """Return the names of the built-in methods."""
    return sorted(option_names())


def metric_names() -> list[str]:
    """Return the names of the metrics."""
    return sorted(metric_option_names())


def option_names() -> dict[str, list[str]]:
    """Return the names of the options of each built-in method, as `catalogue.option_names` does."""
    return _options("method", "methods")


def metric_option_names() -> dict[str, list[str]]:
    """Return the names of the options of each metric."""
    return _options("metric", "trust/metrics")


@cache
def _options(decorator: str, folder: str) -> dict[str, list[str]]:
    """Return the options of each class that a decorator enters into its catalogue: the fields of the dataclass."""
    # A registration by the decorator, or a class.
    entries = re.compile(
        rf'^@{decorator}\(\s*"(?P<name>[^"]+)"'
        r"|^class (?P<kind>\w+)(?:\((?P<bases>[^)]*)\))?:\n(?P<body>(?:    .*\n|\s*\n)*)",
        re.MULTILINE,
    )
    bases: dict[str, list[str]] = {}
    own: dict[str, list[str]] = {}
    classes: dict[str, str] = {}
    for text in _sources(folder):
        names: list[str] = []
        for entry in entries.finditer(_TEXT.sub("", text)):
            names += [entry["name"]] if entry["name"] else []
            if entry["kind"]:
                bases[entry["kind"]] = re.findall(r"\w+", entry["bases"] or "")
                own[entry["kind"]] = _FIELD.findall(entry["body"])
                classes |= dict.fromkeys(names, entry["kind"])
                names = []

    def options(kind: str) -> list[str]:
        inherited = [name for base in bases.get(kind, []) for name in options(base)]
        return list(dict.fromkeys([*inherited, *own.get(kind, [])]))

    return {name: options(kind) for name, kind in classes.items()}


def _sources(folder: str) -> Iterator[str]:
    """Yield the source of each module below a folder of the explainers."""
    spec = find_spec("seewhy.explainers")  # this imports `seewhy`, which imports nothing
    for root in (spec and spec.submodule_search_locations) or ():
        yield from (file.read_text(encoding="utf-8") for file in Path(root, folder).rglob("*.py"))


def model_names() -> list[str]:
    """Return the names of all models, the user's own first."""

    def search() -> list[str]:
        from seewhy.models.zoo import zoo_names

        return zoo_names()

    return [*_names_in_file(), *_cached("models", search)]


def layer_names(model: str) -> list[str]:
    """Return the paths of a model's modules; empty if the model does not exist."""

    def search() -> list[str]:
        from seewhy.models.registry import Registry

        file = os.environ.get("SEEWHY_MODELS")
        try:
            registry = Registry(models_file=Path(file) if file else None)
            return [layer.path for layer in registry.survey(registry.spec(model)).layers if layer.path]
        except ModelError:
            return []

    return search() if model in _names_in_file() else _cached(f"layers of {model}", search)


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _completion(names: Callable[[click.Context], Iterable[str]]) -> Completion:
    """Return the function that completes names, whose prefix may be in either case."""
    return lambda ctx, _, incomplete: [name for name in names(ctx) if name.lower().startswith(incomplete.lower())]


def _layers(ctx: click.Context) -> list[str]:
    """Return the layers of the model on the command line, or of the default one."""
    return layer_names(ctx.params.get("model") or os.environ.get("SEEWHY_DEFAULT_MODEL") or "efficientnet_lite0")


complete_colormap = _completion(lambda _: SEQUENTIAL + DIVERGING)
complete_method = _completion(lambda _: method_names())
complete_model = _completion(lambda _: model_names())
complete_layer = _completion(_layers)


def _names_in_file() -> list[str]:
    """Return the names of the models in the file of `SEEWHY_MODELS`, which may change at any time."""
    file = os.environ.get("SEEWHY_MODELS")
    try:
        return list(tomllib.loads(Path(file).read_text(encoding="utf-8")).get("models", {})) if file else []
    except (OSError, ValueError):  # commands report the error
        return []


def _cached(entry: str, search: Callable[[], list[str]]) -> list[str]:
    """Return names from the cache; if it has none for these versions, search for them and store them."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seewhy"
    versions = " ".join(f"{name}-{version(name)}" for name in ("seewhy", "torchvision", "timm"))
    file = folder / "names.json"
    try:
        cache: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        cache = {}
    if cache.get("versions") != versions:
        cache = {"versions": versions}
    if entry not in cache:
        cache[entry] = search()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(cache), encoding="utf-8")  # a half that another command reads is not JSON
        except OSError:  # without a cache it is only slower
            pass
    return list(cache[entry])
