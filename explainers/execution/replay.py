"""Replays of a model for one picture in batches: only what lies after a layer is computed, for edits of that layer.

A private copy of the model's structure, which shares its weights, stands in for the model; in it, modules that had
returned before the layer did return what they returned then. No graph of the model is needed. Every batch holds one
unedited row, and where that does not come out as it should, because a model does more than its modules' outputs tell,
the whole model runs for each batch instead.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import closing
from copy import deepcopy
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from seewhy.explainers.errors import ModelOutputError, OptionError
from seewhy.explainers.execution.chunks import passes
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.hooks.evaluation import OFF
from seewhy.explainers.hooks.gradient_tap import copied
from seewhy.explainers.hooks.session import HookSession

_TOLERANCE = 1e-4
"""Largest difference of an unedited row's logits, over the largest logit, that a batch may have; more in half
precision."""

Run = Callable[[int], Any]
"""Returns the output of `Replay.module` for a batch of that many copies of the picture."""

Batch = TypeVar("Batch")


class UnreplayableError(Exception):
    """What was noted cannot be repeated for a batch."""


class Replay:
    """Runs a model for batches of one picture; what returned before the layer did is not computed again.

    Attributes:
        module: the copy, in which hooks see the replay.
        value: the layer's arguments or output in its call; None if there was no such call.
        calls: how often the layer ran.
    """

    def __init__(
        self, module: nn.Module, images: Tensor, path: str, at: Literal["input", "output"] = "output", call: int = 0
    ) -> None:
        """Note what the model does for a picture.

        Args:
            module: in evaluation mode.
            images: (1, C, H, W).
            path: of the layer.
            at: what of the layer will be edited, its arguments or its output.
            call: the first of its calls that will be edited.
        """
        try:
            self.module = structure_of(module)
            is_copy = True
        except Exception:  # of whatever it holds: a lock, a file
            self.module, is_copy = module, False
        self._images = images
        self._size, self._copying = 0, False
        self._replayed: Counter[nn.Module] = Counter()
        self._noted: dict[nn.Module, list[Any]] = {}
        self.value, self.calls = self._note(path, at, call)
        self._noted_version = self._version()
        if not is_copy:
            self._noted.clear()  # other threads use the module, so nothing stands in, and each batch runs whole
        for part in self._noted:
            part.forward = self._stand_in(part)

    def run(self, size: int, copying: bool = False) -> Any:
        """Return the model's output for a batch of that many copies of the picture."""
        if self._version() != self._noted_version:  # an earlier batch wrote into what was noted
            raise UnreplayableError
        self._size, self._copying = size, copying
        self._replayed.clear()
        output = self.module(_repeated(self._images, size).contiguous())
        # PyTorch refuses most writes into memory that the rows share, but not those by a mask.
        if self._version() != self._noted_version:
            raise UnreplayableError
        return output

    def run_copying(self, size: int) -> Any:
        """Do the same for models that modify in place what a module returned."""
        return self.run(size, copying=True)

    def run_all(self, size: int) -> Any:
        """Do the same with every module computed again."""
        self.close()
        return self.module(_repeated(self._images, size).contiguous())

    def close(self) -> None:
        """Take the stand-ins away, and with them the references to this object."""
        for part in self._noted:
            vars(part).pop("forward", None)
        self._noted.clear()

    def _stand_in(self, part: nn.Module) -> Callable[..., Any]:
        compute, outputs = part.forward, self._noted[part]

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = self._replayed[part]
            self._replayed[part] += 1
            if call < len(outputs):  # later calls of the module come after the layer, and are computed
                return tree_map_only(Tensor, self._row_by_row, outputs[call])
            return compute(*args, **kwargs)

        return forward

    def _row_by_row(self, tensor: Tensor) -> Tensor:
        # Rows that share memory cost nothing, unless the model goes on to write into them.
        rows = _repeated(tensor, self._size)
        return rows.contiguous() if self._copying else rows

    def _version(self) -> int:
        leaves = tree_flatten(list(self._noted.values()))[0]
        return sum(leaf._version for leaf in leaves if isinstance(leaf, Tensor))

    def _note(self, path: str, at: str, number: int) -> tuple[Any, int]:
        """Run the model once, and note what returns before the layer's call does, outermost modules only."""
        finished: list[tuple[nn.Module, Any]] = []
        marks: list[int] = []
        target = self.module.get_submodule(path)
        # What holds the layer runs again, for calls of the layer are counted in the replay too.
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
                    del finished[mark:]  # the modules inside it: the outermost one stands in for them
                    finished.append((part, copied(output)))
                if part is target:
                    if calls == number and at == "output":
                        edited = copied(output)
                    calls += 1

            hooks.before_forward(before, nn.Module, with_kwargs=True)
            hooks.after_forward(after, nn.Module)
            self.module(self._images.clone())
        for part, output in finished:
            self._noted.setdefault(part, []).append(output)
        return edited, calls


