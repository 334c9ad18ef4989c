"""The hooks of edits: they change tensors at layers, and record the effects."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import checked_finite
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import EditError, LayerError, never_runs
from seewhy.explainers.hooks.gradient_tap import is_differentiable, is_one_of
from seewhy.explainers.hooks.kinds import GRADIENTS
from seewhy.explainers.hooks.selection import first_names, match_modules
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.inspection.edit_parts import edit_errors, sole_place
from seewhy.explainers.inspection.edits import Edit, Swap
from seewhy.explainers.inspection.statistics import Statistics, statistics

Place = tuple[str, str, int | None, str | None]
"""The place of a tensor: path of the layer, which of its tensors, call, name of the parameter."""


@dataclass(frozen=True)
class EditEffect:
    """One edit at one call of a layer, and its effect.

    Attributes:
        edit: index of the edit.
        layer: path of the layer.
        call: 0 for the layer's first call; None for a parameter, whose gradient is the sum over all calls.
        parameter: the parameter's name; None for activations and their gradients.
        before, after: statistics of the tensor.
    """

    edit: int
    layer: str
    call: int | None
    parameter: str | None
    before: Statistics
    after: Statistics


def check_layers(module: nn.Module, edits: tuple[Edit, ...], has_other: bool) -> None:
    """Refuse edits of layers or parameters that the model lacks, and swaps without another picture.

    Raises:
        EditError: names the edit and the field.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    for index, edit in enumerate(edits):
        try:
            paths = match_modules(modules, [edit.layer])
        except LayerError as error:
            raise EditError(str(error), field=f"edits[{index}].layer") from error
        if edit.at == "parameter_grad" and not any(_parameters(modules[path], edit) for path in paths):
            names = [name for path in paths for name, _ in modules[path].named_parameters(recurse=False)]
            raise EditError(
                f"{edit.layer!r} has no such parameter of its own; it has {', '.join(dict.fromkeys(names)) or 'none'}.",
                field=f"edits[{index}].{'parameter' if names else 'layer'}",
            )
        if isinstance(edit, Swap) and not has_other:
            raise EditError("The op `swap` needs another picture; give it as `other`.", field=f"edits[{index}].op")


def must_swap(edits: tuple[Edit, ...], has_other: bool) -> None:
    """Refuse another picture that no edit uses.

    Raises:
        EditError: there is another picture, but no swap.
    """
    if has_other and not any(isinstance(edit, Swap) for edit in edits):
        raise EditError("Only the op `swap` uses another picture, and no edit has it; omit it.", field="other")


