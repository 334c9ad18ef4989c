"""Validation of options by their schema, with errors field by field."""

from collections.abc import Set
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from seewhy.app.errors import FieldError, InvalidOptionsError
from seewhy.app.pipeline.record import current
from seewhy.explainers.errors import near_matches, plain_fault
from seewhy.explainers.inspection.edits import NO_LIST, edit_fault
from seewhy.explainers.methods.catalogue import METHODS

Schema = TypeVar("Schema", bound=BaseModel)

MAX_VALUES = 1000
"""Maximum options in a request, and values of an option. Each is checked, and may be compared for near matches."""

MAX_FAULTS = 20
"""Maximum faults in one answer."""


def parse(schema: type[Schema], fields: dict[str, Any]) -> Schema:
    """Validate options by their schema.

    Args:
        schema: schema of the options.
        fields: the values of a request or of a command, by name.

    Raises:
        InvalidOptionsError: an option is unknown, or a value is invalid.
        FieldError: there are too many options or values.
    """
    known = _options(schema, len(METHODS))
    current().options = tuple(sorted(known.intersection(fields)))
    if len(fields) > MAX_VALUES:
        raise FieldError(f"The request has {len(fields):,} options; {MAX_VALUES:,} are allowed.")
    for name, value in fields.items():
        if isinstance(value, list) and len(value) > MAX_VALUES:
            raise FieldError(f"The option has {len(value):,} values; {MAX_VALUES:,} are allowed.", field=name[:100])
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise InvalidOptionsError(_faults(schema, known, fields, error)) from error


@lru_cache(maxsize=32)
def _options(schema: type[BaseModel], methods: int) -> frozenset[str]:
    """Return the names of all options of this schema, including those of methods, of which there are so many."""
    takes_more = schema.model_config.get("extra") == "allow"
    names = (name for method in METHODS.values() if takes_more for name in method.options)
    return frozenset((*schema.model_fields, *names))


def _faults(
    schema: type[BaseModel], known: Set[str], fields: dict[str, Any], error: ValidationError
) -> list[tuple[str, str]]:
    """Return the error of each field, once; `known` are the options of the request's schema."""
    faults: dict[str, str] = {}
    # An option may be a number or a text. For a text that is too long, the message is about its length, not numbers.
    for fault in sorted(error.errors()[:MAX_FAULTS], key=lambda fault: fault["type"] == "int_type"):
        if fault["loc"][:1] == ("edits",) and (len(fault["loc"]) > 1 or fault["type"] in NO_LIST):
            faults.setdefault(*edit_fault(fault, fault["loc"][1:]))
            continue
        field = str(fault["loc"][0]) if fault["loc"] else "options"
        message = plain_fault(fault)
        if fault["type"] == "extra_forbidden" or (fault["loc"] and field not in known):
            names = sorted(schema.model_fields)
            hint = near_matches(field, known) or (f"It takes {', '.join(names)}." if names else "It takes none.")
            message = f"There is no such option. {hint}"
        elif isinstance(fields.get(field), list) and len(fault["loc"]) == 1:
            message = "It is repeated; give it once."
        faults.setdefault(field, message)
    # A list without its refused items may also be too short; that is not a fault of its own.
    return [
        (place, message)
        for place, message in faults.items()
        if not any(other.startswith(f"{place}[") for other in faults)
    ]
