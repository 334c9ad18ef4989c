"""FullGrad: the gradient of the input, and those of every bias, laid over each other."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass as plain
from dataclasses import replace
from math import log
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign, principal_component
from seewhy.explainers.core.question import Question
from seewhy.explainers.core.task import DEFAULT_ASK
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.execution.chunks import pass_size, passes
from seewhy.explainers.hooks.selection import first_names, out_of_reach
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.layout import grid_axes
from seewhy.explainers.layers.survey_cache import surveyed_axes
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.gradient.biases import HOMOGENEOUS, implicit_bias

LINEAR = (nn.Conv2d, nn.Linear)
"""Modules whose bias is a parameter."""

PROBES = (1.0, 0.25)
"""Standard deviations of the noise that tells which modules do more than their parts."""

STRETCHED = 2.0**-9
"""Of single precision: how small the largest bias of a module may be, beside the values that it is a difference of, to
be stretched all the way: then rounding, 2^-23 of these values, is less than 10^-4 of what is drawn."""

COARSELY_STRETCHED = 2.0**-3
"""Likewise, of half precision, which leaves no more than a rough figure."""

EXCESS = 2.0**-20
"""How much a module and its parts differ, of the magnitudes of all that is summed, if the module does more than they.
In single precision rounding makes up to 2^-25 of it, and the gates of trained and untrained networks 2^-14 at least."""

COARSE_EXCESS = 2.0**-8
"""Likewise in half precision."""


MOST_SIZES = 16
"""Sizes of pictures whose units are kept of a module; the oldest goes first."""

_known: "WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, tuple[str, ...]]]]" = WeakKeyDictionary()
_known_lock = threading.Lock()


@plain(frozen=True, eq=False)
class Term:
    """What a call of a module contributes to the score, or the picture does.

    Attributes:
        path: of the module; empty for the picture.
        values: (N, ...) float32, at each position of its output.
        least: (N, 1, 1, 1) or a number: magnitudes below it are too near to rounding to be stretched all the way.
    """

    path: str
    values: Tensor
    least: Tensor | float = 0.0


@plain(frozen=True, eq=False)
class FullGradients:
    """What makes the score of each picture: it is the sum of all the terms.

    Attributes:
        objective: what is explained.
        outputs: (N, ...) float32.
        terms: those of the picture (N, C, H, W), and of each call of a module whose bias, explicit or implicit, counts.
    """

    objective: Objective
    outputs: Tensor
    terms: tuple[Term, ...]

    @property
    def missing(self) -> Tensor:
        """What the terms lack (N,) to make the scores, as a share of the terms."""
        sums = torch.stack([_sums(term.values) for term in self.terms])
        lack = self.objective.scores(self.outputs).double() - sums.sum(dim=0)
        return lack / sums.abs().sum(dim=0).clamp_min(1e-30)


def full_gradients(question: Question, units: tuple[str, ...]) -> FullGradients:
    """Decompose the score of each picture into input times gradient, and bias times gradient of every module.

    Args:
        question: see `Question`.
        units: paths of the modules that are taken as a whole, as `units_of` finds them.

    Raises:
        UnsuitableModelError: the model has biases outside the modules that can be decomposed.
    """
    found = _Pass(question, units).gradients()
    for term in found.terms:
        if len(term.values) != len(question.images):
            raise LayerError(
                f"The output of {term.path!r} has {len(term.values)} rows for {len(question.images)} pictures, as "
                "windows of a transformer have, so its biases cannot be told apart by picture; use integrated "
                "gradients."
            )
    worst = float(found.missing.abs().max())
    if worst > (1e-3 if _is_precise(question.images) else 0.05):
        raise UnsuitableModelError(
            f"The gradients of the input and of the biases do not add up to the score ({worst:.1%} are missing), for "
            "the model adds or multiplies outside of its modules, as transformers do; use integrated gradients or "
            "another method."
        )
    return found


def units_of(question: Question) -> tuple[str, ...]:
    """Return the paths of the modules that are taken as a whole: those without parts, and those that do more.

    Of a module that does more than its parts, such as a gate, output times its gradient is not input times its gradient
    plus the terms of its parts. Pictures of noise tell, and not those that are explained: so it depends on the model
    and the size of pictures alone.

    Raises:
        UnsuitableModelError: no gradient flows to the picture.
        LayerError: a module cannot be decomposed.
    """
    tensors = (*question.module.parameters(), *question.module.buffers())
    versions = tuple((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)
    key = (tuple(question.images.shape[1:]), question.images.dtype)
    with _known_lock:
        known = _known.get(question.module)
        if known is None or known[0] != versions:
            known = _known[question.module] = versions, {}
        units = known[1].get(key)
    if units is None:
        units = _find_units(question)
        with _known_lock:
            if len(known[1]) >= MOST_SIZES:
                del known[1][next(iter(known[1]))]
            known[1][key] = units
    return units


def _find_units(question: Question) -> tuple[str, ...]:
    modules = dict(question.module.named_modules())
    unreachable = out_of_reach(modules)  # without their biases; where these count, the terms do not add up
    reachable = {path: part for path, part in modules.items() if path and path not in unreachable}
    units = tuple(path for path, part in reachable.items() if _is_unit(part))
    units = tuple(unit for unit in units if not _within(unit, units))
    others = [path for path in reachable if path not in units and not _within(path, units)]
    others = list(first_names(modules, others))
    if not others:
        return units
    whole: tuple[str, ...] = ()
    generator = torch.Generator().manual_seed(0)
    shape = (1, *question.images.shape[1:])
    for scale in PROBES:
        probe = scale * torch.randn(shape, generator=generator)
        noise = replace(question, images=probe.to(question.images), ask=DEFAULT_ASK)
        whole = tuple(dict.fromkeys((*whole, *_Pass(noise, units, others).excessive())))
    return *units, *(path for path in whole if not _within(path, whole))


def _is_unit(part: nn.Module) -> bool:
    """Whether a module is taken as a whole: it has no parts, or they have no parameters but it has."""
    parts = list(part.children())
    if not parts:
        return True
    own = next(part.parameters(recurse=False), None) is not None
    return own and not any(True for child in parts for _ in child.parameters())


def _within(path: str, outer: Iterable[str]) -> bool:
    return any(path.startswith(f"{one}.") for one in outer)


class _Pass:
    """A forward and a backward pass, with what it found at modules.

    Args:
        question: see `Question`.
        units: paths of the modules whose biases are wanted.
        others: paths of modules around them that may do more than their parts.
    """

    def __init__(self, question: Question, units: tuple[str, ...], others: Sequence[str] = ()) -> None:
        self._modules = dict(question.module.named_modules())
        self._images, self._others = question.images, others
        self._units = [
            unit for unit in units if not _within(unit, units) and type(self._modules[unit]) not in HOMOGENEOUS
        ]
        linear = [unit for unit in self._units if isinstance(self._modules[unit], LINEAR)]
        curved = [unit for unit in self._units if unit not in linear]
        with torch.enable_grad(), HookSession(question.module) as hooks:
            hooks.record("", kinds=("input", "grad_input"))
            if linear:
                hooks.record(*linear, kinds=("grad_output",))
            if curved:
                hooks.record(*curved, kinds=("input", "grad_output"))
            if others:
                hooks.record(*others, kinds=("input", "output", "grad_input", "grad_output"))
            outputs = question.outputs(question.module(question.images.clone()))
            self._goal = question.objective(outputs)
            hooks.backward(self._score(outputs).sum())
            self._inputs, self._outputs = hooks.inputs, hooks.outputs
            self._starts, self._ends = hooks.grad_inputs, hooks.grad_outputs
        self._logits = outputs.detach().float()
        if not isinstance(self._starts[""][0], Tensor):
            raise UnsuitableModelError(
                "No gradient flows from the logits to the picture; use a method that needs none."
            )

    def _score(self, outputs: Tensor) -> Tensor:
        """Return the scores (N,); where modules around the units are looked at, a mixture of all outputs."""
        if not self._others:
            return self._goal.scores(outputs)
        values = outputs.float().flatten(1)
        return values @ torch.randn(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)

    def gradients(self) -> FullGradients:
        """Return the terms of the picture and of the units."""
        terms = [Term("", self._images.float() * self._starts[""][0].float())]
        for path in self._units:
            terms += self._terms(path)
        return FullGradients(self._goal, self._logits, tuple(terms))

    def _terms(self, path: str) -> Iterator[Term]:
        part, gradients = self._modules[path], self._ends[path]
        if isinstance(part, LINEAR):
            if isinstance(bias := part.bias, Tensor):
                shift = bias.detach().float()
                shift = shift[:, None, None] if isinstance(part, nn.Conv2d) else shift
                yield from (Term(path, gradient.float() * shift) for gradient in gradients if gradient is not None)
            return
        for value, gradient in zip(self._inputs[path], gradients, strict=True):
            if isinstance(value, Tensor) and isinstance(gradient, Tensor):
                bias, magnitude = implicit_bias(part, value)
                least: Tensor | float = 0.0
                if magnitude is not None:
                    largest = (gradient.float().abs() * magnitude).flatten(1).amax(dim=1).view(-1, 1, 1, 1)
                    least = (STRETCHED if _is_precise(value) else COARSELY_STRETCHED) * largest
                yield Term(path, (gradient * bias).float(), least)

    def excessive(self) -> list[str]:
        """Return those of the other modules that do more than their parts, the outermost of those within each other."""
        own: dict[str, float] = {}
        size: dict[str, float] = {}
        for term in self.gradients().terms:
            own[term.path] = own.get(term.path, 0.0) + float(term.values.double().sum())
            size[term.path] = size.get(term.path, 0.0) + float(term.values.double().abs().sum())
        excess: dict[str, float] = {}
        for path in sorted(self._others, key=lambda path: path.count("."), reverse=True):
            calls = [self._outputs[path], self._ends[path], self._inputs[path], self._starts[path]]
            if any(not isinstance(one, Tensor) for call in calls for one in call):
                continue
            left = [end.double() * output for output, end in zip(*calls[:2], strict=True)]
            right = [start.double() * value for value, start in zip(*calls[2:], strict=True)]
            inside = [unit for unit in own if _within(unit, [path])]
            more = float(sum(map(torch.sum, left))) - float(sum(map(torch.sum, right)))
            rest = more - sum(own[unit] for unit in inside)
            rest -= sum(value for other, value in excess.items() if _within(other, [path]))
            summed = sum(float(one.abs().sum()) for one in (*left, *right)) + sum(size[unit] for unit in inside)
            if abs(rest) > (EXCESS if _is_precise(self._images) else COARSE_EXCESS) * summed:
                excess = {other: value for other, value in excess.items() if not _within(other, [path])}
                excess[path] = more - sum(own[unit] for unit in inside)
        return list(excess)


def _is_precise(values: Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64)


def _sums(values: Tensor) -> Tensor:
    """Return the sum of each row, (N,) float64."""
    return values.double().flatten(1).sum(dim=1)


@method(
    "fullgrad",
    family="gradient",
    summary="Input times gradient and bias times gradient of every layer, which add up to the score.",
    paper=Paper(
        "Srinivas, Fleuret",
        "Full-Gradient Representation for Neural Network Visualization",
        2019,
        "https://arxiv.org/abs/1905.00780",
    ),
    forwards="2",
    backwards="3",
    fine=True,
)
@dataclass(frozen=True, kw_only=True)
class FullGrad(Explainer):
    r"""FullGrad: what the picture and every bias contribute to the score, laid over each other.

    .. math:: y^c = \nabla_x y^c \cdot x + \sum_l \nabla_{b_l} y^c \cdot b_l, \qquad
              M = \psi(\nabla_x y^c \odot x) + \sum_l \sum_k \psi(\nabla_{b_l} y^c \odot b_l)_k

    where the bias of a layer is what its tangent adds to its linear part, at each position of its output: the bias of a
    convolution, the implicit one of batch norm and of any activation but ReLU. ψ takes the magnitude, stretches it over
    0 to 1 for each layer, as the authors' code does, and resizes it bilinearly to the picture (with corners unaligned,
    as all maps here). Unlike there, a layer is stretched less where even its largest value is a difference of values
    more than 2^9 times as large (2^3 times in half precision), for it would show their rounding: one that adds nothing
    but rounding is left as faint as that is. ``sign="signed"`` leaves out the magnitude and the stretching, and shares
    each value out over the pixels that it is resized to; what resizing changes of a layer's sum, which is little, is
    taken back evenly from all pixels. Then the map sums to the score but for the terms of layers without positions
    (fully connected ones, and those of pooled features), which no map shows. That the terms add up to the score is
    checked for every picture; a module that does more than its parts, such as a gate, is taken as a whole, which
    depends on the model alone. Under ``torch.autocast`` the model runs in its own precision all the same.

    The model itself runs once forward and once back. A module with an implicit bias runs once more, alone, and twice
    back, so no module runs more often than two passes forward and three back. The first picture of a size also costs
    two passes of noise, which find the modules that are taken as a whole.
    """

    sign: Annotated[
        Sign,
        Field(description="Magnitude of each layer's contribution (the paper's), signed contributions, or positive."),
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """Forward and backward passes of parts of the batch, and second backward passes of what is not linear."""
        # What a module adds is a small difference, which the half precision of autocast would swallow.
        device = question.images.device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return self._attribution(question)

    def _attribution(self, question: Question) -> Attribution:
        maps, found = [], []
        units, known = units_of(question), surveyed_axes(question.model)
        # Inputs, gradients and terms are kept of each module.
        size = pass_size(question.module, question.images, backward=True, copies=2)
        for rows in passes(len(question.images), size, question.progress):
            found.append(full_gradients(question.part(rows), units))
            maps.append(self._map(found[-1], (question.images.shape[2], question.images.shape[3]), known))
        objective = Objective.joined([one.objective for one in found])
        return self.answer(torch.cat(maps), objective, torch.cat([one.outputs for one in found]))

    def _map(
        self, found: FullGradients, size: tuple[int, int], known: Mapping[str, tuple[int, int, int] | None]
    ) -> Tensor:
        total = torch.zeros(())
        for term in found.terms:
            axes = (term.values.ndim == 4 and known.get(term.path)) or _axes(tuple(term.values.shape), size)
            if axes is None:
                continue
            values = term.values.permute(0, *axes)
            if values[0, 0].numel() == 1 and size != (1, 1):
                continue
            if self.sign == "absolute":
                values = _stretched(values.abs(), term.least)
            reduced = principal_component(values) if self.smooth == "eigen" else values.sum(dim=1)
            resized = functional.interpolate(reduced[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
            if self.sign != "absolute":
                resized = _summing(resized * (reduced[0].numel() / resized[0].numel()), reduced)
            total = resized + total.to(resized.device)
        return total.clamp_min(0) if self.sign != "signed" else total


def _axes(shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns of a term; None where it has no positions.

    Padding can make a layer larger than the picture, and of other proportions; of the two readings the nearer counts.
    """
    if (axes := grid_axes(shape, size)) is not None or len(shape) != 4:
        return axes

    def stretch(axes: tuple[int, int, int]) -> float:
        return abs(log(shape[axes[1]] * size[1] / (shape[axes[2]] * size[0])))

    return min((1, 2, 3), (3, 1, 2), key=stretch)


def _summing(resized: Tensor, reduced: Tensor) -> Tensor:
    """Return resized maps (N, H, W), shifted so that each has the sum that it had before, in (N, h, w)."""
    missing = reduced.double().sum(dim=(1, 2), keepdim=True) - resized.double().sum(dim=(1, 2), keepdim=True)
    return resized + (missing / resized[0].numel()).to(resized.dtype)


def _stretched(values: Tensor, least: Tensor | float) -> Tensor:
    """Return each picture's values between 0 and 1; less far up where the largest is smaller than `least`."""
    values = values - values.amin(dim=(1, 2, 3), keepdim=True)
    largest = values.amax(dim=(1, 2, 3), keepdim=True).clamp_min(least)
    return values / torch.where(largest > 0, largest, torch.ones_like(largest))
