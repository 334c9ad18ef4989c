"""Checks of options that need neither a model nor PyTorch: by their schema, and across options.

The service and the commands use them; commands before they load PyTorch.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from seewhy.app.errors import FieldError, InvalidOptionsError
from seewhy.app.pipeline.choices import Format
from seewhy.app.pipeline.options import ExplainOptions, MethodOptions, NoOptions, Options
from seewhy.app.settings import Settings
from seewhy.explainers.errors import LAYERS_LISTED, near_matches, plain_faults
from seewhy.explainers.unknown_names import OptionNames, no_contrast, unknown_option

Schema = TypeVar("Schema", bound=BaseModel)

MAX_VALUES = 1000
"""Maximum options in a request, and values of an option. Each is checked, and may be compared for near matches."""

MAX_FAULTS = 20
"""Maximum faults in one answer."""

Fault = tuple[str, str]
"""The place of a fault, such as the name of an option, and a sentence about it."""


def validate(
    schema: type[Schema],
    fields: Mapping[str, Any],
    options: Set[str],
    place: Callable[[Any], Fault | None] = lambda fault: None,
) -> Schema:
    """Return options, checked by their schema.

    Args:
        options: names of all options that the schema takes, those of methods among them.
        place: returns place and message of one of pydantic's faults if it lies inside of a structured option.

    Raises:
        InvalidOptionsError: an option is unknown, or a value is invalid.
        FieldError: there are too many options or values.
    """
    if len(fields) > MAX_VALUES:
        raise FieldError(f"The request has {len(fields):,} options; {MAX_VALUES:,} are allowed.")
    for name, value in fields.items():
        if isinstance(value, list) and len(value) > MAX_VALUES:
            raise FieldError(f"The option has {len(value):,} values; {MAX_VALUES:,} are allowed.", field=name[:100])
    if issubclass(schema, Options | NoOptions) and (empty := _empty(schema, fields, options)):
        raise InvalidOptionsError(empty[:MAX_FAULTS])
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise InvalidOptionsError(_faults(schema, options, fields, error, place)) from error


def _empty(schema: type[BaseModel], fields: Mapping[str, Any], options: Set[str]) -> list[Fault]:
    """Return the error of each option with an empty value, which does not mean the default."""
    required = {name for name, field in schema.model_fields.items() if field.is_required()}
    return [
        (name, f"It is empty; give a value{'' if name in required else ', or leave the option out'}.")
        for name, value in fields.items()
        if name in options and (value in ("", []) or (isinstance(value, list) and "" in value))
    ]


def check_methods(
    options: MethodOptions, methods: OptionNames, catalogue: Callable[[], OptionNames], settings: Settings
) -> dict[str, Any]:
    """Return the options of methods, their layers among them.

    Args:
        methods: the methods of the request.
        catalogue: returns all methods, for the message of an error.

    Raises:
        OptionError: an option belongs to none of the methods.
        FieldError: there are too many layers, or a layer is given for methods that take none.
    """
    values = options.method_options
    if "layers" in values:
        raise FieldError("There is no option 'layers'. Near matches: layer.", field="layers")
    if options.layer:
        if not any("layers" in names for names in methods.values()):
            subject = f"Method {next(iter(methods))!r} uses no" if len(methods) == 1 else "None of these methods uses a"
            raise FieldError(f"{subject} layer; leave the option out.", field="layer")
        if len(options.layer) > settings.max_layers:
            raise FieldError(f"At most {settings.max_layers} layers can be given.", field="layer")
    for name in values:
        if not any(name in names for names in methods.values()):
            raise unknown_option(name, methods, catalogue(), type(options).model_fields)
    return {**values, "layers": tuple(options.layer)} if options.layer else values


def check_counts(options: ExplainOptions, settings: Settings, most: int | None = None) -> None:
    """Check the numbers of classes and maps of a request; `most` is the number of the model's classes, if known."""
    top = options.top or 1
    classes = max(top if most is None else min(top, most), len(options.target))
    if classes > settings.max_targets:
        raise FieldError(
            f"At most {settings.max_targets} classes can be explained at once (SEEWHY_MAX_TARGETS); ask for fewer.",
            field="top" if options.top else "target",
        )
    if options.top is not None and options.target:
        raise FieldError("Give either target or top, not both.", field="top")
    maps = max(1, len(options.method)) * classes
    if maps > settings.max_targets:
        raise FieldError(
            f"The request asks for {maps} maps; at most {settings.max_targets} are allowed.", field="method"
        )


def check_view(view: str, form: Format) -> None:
    """Refuse a mask in a format that would change its indices."""
    if view == "mask" and form in ("jpeg", "webp"):
        raise FieldError("JPEG and WebP change the indices of a mask; ask for png, json or npz.", field="format")


def _faults(
    schema: type[BaseModel],
    options: Set[str],
    fields: Mapping[str, Any],
    error: ValidationError,
    place: Callable[[Any], Fault | None],
) -> list[Fault]:
    """Return the error of each field, once."""
    messages: dict[str, str] = {}
    by_field: dict[str, list[Any]] = {}
    for fault in error.errors()[:MAX_FAULTS]:
        if inner := place(fault):
            messages.setdefault(*inner)
        else:
            by_field.setdefault(str(fault["loc"][0]) if fault["loc"] else "options", []).append(fault)
    for field, faults in by_field.items():
        message, (first, *_) = plain_faults(faults), faults
        if first["type"] == "extra_forbidden" or (first["loc"] and field not in options):
            names = sorted(schema.model_fields)
            hint = near_matches(field, options) or (f"It takes {', '.join(names)}." if names else "It takes none.")
            message = no_contrast(field, names) or f"There is no such option. {hint}"
        elif isinstance(fields.get(field), list) and len(first["loc"]) == 1:
            message = "It is repeated; give it once."
        elif first["type"] == "missing" and field == "layer":
            message += f" {LAYERS_LISTED}"
        messages.setdefault(field, message)
    # A list without its refused items may also be too short; that is not a fault of its own.
    return [
        (place, message)
        for place, message in messages.items()
        if not any(other.startswith(f"{place}[") for other in messages)
    ]
