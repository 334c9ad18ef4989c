"""The part of a model that depends only on a layer's output, such as its head."""

from collections.abc import Callable

from torch import Tensor, fx, nn

from seewhy.explainers.execution.cut import UncuttableError, cut_before
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.survey_cache import ModuleCache
from seewhy.explainers.process_wide import exclusive

_suffixes = ModuleCache[tuple[fx.GraphModule, ...]]()
"""The suffix of a module, by layer, size and dtype of pictures; empty if there is none."""


def suffix_of(
    module: nn.Module, path: str, images: Tensor, check: Callable[[], None] | None = None
) -> fx.GraphModule | None:
    """Return the part of a model after a layer, from the layer's output to that of the model; cached.

    Its modules are the model's own. It may modify its input in place.

    Args:
        module: in evaluation mode.
        path: path of a layer that runs once.
        images: (N, C, H, W), of the size and dtype that the model gets.
        check: called now and then while this thread waits for the process-wide lock; it ends the wait by raising.

    Returns:
        The part; None where the model cannot be traced, or computes more of the picture beside the layer.
    """
    key = (path, tuple(images.shape[1:]), images.dtype)
    suffix = _suffixes.get(module, key)
    if suffix is None:
        with exclusive(check):
            suffix = _suffixes.put(module, key, _suffix(module, path, images[:1]))
    return suffix[0] if suffix else None


def _suffix(module: nn.Module, path: str, image: Tensor) -> tuple[fx.GraphModule, ...]:
    try:
        # Hidden from sessions that are open, whose hooks expect tensors.
        with HookSession(module) as hooks, hooks.alone():
            suffix = cut_before(module, [path], image).suffix
    except UncuttableError:
        return ()
    inputs = [step for step in suffix.graph.nodes if step.op == "placeholder"]
    return (suffix,) if len(inputs) == 1 else ()
