"""Errors in an operator's settings: invalid values, and variables that have no effect.

Messages name the variable, because they are read far from the code, often in the log of a container.
"""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from seewhy.app.settings import PREFIX, Settings
from seewhy.explainers.errors import nearest, plain_fault

_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Suffixes of the variables that Kubernetes sets in containers for a Service, after the Service's name."""

_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""Prefix of values that are addresses, such as Kubernetes' `SEEWHY_PORT` for a Service named seewhy."""


def setting_faults(error: ValidationError, options: Container[str] = ()) -> str:
    """Return the errors in settings, one per line.

    Args:
        error: raised by `Settings`.
        options: names of the settings set on the command line, which override the variables.
    """
    lines = []
    for fault in error.errors():
        name = str(fault["loc"][0])
        lines.append(f"{f'--{name}' if name in options else PREFIX + name.upper()}: {_message(name, fault)}")
    return "\n".join(lines)


def _message(name: str, fault: Mapping[str, Any]) -> str:
    kind, value = fault["type"], str(fault["input"])
    if name == "port" and _SERVICE_ADDRESS.match(value):
        return (
            f"It must be an integer, not {value!r}. Kubernetes sets this for a Service named seewhy: add "
            "`enableServiceLinks: false` to the pod's spec, or set the variable there."
        )
    if kind == "path_not_file":
        hint = " `seewhy key NAME` creates a key and prints its line for the file." if name == "api_keys" else ""
        return f"There is no file {value!r}.{hint}"
    if kind == "path_not_directory":
        return f"There is no folder {value!r}."
    if kind == "string_pattern_mismatch":  # the value is not shown: it may hold a password
        return f"The value is invalid. {Settings.model_fields[name].description}"
    return plain_fault(fault)


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that looks like a setting and is not."""
    names = [name.upper() for name in Settings.model_fields]
    for variable, value in environment.items():
        name = variable.upper().removeprefix(PREFIX)
        if name in (variable.upper(), *names) or _SERVICE_LINK.fullmatch(name) or _SERVICE_ADDRESS.match(value):
            continue
        if close := [PREFIX + match for match in nearest(name, names)]:
            yield f"{variable} is not a setting and has no effect. Near matches: {', '.join(close)}."
