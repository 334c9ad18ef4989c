"""Selection of modules and parameters by path, glob, type or predicate; it needs no hooks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from seewhy.explainers.errors import LayerError, UnsupportedModuleError, near_matches


def is_leaf(module: nn.Module) -> bool:
    """Whether a module has no submodules."""
    return next(module.children(), None) is None


def as_module(model: Any) -> nn.Module:
    """Return the `nn.Module` of a module or of anything that carries one as ``.module``.

    Raises:
        UnsupportedModuleError: a scripted, compiled or data-parallel module, whose submodules
            never run as Python modules in this thread; or no module at all.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModuleError(
            "A TorchScript module runs outside Python, where hooks cannot reach; pass the original nn.Module."
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedModuleError(f"{type(model).__name__} copies its module; pass `model.module` instead.")
    if isinstance(model, nn.Module):
        if hasattr(model, "_orig_mod"):
            raise UnsupportedModuleError(
                "A module made by torch.compile runs as fused kernels; pass the original (`model._orig_mod`)."
            )
        if is_compiled_in_place(model):
            raise UnsupportedModuleError(
                "The module was compiled in place (`module.compile()`) and runs as fused kernels, which see no hooks; "
                "pass `copy.copy(module)`, which has the same weights and is not compiled."
            )
        return model
    inner = getattr(model, "module", None)
    if isinstance(inner, nn.Module):
        return as_module(inner)
    raise UnsupportedModuleError(f"Expected a torch.nn.Module or a LoadedModel, got {type(model).__name__}.")


def is_within(path: str, container: str) -> bool:
    """Whether the module of a path is another one, or a part of it."""
    return not container or f"{path}.".startswith(f"{container}.")


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    # PyTorch has no public sign of it; `_orig_mod`, which `torch.compile(module)` sets, is missing here.
    return vars(module).get("_compiled_call_impl") is not None


def out_of_reach(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the paths of the modules whose calls hooks would miss, with what each belongs to.

    These are scripted modules, modules that were compiled in place, and all that lies in these or in a module made by
    `torch.compile`. (The latter itself is called as any other module is.)

    Args:
        modules: by path, each after those that hold it.
    """
    reasons: dict[str, str] = {}
    for path, module in modules.items():
        holder, _, name = path.rpartition(".")
        if path and holder in reasons:
            reasons[path] = reasons[holder]
        elif isinstance(module, torch.jit.ScriptModule):
            reasons[path] = f"{path!r}, which is TorchScript and runs outside Python"
        elif is_compiled_in_place(module):
            reasons[path] = f"{path!r}, which was compiled in place (`compile()`) and runs as fused kernels"
        elif name == "_orig_mod" and hasattr(modules.get(holder), "_orig_mod"):
            reasons[path] = f"{holder!r}, which torch.compile made and which runs as fused kernels"
    return reasons


def opaque_parts(module: nn.Module) -> str:
    """Return a sentence that names the parts of a module that hooks cannot see into; empty if there are none."""
    reasons = dict.fromkeys(out_of_reach(dict(module.named_modules())).values())
    if not reasons:
        return ""
    return f" Hooks see nothing inside {' and '.join(reasons)}; use the original model."


def match_paths(modules: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the module paths that the patterns (dotted paths or globs) match, in module order.

    The model itself has the empty path, which may also be written ``.``, because forms drop empty values.

    Raises:
        LayerError: a pattern that matches nothing; the message lists near matches.
    """
    paths = list(modules)
    matching: set[str] = set()
    for pattern in patterns:
        pattern = "" if pattern == "." else pattern
        matches = {pattern} if pattern in paths else {path for path in paths if fnmatchcase(path, pattern)}
        if not matches:
            outermost = [path for path in paths if path and "." not in path]
            hint = near_matches(pattern, paths) or f"It has {', '.join(outermost[:20]) or 'none at all'}."
            raise LayerError(f"The model has no layer {pattern!r}. {hint}")
        matching |= matches
    return tuple(path for path in paths if path in matching)


def module_paths(module: nn.Module, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of a module's modules that patterns match, as `match_paths`; a single path is only looked up."""
    if len(patterns) == 1 and patterns[0]:
        try:
            module.get_submodule(patterns[0])
        except AttributeError:
            pass
        else:
            return patterns
    return match_paths((path for path, _ in module.named_modules()), patterns)


ModuleSelector = str | type[nn.Module] | nn.Module | Callable[[nn.Module], bool]
"""Which modules: a dotted path or glob (``*`` also matches dots), a type, a module itself, or a predicate."""


def match_modules(
    modules: Mapping[str, nn.Module],
    where: Iterable[ModuleSelector],
    unreachable: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return the paths of the modules that are meant, in module order.

    Globs, types and predicates pass over modules that hooks cannot reach; a module that is named must be within reach.

    Args:
        modules: by path.
        where: each a path, glob, type, module or predicate; a predicate is asked about every module once.
        unreachable: see `out_of_reach`.

    Raises:
        LayerError: a selector matches nothing, or there are none.
        UnsupportedModuleError: a module that is named, or all that a pattern matches, cannot be reached.
        TypeError: a selector of another kind.
    """
    where = tuple(where)
    if not where:
        raise LayerError("No layers were given; name one, or use '*' for all.")
    matching: set[str] = set()
    for selector in where:
        paths = _meant(modules, selector)
        matches = [path for path in paths if path not in unreachable]
        if not matches:
            raise UnsupportedModuleError(
                f"Hooks cannot reach {paths[0]!r}: it belongs to {unreachable[paths[0]]}. Choose another layer, or put "
                "the original module in its place."
            )
        matching.update(matches)
    return tuple(path for path in modules if path in matching)


def _meant(modules: Mapping[str, nn.Module], selector: ModuleSelector) -> Sequence[str]:
    """Return the paths that one selector means, in module order; errors are those of `match_modules`."""
    if isinstance(selector, str):
        return match_paths(modules, [selector])
    if isinstance(selector, type):
        matches = {module for module in modules.values() if isinstance(module, selector)}
        absence = f"no module of the type {selector.__name__}"
    elif isinstance(selector, nn.Module):
        matches = {selector} & set(modules.values())
        absence = f"no such module as this {type(selector).__name__}, which is a copy or belongs to another network"
    elif callable(selector):
        matches = {module for module in dict.fromkeys(modules.values()) if selector(module)}
        absence = "no module that the predicate accepts"
    else:
        raise TypeError(
            "Name layers by paths, globs, types, modules or predicates as separate arguments, not by "
            f"{type(selector).__name__}."
        )
    if not matches:
        types = ", ".join(sorted({type(module).__name__ for module in modules.values()})[:20])
        raise LayerError(f"The model has {absence}; it is made of {types}.")
    return [path for path, module in modules.items() if module in matches]


def first_names(modules: Mapping[str, nn.Module], paths: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that paths name, each once and by the first of its names, in the order of the paths."""
    first = {id(module): path for path, module in reversed(list(modules.items()))}
    return tuple(dict.fromkeys(first[id(modules[path])] for path in paths))


def match_parameters(
    parameters: Mapping[str, Tensor], modules: Mapping[str, nn.Module], where: Iterable[ModuleSelector]
) -> tuple[str, ...]:
    """Return the names of the parameters that are meant, in the model's order.

    Args:
        parameters: by dotted name.
        modules: by path.
        where: names or globs of parameters; or types or predicates of modules, whose own parameters are meant.

    Raises:
        LayerError: a selector matches nothing.
    """
    matching: set[str] = set()
    for selector in where:
        if isinstance(selector, str):
            matches = {selector} & set(parameters) or {name for name in parameters if fnmatchcase(name, selector)}
            if not matches:
                hint = near_matches(selector, parameters) or "`module.named_parameters()` lists them."
                raise LayerError(f"The model has no parameter {selector!r}. {hint}")
        else:
            paths = match_modules(modules, [selector])
            matches = {name for name in parameters if name.rpartition(".")[0] in paths}
            if not matches:
                raise LayerError(f"{', '.join(paths[:20])} have no parameters of their own.")
        matching |= matches
    return tuple(name for name in parameters if name in matching)


def named_parameters(modules: Mapping[str, nn.Module], where: tuple[ModuleSelector, ...]) -> dict[str, nn.Parameter]:
    """Return the parameter of that name, or all of the model's by name: listing them takes a while."""
    if len(where) == 1 and isinstance(where[0], str):
        path, _, name = where[0].rpartition(".")
        holder = modules.get(path)
        parameter = None if holder is None else dict(holder.named_parameters(recurse=False)).get(name)
        if parameter is not None:
            return {where[0]: parameter}
    return dict(modules[""].named_parameters(remove_duplicate=False))
