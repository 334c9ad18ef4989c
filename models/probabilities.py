"""Networks that end in a softmax, whose heatmaps lack what the logits would show."""

import torch
from torch import Tensor, nn

from seewhy.explainers.core.task import Task
from seewhy.explainers.tasks.heads import Head

ADVICE = (
    "returns probabilities, whose gradients vanish where the model is certain, and which the head turns into "
    "probabilities once more. Return the logits before the softmax."
)


def _are_shares(outputs: Tensor) -> bool:
    """Whether outputs (N, K) are what a softmax returns: not negative, and 1 in sum."""
    values = outputs.float()
    return bool((values >= 0).all() and ((values.sum(dim=1) - 1).abs() < 1e-2).all())


def returns_probabilities(module: nn.Module, task: Task, head: Head, empty: Tensor) -> bool:
    """Whether a module returns probabilities where its head expects logits of classes that exclude each other.

    An empty picture and one of noise are tried, because the logits of one picture may happen to look like that.

    Args:
        module: in evaluation mode.
        task: reads its outputs.
        head: as declared.
        empty: (1, C, H, W), zeros of the module's dtype on its device.
    """
    if head != "softmax":
        return False
    noise = torch.rand(empty.shape, generator=torch.Generator().manual_seed(0)).to(empty)
    with torch.no_grad():
        return all(_are_shares(task.outputs(module(images.clone()))) for images in (empty, noise))
