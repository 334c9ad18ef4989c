"""The tensors of plain autograd for the same model, layer and targets."""

import torch
from torch import Tensor, nn


def caught(model: nn.Module, layer: str, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's features and the gradients of the targets' logits, by plain autograd."""
    results: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: results.append(output))
    logits = model(images.clone().requires_grad_())
    handle.remove()
    (gradients,) = torch.autograd.grad(logits[range(len(images)), targets].sum(), results[0])
    return results[0].detach(), gradients
