"""Interventions: what a model says, and where it looks, when what passes through its layers is edited."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seewhy.explainers.core.explainer import Attribution, Explainer, checked_logits, prepared
from seewhy.explainers.core.explainer import part_of as progress_of
from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.core.objective import Goal
from seewhy.explainers.errors import EditError, LayerError, NonFiniteError
from seewhy.explainers.execution.chunks import Report, unreported
from seewhy.explainers.hooks.gradient_tap import is_differentiable, is_one_of
from seewhy.explainers.hooks.selection import first_names, match_modules
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.choices import Scale, View
from seewhy.explainers.imaging.decode import PictureSource, read_picture
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.edits import Edit, MisfitError, Swap, not_finite, parse_edits, part_of
from seewhy.explainers.inspection.sheets import intervention_panel
from seewhy.explainers.inspection.statistics import Statistics, statistics
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.results.display import Shown
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.tasks.classification import class_index

GRADIENTS = ("grad_input", "grad_output", "parameter_grad")

Place = tuple[str, str, int | None, str | None]
"""Where a tensor is: path of the layer, which of its tensors, call, name of the parameter."""


@dataclass(frozen=True)
class Applied:
    """One edit at one call of a layer, and what it did there.

    Attributes:
        edit: index of the edit.
        layer: path of the layer.
        call: 0 for the layer's first call; None for a parameter, whose gradient is that of all calls.
        parameter: the parameter's name; None for what passes through the layer.
        before, after: the tensor.
    """

    edit: int
    layer: str
    call: int | None
    parameter: str | None
    before: Statistics
    after: Statistics


@dataclass(frozen=True, eq=False)
class Edited:
    """An attribution of one picture without and with edits, for the same target.

    Attributes:
        before, after: N = 1.
        applied: what each edit did, in one forward and, for edits of gradients, one backward pass to the input.
    """

    before: Attribution
    after: Attribution
    applied: tuple[Applied, ...]


@dataclass(frozen=True, eq=False)
class Intervention(Shown):
    """What edits changed for one picture and one class.

    Attributes:
        edits: as they were applied, in this order.
        before, after: the explanations without and with them.
        applied: what each edit did at each call.
    """

    edits: tuple[Edit, ...]
    before: Explanation
    after: Explanation
    applied: tuple[Applied, ...]

    @property
    def logit_change(self) -> float:
        """Logit of the target after the edits less that before."""
        return self.after.target.logit - self.before.target.logit

    @property
    def probability_change(self) -> float:
        """Probability of the target after the edits less that before."""
        return self.after.target.probability - self.before.target.probability

    @property
    def map_change(self) -> NDArray[np.float32]:
        """(h, w) float32: the raw map after the edits less that before."""
        change: NDArray[np.float32] = self.after.map - self.before.map
        return change

    def panel(
        self,
        view: View = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = None,
    ) -> Image.Image:
        """Return the heatmaps before, after and their difference side by side, RGB; see `Style`.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        return intervention_panel(self.before, self.after, Style(view, colormap, alpha, scale, max_side))

    def _saved(self, **style: Any) -> Image.Image:
        return self.panel(**style)

    def _shown(self) -> Image.Image:
        return self.panel(max_side=1200)

    def __repr__(self) -> str:
        before, after = self.before.target, self.after.target
        return (
            f"Intervention({len(self.edits)} edits; {before.label}: {before.probability:.2%} before, "
            f"{after.probability:.2%} after)"
        )


def intervene(
    model: Model,
    picture: PictureSource,
    edits: Iterable[Edit | dict[str, Any]],
    target: int | str | None = None,
    other: PictureSource | None = None,
    method: str = "gradcam",
    layer: str | Sequence[str] | None = None,
    **options: Any,
) -> Intervention:
    """Edit what passes through the layers of a model, and see what it says and where it looks.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        edits: applied in this order; `Edit` objects, or the same as mappings.
        target: class index or label; None for the class that is most probable before the edits.
        other: the picture that ``swap`` takes activations or gradients from.
        method, layer, options: of the heatmaps, as in `explain`.

    Raises:
        EditError: an edit that is none, or does not fit; `field` names it.
        PictureError, OptionError, LayerError, TargetError: as `explain`.
    """
    must_know_pictures(model)
    checked = parse_edits(edits)
    must_swap(checked, other is not None)
    entry = get_method(method)
    if layer is not None:
        options["layers"] = (layer,) if isinstance(layer, str) else tuple(layer)
    explainer = entry.build(options)
    upright = read_picture(picture)
    images = model.preprocess(upright)[None].to(model.device)
    swapped = None if other is None else model.preprocess(read_picture(other))[None].to(model.device)
    targets = None if target is None else torch.tensor([class_index(target, model.labels)], device=model.device)
    geometry = model.preprocess.geometry(upright.width, upright.height)
    found = edit_images(model, images, checked, explainer, targets, swapped)
    (before,) = explanations(model, entry.name, upright, geometry, found.before)
    (after,) = explanations(model, entry.name, upright, geometry, found.after)
    return Intervention(checked, before, after, found.applied)


