"""Options shared by commands."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from seewhy.app.cli.names import complete_colormap, complete_layer, complete_method, complete_model
from seewhy.app.cli.output import verbosity_options
from seewhy.app.pipeline.option_table import DRAWING, HEATMAP, PROOF, SIMILAR, Option
from seewhy.explainers.core.choices import FILLS
from seewhy.explainers.imaging.choices import VIEWS
from seewhy.explainers.unknown_names import no_contrast

Command = Callable[..., Any]
Form = TypeVar("Form", bound=str)

device_option = click.option("--device", help="auto, cpu, cuda or cuda:N.")


def model_options(command: Command) -> Command:
    """Add the options --model, --device, --quiet and --verbose."""
    command = click.option("--model", shell_complete=complete_model, help="A name from `seewhy models`.")(command)
    return device_option(verbosity_options(command))


def examples(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  seewhy {line}" for line in lines)


def picture_options(command: Command) -> Command:
    """Add the argument PICTURES and the options of `model_options`."""
    return click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))(model_options(command))


def file_argument(name: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an argument of one file, or `-` for standard input."""
    return click.argument(name, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))


def file_option(name: str, text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an option of a file that exists."""
    path = click.Path(path_type=Path, exists=True, dir_okay=False)
    return click.option(name, type=path, metavar="FILE", help=text)


def output_option(command: Command) -> Command:
    """Add the option -o."""
    text = "Output file, or folder for several pictures; `-` for standard output."
    return click.option("-o", "--output", type=click.Path(allow_dash=True), help=text)(command)


class FileOf(click.Path):
    """Type of an output file whose suffix says its format."""

    def __init__(self, suffixes: Sequence[str]) -> None:
        super().__init__(path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; refuse another suffix."""
        path = Path(str(super().convert(value, param, ctx)))
        if path.suffix.lower() not in self._suffixes:
            self.fail(f"{path.suffix!r} is not a format; use {', '.join(self._suffixes)}", param, ctx)
        return path


_USUAL = {
    **dict.fromkeys(("--class", "--category", "--label", "--index"), "--target"),
    **dict.fromkeys(("--network", "--net", "--architecture"), "--model"),
    **dict.fromkeys(("--explainer", "--algorithm", "--cam"), "--method"),
    **dict.fromkeys(("--gpu", "--cuda"), "--device"),
    **dict.fromkeys(("--cmap", "--palette"), "--colormap"),
    **dict.fromkeys(("--opacity", "--transparency"), "--alpha"),
    **dict.fromkeys(("--out", "--destination", "--save"), "--output"),
}
"""Other words for options, whose spelling is too different for a hint."""


def option_hint(name: str, context: click.Context) -> str:
    """Return what to write instead of an option that a command lacks; empty if only its spelling may help."""
    usual = _USUAL.get(name)
    options = {name for parameter in context.command.get_params(context) for name in parameter.opts}
    if usual in options:
        return f"(Did you mean {usual!r}?)"
    return no_contrast(name.removeprefix("--"), (option.removeprefix("--") for option in options))


def format_option(forms: tuple[str, ...]) -> Callable[[Command], Command]:
    """Return a decorator that adds the option --format."""
    text = f"The default is the format of the output's suffix, or {forms[0]}."
    return click.option("--format", "form", type=click.Choice(forms), help=text)


json_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Print text, or a line of JSON for each picture.",
)


def option(name: str, entry: Option, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds an option of requests, with its help and default from their table."""
    default = {"default": entry.default, "show_default": True} if entry.default else {"default": None}
    return click.option(f"--{name.replace('_', '-')}", **{"help": entry.text, **default, **settings})


def method_option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds the option --method, or one of other names."""
    return click.option(*(names or ("--method",)), shell_complete=complete_method, show_default=True, **settings)


class _Layer(click.types.StringParamType):
    """The path of a layer, or a glob."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return where to find paths."""
        return "`seewhy layers NAME` lists the model's layers."


def layer_option(entry: Option, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds the option --layer."""
    return option("layer", entry, multiple=True, type=_Layer(), shell_complete=complete_layer, **settings)


def table_options(table: dict[str, Option], **settings: dict[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds all options of a table; `settings` has further arguments for some, by name."""

    def add(command: Command) -> Command:
        for name, entry in reversed(table.items()):
            command = option(name, entry, **settings.get(name, {}))(command)
        return command

    return add


_DRAWING: dict[str, dict[str, Any]] = {
    "view": {"type": click.Choice(VIEWS)},
    "colormap": {"shell_complete": complete_colormap},
    "alpha": {"metavar": "0..1"},
}

drawing_options = table_options(DRAWING, **_DRAWING)


class _Extent(click.Choice[str]):
    """An extent of proofs. Because `--proof` may stand alone, it takes a picture after it for an extent."""

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        super().fail(f"{message} Write --proof=true, or put --proof after the pictures.", param, ctx)


proof_options = table_options(
    PROOF,
    proof={"is_flag": False, "flag_value": "true", "type": _Extent(["false", "true", "full"])},
    proof_area={"type": float},
    proof_fill={"type": click.Choice(FILLS)},
)

calibration_option = file_option(
    "--proof-calibration", "Grade the proof by the scores in this file, which `seewhy calibrate` writes."
)

pair_options = table_options({**DRAWING, **SIMILAR}, **_DRAWING)
"""The options of drawings of two pictures."""


extra_option = click.option(
    "--option",
    "extra",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another way to write an option below, and the only one for methods that SEEWHY_METHODS adds; repeatable.",
)


def values_option(*values: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option --values, which alone means true."""
    return option("values", HEATMAP["values"], is_flag=False, flag_value="true", type=click.Choice(values))


def heatmap_options(command: Command) -> Command:
    """Add the options of commands that explain: those of the drawing and --option."""
    return drawing_options(extra_option(command))


def fields(options: dict[str, Any], extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the options that have a value, for validation by a schema.

    Args:
        extra: options of the method, as NAME=VALUE.

    Raises:
        click.UsageError: an option is among them, and was also given by its own name.
    """
    values = {name: value for name, value in options.items() if value not in (None, ())}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    pairs: dict[str, list[str]] = {}
    context = click.get_current_context(silent=True)
    for name, value in map(_pair, extra):
        if context and name in options and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"Use either --{name.replace('_', '-')} or --option {name}={value}, not both.")
        pairs.setdefault(name, []).append(value)
    return {**lists, **{name: texts if len(texts) > 1 else texts[0] for name, texts in pairs.items()}}


def _pair(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
    return name, value
