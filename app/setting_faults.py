"""What is wrong with an operator's settings: values that do not fit, and variables that do nothing.

Messages name the variable, for they are read far from the code, often in the log of a container.
"""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from seewhy.app.settings import PREFIX, Settings
from seewhy.explainers.errors import nearest, plain_fault

_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Variables that Kubernetes puts into containers beside a Service, after its name."""

_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""The beginning of values that are addresses, such as that of `SEEWHY_PORT` beside a Service named seewhy."""

_REPLACED = {
    "CACHE_BYTES": "Answers are no longer kept; an ETag still saves the work for a client that has the answer.",
    "MAX_IN_FLIGHT_BYTES": f"{PREFIX}MEMORY_BYTES bounds bodies, pixels, tensors and answers together.",
    **dict.fromkeys(
        ("DECODE_PROCESSES", "DECODE_BYTES", "DECODE_SECONDS"), "Pictures are decoded in the processes of the service."
    ),
    "UPLOAD_SECONDS": "The proxy before the service says how long clients may take; see docs/deployment.md.",
}
"""Settings of earlier versions, and what there is instead."""


def setting_faults(error: ValidationError, options: Container[str] = ()) -> str:
    """Return what is wrong with settings, a line for each.

    Args:
        error: raised by `Settings`.
        options: names of the settings that the command line sets, which override the variables.
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
            f"It must be a whole number, not {value!r}. Kubernetes sets it so beside a Service named seewhy: write "
            "`enableServiceLinks: false` into the spec of the pod, or give the variable a value there."
        )
    if kind == "path_not_file":
        hint = " `seewhy key NAME` makes a key and prints its line for the file." if name == "api_keys" else ""
        return f"There is no file {value!r}.{hint}"
    if kind == "path_not_directory":
        return f"There is no folder {value!r}."
    if kind == "string_pattern_mismatch":  # the value is not shown: it may hold a password
        return f"It does not fit. {Settings.model_fields[name].description}"
    return plain_fault(fault)


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that looks like a setting and is none, or is none any more."""
    names = [name.upper() for name in Settings.model_fields]
    for variable, value in environment.items():
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper() != name and name in _REPLACED:
            yield f"{variable} is no setting any more, and does nothing. {_REPLACED[name]}"
            continue
        if name in (variable.upper(), *names) or _SERVICE_LINK.fullmatch(name) or _SERVICE_ADDRESS.match(value):
            continue
        if close := [PREFIX + match for match in nearest(name, names)]:
            yield f"{variable} is no setting, and does nothing. Near matches: {', '.join(close)}."
