"""What a session does at one module: the user's hooks in order, the tap, the records."""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from seewhy.explainers.hooks.gradient_tap import Gradients, copied, is_differentiable, is_one_of, mark, substituted, tap
from seewhy.explainers.hooks.parameters import Hook, fitting
from seewhy.explainers.hooks.selection import runs_again

if TYPE_CHECKING:
    from seewhy.explainers.hooks.session import HookSession

Kind = Literal["input", "output", "grad_input", "grad_output", "parameter_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CALL_KINDS: tuple[Kind, ...] = KINDS[:4]
"""What each call of a module has; the gradient of a parameter is one for all calls."""


@dataclass(frozen=True, eq=False)
class Call:
    """The call of a module that a running hook belongs to.

    Attributes:
        path: of the module; the first one, if it has several names.
        module: the module itself.
        number: 0 for the module's first call since the session opened, and so on.
        again: whether gradient checkpointing calls the module again in a backward pass.
    """

    path: str
    module: nn.Module
    number: int
    again: bool = False


class Site:
    """What a session does at one module: the user's hooks by kind, in the order of registration, and the records."""

    def __init__(self, session: "HookSession", path: str, module: nn.Module) -> None:
        self.before: OrderedDict[int, tuple[Hook, bool, bool]] = OrderedDict()
        self.after: OrderedDict[int, tuple[Hook, bool]] = OrderedDict()
        self.always: set[int] = set()  # those hooks after the module that run although it raised
        self.fails = False  # whether `fail` is registered
        self.backward: OrderedDict[int, Hook] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.gradient: OrderedDict[int, Hook] = OrderedDict()
        self.recorded: dict[str, set[Kind]] = {}
        self._session = session
        self.path = path
        self._module = module
        self._calls = 0
        self._again = 0  # calls by gradient checkpointing, in backward passes
        self._ungraded: tuple[Gradients, Gradients] | None = None  # of the last call, if it ran without gradients
        self._running: list[_Running] = []
        self._left = False

    def close(self) -> None:
        """Forget the hooks, and the tensors of calls that an exception ended."""
        for hooks in (self.before, self.after, self.backward, self.backward_pre, self.gradient, self.always):
            hooks.clear()
        for running in self._running:
            running.tapped.clear()
            running.replaced.clear()
        self._running.clear()

    @property
    def ran(self) -> bool:
        """Whether the module was called."""
        return self._calls > 0

    def overlook(self, tensor: Tensor, changes: int) -> None:
        """Do not take so many changes of an argument for the module's."""
        for running in self._running[-1:]:
            running.versions = [
                version + changes * (given is tensor)
                for version, given in zip(running.versions, running.given, strict=False)
            ]

    @property
    def given(self) -> list[Any]:
        """What the running call was given, before any tap."""
        return self._running[-1].given if self._running else []

    # Without keywords it is called for another thread, in the moment in which the session ends.
    def enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Run the hooks before the module; tap and record its arguments."""
        if not self._session._is_ours():
            return None
        again = self._calls > 0 and runs_again()
        call = Call(self.path, module, self._again % self._calls if again else self._calls, again)
        self._calls += not again
        self._again += again
        as_called = args, kwargs
        before = tuple(self.before.values())
        got = tree_leaves((args, kwargs)) if any(shared for *_, shared in before) else []
        try:
            for hook, with_kwargs, _ in before:
                args, kwargs = self._prepared(call, hook, with_kwargs, args, kwargs)
        except Exception:
            if self.fails:  # which is called next
                self._running.append(_Running(call, kwargs, []))
            raise
        running = _Running(call, kwargs, tree_leaves((args, kwargs)))
        running.replaced = [
            (old, new, new._version)
            for old, new in zip(got, running.given, strict=False)
            if old is not new
            and is_differentiable(old)
            and is_differentiable(new)
            and old.shape == new.shape
            and not new.is_inference()  # such a tensor does not tell whether it was modified
        ]
        self._running.append(running)
        if again and self._calls == 1 and self._ungraded is not None:
            # Its gradients flow through what is computed now, and not through its first call.
            running.grad_input, running.grad_output = self._ungraded
        if not again:
            self._ungraded = None if torch.is_grad_enabled() else (running.grad_input, running.grad_output)
        running.grad_input.take_structure((args, kwargs))
        for path, kind, records in () if again else self._kept():
            # A place for each kind, so that they stay in step where calls nest, or end in an exception.
            records.append(copied(recorded_arguments(args, kwargs)) if kind == "input" else running.record(kind))
            running.places[path, kind] = len(records) - 1
        if self._wants_gradients():
            running.versions = [_version(leaf) for leaf in running.given]
        if (self.backward or self._records("grad_input")) and torch.is_grad_enabled():
            return substituted((args, kwargs), self._tap_inputs(running))
        return None if args is as_called[0] and kwargs is as_called[1] else (args, kwargs)

    def restore(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """Let those who hold the arguments too see what the module did to them in place."""
        if not self._session._is_ours() or not self._running:
            return None
        originals: list[tuple[Tensor, Tensor]] = []
        for original, copy, version in self._running[-1].tapped:
            modified = copy._version > version
            if modified:
                if not original.requires_grad:
                    self._session._written.append(original)
                original.copy_(copy)
            if modified or original.grad_fn is not None:
                originals += [(copy, original)] * sum(leaf is copy for leaf in tree_leaves(output))
        # What a hook gave the module in place of its argument, likewise.
        for original, given, version in self._running[-1].replaced:
            if given._version > version:
                original.copy_(given)
        # A module that returns its input goes on returning that very tensor, which others may hold too.
        return substituted(output, originals) if originals else None

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Run the hooks after the module; tap and record its output."""
        if not self._session._is_ours() or not self._running:
            return None
        running = self._running[-1]
        returned = output
        for key, (hook, with_kwargs) in tuple(self.after.items()):
            running.done.add(key)
            replaced = self._finished(running, hook, with_kwargs, args, output)
            output = output if replaced is None else replaced
        running.grad_output.take_structure(output)
        seen = None
        if running.versions and torch.is_grad_enabled():
            before = output
            output = self._tap_outputs(running, output)
            seen = before if output is not before and self._taps_outputs() else None
        for path, kind, records in self._kept():
            if kind == "output" and (path, kind) in running.places:
                # What was tapped is out of reach of later in-place operations; views and leaves are not.
                kept = copied(output) if seen is None else tree_map_only(Tensor, partial(_safe, running.given), seen)
                records[running.places[path, kind]] = kept
        self._running.pop()
        self._left = self.fails
        running.replaced.clear()
        running.tapped.clear()  # the graph refers to this call, and must not to itself
        running.given.clear()
        return None if output is returned else output

    def fail(self, module: nn.Module, args: Any, output: Any) -> None:
        """Run the hooks after the module that always run, where it or a hook raised; PyTorch calls this in any case."""
        if not self._session._is_ours() or not self._running:
            return
        if self._left:  # `leave` has run for this call
            self._left = False
            return
        running = self._running.pop()
        for key, (hook, with_kwargs) in tuple(self.after.items()):
            if key in self.always and key not in running.done:
                try:
                    self._finished(running, hook, with_kwargs, args, output)
                except Exception as error:  # as PyTorch does, so that the first error is the one that is raised
                    warnings.warn(
                        f"A hook with always_call=True after {running.call.path!r} raised {error!r}, which was "
                        "silenced as another error was raised before it.",
                        stacklevel=2,
                    )
        running.tapped.clear()
        running.replaced.clear()

    def _tap_inputs(self, running: "_Running") -> list[tuple[Tensor, Tensor]]:
        """Return the tensors that the module is given, and what it gets in their place."""
        indices = [index for index, leaf in enumerate(running.given) if is_differentiable(leaf)]
        tensors = [running.given[index] for index in indices]
        running.awaits_input = bool(tensors)
        width = len(running.given)

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            found: list[Tensor | None] = [None] * width
            for index, gradient in zip(indices, gradients, strict=True):
                found[index] = gradient if gradient is not None else running.grad_input.leaves[index]
            found = self._run_backward(running, found)
            return [found[index] for index in indices]

        copies = tap(tensors, arrived)
        if self._session._is_cut:
            self._session._not_ours += copies
        running.tapped += [(old, new, new._version) for old, new in zip(tensors, copies, strict=True)]
        return list(zip(tensors, copies, strict=True))

    def _tap_outputs(self, running: "_Running", output: Any) -> Any:
        """Return what to hand on in place of the output."""
        indices: list[int] = []
        tensors: list[Tensor] = []
        passed: list[tuple[Tensor, Tensor]] = []
        leaves = tree_leaves(output)
        width = len(leaves)
        for index, leaf in enumerate(leaves):
            if not is_differentiable(leaf):
                continue
            if leaf.grad_fn is not None and is_one_of(leaf, running.given):
                # Whoever else holds that tensor must keep sharing it with the caller: no copy, as a tap makes, will do.
                passed.append((leaf, self._hook_passed(running, leaf, index, width)))
            elif self._taps_outputs():
                indices.append(index)
                tensors.append(leaf)

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            onward = self._run_gradients(running, width, dict(zip(indices, gradients, strict=True)))
            if not running.awaits_input:
                self._run_backward(running, running.grad_input.leaves)
            return onward

        return substituted(output, [*zip(tensors, tap(tensors, arrived), strict=True), *passed])

    def _hook_passed(self, running: "_Running", tensor: Tensor, index: int, outputs: int) -> Tensor:
        """Watch the gradient of an input that the module returned as one of its outputs, and return what to hand on."""
        places = [place for place, given in enumerate(running.given) if given is tensor]
        width = len(running.given)
        modified = tensor._version > running.versions[places[0]]
        past_the_tap = running.awaits_input and not modified

        def arrived(gradient: Tensor) -> Tensor | None:
            (onward,) = self._run_gradients(running, outputs, {index: gradient})
            if not past_the_tap:
                return onward
            found: list[Tensor | None] = [onward if place in places else None for place in range(width)]
            return self._run_backward(running, found)[places[0]]

        mark(tensor)
        if modified:
            # All who hold it see what the module did, so its gradient is that of all of them.
            self._session._hook_tensor(tensor, arrived)
            return tensor
        # A view has a gradient of its own, and still is the same memory. One that is modified in place leaves the
        # graph, and its gradient becomes part of the tensor's.
        view = tensor.view_as(tensor)
        mark(view)
        memory = tensor.detach()
        version = memory._version
        reported: list[bool] = []  # in this backward pass, by the view

        def arrived_at_view(gradient: Tensor) -> Tensor | None:
            reported.append(True)
            return arrived(gradient)

        def arrived_at_tensor(gradient: Tensor) -> Tensor | None:
            instead = not reported and memory._version > version
            reported.clear()
            return arrived(gradient) if instead else None

        self._session._hook_tensor(view, arrived_at_view)
        self._session._hook_tensor(tensor, arrived_at_tensor)
        return view

    def _run(self, call: Call, hook: Hook, *args: Any) -> Any:
        outer, self._session._current = self._session._current, call
        try:
            return hook(*args)
        finally:
            self._session._current = outer

    def _prepared(self, call: Call, hook: Hook, with_kwargs: bool, args: Any, kwargs: Any) -> tuple[Any, Any]:
        replaced = self._run(call, hook, call.module, *((args, kwargs) if with_kwargs else (args,)))
        if replaced is None:
            return args, kwargs
        if not with_kwargs:
            return (replaced if isinstance(replaced, tuple) else (replaced,)), kwargs
        if not (isinstance(replaced, tuple) and len(replaced) == 2):
            raise ValueError(f"A hook before {call.path!r} must return None or a pair (args, kwargs).")
        return replaced

    def _finished(self, running: "_Running", hook: Hook, with_kwargs: bool, args: Any, output: Any) -> Any:
        """Run a hook after the module."""
        return self._run(
            running.call, hook, running.call.module, *((args, running.kwargs) if with_kwargs else (args,)), output
        )

    def _run_gradients(
        self, running: "_Running", outputs: int, arrived: Mapping[int, Tensor | None]
    ) -> list[Tensor | None]:
        """Run the hooks on the gradients of some of the outputs; return what flows on in place of each."""
        gradients: list[Tensor | None] = [None] * outputs
        for index, gradient in arrived.items():
            for hook in tuple(self.gradient.values()) if gradient is not None else ():
                replaced = self._run(running.call, hook, gradient)
                gradient = gradient if replaced is None else _checked(replaced, gradient)
            gradients[index] = gradient
        for hook in tuple(self.backward_pre.values()):
            grad_output = running.grad_output.of(gradients)
            grad_output = grad_output if isinstance(grad_output, tuple) else (grad_output,)
            replaced = self._run(running.call, hook, running.call.module, grad_output)
            if replaced is not None:
                values = tree_flatten(replaced)[0]
                if len(values) != outputs:
                    raise ValueError(
                        f"The full backward pre-hook of {running.call.path!r} returned {len(values)} gradients for "
                        f"{outputs} outputs; return a tuple like grad_output, or None."
                    )
                gradients = [_checked(new, old) for new, old in zip(values, gradients, strict=True)]
        for index in arrived:
            running.grad_output.put(index, gradients[index])
        return [gradients[index] for index in arrived]

    def _run_backward(self, running: "_Running", gradients: list[Tensor | None]) -> list[Tensor | None]:
        for hook in tuple(self.backward.values()):
            args, kwargs = running.grad_input.arguments(gradients)
            grad_input = (*args, kwargs) if kwargs else args
            grad_output = running.grad_output.value()
            grad_output = grad_output if isinstance(grad_output, tuple) else (grad_output,)
            replaced = self._run(running.call, hook, running.call.module, grad_input, grad_output)
            if replaced is not None:
                values = tree_flatten(replaced)[0]
                if len(values) != len(gradients):
                    raise ValueError(
                        f"The full backward hook of {running.call.path!r} returned {len(values)} gradients for "
                        f"{len(gradients)} inputs; return a tuple like grad_input, or None."
                    )
                gradients = [_checked(new, old) for new, old in zip(values, gradients, strict=True)]
        for index, gradient in enumerate(gradients):
            running.grad_input.put(index, gradient)
        return gradients

    def _wants_gradients(self) -> bool:
        return self._taps_outputs() or self._records("grad_input")

    def _taps_outputs(self) -> bool:
        return bool(self.backward or self.backward_pre or self.gradient) or self._records("grad_output")

    def _records(self, kind: Kind) -> bool:
        return any(kind in kinds for kinds in self.recorded.values())

    def _kept(self) -> Iterator[tuple[str, Kind, list[Any]]]:
        """Yield name, kind and list of each record of this module's calls."""
        for path, kinds in self.recorded.items():
            for kind, records in self._session._records.items():
                if kind in kinds:
                    yield path, kind, records[path]


class _Running:
    """A call from its start to the last of its gradients."""

    def __init__(self, call: Call, kwargs: Any, given: list[Any]) -> None:
        self.call = call
        self.kwargs = kwargs
        self.given = given
        self.grad_input = Gradients()
        self.grad_output = Gradients()
        self.awaits_input = False
        self.tapped: list[tuple[Tensor, Tensor, int]] = []
        self.replaced: list[tuple[Tensor, Tensor, int]] = []
        self.versions: list[int] = []
        self.places: dict[tuple[str, Kind], int] = {}
        self.done: set[int] = set()  # hooks after the module

    def record(self, kind: Kind) -> Gradients | None:
        """Return what stands for the record of this kind when the call starts."""
        return {"grad_input": self.grad_input, "grad_output": self.grad_output}.get(kind)


def _version(leaf: Any) -> int:
    return leaf._version if is_differentiable(leaf) and not leaf.is_inference() else 0


def recorded_arguments(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Return arguments as records hold them: the only one, or a tuple with keywords as a last dict."""
    if kwargs:
        return (*args, kwargs)
    return args[0] if len(args) == 1 else args


def _checked(replaced: Any, gradient: Tensor | None) -> Tensor | None:
    """Return what stands in a hook's answer for a gradient, None where there is to be none."""
    return None if replaced is None else fitting(replaced, gradient)


def _safe(given: list[Any], tensor: Tensor) -> Tensor:
    """Return a recorded output detached, as a copy where it is not the tap alone that holds it."""
    shared = tensor.is_leaf or tensor._is_view() or is_one_of(tensor, given)
    return tensor.detach().clone() if shared else tensor.detach()