def edit_images(
    model: Any,
    images: Tensor,
    edits: tuple[Edit, ...],
    explainer: Explainer,
    targets: Tensor | None = None,
    other: Tensor | None = None,
    check: Callable[[], None] = lambda: None,
    report: Report = unreported,
) -> Edited:
    """Explain a normalised picture without and with edits.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left as it was.
        images: (1, C, H, W) floating, on the model's device.
        edits: applied in this order.
        explainer: makes the maps.
        targets: (1,) int64; None for the class that is most probable before the edits.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        check: called before each edit of a tensor and each pass of the method; what it raises ends the intervention.
        report: see `Report`; called between passes alone.

    Raises:
        EditError: an edit that does not fit the model; or that makes its output infinite.
        LayerError, TargetError, ModelOutputError: as `Explainer.explain`.
    """
    applied: list[Applied] = []

    def checked_report(done: int, total: int) -> None:
        check()
        report(done, total)

    halves = [progress_of(checked_report, number, 2) for number in range(2)]
    with prepared(model, images) as (module, inputs):
        check_layers(module, edits, other is not None)
        before = explainer.explain(model, inputs, targets, report=halves[0])
        if before.layers and not getattr(explainer, "layers", before.layers):
            # The same layers again, without another look for them, which would run an empty picture through the edits.
            explainer = replace(explainer, layers=before.layers)  # type: ignore[call-arg]
        swapped = (
            swapped_tensors(module, other.detach().to(inputs, copy=True), edits, Goal(before.targets))
            if other is not None
            else {}
        )
        try:
            with torch.enable_grad(), HookSession(module) as hooks:
                editor = _Editor(hooks, edits, swapped, (inputs.shape[2], inputs.shape[3]), applied, check=check)
                editor.hook(("input", "output", *GRADIENTS))
                logits = checked_logits(module(inputs.clone()))
                if any(edit.at in GRADIENTS for edit in edits) and logits.requires_grad:
                    hooks.backward(Goal(before.targets).scores(logits).sum())
            editor.check_applied()
            with HookSession(module) as hooks, ExitStack() as last:
                # The gradients of parameters have no part in a map.
                _Editor(hooks, edits, swapped, editor.image_size, last=last, check=check).hook(
                    ("input", "output", "grad_input", "grad_output")
                )
                after = explainer.explain(model, inputs, before.targets, report=halves[1])
        except NonFiniteError as error:
            raise _too_large(edits, applied) from error
    return Edited(before, after, tuple(applied))


def _too_large(edits: tuple[Edit, ...], applied: list[Applied]) -> EditError:
    """Return what is wrong with edits after which the logits or the map hold NaN or infinity."""
    made = [one for one in applied if one.after.nan + one.after.inf > one.before.nan + one.before.inf]
    likely = made[0] if made else max(applied, key=lambda one: one.after.norm, default=None)
    index = likely.edit if likely else 0
    only = "" if made or len(edits) == 1 else ", of which this one leaves the largest numbers,"
    return not_finite(f"With these edits{only} the logits or the map", index, edits[index])


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
            own = [name for path in paths for name, _ in modules[path].named_parameters(recurse=False)]
            raise EditError(
                f"{edit.layer!r} has no such parameter of its own; it has {', '.join(dict.fromkeys(own)) or 'none'}.",
                field=f"edits[{index}].{'parameter' if own else 'layer'}",
            )
        if isinstance(edit, Swap) and not has_other:
            raise EditError(
                "A swap takes from another picture; give one as `other`: --other FILE, or other= in Python.",
                field=f"edits[{index}].op",
            )


def must_swap(edits: tuple[Edit, ...], has_other: bool) -> None:
    """Refuse another picture that no edit takes from.

    Raises:
        EditError: there is one.
    """
    if has_other and not any(isinstance(edit, Swap) for edit in edits):
        raise EditError("No edit is a swap, which alone takes from another picture; leave it out.", field="other")


