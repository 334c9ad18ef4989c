"""FullGrad: the gradient of the input, and those of every bias, laid over each other."""

import contextlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass as plain
from math import log
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from explainers.base import Attribution, Explainer, Question, Sign, checked_logits, principal_component
from explainers.errors import LayerError
from explainers.goals import Goal
from explainers.hooks import HookSession
from explainers.layers import grid_axes
from explainers.modules import first_names
from explainers.passes import pass_size, passes
from explainers.registry import Paper, method

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    # The first forward derivative imports it, and it warns of what PyTorch itself will no longer use.
    warnings.simplefilter("ignore", FutureWarning)
    import torch._decomp.decompositions_for_jvp

HOMOGENEOUS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.PReLU,
    nn.Identity,
    nn.Flatten,
    nn.Dropout,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)
"""Modules f with f(az) = a f(z) for every positive a: they have no bias, neither explicit nor implicit."""


@plain(frozen=True, eq=False)
class FullGradients:
    """What makes the score of each picture: it is the sum of all the terms.

    Attributes:
        goal: what is explained.
        logits: (N, K) float32.
        terms: pairs of a module's path and what its biases, explicit or implicit, contribute at each position of its
            output, (N, ...) float32, one per call; with the empty path what the picture contributes, (N, C, H, W).
    """

    goal: Goal
    logits: Tensor
    terms: tuple[tuple[str, Tensor], ...]

    @property
    def missing(self) -> Tensor:
        """What the terms lack (N,) to make the scores, as a share of the terms."""
        sums = torch.stack([term.double().flatten(1).sum(dim=1) for _, term in self.terms])
        lack = self.goal.scores(self.logits).double() - sums.sum(dim=0)
        return lack / sums.abs().sum(dim=0).clamp_min(1e-30)


def full_gradients(question: Question) -> FullGradients:
    """Decompose the score of each picture into input times gradient, and bias times gradient of every module.

    Raises:
        LayerError: the model has biases outside the modules that can be decomposed.
    """
    tolerance = 1e-3 if question.images.dtype in (torch.float32, torch.float64) else 0.05
    units = tuple(path for path, part in question.module.named_modules() if path and _is_unit(part))
    found = _decompose(question, units)
    for path, term in found.terms:
        if len(term) != len(question.images):
            raise LayerError(
                f"The output of {path!r} has {len(term)} rows for {len(question.images)} pictures, as windows of a "
                "transformer have, so its biases cannot be told apart by picture; use integrated gradients."
            )
    if float(found.missing.abs().max()) > tolerance:
        units = _coarser(question, units)
        found = _decompose(question, units)
    worst = float(found.missing.abs().max())
    if worst > tolerance:
        raise LayerError(
            f"The gradients of the input and of the biases do not add up to the score ({worst:.1%} are missing), for "
            "the model adds or multiplies outside of its modules, as transformers do; use integrated gradients or "
            "another method."
        )
    return found


def _is_unit(part: nn.Module) -> bool:
    """Whether a module is taken as a whole: it has no parts, or they have no parameters but it has."""
    parts = list(part.children())
    if not parts:
        return True
    own = next(part.parameters(recurse=False), None) is not None
    return own and not any(True for child in parts for _ in child.parameters())


def _within(path: str, outer: Iterable[str]) -> bool:
    return any(path.startswith(f"{one}.") for one in outer)


def _decompose(question: Question, units: tuple[str, ...]) -> FullGradients:
    """Return the terms of the picture and of modules, whose parts are left out."""
    modules = dict(question.module.named_modules())
    units = tuple(unit for unit in units if not _within(unit, units) and not isinstance(modules[unit], HOMOGENEOUS))
    linear = [unit for unit in units if isinstance(modules[unit], nn.Conv2d | nn.Linear)]
    curved = [unit for unit in units if unit not in linear]
    with torch.enable_grad(), HookSession(question.module) as hooks:
        hooks.record("", kinds=("input", "grad_input"))
        if linear:
            hooks.record(*linear, kinds=("grad_output",))
        if curved:
            hooks.record(*curved, kinds=("input", "grad_output"))
        logits = checked_logits(question.module(question.images.clone()))
        goal = question.goal(logits)
        hooks.backward(goal.scores(logits).sum())
        gradients, gradient = hooks.grad_outputs, hooks.grad_inputs[""][0]
    if not isinstance(gradient, Tensor):
        raise LayerError("No gradient flows from the logits to the picture; use a method that needs none.")
    terms = [("", question.images.float() * gradient.float())]
    for path in linear:
        terms += [(path, term) for term in _of_bias(modules[path], gradients[path])]
    for path in curved:
        for value, end in zip(hooks.inputs[path], gradients[path], strict=True):
            if isinstance(value, Tensor) and isinstance(end, Tensor):
                terms.append((path, end.float() * _implicit_bias(modules[path], value)))
    return FullGradients(goal, logits.detach().float(), tuple(terms))


