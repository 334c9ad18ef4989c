"""Networks that end in a softmax: their heatmaps show less than those of the logits would."""

import torch
from torch import Tensor, nn

from seewhy.explainers.core.task import Task
from seewhy.explainers.tasks.heads import Head

ADVICE = (
    "returns probabilities, whose gradients vanish where the model is certain, and which the head turns into "
    "probabilities once more. Return the logits before the softmax."
)


def returns_probabilities(module: nn.Module, task: Task, head: Head, empty: Tensor, outputs: Tensor) -> bool:
    """Whether a module returns probabilities where its head expects logits of classes that exclude each other.

    The logits of one picture may happen to look like that, so a picture of noise is tried too.

    Args:
        module: in evaluation mode.
        task: reads its outputs.
        head: as declared.
        empty: (1, C, H, W), zeros of the module's dtype on its device.
        outputs: (1, K), of the empty picture.
    """
    if head != "softmax" or not _are_shares(task, outputs):
        return False
    noise = torch.rand(empty.shape, generator=torch.Generator().manual_seed(0)).to(empty)
    with torch.no_grad():
        return _are_shares(task, task.outputs(module(noise)))


def _are_shares(task: Task, outputs: Tensor) -> bool:
    """Whether outputs (N, K) look like those of a softmax. (Those of a log-softmax, which a head undoes, are
    negative.)"""
    return bool((outputs >= 0).all()) and task.are_probabilities(outputs)
