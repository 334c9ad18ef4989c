"""Options that commands have in common. Names that the floors below define are repeated here, so that help and
completion need not import PyTorch; a test holds them to the originals.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from seewhy.app.cli.names import complete_layer, complete_method, complete_model

if TYPE_CHECKING:
    from seewhy.app.pipeline.options import CaptureFormat, Drawing, Format, InterveneFormat, TraceFormat
    from seewhy.explainers.hooks.records import Kind
    from seewhy.explainers.imaging.render import View

Command = Callable[..., Any]
Form = TypeVar("Form", bound=str)

DRAWINGS: "tuple[Drawing, ...]" = ("png", "jpeg", "webp")
FORMATS: "tuple[Format, ...]" = ("png", "jpeg", "webp", "json", "npz")
TRACE_FORMATS: "tuple[TraceFormat, ...]" = ("json", "svg", "png")
CAPTURE_FORMATS: "tuple[CaptureFormat, ...]" = ("json", "npz", "safetensors", "png", "jpeg", "webp")
INTERVENE_FORMATS: "tuple[InterveneFormat, ...]" = ("json", "png", "jpeg", "webp")
VIEWS: "tuple[View, ...]" = ("overlay", "heatmap", "side-by-side")
KINDS: "tuple[Kind, ...]" = ("input", "output", "grad_input", "grad_output", "parameter_grad")
COLORMAPS = (
    *("inferno", "magma", "plasma", "viridis", "cividis", "batlow", "lipari"),
    *("icefire", "berlin", "vik", "balance"),
)

device_option = click.option("--device", help="auto, cpu, cuda or cuda:N.")


def picture_options(command: Command) -> Command:
    """Add the argument PICTURES and the options --model and --device."""
    command = click.option("--model", shell_complete=complete_model, help="A name of `seewhy models`.")(command)
    return click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))(device_option(command))


def output_option(command: Command) -> Command:
    """Add the option -o."""
    said = "File, or folder for several pictures; `-` for the standard output."
    return click.option("-o", "--output", type=click.Path(allow_dash=True), help=said)(command)


def format_option(forms: tuple[str, ...]) -> Callable[[Command], Command]:
    """Return what adds the option --format."""
    said = f"Default: by the output's suffix, or {forms[0]}."
    return click.option("--format", "form", type=click.Choice(forms), help=said)


def method_option(**settings: Any) -> Callable[[Command], Command]:
    """Return what adds the option --method."""
    return click.option("--method", shell_complete=complete_method, **settings)


def layer_option(said: str, **settings: Any) -> Callable[[Command], Command]:
    """Return what adds the option --layer."""
    return click.option("--layer", multiple=True, shell_complete=complete_layer, help=said, **settings)


def drawing_options(command: Command) -> Command:
    """Add the options about how maps are drawn."""
    said = "`image`, `robust`, or fixed ends `lo,hi`."
    command = click.option("--scale", default="image", show_default=True, help=said)(command)
    said = "Strength of the overlay, 0 to 1."
    command = click.option("--alpha", type=float, default=0.5, show_default=True, help=said)(command)
    command = click.option("--colormap", shell_complete=_colormaps, help="A perceptual colour map.")(command)
    return click.option("--view", type=click.Choice(VIEWS), default="overlay", show_default=True)(command)


def heatmap_options(command: Command) -> Command:
    """Add the options of commands that explain: those about drawing, --values and --option."""
    said = "An option of the method; repeatable."
    command = click.option("--option", "extra", multiple=True, metavar="NAME=VALUE", help=said)(command)
    said = "Include the heatmap's numbers in a JSON answer."
    command = click.option("--values", is_flag=True, default=None, help=said)(command)
    return drawing_options(command)


def given_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as schemas take them."""
    found = {name: value for name, value in given.items() if value not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
    return name, value


def _colormaps(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in COLORMAPS if name.startswith(incomplete)]
