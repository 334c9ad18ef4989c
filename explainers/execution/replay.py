"""Replays: a model runs for batches of edits of one layer, and computes only what comes after the layer.

A private copy of the model's structure, which shares its weights, takes the model's place. In the copy, every module
that returned before the layer returns the same output again. This needs no graph of the model. The first row of every
batch is unedited: if its output is wrong, because the model depends on more than its modules' outputs, the whole model
runs for each batch instead.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from seewhy.explainers.errors import ModelOutputError, OptionError
from seewhy.explainers.hooks.evaluation import OFF
from seewhy.explainers.hooks.gradient_tap import copied
from seewhy.explainers.hooks.session import HookSession

_TOLERANCE = 1e-4
"""Maximum difference of an unedited row's outputs, as a share of the largest of them; half precision allows more."""

EditBatch = Sequence[int]
"""Numbers of the edits that share a pass."""

RowEdit = Callable[[Any, EditBatch, int], Any]
"""Edits the layer's value in a call: the first row stays as it is, each other row gets one edit of the batch."""


class UnreplayableError(Exception):
    """The recorded outputs cannot serve a batch."""


class Replay:
    """Runs a model for batches of one picture with edits of a layer; the part before the layer is not computed again.

    Attributes:
        module: the copy, in which hooks see the replay.
        value: the layer's arguments or output in its first edited call; None if there was no such call.
        calls: number of calls of the layer.
    """

    def __init__(
        self, module: nn.Module, images: Tensor, path: str, at: Literal["input", "output"] = "output", call: int = 0
    ) -> None:
        """Run the model for a picture, and record the outputs of its modules.

        Args:
            module: in evaluation mode.
            images: (1, C, H, W).
            path: path of the layer.
            at: whether the layer's arguments or its output will be edited.
            call: number of the first edited call.
        """
        try:
            self.module = structure_of(module)
            is_copy = True
        except Exception:  # an attribute that cannot be copied, such as a lock
            self.module, is_copy = module, False
        self._images, self._path, self._at = images, path, at
        self._size, self._copying = 0, False
        self._replayed: Counter[nn.Module] = Counter()
        self._outputs: dict[nn.Module, list[Any]] = {}
        self.value, self.calls, self._plain = self._note(call)
        self._recorded_version = self._version()
        if not is_copy:
            self._outputs.clear()  # other threads use the module itself: it must not be changed, and runs whole
        for part in self._outputs:
            part.forward = self._replaying(part)

    def run(self, size: int, copying: bool = False) -> Any:
        """Return the model's output for `size` copies of the picture; `copying` is for models that modify outputs."""
        if self._version() != self._recorded_version:  # an earlier batch modified a recorded output in place
            raise UnreplayableError
        self._size, self._copying = size, copying
        self._replayed.clear()
        output = self.module(_repeated(self._images, size).contiguous())
        # Rows share memory. PyTorch refuses most in-place operations on such tensors, but not those with a mask.
        if self._version() != self._recorded_version:
            raise UnreplayableError
        return output

    def run_all(self, size: int) -> Any:
        """Do the same with the whole model."""
        self.close()
        return self.module(_repeated(self._images, size).contiguous())

    def outputs(
        self,
        outputs_of: Callable[[Any], Tensor],
        batches: Callable[[], Iterable[EditBatch]],
        edit: RowEdit,
    ) -> list[Tensor]:
        """Return the outputs of each batch, by the fastest way to run the model that leaves unedited rows unchanged.

        The first row of each batch must equal the outputs of the recorded run up to rounding. (Those of an accelerated
        model may be rounded more.)

        Args:
            outputs_of: reads the outputs (N, ...) from the module's result.
            batches: makes the batches; called anew for each way.
            edit: see `RowEdit`.

        Returns:
            For each batch (1 + R, ...) float32: the unedited row, and one for each edit.

        Raises:
            ModelOutputError: every way changes the unedited rows.
        """
        dtypes = {value.dtype for value in self.module.parameters() if value.is_floating_point()}
        plain = outputs_of(self._plain).float()
        tolerance = max(_TOLERANCE, *(8 * torch.finfo(dtype).eps for dtype in dtypes), 0) * plain.abs().max()
        for way in (self.run, partial(self.run, copying=True), self.run_all):
            rows = []
            for batch in batches():
                row = self._outputs_of_batch(way, outputs_of, batch, edit)
                # `not <=` and not `>`, so that a row of NaN fails too.
                if row is None or not (row[:1] - plain).abs().max() <= tolerance:
                    break
                rows.append(row)
            else:
                return rows
        raise ModelOutputError(
            "The model's outputs change when the picture is one of a batch, or when this layer's output cannot be "
            "changed in place for its other users; choose another layer."
        )

    def _outputs_of_batch(
        self, way: Callable[[int], Any], outputs_of: Callable[[Any], Tensor], batch: EditBatch, edit: RowEdit
    ) -> Tensor | None:
        """Return the outputs (1 + R, ...) of a batch; None if this way cannot run it."""
        reached = False

        def replace(value: Any) -> Any:
            nonlocal reached
            reached = True
            return edit(value, batch, hooks.current.number if hooks.current else 0)

        try:
            with HookSession(self.module) as hooks:
                if self._at == "input":
                    hooks.before_forward(
                        lambda _, args, kwargs: replace((args, kwargs)), self._path, with_kwargs=True, shared=True
                    )
                else:
                    hooks.after_forward(lambda _, args, output: replace(output), self._path)
                outputs = outputs_of(way(1 + len(batch))).float()
        except (OptionError, torch.OutOfMemoryError):
            raise
        except Exception:  # PyTorch or the model may expect one picture and not a batch
            return None
        return outputs if reached and len(outputs) == 1 + len(batch) else None

    def close(self) -> None:
        """Restore `forward` of all modules of the copy, which also drops their references to this object."""
        for part in self._outputs:
            vars(part).pop("forward", None)
        self._outputs.clear()

    def _replaying(self, part: nn.Module) -> Callable[..., Any]:
        """Return a `forward` that returns the recorded outputs first."""
        compute, outputs = part.forward, self._outputs[part]

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = self._replayed[part]
            self._replayed[part] += 1
            if call < len(outputs):  # later calls of the module come after the layer
                return tree_map_only(Tensor, self._row_by_row, outputs[call])
            return compute(*args, **kwargs)

        return forward

    def _row_by_row(self, tensor: Tensor) -> Tensor:
        # Rows that share memory cost nothing, but break if the model writes into them.
        rows = _repeated(tensor, self._size)
        return rows.contiguous() if self._copying else rows

    def _version(self) -> int:
        leaves = tree_flatten(list(self._outputs.values()))[0]
        return sum(leaf._version for leaf in leaves if isinstance(leaf, Tensor))

    def _note(self, number: int) -> tuple[Any, int, Any]:
        """Run the model once, and record the outputs of the outermost modules that return before the layer's call.

        Returns:
            `value` and `calls`, and what the model returned.
        """
        at = self._at
        finished: list[tuple[nn.Module, Any]] = []
        marks: list[int] = []
        target = self.module.get_submodule(self._path)
        # Containers of the layer run again, because the replay counts the layer's calls.
        holders = {part for part in self.module.modules() if part is not target and target in set(part.modules())}
        calls, edited = 0, None
        with HookSession(self.module) as hooks:

            def before(part: nn.Module, args: Any, kwargs: Any) -> None:
                nonlocal edited
                marks.append(len(finished))
                if part is target and calls == number and at == "input" and edited is None:
                    edited = copied((args, kwargs))

            def after(part: nn.Module, _args: Any, output: Any) -> None:
                nonlocal calls, edited
                mark = marks.pop()
                if edited is None and part not in holders:
                    del finished[mark:]  # the modules inside this one need no record of their own
                    finished.append((part, copied(output)))
                if part is target:
                    if calls == number and at == "output":
                        edited = copied(output)
                    calls += 1

            hooks.before_forward(before, nn.Module, with_kwargs=True)
            hooks.after_forward(after, nn.Module)
            plain = self.module(self._images.clone())
        for part, output in finished:
            self._outputs.setdefault(part, []).append(output)
        return edited, calls, plain


def structure_of(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares its parameters, buffers and hooks."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    shared[id(OFF)] = False  # else the copied flag would read True, and the copy would checkpoint
    for part in module.modules():
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._forward_hooks_with_kwargs,
            part._forward_pre_hooks_with_kwargs,
            part._forward_hooks_always_called,
        ):
            shared[id(hooks)] = OrderedDict(hooks)  # one atomic copy: other threads add and remove hooks
    return deepcopy(module, shared)


def _repeated(tensor: Tensor, size: int) -> Tensor:
    """Return a batch of one as a batch of `size` that shares its memory."""
    if tensor.ndim == 0:
        return tensor
    if len(tensor) != 1:
        raise UnreplayableError
    return tensor.expand(size, *tensor.shape[1:])