class Editor:
    """Registers the hooks of edits, and records their effects.

    An explainer opens its own session inside the editor's. It records edited outputs, because its hooks run after the
    editor's; but hooks of gradients run in the opposite order, so it would record gradients before any edit. Therefore
    a last session, opened anew at the start of each forward pass, edits the gradients of outputs. Outputs that are
    hooked on the tensor itself are an exception: their hooks run in the order of registration.
    """

    def __init__(
        self,
        hooks: HookSession,
        edits: tuple[Edit, ...],
        swapped: dict[Place, Tensor],
        image_size: tuple[int, int],
        applied: list[EditEffect] | None = None,
        last: ExitStack | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.image_size = image_size
        self._hooks = hooks
        self._edits = edits
        self._swapped = swapped
        self._notes = applied
        self._check = check
        self._first: dict[str, int] = {}  # by path, the number of its first call in this forward pass
        self._calls: dict[str, int] = {}  # by path, its number of calls in this forward pass
        self._last = last if any(edit.at == "grad_output" for edit in edits) else None
        self._returned_input: set[tuple[str, int]] = set()  # calls, by path and number in this forward pass

    def hook(self, where: tuple[str, ...]) -> None:
        """Register the hooks of all edits of these kinds of tensors."""
        hooks = self._hooks
        hooks.before_forward(self._start, "")
        for index, edit in enumerate(self._edits):
            if edit.at in where:
                hooks.before_forward(self._count, edit.layer)
                self._hook(index, edit)

    def _hook(self, index: int, edit: Edit) -> None:
        hooks, layer = self._hooks, edit.layer
        if edit.at == "parameter_grad":
            names: dict[int, tuple[str, str]] = {}  # by identity: several modules may share a parameter
            for path in self._paths(edit):
                for name in _parameters(hooks.modules[path], edit):
                    names.setdefault(id(getattr(hooks.modules[path], name)), (path, name))
            for path, name in names.values():
                change = partial(self._change_parameter, index, path, name)
                hooks.parameter_gradient(change, f"{path}.{name}".lstrip("."))
        elif edit.at == "input":
            hooks.before_forward(
                lambda _, *values: self._change_sole(index, values), layer, with_kwargs=True, shared=True
            )
        elif edit.at == "output":
            hooks.after_forward(lambda _, args, output: self._change_sole(index, output), layer)
        elif edit.at == "grad_input":
            hooks.before_forward(partial(self._check_input, index), layer, with_kwargs=True)
            hooks.full_backward(lambda _, grad_input, grad_output: self._change_sole(index, grad_input), layer)
        else:
            hooks.after_forward(partial(self._check_output, index), layer)
            hooks.output_gradient(partial(self._change_grad_output, index, hooks), layer)

    def check_applied(self) -> None:
        """Refuse edits that changed nothing.

        Raises:
            EditError: the layer never ran, ran less often than `calls` needs, or got no gradient.
        """
        for index, edit in enumerate(self._edits):
            runs = max(self._calls.get(path, 0) for path in self._paths(edit))
            if not runs:
                raise EditError(never_runs(edit.layer), field=f"edits[{index}].layer")
            if edit.calls is not None and edit.at != "parameter_grad" and max(edit.calls) >= runs:
                raise EditError(
                    f"{edit.layer!r} runs once for this picture: its only call is 0."
                    if runs == 1
                    else f"{edit.layer!r} runs {runs} times for this picture: its calls are 0 to {runs - 1}.",
                    field=f"edits[{index}].calls",
                )
            if not any(effect.edit == index for effect in self._notes or ()):
                raise EditError(
                    f"No gradient flows from the target's logit to {edit.layer!r}; choose a layer that it depends on.",
                    field=f"edits[{index}].layer",
                )

    def _paths(self, edit: Edit) -> tuple[str, ...]:
        """Return the layers of an edit, by the paths of their calls."""
        return first_names(self._hooks.modules, match_modules(self._hooks.modules, [edit.layer]))

    def _start(self, *_: Any) -> None:
        self._first.clear()
        self._calls.clear()
        self._returned_input.clear()
        if self._last is not None:
            self._last.close()
            hooks = self._last.enter_context(HookSession(self._hooks.modules[""]))
            for index, edit in enumerate(self._edits):
                inside = [path for path in self._paths(edit) if path]  # the call of the model itself has begun
                if edit.at == "grad_output" and inside:
                    hooks.output_gradient(partial(self._change_grad_output, index, hooks), *inside)

    def _count(self, *_: Any) -> None:
        path, number = self._call(self._hooks)
        if path not in self._first:
            self._first[path], number = number, 0
        self._calls[path] = number + 1

    def _call(self, hooks: HookSession) -> tuple[str, int]:
        """Return the path and the number, in this forward pass, of the call whose hook a session runs."""
        call = hooks.current
        if call is None:
            raise RuntimeError("A hook of an edit ran outside of a call.")
        return call.path, call.number - (self._first.get(call.path, 0) if hooks is self._hooks else 0)

    def _check_input(self, index: int, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._sole(index, tree_flatten((args, kwargs))[0])

    def _check_output(self, index: int, _module: nn.Module, args: Any, output: Any) -> None:
        leaves = tree_flatten(output)[0]
        tensor = leaves[self._sole(index, leaves)]
        if tensor.grad_fn is not None and is_one_of(tensor, args):
            self._returned_input.add(self._call(self._hooks))

    def _change_grad_output(self, index: int, hooks: HookSession, gradient: Tensor) -> Tensor | None:
        path, number = self._call(hooks)
        if self._last is not None:
            is_first = not path or (path, number) in self._returned_input
            if is_first != (hooks is self._hooks):
                return None
        return self._change(index, gradient, path, number)

    def _change_sole(self, index: int, value: Any) -> Any:
        leaves, spec = tree_flatten(value)
        if self._edits[index].at == "grad_input" and not any(is_differentiable(leaf) for leaf in leaves):
            return None
        place = self._sole(index, leaves)
        # A copy of an input: autograd may save it for the edit, and the module may overwrite the original.
        values = leaves[place].clone() if self._edits[index].at == "input" else leaves[place]
        changed = self._change(index, values, *self._call(self._hooks))
        if changed is None:
            return None
        leaves[place] = changed
        return tree_unflatten(leaves, spec)

    def _sole(self, index: int, leaves: list[Any]) -> int:
        return sole_place(leaves, self._edits[index].at, self._call(self._hooks)[0], index)

    def _change(self, index: int, values: Tensor, path: str, call: int) -> Tensor | None:
        edit = self._edits[index]
        if edit.calls is not None and call not in edit.calls:
            return None
        return self._applied(index, values, path, call, None)

    def _change_parameter(self, index: int, path: str, name: str, gradient: Tensor) -> Tensor:
        return self._applied(index, gradient[None], path, None, name)[0]

    def _applied(self, index: int, values: Tensor, path: str, call: int | None, parameter: str | None) -> Tensor:
        edit = self._edits[index]
        self._check()
        with edit_errors(path, index):
            part = edit.part(values, self.image_size, self._swapped.get((path, edit.at, call, parameter)))
            changed = edit.apply(values, part)
        if self._notes is not None:
            # A parameter's gradient has an extra batch axis here.
            sides = (values, changed) if parameter is None else (values[0], changed[0])
            self._notes.append(EditEffect(index, path, call, parameter, *map(statistics, sides)))
        return changed


def swapped_tensors(
    task: Task, module: nn.Module, other: Tensor | None, edits: tuple[Edit, ...], objective: Objective, like: Tensor
) -> dict[Place, Tensor]:
    """Return the other picture's tensors at the layers of swaps; empty without another picture.

    Args:
        task, module, objective: as for the picture itself.
        other: (1, C, H, W).
        edits: edits that include the swaps.
        like: the picture's tensor, whose dtype and device the other one gets.
    """
    values: dict[Place, Tensor] = {}
    if other is None:
        return values
    images = other.detach().to(like, copy=True)
    swaps = [edit for edit in edits if isinstance(edit, Swap)]
    with torch.enable_grad(), HookSession(module) as hooks:
        for edit in swaps:
            hooks.record(edit.layer, kinds=[edit.at])
        outputs = checked_finite(task.outputs(module(images)))
        if any(edit.at in GRADIENTS for edit in swaps) and outputs.requires_grad:
            hooks.backward(objective.scores(outputs).sum())
    for at, by_path in hooks.records.items():
        for path, calls in by_path.items():
            for call, value in enumerate(calls):
                tensors = [leaf for leaf in tree_flatten(value)[0] if is_differentiable(leaf)]
                if len(tensors) == 1:
                    (layer,) = first_names(hooks.modules, [path])
                    values[layer, at, call, None] = tensors[0]
    for path, gradients in hooks.parameter_grads.items():
        (layer,) = first_names(hooks.modules, [path])
        for name, gradient in gradients.items():
            if gradient is not None:
                values[layer, "parameter_grad", None, name] = gradient[None]
    return values


def _parameters(module: nn.Module, edit: Edit) -> list[str]:
    """Return the names of the module's own parameters that an edit applies to."""
    return [
        name
        for name, value in module.named_parameters(recurse=False)
        if is_differentiable(value) and edit.parameter in (None, name)
    ]
