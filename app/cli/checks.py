"""Checks of a command's options and files before it loads PyTorch, which takes seconds.

Options that depend on the model, such as classes and layers, are checked when it is loaded. Functions import slow
modules that are seldom needed: NumPy and, last of all, the methods with PyTorch, for the values of their options.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from click import UsageError
from pydantic import BaseModel

from seewhy.app.cli.environment import read_settings
from seewhy.app.cli.files import DASH, Item, printable
from seewhy.app.cli.names import method_names, metric_names, option_names
from seewhy.app.cli.options import fields
from seewhy.app.cli.output import exit_failed, print_failure
from seewhy.app.pipeline.options import DrawingOptions, EvaluateOptions, ExplainOptions, MethodOptions, SegmentOptions
from seewhy.app.pipeline.validation import check_counts, check_methods, check_view, validate
from seewhy.app.settings import Settings
from seewhy.explainers.errors import PictureError
from seewhy.explainers.unknown_names import unknown_method, unknown_metric, unknown_option

Schema = TypeVar("Schema", bound=BaseModel)


def check(schema: type[Schema], fields: dict[str, Any], items: Sequence[Item]) -> Schema:
    """Return the options of a command, checked as far as that needs no model.

    Args:
        items: the pictures that it needs. If none of them exists, or the only one cannot be used, the command ends
            here, as if it had run.
    """
    settings = read_settings()
    options = validate(schema, fields, {*schema.model_fields, *_method_options(schema, fields)})
    if isinstance(options, ExplainOptions) and not settings.models:  # custom models may have few classes
        check_counts(options, settings)
    if isinstance(options, DrawingOptions) and (options.colormap is not None or options.scale is not None):
        options.style(settings.max_side)  # which checks what the schema leaves open
    if isinstance(options, SegmentOptions) and options.format:
        check_view(options.view, options.format)
    if isinstance(options, EvaluateOptions):
        _check_metrics(options)
    if isinstance(options, ExplainOptions | EvaluateOptions) and not settings.methods:
        _check_methods(options, options.method, settings)
    _check_pictures([item.picture for item in items], settings.max_pixels)
    if isinstance(options, ExplainOptions | EvaluateOptions) and not settings.methods:
        _check_values(options, options.method)
    return options


def check_series(command: str, options: dict[str, Any], extra: tuple[str, ...]) -> ExplainOptions:
    """Return the options of a command that explains many pictures with one method and one target.

    Args:
        command: its name.
        options: its own options; others belong to `explain` alone.
        extra: as for `fields`.
    """
    single = [name for name in ("method", "target") if name in options]
    lists = {name: (value,) if name in single and value else value for name, value in options.items()}
    request = check(ExplainOptions, fields(lists, extra), [])
    if foreign := {*ExplainOptions.model_fields} & request.model_fields_set - {*options}:
        raise UsageError(f"{command} takes no {min(foreign)!r}.")
    for name in single:
        if len(getattr(request, name)) > 1:
            raise UsageError(f"{command} takes one {name}.")
    return request


def _check_pictures(pictures: Sequence[Path], max_pixels: int) -> None:
    faults: list[str] = []
    for picture in pictures:
        try:
            if picture != DASH and picture.stat() and len(pictures) == 1 and picture.is_file():
                from seewhy.explainers.imaging.decode import Probe

                Probe(picture.read_bytes(), max_pixels)
            return
        except (OSError, PictureError) as error:
            faults.append(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
    for picture, fault in zip(pictures, faults, strict=True):
        print_failure(printable(picture), fault)
    if faults:
        exit_failed(len(faults), len(pictures))


def _method_options(schema: type[BaseModel], fields: dict[str, Any]) -> set[str]:
    """Return the options of all methods, if any is given; reading them takes a while."""
    if schema.model_fields.keys() >= fields.keys():
        return set()
    return {name for names in option_names().values() for name in names}


def _check_methods(options: MethodOptions, names: Sequence[str], settings: Settings) -> None:
    """Check the names of methods and their options; only roughly if the model decides on the default method."""
    known = method_names()
    for name in names:
        if name not in known:
            raise unknown_method(name, known)
    if not (options.method_options or options.layer):
        return
    catalogue = option_names()
    if names:
        check_methods(options, {name: catalogue[name] for name in names}, option_names, settings)
        return
    for option in options.method_options:
        if not any(option in own for own in catalogue.values()):
            raise unknown_option(option, {}, catalogue, type(options).model_fields)


def _check_values(options: MethodOptions, names: Sequence[str]) -> None:
    """Check the values of the options of methods, before the model is loaded, which takes longer still."""
    if names and options.method_options:
        from seewhy.explainers.methods.catalogue import build_methods, get_method

        build_methods([get_method(name) for name in names], options.method_options)


def _check_metrics(options: EvaluateOptions) -> None:
    known = metric_names()
    for name in options.metrics:
        if name not in known:
            raise unknown_metric(name, known)
