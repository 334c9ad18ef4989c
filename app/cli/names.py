"""Names for shell completion.

Names of methods are read from their source. Names of models and layers, which need PyTorch, are cached.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.models.errors import ModelError

_REGISTRATION = re.compile(r'^@method\(\s*"([^"]+)"', re.MULTILINE)


def method_names() -> list[str]:
    """Return the names of the built-in methods."""
    spec = find_spec("seewhy.explainers")  # this imports `seewhy`, which imports nothing
    folders = (spec and spec.submodule_search_locations) or ()
    files = (file for folder in folders for file in Path(folder, "methods").rglob("*.py"))
    return sorted(name for file in files for name in _REGISTRATION.findall(file.read_text(encoding="utf-8")))


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


def complete_colormap(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the colour maps with this prefix."""
    return [name for name in SEQUENTIAL + DIVERGING if name.startswith(incomplete)]


def complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the methods with this prefix."""
    return [name for name in method_names() if name.startswith(incomplete.lower())]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the models with this prefix."""
    return [name for name in model_names() if name.startswith(incomplete)]


def complete_layer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the layers with this prefix, of the model on the command line or of the default one."""
    model = ctx.params.get("model") or os.environ.get("SEEWHY_DEFAULT_MODEL") or "efficientnet_lite0"
    return [path for path in layer_names(model) if path.startswith(incomplete)]


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
            part = folder / f"names-{os.getpid()}.part"
            part.write_text(json.dumps(cache), encoding="utf-8")
            part.replace(file)
        except OSError:  # without a cache it is only slower
            pass
    return list(cache[entry])
