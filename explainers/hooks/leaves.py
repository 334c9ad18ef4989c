"""The cut of a session: outputs of modules become leaves of autograd, and modules before them leave no graph."""

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from seewhy.explainers.hooks.call_site import CallSite
from seewhy.explainers.hooks.evaluation import runs_again
from seewhy.explainers.hooks.gradient_tap import is_differentiable, is_one_of, leaf_again, leaf_of
from seewhy.explainers.hooks.registry import Registry


class Leaves:
    """The leaves of autograd that a session makes of modules' outputs.

    If any parameter requires a gradient, gradient mode is off in this thread from the first `make` until the first of
    the modules has run; `close` restores it.

    Args:
        registry: registry of the session.
        module: the model.
        sites: the session's call sites, by the identity of their modules.

    Attributes:
        ends: tensors and gradient edges at which a backward pass ends.
    """

    def __init__(self, registry: Registry, module: nn.Module, sites: Mapping[int, CallSite]) -> None:
        self.ends: list[Any] = []
        self._registry = registry
        self._module = module
        self._sites = sites
        self._grad_mode: bool | None = None
        self._thread = threading.get_ident()

    @property
    def is_cut(self) -> bool:
        """Whether `make` was called."""
        return self._grad_mode is not None

    def make(self, *modules: nn.Module) -> None:
        """Make leaves of the outputs of these modules from now on."""
        if self._grad_mode is None:
            self._grad_mode = torch.is_grad_enabled()
            # Frozen parameters build no graph in either mode. With them gradient mode stays on: a model that runs its
            # backbone under `torch.no_grad()` restores the mode before it, which must be "on".
            torch.set_grad_enabled(not any(value.requires_grad for value in self._module.parameters()))
        weights = {id(value) for value in (*self._module.parameters(), *self._module.buffers())}
        self._registry.keep_foreign()

        def note_arguments(_module: nn.Module, args: Any) -> None:
            if self._registry.sees_this_thread():
                self._registry.note_foreign(value for value in tree_leaves(args) if isinstance(value, Tensor))

        def make_leaves(module: nn.Module, args: Any, output: Any) -> Any:
            if not self._registry.sees_this_thread():
                return None
            if runs_again():
                return tree_map_only(Tensor, leaf_again, output)
            torch.set_grad_enabled(True)
            values, spec = tree_flatten(output)
            is_first = not self.ends
            site = self._sites.get(id(module))
            arguments = (args, site.arguments if site else None)
            for index, value in enumerate(values):
                if not is_differentiable(value):
                    continue
                if is_first or not value.requires_grad:
                    # An in-place ReLU returns its argument, which other branches may hold too: that very tensor becomes
                    # a copy of the leaf. Tensors of the caller or of a tap and weights must not be changed in this way.
                    version = value._version
                    changeable = id(value) not in weights and not self._registry.is_foreign(value)
                    leaf, values[index] = leaf_of(value, changeable and is_one_of(value, arguments))
                    self.ends.append(leaf)
                    if site and value._version > version:
                        site.overlook(value, value._version - version)
                else:
                    # It may depend on an earlier leaf, so it keeps its graph. The edge, unlike the tensor, still means
                    # the present value after an in-place change.
                    self.ends.append(get_gradient_edge(value))
            return tree_unflatten(values, spec)

        self._registry.before_module(self._module, note_arguments)
        for module in modules:
            self._registry.after_module(module, make_leaves, prepend=True)

    def close(self) -> None:
        """Drop the leaves, and restore gradient mode.

        Raises:
            RuntimeError: this is called in another thread than `make`.
        """
        self.ends.clear()
        if self._grad_mode is not None:
            if self._thread != threading.get_ident():
                raise RuntimeError(
                    "Close a session in the thread that opened it, because gradient mode belongs to a thread."
                )
            torch.set_grad_enabled(self._grad_mode)
            self._grad_mode = None