def checked_rows(
    replay: Replay, logits: Tensor, batches: Callable[[], Iterable[Batch]], run: Callable[[Run, Batch], Tensor | None]
) -> list[Tensor]:
    """Return the logits of each batch, by the fastest way to run the model that gets unedited rows right.

    Args:
        replay: made for the picture and the layer.
        logits: (1, K) of the picture, which the first row of each batch must come out as.
        batches: makes the batches; called anew for each way that is tried.
        run: runs one batch, and returns its logits (1 + R, K), or None if the batch is none.

    Raises:
        ModelOutputError: no way gets the unedited rows right.
    """
    for way in (replay.run, replay.run_copying, replay.run_all):
        rows = _rows(way, replay.module, logits, batches(), run)
        if rows is not None:
            return rows
    raise ModelOutputError(
        "The model answers differently when the picture is one of a batch, or when it cannot change what this layer "
        "returned in place for others to see; choose another layer, or a model without either."
    )


def _rows(
    way: Run,
    module: nn.Module,
    logits: Tensor,
    batches: Iterable[Batch],
    run: Callable[[Run, Batch], Tensor | None],
) -> list[Tensor] | None:
    """Return the logits of each batch, or None where an unedited row is not what it should be."""
    all_rows = []
    dtypes = {value.dtype for value in module.parameters() if value.is_floating_point()}
    tolerance = max(_TOLERANCE, *(8 * torch.finfo(dtype).eps for dtype in dtypes), 0)
    for batch in batches:
        try:
            batch_logits = run(way, batch)
        except (OptionError, torch.OutOfMemoryError):
            raise
        except Exception:  # of PyTorch or the model: a batch where one picture was expected
            return None
        # `not <=` and not `>`: a row of NaN is not what it should be either.
        if batch_logits is None or not (batch_logits[:1] - logits).abs().max() <= tolerance * logits.abs().max():
            return None
        all_rows.append(batch_logits)
    return all_rows


def replaced_outputs(
    module: nn.Module,
    outputs_of: Callable[[Any], Tensor],
    image: Tensor,
    path: str,
    axes: tuple[int, int, int, int],
    logits: Tensor,
    edit: Callable[[Tensor, slice], Tensor],
    total: int,
    size: int,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Return a picture's outputs (total, ...) with a layer's output replaced in `total` ways, and as many without.

    The latter come from the unedited rows of the same batches, so that rounding does not count as an effect.

    Args:
        module: in evaluation mode.
        outputs_of: reads the outputs (N, ...) in what the module returns.
        image: (1, C, H, W).
        path: of a layer that runs once and returns a grid of features.
        axes: the order of axes that makes what it returns (1, C, h, w).
        logits: (1, K) of the picture.
        edit: is given the output (1, C, h, w), which it leaves alone, and returns the replacements (R, C, h, w) that a
            slice of the `total` means.
        total: how many there are.
        size: most rows of one pass; the unedited one is one of them.
        progress: told of each pass.

    Raises:
        ModelOutputError: the model answers differently when the picture is one of a batch.
    """

    back = [axes.index(axis) for axis in range(4)]

    def run(way: Run, rows: slice) -> Tensor | None:
        count, reached = rows.stop - rows.start, 0

        def replace(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            nonlocal reached
            reached += 1
            if len(output) != 1 + count:
                raise UnreplayableError
            first = output[:1].permute(axes)
            return torch.cat([first, edit(first, rows)]).permute(back).contiguous()

        with HookSession(replay.module) as hooks:
            hooks.after_forward(replace, path)
            batch_logits = outputs_of(way(1 + count)).float()
        return batch_logits if reached == 1 and len(batch_logits) == 1 + count else None

    with torch.no_grad(), closing(Replay(module, image, path)) as replay:
        batches = checked_rows(replay, logits, lambda: passes(total, max(1, size - 1), progress), run)
    edited = torch.cat([rows[1:] for rows in batches])
    plain = torch.cat([rows[:1].expand(len(rows) - 1, *rows.shape[1:]) for rows in batches])
    if not bool(torch.isfinite(edited).all()):
        raise ModelOutputError(
            f"Without parts of the output of layer {path!r} the logits hold NaN or infinity; choose another layer."
        )
    return edited, plain


def structure_of(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares its parameters, buffers and hooks."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    shared[id(OFF)] = False  # this copy checkpoints no more than the module does at present
    for part in module.modules():
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._forward_hooks_with_kwargs,
            part._forward_pre_hooks_with_kwargs,
            part._forward_hooks_always_called,
        ):
            shared[id(hooks)] = OrderedDict(hooks)  # at once: other threads add and remove theirs
    return deepcopy(module, shared)


def _repeated(tensor: Tensor, size: int) -> Tensor:
    """Return a batch of one as a batch of `size` that shares its memory."""
    if tensor.ndim == 0:
        return tensor
    if len(tensor) != 1:
        raise UnreplayableError
    return tensor.expand(size, *tensor.shape[1:])
