"""The catalogue of methods by name. The decorator `method` enters an explainer's class."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, Literal, TypeVar, dataclass_transform, get_args

import torch
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as dataclass_of

from seewhy.explainers.core.costs import Passes, evaluate, names_in
from seewhy.explainers.core.model import AnyModel, Model
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import (
    InvalidArgumentError,
    LayerError,
    OptionError,
    near_matches,
    plain_fault,
)
from seewhy.explainers.methods.explainer import AUGMENTATIONS, Explainer
from seewhy.explainers.papers import PAPERS, Paper, sources_of
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.unknown_names import owners, public, unknown_method, unknown_option

_log = logging.getLogger(__name__)

Family = Literal["cam", "gradient", "rule", "transformer", "perturbation", "concept", "control"]

COMMON = ("sign", "smooth")
"""Options that every method has."""

Class = TypeVar("Class", bound=type[Any])


@dataclass(frozen=True)
class Method:
    """One entry of the catalogue.

    Attributes:
        name: as users type it.
        family: cam, gradient, rule (a backward pass by other rules), transformer, perturbation, concept, or control (a
            map that any method should beat).
        explainer: the frozen dataclass; its fields are the options.
        summary: one line.
        paper: its publication; None without one.
        forwards, backwards: passes per picture: a number, or an expression of the options and the layer's channels or
            positions, such as ``samples`` or ``1 + channels``; see `seewhy.explainers.core.costs.evaluate`.
        discriminates: whether the maps of several classes in one picture should differ.
        fine: whether the map, with default options, has a value for each pixel of the model's input. Such maps have a
            few extreme values: ``scale=robust`` keeps the others visible.
        rounding: the decisions that can depend on rounding, so that maps differ between processors, thread counts and
            batches; empty if maps differ only in the last digits.
    """

    name: str
    family: Family
    explainer: type[Explainer]
    summary: str
    paper: Paper | None
    forwards: str
    backwards: str
    discriminates: bool
    fine: bool = False
    rounding: str = ""

    @property
    def papers(self) -> tuple[Paper, ...]:
        """Its publication, then others that it draws on."""
        return () if self.paper is None else (self.paper, *sources_of(self.name))

    @cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """JSON schema of each option: type, default, bounds, description."""
        return dict(self._adapter.json_schema().get("properties", {}))

    @property
    def takes_layers(self) -> bool:
        """Whether the method has an option for layers."""
        return "layers" in {field.name for field in fields(self.explainer)}

    @property
    def needs(self) -> tuple[str, ...]:
        """The requirements of the method on a model.

        ``layer`` for a layer with a grid, ``gradient`` for gradients, ``attention`` for attention of all tokens of the
        picture with each other, ``region`` for regions as targets, ``boxes`` for a detector.
        """
        needs = {
            "layer": self.takes_layers,
            "gradient": self.backwards != "0",
            "attention": self.explainer.reads_attention,
            "region": "region" in self.explainer.reads,
            "boxes": "similarity" in self.explainer.reads,
        }
        return tuple(name for name, is_needed in needs.items() if is_needed)

    @property
    def signed(self) -> bool:
        """Whether maps have negative values by default."""
        return bool(self.options["sign"]["default"] == "signed")

    @property
    def equation(self) -> str:
        """The method's equation in LaTeX, from its docstring."""
        return equation_of(self.explainer)

    @property
    def counted(self) -> tuple[str, ...]:
        """The options on which the number of passes depends."""
        names = dict.fromkeys((*names_in(self.forwards), *names_in(self.backwards)))
        return tuple(name for name in names if name in self.options)

    def passes(self, explainer: Explainer, model: AnyModel, image_shape: tuple[int, int, int]) -> Passes | None:
        """Return the maximum passes of an explainer of this method for one picture.

        Args:
            explainer: explainer of this method.
            model: a `LoadedModel`, whose survey has the sizes of layers.
            image_shape: (C, H, W) of the model's input.

        Returns:
            The passes; None if they depend on an unknown quantity.
        """
        options = {field.name: getattr(explainer, field.name) for field in fields(explainer)}
        quantities = options | explainer.quantities(model, image_shape)
        forwards, backwards = (evaluate(expression, quantities) for expression in (self.forwards, self.backwards))
        if forwards is None or backwards is None:
            return None
        return Passes(forwards, backwards) * (len(AUGMENTATIONS) if explainer.smooth == "tta" else 1)

    def build(self, options: Mapping[str, Any]) -> Explainer:
        """Return the explainer with these options, checked.

        Args:
            options: values of Python or JSON, or text as from a form.

        Raises:
            OptionError: an option that the method lacks, or an invalid value.
        """
        for option in options:
            if option not in self.options:
                hint = owners(option, option_names()) or near_matches(option, self.options)
                hint = hint or f"It takes {', '.join(self.options) or 'no options'}."
                raise OptionError(f"Method {self.name!r} has no option {option!r}. {hint}", field=option)
        try:
            explainer: Explainer = self._adapter.validate_python(dict(options))
        except ValidationError as error:
            first = error.errors()[0]
            field = public(str(first["loc"][0])) if first["loc"] else "options"
            fault = plain_fault(first)
            message = f"Option {field!r} of method {self.name!r}: {fault}"
            raise OptionError(message, field=field, fault=fault) from error
        return explainer

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.explainer)