def _of_bias(part: nn.Module, gradients: list[Tensor | None]) -> list[Tensor]:
    bias = getattr(part, "bias", None)
    if bias is None:
        return []
    bias = bias.detach().float()
    bias = bias[:, None, None] if isinstance(part, nn.Conv2d) else bias
    return [gradient.float() * bias for gradient in gradients if gradient is not None]


def _implicit_bias(part: nn.Module, value: Tensor) -> Tensor:
    """Return f(z) - J z: what the tangent of a module at its input adds to the linear part."""
    try:
        output, tangent = torch.func.jvp(lambda tensor: part.forward(tensor.clone()), (value,), (value,))[:2]
    except NotImplementedError as error:
        raise LayerError(
            f"PyTorch has no forward derivative of what {type(part).__name__} does, so FullGrad cannot tell its bias; "
            "use integrated gradients or another method."
        ) from error
    found: Tensor = (output - tangent).detach().float()
    return found


def _coarser(question: Question, units: tuple[str, ...]) -> tuple[str, ...]:
    """Return units and, for the sake of completeness, modules that do more than their parts, such as a gate.

    Of such a module, output times its gradient is not input times its gradient plus the terms of its parts.
    """
    first = question.part(slice(1))
    found = _decompose(first, units)
    sums = [(path, float(term.double().sum())) for path, term in found.terms]
    least = 1e-5 * sum(abs(value) for _, value in sums)
    with torch.enable_grad(), HookSession(question.module) as hooks:
        paths = [path for path in hooks.modules if path and path not in units and not _within(path, units)]
        paths = list(first_names(hooks.modules, paths))
        if not paths:
            return units
        hooks.record(*paths, kinds=("input", "output", "grad_input", "grad_output"))
        logits = checked_logits(question.module(first.images.clone()))
        hooks.backward(found.goal.scores(logits).sum())
        ends, starts = hooks.grad_outputs, hooks.grad_inputs
    excess: dict[str, float] = {}
    for path in sorted(paths, key=lambda path: path.count("."), reverse=True):
        calls = [hooks.outputs[path], ends[path], hooks.inputs[path], starts[path]]
        if any(not isinstance(one, Tensor) for call in calls for one in call):
            continue
        own = _product(calls[0], calls[1]) - _product(calls[2], calls[3])
        inside = sum(value for unit, value in sums if _within(unit, [path]))
        known = sum(value for other, value in excess.items() if _within(other, [path]))
        if abs(own - inside - known) > least:
            excess = {other: value for other, value in excess.items() if not _within(other, [path])}
            excess[path] = own - inside
    return *units, *excess


def _product(values: list[Tensor], gradients: list[Tensor]) -> float:
    pairs = zip(values, gradients, strict=True)
    return sum(float((value.double() * gradient.double()).sum()) for value, gradient in pairs)


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
    backwards="1",
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
    as all maps here). ``sign="signed"`` leaves out the magnitude and the stretching, and shares each value out over the
    pixels that it is resized to; what resizing changes of a layer's sum, which is little, is taken back evenly from all
    pixels. Then the map sums to the score but for the terms of layers without positions (fully connected ones, and
    those of pooled features), which no map shows. That the terms add up to the score is checked for every picture; a
    module that does more than its parts, such as a gate, is taken as a whole.
    """

    sign: Annotated[
        Sign,
        Field(description="Magnitude of each layer's contribution (the paper's), signed contributions, or positive."),
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """Forward and backward passes of parts of the batch, and tangents of what is not linear."""
        maps, found = [], []
        # Inputs, gradients and terms are kept of each module.
        size = max(1, pass_size(question.module, question.images, backward=True) // 2)
        for rows in passes(len(question.images), size, question.report):
            found.append(full_gradients(question.part(rows)))
            maps.append(self._map(found[-1], (question.images.shape[2], question.images.shape[3])))
        goal = Goal.joined([one.goal for one in found])
        return self.answer(torch.cat(maps), goal, torch.cat([one.logits for one in found]))

    def _map(self, found: FullGradients, size: tuple[int, int]) -> Tensor:
        total = torch.zeros(())
        for _, term in found.terms:
            axes = _axes(tuple(term.shape), size)
            if axes is None or term.shape[axes[1]] * term.shape[axes[2]] == 1:
                continue
            values = term.permute(0, *axes)
            if self.sign == "absolute":
                values = _stretched(values.abs())
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


def _stretched(values: Tensor) -> Tensor:
    """Return each picture's values between 0 and 1."""
    values = values - values.amin(dim=(1, 2, 3), keepdim=True)
    largest = values.amax(dim=(1, 2, 3), keepdim=True)
    return values / torch.where(largest > 0, largest, torch.ones_like(largest))
