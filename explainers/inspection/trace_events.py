"""The events of a trace, and a summary of notable ones."""

from dataclasses import dataclass
from typing import Literal

from seewhy.explainers.inspection.statistics import Statistics

EventKind = Literal["before_forward", "after_forward", "output_gradient", "full_backward", "parameter_gradient"]

VANISHING, EXPLODING = 1e-4, 1e4
"""Norms of an output's gradient below and above which it vanishes or explodes; that of the logit itself is 1."""


@dataclass(frozen=True)
class TracedTensor:
    """One tensor of a hook call.

    Attributes:
        name: input, output, grad_input, grad_output or the parameter's name; ``input.1`` where there are several.
        statistics: None where no gradient flows.
    """

    name: str
    statistics: Statistics | None


@dataclass(frozen=True)
class Event:
    """One hook call.

    Attributes:
        order: 0 for the first event.
        kind: which kind of hook ran.
        path, type: path and type of the module.
        call: 0 for the module's first call; None for a parameter, whose gradient is that of all calls.
        tensors: the tensors that the hook received.
        microseconds: since the start of the forward pass, without the time that tracing itself took.
    """

    order: int
    kind: EventKind
    path: str
    type: str
    call: int | None
    tensors: tuple[TracedTensor, ...]
    microseconds: float


@dataclass(frozen=True)
class DeadMaps:
    """Feature maps of a module that are zero everywhere, in every call.

    A map that dies in one module is also listed for later modules that keep it separate, such as a pooling, but not for
    a dropout or an identity, which only pass it on.

    Attributes:
        path: path of the module.
        channels: their indices.
        total: how many feature maps the module has.
    """

    path: str
    channels: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Summary:
    """Notable modules; each field except the first is a list of module paths in execution order.

    Attributes:
        dead_maps: feature maps that are zero everywhere.
        vanishing: a gradient reached the output, but its norm is below `VANISHING` in each call.
        exploding: in some call, the gradient has a norm over `EXPLODING`, or contains infinity.
        without_gradient: no gradient reached the output in any call.
        non_finite: NaN or infinity in an input, output or gradient.
        not_run: the forward pass never called them (or called `forward` directly, past all hooks).
    """

    dead_maps: tuple[DeadMaps, ...]
    vanishing: tuple[str, ...]
    exploding: tuple[str, ...]
    without_gradient: tuple[str, ...]
    non_finite: tuple[str, ...]
    not_run: tuple[str, ...]
