"""Memory of models in the budget: reserved before a model is loaded, released when its weights are freed."""

import threading
import weakref
from collections.abc import Callable

from seewhy.app.memory.budget import MemoryBudget
from seewhy.models import LoadedModel
from seewhy.models.errors import ModelTooLargeError

_WEIGHTS = 3
"""Number of copies of a model's weights in memory while it is compiled."""

_COMPILED_BYTES = 64 * 2**20
"""Further memory of a compiled model."""


class ModelMemory:
    """Reserves memory for models. Thread-safe.

    Args:
        lasting: name of the model that always fits and is never dropped.
    """

    def __init__(self, budget: MemoryBudget, lasting: str) -> None:
        self._budget = budget
        self._lasting = lasting
        self._sizes: dict[tuple[str, int], int] = {}
        """Measured bytes of models, by name and size of the weights file."""
        self._lock = threading.Lock()

    def load(self, name: str, file_size: int, load: Callable[[], LoadedModel]) -> LoadedModel:
        """Load a model, in memory that is reserved as long as its weights exist.

        Args:
            file_size: size of its weights file in bytes; 0 if unknown.

        Raises:
            ModelTooLargeError: the model can never fit.
            OutOfMemoryError: the model does not fit at present.
        """
        key, lasts = (name, file_size), name == self._lasting
        with self._lock:
            last_size = self._sizes.get(key)
        # A file may have more than the weights, such as an optimiser's state: their size is known once they are loaded.
        estimate = _needed(file_size) if last_size is None else last_size
        if not lasts:
            self._require(name, _COMPILED_BYTES + file_size if last_size is None else last_size)
            estimate = min(estimate, self._budget.most_aside)
        self._budget.set_aside(estimate, lasts)
        reserved = estimate
        try:
            model = load()
            size = _model_memory(model)
            with self._lock:
                self._sizes[key] = size
            if not lasts:
                self._require(name, size)
            if size > reserved:
                self._budget.set_aside(size - reserved, lasts)
            else:
                self._budget.take_back(reserved - size, lasts)
            reserved = size
        except BaseException:
            self._budget.take_back(reserved, lasts)
            raise
        # The module, not the model, which may be gone while a reference cycle keeps the weights in memory.
        weakref.finalize(model.module, self._budget.take_back, size, lasts)
        return model

    def _require(self, name: str, size: int) -> None:
        most = self._budget.most_aside
        if size > most:
            raise ModelTooLargeError(
                f"The model {name!r} takes {size:,} bytes of memory, more than the {most:,} available for models other "
                "than the default one. The operator can give the service more memory, or set SEEWHY_MEMORY_BYTES, "
                "which limits only requests."
            )


def _needed(weights: int) -> int:
    return _WEIGHTS * weights + _COMPILED_BYTES


def _model_memory(model: LoadedModel) -> int:
    """Return the memory of a model in bytes: its weights in PyTorch and compiled, and that for exporting them."""
    values = (*model.module.parameters(), *model.module.buffers())
    return _needed(sum(value.nbytes for value in values if value.device.type == "cpu"))
