"""Parts of models as OpenVINO networks, converted from a trace.

PyTorch never frees a trace, which takes megabytes, and a service loads and drops the same models again and again. So a
trace takes the weights as arguments and is kept without them, for the next part that is the same.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from seewhy.explainers.execution.runtime import imported_openvino
from seewhy.explainers.process_wide import exclusive, silenced

MOST_KEPT = 64
"""Maximum number of cached networks; the least recently used one is dropped first."""

_kept: OrderedDict[Hashable, Any] = OrderedDict()
"""Networks of images and weights, by the identity of the part."""

_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has; `training` is among them, and is false."""

_PLAIN = (
    *(int, float, complex, str, bytes, type, type(None)),
    *(torch.dtype, torch.device, FunctionType, BuiltinFunctionType),
)
"""Types of values that are the same if they are equal."""

_log = logging.getLogger(__name__)


def convert(part: fx.GraphModule, image: Tensor) -> Any:
    """Return a part of a model as an `openvino.Model`, for any number of images.

    A trace fixes all that depends on values of tensors: compare the results with those of the part.

    Args:
        part: in evaluation mode.
        image: (1, C, H, W) of the right size.
    """
    weights = list({id(tensor): tensor for tensor in (*part.parameters(), *part.buffers())}.values())
    key = _identity(part, weights, image)
    with exclusive():
        if key is not None and key not in _kept:
            try:
                _kept[key] = _traced(_without_weights(part, weights), image.clone(), *weights)
            except Exception as error:  # a module that cannot be copied, or an operation that needs constants
                _log.info("A trace cannot take its weights as arguments: %s", error)
        if key not in _kept:
            return _traced(part, image.clone())
        _kept.move_to_end(key)
        network = _kept[key].clone()
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    for argument, tensor in zip(network.get_parameters()[1:], weights, strict=True):
        constant = imported_openvino().op.Constant(tensor.detach().contiguous().numpy(), shared_memory=True)
        argument.output(0).replace(constant.output(0))
        network.remove_parameter(argument)
    return network


def _traced(function: Callable[..., Any], *arguments: Tensor) -> Any:
    with exclusive(), silenced(), torch.no_grad():
        traced = torch.jit.trace(function, arguments, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
        # A frozen trace is converted in a third of the time, but its weights are never freed.
        return imported_openvino().convert_model(traced, example_input=arguments)


def _without_weights(part: fx.GraphModule, weights: list[Tensor]) -> Callable[..., Any]:
    """Return a part as a function of images and its weights."""
    # Copies, because another thread may be running the part. The graph, which is slow to copy, is only read.
    memo = {id(tensor): tensor for tensor in weights}
    targets = {str(node.target) for node in part.graph.nodes if node.op in ("call_module", "get_attr")}
    twin = fx.GraphModule({target: deepcopy(attrgetter(target)(part), memo) for target in targets}, part.graph)
    places = [
        (module, name, id(tensor))
        for module in twin.modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    ]
    for module, name, _ in places:
        delattr(module, name)
    keys = [id(tensor) for tensor in weights]

    def run(images: Tensor, *tensors: Tensor) -> Any:
        by_key = dict(zip(keys, tensors, strict=True))
        for module, name, key in places:
            setattr(module, name, by_key[key])
        return twin(images)

    return run


def _identity(part: fx.GraphModule, weights: list[Tensor], image: Tensor) -> Hashable:
    """Return what parts with equal traces have in common: code, attributes and weights; None if this is unknown."""
    digest = hashlib.blake2b()
    for tensor in weights:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    try:
        modules = tuple((name, _attributes(module)) for name, module in part.named_modules() if name)
        calls = tuple(_value(node.target) for node in part.graph.nodes if node.op == "call_function")
    except TypeError:
        return None
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in (image, *weights))
    return part.code, calls, modules, shapes, digest.digest()


def _attributes(module: nn.Module) -> Hashable:
    """Return a module's class and attributes.

    Raises:
        TypeError: the value of an attribute may change, or the module has a class of its own.
    """
    if is_parametrized(module):
        raise TypeError
    return type(module), *((name, _value(value)) for name, value in vars(module).items() if name not in _OWN)


def _value(value: object) -> Hashable:
    """Return a value in a form that equals only the same value.

    Raises:
        TypeError: the value may change.
    """
    if isinstance(value, Mapping):
        return type(value), tuple((_value(key), _value(part)) for key, part in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_value, value))
    if not isinstance(value, _PLAIN):
        raise TypeError
    return type(value), value
