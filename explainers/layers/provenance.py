"""Provenance: which tensors of a forward pass come from the picture, where they lie in it, and through which modules.

A `Tracker` follows the operations of one forward pass below modules and autograd. There PyTorch has few kinds of
operations, and compiled, scripted and checkpointed parts of a model look like any other. A tracker reads no values, so
it works on the ``meta`` device. It belongs to the thread that opened it; one may be open in the process at a time.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from seewhy.explainers.layers.effects import RULES, Effect, default_effect
from seewhy.explainers.layers.layout import Layout, of_pictures
from seewhy.explainers.layers.layout_rules import JOINS, SPLITS, SUMS, pieces

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Waypoint:
    """An output of a module through which all of the picture's influence on a tensor has passed.

    Attributes:
        before: the waypoint before it; None for the picture itself.
        depth: number of waypoints before it.
        number: in chronological order.
        call: the owner's name for it.
        kernels: those before the tensor, as in `Provenance`.
        branches: the ends of other branches that had met the one before it.
    """

    before: "Waypoint | None"
    depth: int
    number: int
    call: Any = None
    kernels: int = 0
    branches: "tuple[Waypoint, ...]" = ()

    def is_behind(self, other: "Waypoint") -> bool:
        """Whether another waypoint is on the way to this one, or is this one."""
        waypoint: Waypoint | None = self
        while waypoint is not None and waypoint.depth > other.depth:
            waypoint = waypoint.before
        return waypoint is other


def common(first: Waypoint, second: Waypoint) -> Waypoint:
    """Return the last waypoint that two tensors have in common."""
    while first is not second:
        if first.depth < second.depth:
            first, second = second, first
        if first.before is None:
            return first
        first = first.before
    return first


@dataclass(frozen=True, eq=False)
class Provenance:
    """How a tensor came from the picture.

    Attributes:
        layout: where it lies in the picture; None if it lies outside, as outputs do, or if that is unknown.
        last: its last waypoint.
        branches: the last waypoints of other branches, which do not lead to `last`.
        origins: the calls whose outputs it was made of, without another call in between.
        kernels: number of operations on neighbouring positions before it, such as convolutions, on the longest path.
        mixes: likewise of operations on all positions, such as attention.
        untracked: whether it may lie in the picture at an unknown place.
        beside: whether it comes from class or register tokens alone, which know the picture by the mixes before.
        mixed: the last waypoint of the tensors that the last of these mixes combined; None if there was none.
    """

    layout: Layout | None
    last: Waypoint
    kernels: int = 0
    mixes: int = 0
    untracked: bool = False
    beside: bool = False
    mixed: Waypoint | None = None
    branches: tuple[Waypoint, ...] = ()
    origins: frozenset[Any] = frozenset()


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While open, knows the provenance of every tensor that is computed from the pictures.

    Args:
        images: (N, C, H, W).
        picture: the owner's name for them, as an origin of tensors.
    """

    def __init__(self, images: Tensor, picture: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._provenances: MutableMapping[Tensor, Provenance] = WeakTensorKeyDictionary()
        self._waypoints = 1
        self._provenances[images] = Provenance(
            of_pictures(images.shape), Waypoint(None, 0, 0), origins=frozenset({picture})
        )

    def of(self, tensor: Any) -> Provenance | None:
        """Return the provenance of a tensor; None if it does not come from the pictures."""
        return self._provenances.get(tensor) if isinstance(tensor, Tensor) else None

    def pass_through(self, tensor: Tensor, call: Any) -> None:
        """Make a tensor a waypoint of itself and of all tensors computed from it later."""
        provenance = self.of(tensor)
        if provenance is not None:
            before, depth = provenance.last, provenance.last.depth + 1
            waypoint = Waypoint(before, depth, self._waypoints, call, provenance.kernels, provenance.branches)
            self._waypoints += 1
            self._provenances[tensor] = replace(provenance, last=waypoint, branches=())

    def origins(self, tensors: Iterable[Tensor]) -> frozenset[Any]:
        """Return the calls whose outputs the tensors were made of, without another call in between."""
        return frozenset().union(*(provenance.origins for tensor in tensors if (provenance := self.of(tensor))))

    def originate(self, tensor: Tensor, call: Any) -> None:
        """Make a call the only origin of what it returned."""
        if (provenance := self.of(tensor)) is not None:
            self._provenances[tensor] = replace(provenance, origins=frozenset({call}))

    def adopt(self, results: Iterable[Tensor], arguments: Iterable[Tensor]) -> bool:
        """Derive untracked results from arguments, as after code in another engine.

        Returns:
            Whether there were untracked results.
        """
        tensors = [argument for argument in arguments if argument in self._provenances]
        unseen = [result for result in results if self.of(result) is None] if tensors else []
        for result in unseen:
            self._note(default_effect(self._layout, result, tensors), result, tensors)
        return bool(unseen)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note the provenance of its results."""
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        tensors = [value for value in _flat((*args, *kwargs.values())) if value in self._provenances]
        operation = getattr(func, "overloadpacket", func)
        if operation is aten.copy_ and args[1] in self._provenances:  # the source replaces the former content
            tensors = [args[1]]
        if tensors:
            self._follow(operation, results, tensors, args, kwargs)
            self._write_through(func, args, kwargs)
        return results

    def _write_through(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make what an operation wrote into a view part of the view's base, such as a buffer."""
        for index, argument in enumerate(operation._schema.arguments):
            view = args[index] if index < len(args) else kwargs.get(argument.name)
            if argument.is_write and isinstance(view, Tensor) and view._base is not None and self.of(view) is not None:
                parts = [view._base, view]
                self._note(default_effect(self._layout, view._base, parts), view._base, parts, joins=True)

    def _follow(
        self, operation: Any, results: Any, tensors: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if operation in SPLITS and isinstance(results, list | tuple):
            index = args[2] if len(args) > 2 else kwargs.get("dim", 0)
            for result, layout in zip(results, pieces(self._layout(args[0]), results, index), strict=True):
                self._note(Effect(layout), result, tensors)
            return
        if operation is aten.unbind:
            index = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            for result in results:
                self._note(RULES[aten.select](self._layout, result, args[0], index), result, tensors)
            return
        rule = RULES.get(operation)
        for result in _flat(results if isinstance(results, list | tuple) else (results,)):
            if rule is None:
                effect = default_effect(self._layout, result, tensors)
            else:
                effect = rule(self._layout, result, *args, **kwargs)
            on_grid = effect.layout is not None and effect.layout.grid is not None
            joins = operation in JOINS or (on_grid and operation in SUMS)
            self._note(effect, result, tensors, joins)

    def _layout(self, tensor: Any) -> Layout | None:
        provenance = self.of(tensor)
        return provenance.layout if provenance is not None else None

    def _note(self, effect: Effect, result: Tensor, tensors: Iterable[Tensor], joins: bool = False) -> None:
        """Note the provenance of a result; `joins` if the result still contains each tensor as a feature map."""
        sources = [provenance for tensor in tensors if (provenance := self.of(tensor)) is not None]
        if not sources:
            return
        layout = effect.layout
        if layout is not None and (not layout.spatial or layout.shape != tuple(result.shape)):
            layout = None
        placed = [source for source in sources if source.layout is not None]
        extended = any(source.layout is not None and source.layout.extended for source in sources)
        # A pooled tensor, such as a gate of channels, must not count as a path around a feature map: placed sources
        # alone decide. If branches meet side by side or in a sum of feature maps, or were pooled at several layers, the
        # latest waypoint counts; otherwise the last that all sources share. If that has seen no features, as for a gate
        # that another branch makes, the one with the most kernels before it counts.
        counting = placed or sources
        last = reduce(common, (source.last for source in counting))
        if joins or not placed:
            last = max((source.last for source in counting), key=attrgetter("number"))
        elif not last.kernels:
            last = max(counting, key=lambda source: (source.kernels, source.last.number)).last
        ends = {end for source in counting for end in (source.last, *source.branches)}
        branches = tuple(end for end in ends if not end.is_behind(last) and not last.is_behind(end))
        mixed = [last] if effect.mixes else [source.mixed for source in sources if source.mixed is not None]
        self._provenances[result] = Provenance(
            layout,
            last,
            max(source.kernels for source in sources) + effect.kernel,
            max(source.mixes for source in sources) + effect.mixes,
            layout is None and not effect.pools and (extended or any(source.untracked for source in sources)),
            effect.beside or all(source.beside for source in sources),
            max(mixed, key=attrgetter("number"), default=None),
            branches,
            frozenset().union(*(source.origins for source in sources)),
        )


def _flat(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among values and in lists of them."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [item for item in value if isinstance(item, Tensor)]
    return tensors
