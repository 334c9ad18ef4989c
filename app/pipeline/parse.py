"""Options of a request: validated by their schema, and noted in the request's record."""

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.validation import Fault, validate
from seewhy.explainers.inspection.edits import NO_LIST, edit_fault
from seewhy.explainers.methods.catalogue import METHODS

Schema = TypeVar("Schema", bound=BaseModel)


def parse(schema: type[Schema], fields: dict[str, Any]) -> Schema:
    """Return options, checked by their schema; errors as in `validate`."""
    names = _options(schema, len(METHODS))
    current().options = tuple(sorted(names.intersection(fields)))
    return validate(schema, fields, names, _in_edits)


@lru_cache(maxsize=32)
def _options(schema: type[BaseModel], methods: int) -> frozenset[str]:
    """Return the names of all options of this schema and of its methods, whose number is part of the cache key."""
    takes_more = schema.model_config.get("extra") == "allow"
    names = (name for method in METHODS.values() if takes_more for name in method.options)
    return frozenset((*schema.model_fields, *names))


def _in_edits(fault: Any) -> Fault | None:
    """Return place and message of a fault in a list of edits."""
    if fault["loc"][:1] == ("edits",) and (len(fault["loc"]) > 1 or fault["type"] in NO_LIST):
        return edit_fault(fault, fault["loc"][1:])
    return None
