"""The score as a sum of terms: input times gradient, and bias times gradient of every module."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.hooks.selection import first_names, opaque_parts, out_of_reach
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.survey_cache import ModuleCache
from seewhy.explainers.methods.gradient.biases import HOMOGENEOUS, implicit_bias

LINEAR = (nn.Conv2d, nn.Linear)
"""Types of modules whose bias is a parameter."""

PROBES = (1.0, 0.25)
"""Standard deviations of the noise pictures that reveal modules that do more than their parts."""

STRETCHED = 2.0**-9
"""A module is stretched all the way if its largest bias is at least this share of the values whose difference it is, in
single precision. Rounding, 2^-23 of these values, is then less than 10^-4 of the drawing."""

COARSELY_STRETCHED = 2.0**-3
"""The same in half precision, where the drawing is only rough."""

EXCESS = 2.0**-20
"""Smallest difference between a module and its parts that rounding cannot cause, as a share of the magnitudes of all
terms, in single precision. Rounding causes up to 2^-25, the gates of trained and untrained networks at least 2^-14."""

COARSE_EXCESS = 2.0**-8
"""The same in half precision."""

CANCELLED = 2.0**-10
"""If a sum of terms is below this share of their magnitudes, the terms have cancelled, and it measures nothing."""

_units = ModuleCache[tuple[str, ...]]()


@dataclass(frozen=True, eq=False)
class Term:
    """The contribution of one call of a module, or of the picture, to the score.

    Attributes:
        path: path of the module; empty for the picture.
        values: (N, ...) float32, at each position of the module's output.
        least: (N, 1, 1, 1) or a number: smaller magnitudes are too close to rounding to be stretched all the way.
    """

    path: str
    values: Tensor
    least: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class FullGradients:
    """The score of each picture as a sum of terms.

    Attributes:
        objective: the explained scores.
        outputs: (N, ...) float32.
        terms: one of the picture, (N, C, H, W), and one of each call of a module with an explicit or implicit bias.
    """

    objective: Objective
    outputs: Tensor
    terms: tuple[Term, ...]

    @property
    def missing(self) -> Tensor:
        """(N,): the scores minus the sums of the terms, as a share of the terms."""
        terms = [term.values.double().flatten(1) for term in self.terms]
        sums = torch.stack([values.sum(dim=1) for values in terms])
        difference = self.objective.scores(self.outputs).double() - sums.sum(dim=0)
        # If all values cancel, only rounding is left of the sums.
        least = CANCELLED * torch.stack([values.abs().sum(dim=1) for values in terms]).sum(dim=0)
        return difference / torch.maximum(sums.abs().sum(dim=0), least).clamp_min(1e-30)


def full_gradients(question: Question, units: tuple[str, ...]) -> FullGradients:
    """Decompose the score of each picture into input times gradient, and bias times gradient of every module.

    Args:
        question: see `Question`.
        units: paths of the modules that count as a whole, from `units_of`.

    Raises:
        LayerError: the output of a module has other rows than the pictures.
        UnsuitableModelError: the model has biases outside the modules that can be decomposed.
    """
    decomposition = _Pass(question, units).gradients()
    for term in decomposition.terms:
        if len(term.values) != len(question.images):
            raise LayerError(
                f"The output of {term.path!r} has {len(term.values)} rows for {len(question.images)} pictures, as "
                "windows of a transformer have, so its biases cannot be told apart by picture; use integrated "
                "gradients."
            )
    worst = float(decomposition.missing.abs().max())
    if worst > (1e-3 if question.is_precise else 0.05):
        raise UnsuitableModelError(
            f"The gradients of the input and of the biases do not add up to the score ({worst:.1%} are missing): the "
            "model adds or multiplies outside the modules that are seen, as transformers do. Use integrated gradients "
            f"or another method.{opaque_parts(question.module)}"
        )
    return decomposition


def units_of(question: Question) -> tuple[str, ...]:
    """Return the paths of modules that count as a whole: those without parts, and those that do more than their parts.

    A module does more than its parts, as a gate does, if output times gradient is not input times gradient plus the
    terms of the parts. This is tested on pictures of noise, so units depend only on the model and the size of the
    pictures. They are cached until the model changes.

    Raises:
        UnsuitableModelError: no gradient flows to the picture.
        LayerError: a module cannot be decomposed.
    """
    key = (tuple(question.images.shape[1:]), question.images.dtype)
    units = _units.get(question.module, key)
    return _units.put(question.module, key, _find_units(question)) if units is None else units


def _find_units(question: Question) -> tuple[str, ...]:
    modules = dict(question.module.named_modules())
    unreachable = out_of_reach(modules)  # without their biases; if these matter, the terms will not add up
    reachable = {path: part for path, part in modules.items() if path and path not in unreachable}
    units = tuple(path for path, part in reachable.items() if _is_unit(part))
    units = tuple(unit for unit in units if not _within(unit, units))
    containers = [path for path in reachable if path not in units and not _within(path, units)]
    containers = list(first_names(modules, containers))
    if not containers:
        return units
    excessive: tuple[str, ...] = ()
    generator = torch.Generator().manual_seed(0)
    shape = (1, *question.images.shape[1:])
    for scale in PROBES:
        probe = scale * torch.randn(shape, generator=generator)
        probing = replace(question, images=probe.to(question.images), ask=DEFAULT_ASK)
        excessive = tuple(dict.fromkeys((*excessive, *_Pass(probing, units, containers).excessive())))
    return *units, *(path for path in excessive if not _within(path, excessive))


def _is_unit(part: nn.Module) -> bool:
    """Whether a module counts as a whole: it has no parts, or parts without parameters and parameters of its own."""
    parts = list(part.children())
    if not parts:
        return True
    has_parameters = next(part.parameters(recurse=False), None) is not None
    return has_parameters and not any(True for child in parts for _ in child.parameters())


def _within(path: str, outer: Iterable[str]) -> bool:
    return any(path.startswith(f"{container}.") for container in outer)


class _Pass:
    """A forward and a backward pass, with the tensors at modules.

    Args:
        question: see `Question`.
        units: paths of the modules whose biases count.
        containers: paths of modules around units that may do more than their parts.
    """

    def __init__(self, question: Question, units: tuple[str, ...], containers: Sequence[str] = ()) -> None:
        self._modules = dict(question.module.named_modules())
        self._images, self._containers = question.images, containers
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
            if containers:
                hooks.record(*containers, kinds=("input", "output", "grad_input", "grad_output"))
            outputs = question.outputs(question.module(question.images.clone()))
            self._objective = question.objective(outputs)
            hooks.backward(self._score(outputs).sum())
            self._inputs, self._outputs = hooks.inputs, hooks.outputs
            self._starts, self._ends = hooks.grad_inputs, hooks.grad_outputs
        self._values = outputs.detach().float()
        if not isinstance(self._starts[""][0], Tensor):
            raise UnsuitableModelError(
                "No gradient flows from the logits to the picture; use a method that needs none."
            )

    def _score(self, outputs: Tensor) -> Tensor:
        """Return the scores (N,), or a random mixture of all outputs in a search for excessive containers."""
        if not self._containers:
            return self._objective.scores(outputs)
        values = outputs.float().flatten(1)
        return values @ torch.randn(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)

    def gradients(self) -> FullGradients:
        """Return the terms of the picture and of the units."""
        terms = [Term("", self._images.float() * self._starts[""][0].float())]
        for path in self._units:
            terms += self._terms(path)
        return FullGradients(self._objective, self._values, tuple(terms))

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
        """Return the containers that do more than their parts; of nested ones, the outermost."""
        sums: dict[str, float] = {}
        sizes: dict[str, float] = {}
        for term in self.gradients().terms:
            sums[term.path] = sums.get(term.path, 0.0) + float(term.values.double().sum())
            sizes[term.path] = sizes.get(term.path, 0.0) + float(term.values.double().abs().sum())
        excess: dict[str, float] = {}
        # Innermost first: an excess belongs to the smallest container that has it.
        for path in sorted(self._containers, key=lambda path: path.count("."), reverse=True):
            calls = [self._outputs[path], self._ends[path], self._inputs[path], self._starts[path]]
            if any(not isinstance(value, Tensor) for call in calls for value in call):
                continue
            # Output times gradient is input times gradient plus the bias terms of all within the container, unless the
            # container itself adds or multiplies.
            products = [end.double() * output for output, end in zip(*calls[:2], strict=True)]
            input_products = [start.double() * value for value, start in zip(*calls[2:], strict=True)]
            inside = [unit for unit in sums if _within(unit, [path])]
            gain = float(sum(map(torch.sum, products))) - float(sum(map(torch.sum, input_products)))
            gain -= sum(sums[unit] for unit in inside)
            unexplained = gain - sum(value for inner, value in excess.items() if _within(inner, [path]))
            size = sum(float(values.abs().sum()) for values in (*products, *input_products))
            size += sum(sizes[unit] for unit in inside)
            if abs(unexplained) > (EXCESS if _is_precise(self._images) else COARSE_EXCESS) * size:
                excess = {inner: value for inner, value in excess.items() if not _within(inner, [path])}
                excess[path] = gain
        return list(excess)


def _is_precise(values: Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64)
