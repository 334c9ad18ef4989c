"""Parts of models as networks of OpenVINO, traced once for all models of a structure.

PyTorch never frees what `torch.jit.trace` makes, some megabytes each time, and a service loads and drops models again
and again. So a trace takes the weights as arguments, and is kept; networks of one structure differ in their constants.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn

from seewhy.explainers.execution.runtime import imported_openvino
from seewhy.explainers.process_wide import exclusive, silenced

_structures: dict[tuple[object, ...], Any] = {}
"""Networks whose first input is the images, and whose others are the weights, by `_structure`."""


def converted(part: fx.GraphModule, image: Tensor) -> Any:
    """Return a part of a model as an `openvino.Model`, from images of any number.

    Parts that look alike, but compute something else, get the same network: the caller compares the results.

    Args:
        part: in evaluation mode.
        image: (1, C, H, W) of the right size.
    """
    weights = list({id(tensor): tensor for tensor in (*part.parameters(), *part.buffers())}.values())
    key, openvino = _structure(part, weights, image), imported_openvino()
    with exclusive():
        if key not in _structures:
            # The trace fixes all that depends on values of tensors. The caller compares the results.
            run, arguments = _of_weights(part, weights), (image.clone(), *weights)
            with silenced(), torch.no_grad():
                traced = torch.jit.trace(run, arguments, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
                _structures[key] = openvino.convert_model(traced, example_input=arguments)
        network = _structures[key].clone()
    for given, tensor in zip(network.get_parameters()[1:], weights, strict=True):
        constant = openvino.op.Constant(tensor.detach().contiguous().numpy(), shared_memory=True)
        given.output(0).replace(constant.output(0))
        network.remove_parameter(given)
    return network


def _structure(part: fx.GraphModule, weights: list[Tensor], image: Tensor) -> tuple[object, ...]:
    """Return all that shows of what a part computes, but for the weights."""
    kinds = tuple(type(module) for module in part.modules())
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in (image, *weights))
    return str(part), repr(part), kinds[1:], shapes  # each part has a class of its own


def _of_weights(part: nn.Module, weights: list[Tensor]) -> Callable[..., Any]:
    """Return a part as a function of images and its weights."""
    twin = deepcopy(part, {id(tensor): tensor for tensor in weights})  # another thread may be running the part
    places = [
        (module, name, id(tensor))
        for module in twin.modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    ]
    for module, name, _ in places:
        delattr(module, name)
    numbers = [id(tensor) for tensor in weights]

    def run(images: Tensor, *tensors: Tensor) -> Any:
        given = dict(zip(numbers, tensors, strict=True))
        for module, name, number in places:
            setattr(module, name, given[number])
        return twin(images)

    return run