class _Editor:
    """Registers the hooks of edits, and notes what they do.

    An explainer opens a session of its own inside. What it records of a layer's output is edited, for its hooks run
    later; of the gradient, for which later hooks run first, it would record what no edit has reached yet. So a last
    session, opened anew when a forward pass starts, edits the gradients of outputs: all but those that are hooked
    on the very tensor, where the first hook runs first.
    """

    def __init__(
        self,
        hooks: HookSession,
        edits: tuple[Edit, ...],
        swapped: dict[Place, Tensor],
        image_size: tuple[int, int],
        applied: list[Applied] | None = None,
        last: ExitStack | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.image_size = image_size
        self._hooks = hooks
        self._edits = edits
        self._swapped = swapped
        self._notes = applied
        self._check = check
        self._first: dict[str, int] = {}  # per path, the number of its first call in this forward pass
        self._calls: dict[str, int] = {}  # per path, how often it ran in this forward pass
        self._last = last if any(edit.at == "grad_output" for edit in edits) else None
        self._returned_input: set[tuple[str, int]] = set()  # calls, by path and number in this forward pass

    def hook(self, where: tuple[str, ...]) -> None:
        """Register the hooks of the edits of these tensors."""
        hooks = self._hooks
        hooks.before_forward(self._start, "")
        for index, edit in enumerate(self._edits):
            if edit.at not in where:
                continue
            hooks.before_forward(self._count, edit.layer)
            if edit.at == "parameter_grad":
                own: dict[int, tuple[str, str]] = {}  # a parameter may be several modules'
                for path in self._paths(edit):
                    for name in _parameters(hooks.modules[path], edit):
                        own.setdefault(id(getattr(hooks.modules[path], name)), (path, name))
                for path, name in own.values():
                    change = partial(self._change_parameter, index, path, name)
                    hooks.parameter_gradient(change, f"{path}.{name}".lstrip("."))
            elif edit.at == "input":
                hooks.before_forward(partial(self._change_input, index), edit.layer, with_kwargs=True, shared=True)
            elif edit.at == "output":
                hooks.after_forward(partial(self._change_output, index), edit.layer)
            elif edit.at == "grad_input":
                hooks.before_forward(partial(self._check_input, index), edit.layer, with_kwargs=True)
                hooks.full_backward(partial(self._change_grad_input, index), edit.layer)
            else:
                hooks.after_forward(partial(self._check_output, index), edit.layer)
                hooks.output_gradient(partial(self._change_grad_output, index, hooks), edit.layer)

    def check_applied(self) -> None:
        """Refuse edits that had nothing to change.

        Raises:
            EditError: the layer never ran, or not in one of the calls, or no gradient reached it.
        """
        for index, edit in enumerate(self._edits):
            runs = max(self._calls.get(path, 0) for path in self._paths(edit))
            if not runs:
                raise EditError(
                    f"{edit.layer!r} never runs for this picture; choose a layer that does, as GET /models/NAME/layers "
                    "or `seewhy layers MODEL` list them.",
                    field=f"edits[{index}].layer",
                )
            if edit.calls is not None and edit.at != "parameter_grad" and max(edit.calls) >= runs:
                raise EditError(
                    f"{edit.layer!r} runs once for this picture: its only call is 0."
                    if runs == 1
                    else f"{edit.layer!r} runs {runs} times for this picture: its calls are 0 to {runs - 1}.",
                    field=f"edits[{index}].calls",
                )
            if not any(one.edit == index for one in self._notes or ()):
                raise EditError(
                    f"No gradient flows from the target's logit to {edit.layer!r}; choose a layer that it depends on.",
                    field=f"edits[{index}].layer",
                )

    def _paths(self, edit: Edit) -> tuple[str, ...]:
        """Return the layers of an edit by the names that calls have."""
        return first_names(self._hooks.modules, match_modules(self._hooks.modules, [edit.layer]))

    def _start(self, *_: Any) -> None:
        self._first.clear()
        self._calls.clear()
        self._returned_input.clear()
        if self._last is not None:
            self._last.close()
            hooks = self._last.enter_context(HookSession(self._hooks.modules[""]))
            for index, edit in enumerate(self._edits):
                inside = [path for path in self._paths(edit) if path]  # the model itself has started already
                if edit.at == "grad_output" and inside:
                    hooks.output_gradient(partial(self._change_grad_output, index, hooks), *inside)

    def _count(self, *_: Any) -> None:
        path, number = self._here()
        first = self._first.setdefault(path, number)
        self._calls[path] = number - first + 1

    def _here(self) -> tuple[str, int]:
        call = self._hooks.current
        if call is None:
            raise RuntimeError("A hook of an edit ran outside of a call.")
        return call.path, call.number

    def _change_input(self, index: int, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self._change_sole(index, (args, kwargs))

    def _change_output(self, index: int, _module: nn.Module, _args: Any, output: Any) -> Any:
        return self._change_sole(index, output)

    def _change_grad_input(self, index: int, _module: nn.Module, grad_input: Any, _grad_output: Any) -> Any:
        return self._change_sole(index, grad_input)

    def _check_input(self, index: int, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._sole(index, tree_flatten((args, kwargs))[0])

    def _check_output(self, index: int, _module: nn.Module, args: Any, output: Any) -> None:
        leaves = tree_flatten(output)[0]
        tensor = leaves[self._sole(index, leaves)]
        if tensor.grad_fn is not None and is_one_of(tensor, args):
            path, number = self._here()
            self._returned_input.add((path, number - self._first.get(path, 0)))

    def _change_grad_output(self, index: int, hooks: HookSession, gradient: Tensor) -> Tensor | None:
        call = hooks.current
        if call is None:
            raise RuntimeError("A hook of an edit ran outside of a call.")
        number = call.number - (self._first.get(call.path, 0) if hooks is self._hooks else 0)
        if self._last is not None:
            is_first = not call.path or (call.path, number) in self._returned_input
            if is_first != (hooks is self._hooks):
                return None
        return self._change(index, gradient, call.path, number)

    def _change_sole(self, index: int, value: Any) -> Any:
        leaves, spec = tree_flatten(value)
        if self._edits[index].at == "grad_input" and not any(is_differentiable(leaf) for leaf in leaves):
            return None
        place = self._sole(index, leaves)
        path, number = self._here()
        # What an edit keeps of an input for backward must outlast a module that overwrites that input.
        values = leaves[place].clone() if self._edits[index].at == "input" else leaves[place]
        changed = self._change(index, values, path, number - self._first.get(path, 0))
        if changed is None:
            return None
        leaves[place] = changed
        return tree_unflatten(leaves, spec)

    def _sole(self, index: int, leaves: list[Any]) -> int:
        places = [place for place, leaf in enumerate(leaves) if is_differentiable(leaf)]
        if len(places) != 1:
            edit = self._edits[index]
            raise EditError(
                f"The {edit.at.removeprefix('grad_')} of {self._here()[0]!r} holds {len(places)} tensors that can be "
                "edited, where one is expected; choose a layer inside or around it.",
                field=f"edits[{index}].layer",
            )
        return places[0]

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
        try:
            part = part_of(edit, values, self.image_size, self._swapped.get((path, edit.at, call, parameter)))
            changed = edit.apply(values, part)
        except MisfitError as error:
            raise EditError(f"At {path or 'the model'!r}: {error}", field=f"edits[{index}].{error.field}") from None
        if self._notes is not None:
            # A parameter was given the axis of a batch.
            sides = (values, changed) if parameter is None else (values[0], changed[0])
            self._notes.append(Applied(index, path, call, parameter, *map(statistics, sides)))
        return changed


def swapped_tensors(module: nn.Module, images: Tensor, edits: tuple[Edit, ...], goal: Goal) -> dict[Place, Tensor]:
    """Return what swaps take: the tensors of the other picture at their layers."""
    swaps = [edit for edit in edits if isinstance(edit, Swap)]
    found: dict[Place, Tensor] = {}
    with torch.enable_grad(), HookSession(module) as hooks:
        for edit in swaps:
            hooks.record(edit.layer, kinds=[edit.at])
        logits = checked_logits(module(images))
        if any(edit.at in GRADIENTS for edit in swaps) and logits.requires_grad:
            hooks.backward(goal.scores(logits).sum())
    records = {
        "input": hooks.inputs,
        "output": hooks.outputs,
        "grad_input": hooks.grad_inputs,
        "grad_output": hooks.grad_outputs,
    }
    for at, by_path in records.items():
        for path, calls in by_path.items():
            for call, value in enumerate(calls):
                tensors = [leaf for leaf in tree_flatten(value)[0] if is_differentiable(leaf)]
                if len(tensors) == 1:
                    (layer,) = first_names(hooks.modules, [path])
                    found[layer, at, call, None] = tensors[0]
    for path, gradients in hooks.parameter_grads.items():
        (layer,) = first_names(hooks.modules, [path])
        for name, gradient in gradients.items():
            if gradient is not None:
                found[layer, "parameter_grad", None, name] = gradient[None]
    return found


def _parameters(module: nn.Module, edit: Edit) -> list[str]:
    """Return the names of the module's own parameters that an edit means."""
    return [
        name
        for name, value in module.named_parameters(recurse=False)
        if is_differentiable(value) and edit.parameter in (None, name)
    ]
