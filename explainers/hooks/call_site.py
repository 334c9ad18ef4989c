"""The actions of a session at one module: the user's hooks in order, the tap, the records.

PyTorch runs up to four functions of a call site for each call of the module: `enter` before it, `restore` and `leave`
after it, and `fail` in case of an exception. A `Frame` carries the state of the call from one to the next, and into the
backward pass.
"""

import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from seewhy.explainers.hooks.evaluation import runs_again
from seewhy.explainers.hooks.gradient_tap import Gradients, copied, is_differentiable, is_one_of, mark, substituted, tap
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.hooks.records import Call, Frame, recorded_arguments
from seewhy.explainers.hooks.registry import Registry
from seewhy.explainers.hooks.user_hooks import Hook, fitting, fitting_all, misfit, name_of


class CallSite:
    """The actions of a session at one module.

    Attributes:
        path: path of the module; the first one, if it has several names.
        before, after, backward, backward_pre, gradient: the user's hooks of each kind, by registration key, in running
            order.
        hooks: the same by the names of the session's methods.
        records: the session's records of this module, by path and kind.
    """

    def __init__(self, registry: Registry, path: str, module: nn.Module) -> None:
        self.path = path
        self.before: OrderedDict[int, tuple[Hook, bool, bool]] = OrderedDict()
        self.after: OrderedDict[int, tuple[Hook, bool, bool]] = OrderedDict()
        self.backward: OrderedDict[int, Hook] = OrderedDict()
        self.backward_pre: OrderedDict[int, Hook] = OrderedDict()
        self.gradient: OrderedDict[int, Hook] = OrderedDict()
        self.hooks: dict[str, OrderedDict[int, Any]] = {
            "before_forward": self.before,
            "after_forward": self.after,
            "full_backward_pre": self.backward_pre,
            "full_backward": self.backward,
            "output_gradient": self.gradient,
        }
        self.records: dict[tuple[str, Kind], list[Any]] = {}
        self._registry = registry
        self._module = module
        self._calls = 0
        self._repeats = 0  # calls by gradient checkpointing, in backward passes
        # Gradients of the last call if it ran without a graph: checkpointing may repeat it with one.
        self._awaiting_repeat: tuple[Gradients, Gradients] | None = None
        self._frames: list[Frame] = []  # a stack, because a module may call itself
        self._watches_failures = False
        self._left = False
        # The outer session's hooks run first. Inputs are restored from the innermost session outwards, so that an outer
        # session sees what an inner one wrote back: `restore` is prepended.
        registry.before_module(module, self.enter, with_kwargs=True)
        registry.after_module(module, self.restore, prepend=True)
        registry.after_module(module, self.leave)

    def watch_failures(self) -> None:
        """Run the hooks after the module that always run when it or a hook raises."""
        if not self._watches_failures:
            self._watches_failures = True
            self._registry.after_module(self._module, self.fail, always_call=True)

    def close(self) -> None:
        """Drop the hooks, and the tensors of calls that ended in an exception."""
        for hooks in self.hooks.values():
            hooks.clear()
        for frame in self._frames:
            frame.release()
        self._frames.clear()

    @property
    def ran(self) -> bool:
        """Whether the module was called."""
        return self._calls > 0

    @property
    def arguments(self) -> list[Any]:
        """The arguments of the running call, before any tap."""
        return self._frames[-1].arguments if self._frames else []

    def overlook(self, tensor: Tensor, changes: int) -> None:
        """Do not count this many in-place changes of an argument as the module's own."""
        for frame in self._frames[-1:]:
            pairs = zip(frame.versions, frame.arguments, strict=False)
            frame.versions = [version + changes * (argument is tensor) for version, argument in pairs]

    # PyTorch may call this without `kwargs`: in another thread, at the moment when the session removes its hooks.
    def enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Run the hooks before the module; tap and record its arguments."""
        if not self._registry.sees_this_thread():
            return None
        again = self._calls > 0 and runs_again()
        call = Call(self.path, module, self._repeats % self._calls if again else self._calls, again)
        self._calls += not again
        self._repeats += again
        as_called = args, kwargs
        before = tuple(self.before.values())
        originals = tree_leaves((args, kwargs)) if any(shared for *_, shared in before) else []
        try:
            for hook, with_kwargs, _ in before:
                args, kwargs = self._run_before(call, hook, with_kwargs, args, kwargs)
        except Exception:
            if self._watches_failures:  # PyTorch calls `fail` next, which pops this frame
                self._frames.append(Frame(call, kwargs, []))
            raise
        frame = Frame(call, kwargs, tree_leaves((args, kwargs)))
        frame.replaced = [
            (old, new, new._version)
            for old, new in zip(originals, frame.arguments, strict=False)
            if old is not new
            and is_differentiable(old)
            and is_differentiable(new)
            and old.shape == new.shape
            and not new.is_inference()  # an inference tensor has no version counter
        ]
        self._frames.append(frame)
        if again and self._calls == 1 and self._awaiting_repeat is not None:
            # Checkpointing repeats the first call, and its gradients flow through this repetition: one record for both.
            frame.grad_input, frame.grad_output = self._awaiting_repeat
        if not again:
            self._awaiting_repeat = None if torch.is_grad_enabled() else (frame.grad_input, frame.grad_output)
        frame.grad_input.take_structure((args, kwargs))
        gradients = {"grad_input": frame.grad_input, "grad_output": frame.grad_output}
        for (_, kind), entries in () if again else self.records.items():
            # Each kind gets its entry now, so that the lists stay aligned if calls nest or end in an exception.
            entries.append(copied(recorded_arguments(args, kwargs)) if kind == "input" else gradients.get(kind))
            if kind == "output":
                frame.outputs.append((entries, len(entries) - 1))
        if self._taps_outputs() or self._is_recorded("grad_input"):
            frame.awaits_output = True
            frame.note_versions()
        if (self.backward or self._is_recorded("grad_input")) and torch.is_grad_enabled():
            return substituted((args, kwargs), self._tap_inputs(frame))
        # If this returns None, PyTorch passes on the caller's own objects.
        return None if args is as_called[0] and kwargs is as_called[1] else (args, kwargs)

    def restore(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """Write in-place changes of tapped arguments back to the caller's tensors."""
        if not self._registry.sees_this_thread() or not self._frames:
            return None
        pairs: list[tuple[Tensor, Tensor]] = []
        for original, copy, version in self._frames[-1].tapped:
            modified = copy._version > version
            if modified:
                if not original.requires_grad:
                    self._registry.note_written(original)
                original.copy_(copy)
            if modified or original.grad_fn is not None:
                # One pair for each occurrence of the copy in the output: `substituted` uses each pair once.
                pairs += [(copy, original)] * sum(leaf is copy for leaf in tree_leaves(output))
        # Likewise for tensors with which a hook of the user replaced an argument.
        for original, argument, version in self._frames[-1].replaced:
            if argument._version > version:
                original.copy_(argument)
        # A module that returns its input must still return that very tensor: the caller may hold it elsewhere.
        return substituted(output, pairs) if pairs else None

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Run the hooks after the module, then tap and record its output."""
        if not self._registry.sees_this_thread() or not self._frames:
            return None
        frame = self._frames[-1]
        returned = output
        for key, (hook, with_kwargs, _) in tuple(self.after.items()):
            frame.finished.add(key)
            replacement = self._run_after(frame, hook, with_kwargs, args, output)
            output = output if replacement is None else replacement
        frame.grad_output.take_structure(output)
        before_tap = None
        if frame.awaits_output and torch.is_grad_enabled():
            tapped = self._tap_outputs(frame, output)
            if tapped is not output and self._taps_outputs():
                before_tap = output
            output = tapped
        for entries, place in frame.outputs:
            # Later modules get the tap's copy, so their in-place operations cannot change a tapped tensor, and the
            # record needs no copy of it. Views and leaves share memory with tensors that they can change.
            entries[place] = (
                copied(output)
                if before_tap is None
                else tree_map_only(Tensor, partial(_kept_safe, frame.arguments), before_tap)
            )
        self._frames.pop()
        self._left = self._watches_failures
        frame.release()  # the graph holds the frame: tensors of the graph in it would make a cycle
        frame.arguments.clear()
        return None if output is returned else output

    def fail(self, module: nn.Module, args: Any, output: Any) -> None:
        """Run the hooks that always run if the module or a hook raised; PyTorch calls this after every call."""
        if not self._registry.sees_this_thread() or not self._frames:
            return
        if self._left:  # `leave` has run for this call
            self._left = False
            return
        frame = self._frames.pop()
        for key, (hook, with_kwargs, always) in tuple(self.after.items()):
            if always and key not in frame.finished:
                try:
                    self._run_after(frame, hook, with_kwargs, args, output)
                except Exception as error:  # a warning, as in PyTorch: the first error must reach the caller
                    warnings.warn(
                        f"A hook with always_call=True after {frame.call.path!r} raised {error!r}, which was "
                        "silenced as another error was raised before it.",
                        stacklevel=2,
                    )
        frame.release()

    def _tap_inputs(self, frame: Frame) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of the tensors among the arguments and the copies that the module gets."""
        indices = [index for index, leaf in enumerate(frame.arguments) if is_differentiable(leaf)]
        tensors = [frame.arguments[index] for index in indices]
        frame.awaits_input = bool(tensors)
        width = len(frame.arguments)

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            row: list[Tensor | None] = [None] * width
            for index, gradient in zip(indices, gradients, strict=True):
                # If the module returned this argument unchanged, the hook of its output has stored the gradient.
                row[index] = gradient if gradient is not None else frame.grad_input.leaves[index]
            row = self._run_backward(frame, row)
            return [row[index] for index in indices]

        copies = tap(tensors, arrived)
        self._registry.note_foreign(copies)
        frame.tapped += [(old, new, new._version) for old, new in zip(tensors, copies, strict=True)]
        return list(zip(tensors, copies, strict=True))

    def _tap_outputs(self, frame: Frame, output: Any) -> Any:
        """Return the output with its tensors tapped."""
        indices: list[int] = []
        tensors: list[Tensor] = []
        identities: list[tuple[Tensor, Tensor]] = []
        leaves = tree_leaves(output)
        width = len(leaves)
        for index, leaf in enumerate(leaves):
            if not is_differentiable(leaf):
                continue
            if leaf.grad_fn is not None and is_one_of(leaf, frame.arguments):
                # The module returned its argument. Other holders of that tensor must keep sharing it, so a tap, which
                # makes a copy, will not do.
                identities.append((leaf, self._hook_passed(frame, leaf, index, width)))
            elif self._taps_outputs():
                indices.append(index)
                tensors.append(leaf)

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            onward = self._run_gradients(frame, width, dict(zip(indices, gradients, strict=True)))
            if not frame.awaits_input:  # no input has a gradient, and backward hooks run once per call
                self._run_backward(frame, frame.grad_input.leaves)
            return onward

        return substituted(output, [*zip(tensors, tap(tensors, arrived), strict=True), *identities])

    def _hook_passed(self, frame: Frame, tensor: Tensor, index: int, outputs: int) -> Tensor:
        """Hook the gradient of an input that the module returned, and return the tensor to hand on."""
        places = [place for place, argument in enumerate(frame.arguments) if argument is tensor]
        width = len(frame.arguments)
        modified = tensor._version > frame.versions[places[0]]
        past_the_tap = frame.awaits_input and not modified

        def arrived(gradient: Tensor) -> Tensor | None:
            (onward,) = self._run_gradients(frame, outputs, {index: gradient})
            if not past_the_tap:
                return onward
            row: list[Tensor | None] = [onward if place in places else None for place in range(width)]
            return self._run_backward(frame, row)[places[0]]

        mark(tensor)
        if modified:
            # All holders see the in-place change, so the gradient is the sum over all of them.
            self._registry.on_gradient(tensor, arrived)
            return tensor
        # A view has a gradient of its own but the same memory. If a later module modifies the view in place, autograd
        # rebases it, and its gradient arrives at the tensor instead: hence two hooks, of which one reports.
        view = tensor.view_as(tensor)
        mark(view)
        memory = tensor.detach()
        version = memory._version
        reported: list[bool] = []  # one entry once the view has reported in this backward pass

        def arrived_at_view(gradient: Tensor) -> Tensor | None:
            reported.append(True)
            return arrived(gradient)

        def arrived_at_tensor(gradient: Tensor) -> Tensor | None:
            instead = not reported and memory._version > version
            reported.clear()
            return arrived(gradient) if instead else None

        self._registry.on_gradient(view, arrived_at_view)
        self._registry.on_gradient(tensor, arrived_at_tensor)
        return view

    def _run_before(self, call: Call, hook: Hook, with_kwargs: bool, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Run a hook before the module, and return the arguments after it."""
        replacement = self._registry.run(call, hook, call.module, *((args, kwargs) if with_kwargs else (args,)))
        if replacement is None:
            return args, kwargs
        place = f"before_forward at {self.path!r}"
        if not with_kwargs:
            replacement = (replacement if isinstance(replacement, tuple) else (replacement,)), kwargs
        if not (isinstance(replacement, tuple) and len(replacement) == 2):
            raise ValueError(
                f"The hook {name_of(hook)} of {place} returned {type(replacement).__name__}; with with_kwargs=True it "
                "must return None or a pair (args, kwargs)."
            )
        self._registry.note_misfit(misfit(replacement, (args, kwargs), hook, place))
        return replacement

    def _run_after(self, frame: Frame, hook: Hook, with_kwargs: bool, args: Any, output: Any) -> Any:
        """Run a hook after the module."""
        arguments = (args, frame.kwargs) if with_kwargs else (args,)
        replacement = self._registry.run(frame.call, hook, frame.call.module, *arguments, output)
        if replacement is not None:
            self._registry.note_misfit(misfit(replacement, output, hook, f"after_forward at {self.path!r}"))
        return replacement

    def _run_gradients(self, frame: Frame, outputs: int, arrived: Mapping[int, Tensor | None]) -> list[Tensor | None]:
        """Run the hooks on the gradients of some outputs; return the gradients that flow on."""
        gradients: list[Tensor | None] = [None] * outputs
        for index, gradient in arrived.items():
            for hook in tuple(self.gradient.values()) if gradient is not None else ():
                replacement = self._registry.run(frame.call, hook, gradient)
                if replacement is not None:
                    gradient = fitting(replacement, gradient, hook, f"output_gradient at {self.path!r}")
            gradients[index] = gradient
        for hook in tuple(self.backward_pre.values()):
            grad_output = _as_tuple(frame.grad_output.of(gradients))
            replacement = self._registry.run(frame.call, hook, frame.call.module, grad_output)
            if replacement is not None:
                gradients = fitting_all(replacement, gradients, hook, f"full_backward_pre at {self.path!r}", "output")
        for index in arrived:
            frame.grad_output.put(index, gradients[index])
        return [gradients[index] for index in arrived]

    def _run_backward(self, frame: Frame, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Run the full backward hooks; return the gradients of the inputs that flow on."""
        for hook in tuple(self.backward.values()):
            args, kwargs = frame.grad_input.arguments(gradients)
            grad_input = (*args, kwargs) if kwargs else args
            grad_output = _as_tuple(frame.grad_output.value())
            replacement = self._registry.run(frame.call, hook, frame.call.module, grad_input, grad_output)
            if replacement is not None:
                gradients = fitting_all(replacement, gradients, hook, f"full_backward at {self.path!r}", "input")
        for index, gradient in enumerate(gradients):
            frame.grad_input.put(index, gradient)
        return gradients

    def _taps_outputs(self) -> bool:
        return bool(self.backward or self.backward_pre or self.gradient) or self._is_recorded("grad_output")

    def _is_recorded(self, kind: Kind) -> bool:
        return any(kind == recorded for _, recorded in self.records)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _kept_safe(arguments: list[Any], tensor: Tensor) -> Tensor:
    """Return an output for the record: detached, and copied where the model may still modify it."""
    shared = tensor.is_leaf or tensor._is_view() or is_one_of(tensor, arguments)
    return tensor.detach().clone() if shared else tensor.detach()
