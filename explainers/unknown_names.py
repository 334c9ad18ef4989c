"""The errors of unknown methods, metrics and options.

This module imports no PyTorch, because the commands use it before they load anything. The catalogues use it, too.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from seewhy.explainers.errors import OptionError, near_matches, nearest

_MOST_NAMES = 8
_LISTS = "`seewhy methods` or GET /methods lists all methods and their options."

OptionNames = Mapping[str, Collection[str]]
"""The names of the options of each method, by the method's name."""


def unknown_method(name: str, names: Iterable[str]) -> OptionError:
    """Return the error about a method that is not among `names`."""
    hint = near_matches(name, names) or _LISTS
    return OptionError(f"There is no method {name!r}. {hint}", field="method")


def unknown_metric(name: object, names: Collection[str]) -> OptionError:
    """Return the error about a metric that is not among `names`."""
    hint = near_matches(str(name), names) or f"The metrics are {', '.join(names)}."
    return OptionError(f"There is no metric {name!r}. {hint}", field="metrics")


def unknown_option(
    option: str, methods: OptionNames, catalogue: OptionNames, further: Iterable[str] = ()
) -> OptionError:
    """Return the error about an option that no method of a request has.

    Args:
        option: its name.
        methods: the methods of the request; empty if it names none.
        catalogue: all methods.
        further: names of options that belong to no method, for near matches.
    """
    if hint := no_contrast(option, further):
        return OptionError(hint, field=option)
    subject = "None of these methods has an"
    if len(methods) < 2:
        subject = f"Method {next(iter(methods))!r} has no" if methods else "No method has an"
    names = {public(name) for name in {*further}.union(*(methods or catalogue).values())}
    elsewhere = owners(option, catalogue)
    hint = elsewhere or near_matches(public(option), names)
    everywhere = {public(name) for options in catalogue.values() for name in options}
    if not hint and (close := nearest(public(option), everywhere)):
        hint = elsewhere = f"Near matches: {close[0]}. {owners(close[0], catalogue)}"
    if elsewhere and len(methods) == 1:
        ((method, own),) = methods.items()
        hint += f" Options of {method}: {', '.join(sorted(map(public, own)))}." if own else f" {method} has none."
    hint = hint or (f"It takes {', '.join(sorted(names))}." if methods else _LISTS)
    return OptionError(f"{subject} option {public(option)!r}. {hint}", field=public(option))


def no_contrast(option: str, options: Iterable[str]) -> str:
    """Return what to do instead of a contrast where there is none; empty for any option but ``against``.

    Args:
        option: an unknown option.
        options: those that there are.
    """
    if option != "against":
        return ""
    instead = " To compare two classes, ask about each with `target`." if "target" in options else ""
    return f"There is no contrast here; `explain` draws one with `against`.{instead}"


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function that takes options of methods, too."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def public(option: str) -> str:
    """Return the name of an option as users type it."""
    return "layer" if option == "layers" else option


def owners(option: str, catalogue: OptionNames) -> str:
    """Return a sentence that names the methods with an option; empty if there are none."""
    names = [method for method, options in catalogue.items() if public(option) in map(public, options)]
    further = ", and others" if len(names) > _MOST_NAMES else ""
    return f"`{public(option)}` is an option of {', '.join(names[:_MOST_NAMES])}{further}." if names else ""
