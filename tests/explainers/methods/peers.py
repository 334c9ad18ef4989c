"""What other packages make of the same model, layer and targets."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn


def grad_cam_peer(kind: type, model: nn.Module, layer: str, images: Tensor, targets: Tensor, **options) -> Tensor:
    """Return the raw map, signed and on the layer's grid, of a class of pytorch-grad-cam."""
    model = deepcopy(model)
    target_layer = model.get_submodule(layer)
    with kind(model, [target_layer], **options) as peer:
        logits = peer.activations_and_grads(images.clone().requires_grad_())
        logits[range(len(images)), targets].sum().backward()
        activations = peer.activations_and_grads.activations[0].detach().numpy()
        gradients = peer.activations_and_grads.gradients[0].numpy()
        return torch.as_tensor(
            np.asarray(peer.get_cam_image(images, target_layer, None, activations, gradients, False))
        )


def caught(model: nn.Module, layer: str, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's features and the gradients of the targets' logits, by plain autograd."""
    results: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: results.append(output))
    logits = model(images.clone().requires_grad_())
    handle.remove()
    (gradients,) = torch.autograd.grad(logits[range(len(images)), targets].sum(), results[0])
    return results[0].detach(), gradients
