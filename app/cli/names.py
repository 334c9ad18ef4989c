"""Names that the shell completes. Those of methods are read from their source; those of models and layers, for which
PyTorch must be imported, are kept in the user's cache.
"""

import json
import os
import re
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

_ENTERED = re.compile(r'^@method\(\s*"([^"]+)"', re.MULTILINE)


def method_names() -> list[str]:
    """Return the names of the ready-made methods."""
    spec = find_spec("seewhy.explainers")  # imports `seewhy`, which imports nothing
    folders = (spec and spec.submodule_search_locations) or ()
    files = (file for folder in folders for file in Path(folder, "methods").rglob("*.py"))
    return sorted(name for file in files for name in _ENTERED.findall(file.read_text(encoding="utf-8")))


def model_names() -> list[str]:
    """Return the names of all models, own ones first."""

    def found() -> list[str]:
        from seewhy.models.zoo import zoo_names

        return zoo_names()

    return [*_own_names(), *_kept("models", found)]


def layer_names(model: str) -> list[str]:
    """Return the paths of the modules of a model; nothing where there is no such model."""

    def found() -> list[str]:
        from seewhy.models.errors import ModelError
        from seewhy.models.registry import Registry

        file = os.environ.get("SEEWHY_MODELS")
        try:
            registry = Registry(models_file=Path(file) if file else None)
            return [layer.path for layer in registry.survey(registry.spec(model)).layers if layer.path]
        except ModelError:
            return []

    return found() if model in _own_names() else _kept(f"layers of {model}", found)


def complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the methods that begin so."""
    return [name for name in method_names() if name.startswith(incomplete.lower())]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the models that begin so."""
    return [name for name in model_names() if name.startswith(incomplete)]


def complete_layer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the layers that begin so, of the model that the command line names, or of the default one."""
    model = ctx.params.get("model") or os.environ.get("SEEWHY_DEFAULT_MODEL") or "efficientnet_lite0"
    return [path for path in layer_names(model) if path.startswith(incomplete)]


def _own_names() -> list[str]:
    file = os.environ.get("SEEWHY_MODELS")
    try:
        return list(tomllib.loads(Path(file).read_text(encoding="utf-8")).get("models", {})) if file else []
    except (OSError, ValueError):  # a command will say what is wrong with it
        return []


def _kept(what: str, find: Any) -> list[str]:
    """Return names from the cache; find and keep them where it has none of these versions."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seewhy"
    versions = " ".join(f"{name}-{version(name)}" for name in ("seewhy", "torchvision", "timm"))
    file = folder / "names.json"
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if kept.get("versions") != versions:
        kept = {"versions": versions}
    if what not in kept:
        kept[what] = find()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"names-{os.getpid()}.part"
            part.write_text(json.dumps(kept), encoding="utf-8")
            part.replace(file)
        except OSError:  # without a cache it is slow, and right
            pass
    return list(kept[what])