def equation_of(kind: type[Any]) -> str:
    """Return the equation in the docstring of a class, in LaTeX; empty without one."""
    text = cleandoc(kind.__doc__ or "")
    block = re.search(r"^\.\. math::(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    return cleandoc(block[1]) if block else ""


def summary_of(kind: type[Any]) -> str:
    """Return the first paragraph of a class's docstring, after the name and a colon."""
    text = " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    text = text.partition(": ")[2] or text
    return text[:1].upper() + text[1:]


def option_names() -> dict[str, list[str]]:
    """Return the names of the options of each method."""
    return {name: [field.name for field in fields(method.explainer)] for name, method in METHODS.items()}


def build_methods(
    methods: Sequence[Method], options: Mapping[str, Any], further: Iterable[str] = ()
) -> tuple[Explainer, ...]:
    """Return the explainers of methods, each with its own options.

    Args:
        methods: one or more.
        options: as for `Method.build`.
        further: names of arguments that may be given beside these options, for near matches.

    Raises:
        OptionError: a method is given twice, an option that no method has, or an invalid value.
    """
    own = {method.name: method.options for method in methods}
    if len(own) < len(methods):
        twice = next(method.name for number, method in enumerate(methods) if method in methods[:number])
        raise OptionError(f"The method {twice!r} is given twice; name each once.", field="method")
    for name in options:
        if not any(name in names for names in own.values()):
            raise unknown_option(name, own, option_names(), further)
    return tuple(
        method.build({name: value for name, value in options.items() if name in method.options}) for method in methods
    )


_methods: dict[str, Method] = {}

METHODS: Mapping[str, Method] = MappingProxyType(_methods)
"""All methods by name."""


def parameters(kind: Class) -> Class:
    """Return a class as a frozen dataclass whose values pydantic checks, if it is not one yet."""
    frozen: Class = kind
    if "__dataclass_fields__" not in vars(kind):
        frozen = dataclass_of(kind, frozen=True, kw_only=True)  # type: ignore[assignment]
    return frozen


@dataclass_transform(kw_only_default=True, frozen_default=True)
def method(
    name: str,
    *,
    family: Family,
    summary: str | None = None,
    paper: Paper | None = None,
    forwards: str = "1",
    backwards: str = "1",
    discriminates: bool = True,
    fine: bool = False,
    rounding: str = "",
) -> Callable[[Class], Class]:
    """Return a decorator that makes a class the frozen dataclass of its options, and adds it to the catalogue.

    The arguments are the attributes of `Method`. The summary is, by default, the first sentence of the docstring, after
    the name and a colon; the papers of included methods are in `papers.csv`.

    Raises:
        InvalidArgumentError: the name is taken or not lower-case, or the family is unknown.
        TypeError: the class is not an `Explainer`.
    """

    paper = paper or PAPERS.get(name)

    def enter(explainer: Class) -> Class:
        if not (isinstance(explainer, type) and issubclass(explainer, Explainer)):
            raise TypeError(f"The method {name!r} must be a subclass of `Explainer`, not {explainer!r}.")
        if name in _methods:
            raise InvalidArgumentError(f"Two methods are named {name!r}.", "name")
        if family not in get_args(Family):
            choices = ", ".join(get_args(Family))
            raise InvalidArgumentError(f"There is no family {family!r}; choose from {choices}.", "family")
        if name != name.lower():
            raise InvalidArgumentError(f"The method {name!r} must have a lower-case name.", "name")
        text = summary_of(explainer) if summary is None else summary
        explainer = parameters(explainer)
        _methods[name] = Method(
            name, family, explainer, text, paper, forwards, backwards, discriminates, fine, rounding
        )
        return explainer

    return enter


def import_methods(modules: str) -> None:
    """Import modules that add methods by the decorator `method`.

    Args:
        modules: dotted names, separated by commas; modules that are already imported stay as they are.

    Raises:
        OptionError: a module that cannot be imported, or that adds an invalid method.
    """
    for name in filter(None, (part.strip() for part in modules.split(","))):
        try:
            import_module(name)
        except Exception as error:  # a user's module may raise anything
            raise OptionError(
                f"The module {name!r} cannot be imported: {type(error).__name__}: {error}. Name modules that this "
                "Python finds, such as files in a folder of PYTHONPATH.",
                field="methods",
            ) from error


def passes_of(explainer: Explainer, model: Any, image_shape: tuple[int, int, int]) -> Passes | None:
    """Return the passes of an explainer for one picture, as `Method.passes`; None if its class has no entry."""
    entry = next((method for method in METHODS.values() if method.explainer is type(explainer)), None)
    return None if entry is None else entry.passes(explainer, model, image_shape)


def unsuitable_methods(model: Model, image_shape: tuple[int, int, int]) -> dict[str, str]:
    """Return the methods that can never explain a model with default options, by name, each with the reason.

    Args:
        model: a `LoadedModel`; it runs once, on an empty picture.
        image_shape: (C, H, W) of its input.
    """
    reasons: dict[object, str | None] = {}  # methods that read attention share the pass that looks for it
    names = {}
    with pose(model, torch.zeros(1, *image_shape, device=model.device)) as question:
        for name, method in METHODS.items():
            explainer = method.build({})
            rule = type(explainer).must_suit if explainer.reads_attention else name
            if rule not in reasons:
                reasons[rule] = _refusal(name, explainer, question)
            names[name] = reasons[rule]
    return {name: reason for name, reason in names.items() if reason is not None}


def _refusal(name: str, explainer: Explainer, question: Question) -> str | None:
    """Return why an explainer of a method can never explain a question's model; None if it may."""
    try:
        explainer.must_suit(question)
    except LayerError as error:
        return str(error)
    except Exception as error:  # from the model, about the empty picture; or from a user's method
        _log.info("Whether the method %s suits the model is not known: %s", name, error)
    return None


def list_methods() -> list[str]:
    """Return the names of all methods, family by family."""
    order = get_args(Family)
    return sorted(METHODS, key=lambda name: (order.index(METHODS[name].family), name))


def get_method(name: str) -> Method:
    """Return a method by name, case ignored.

    Raises:
        OptionError: no method has that name; the message lists near matches.
    """
    if not isinstance(name, str):
        kind = name if isinstance(name, type) else type(name)
        names = [repr(method.name) for method in METHODS.values() if method.explainer is kind]
        hint = f"give {names[0]}" if names else "`compare` takes several"
        raise OptionError(f"A method is given by its name, not {kind.__name__}; {hint}.", field="method")
    entry = METHODS.get(name.lower())
    if entry is None:
        raise unknown_method(name, METHODS)
    return entry
