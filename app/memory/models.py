"""What models take of the memory that requests share: reserved before one is loaded, given back with its weights."""

import threading
import weakref
from collections.abc import Callable

from seewhy.app.memory.budget import MemoryBudget
from seewhy.models import LoadedModel
from seewhy.models.errors import ModelTooLargeError

_WEIGHTS = 3
"""How often a model's weights are in memory while it is compiled."""

_COMPILED_BYTES = 64 * 2**20
"""What a model takes besides, once it is compiled."""


class ModelMemory:
    """Reserves memory for models. Safe for threads.

    Args:
        budget: that requests and models share.
        lasting: name of the model that always fits, and makes room for no other.
    """

    def __init__(self, budget: MemoryBudget, lasting: str) -> None:
        self._budget = budget
        self._lasting = lasting
        self._sizes: dict[tuple[str, int], int] = {}
        """Bytes that models turned out to take, by name and size of the weights file."""
        self._lock = threading.Lock()

    def load(self, name: str, file_size: int, load: Callable[[], LoadedModel]) -> LoadedModel:
        """Load a model, in memory that is reserved for as long as its weights exist.

        Args:
            name: of the model.
            file_size: bytes of its weights file; 0 where that is not known yet.
            load: does it.

        Raises:
            ModelTooLargeError: it never fits.
            OutOfMemoryError: it does not fit at present.
        """
        key, lasts = (name, file_size), name == self._lasting
        with self._lock:
            last_size = self._sizes.get(key)
        # A file may hold more than the weights, such as an optimiser's state: what it takes is known once it is read.
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
        # The module, and not the model, which may be gone while a cycle keeps the weights in memory.
        weakref.finalize(model.module, self._budget.take_back, size, lasts)
        return model

    def _require(self, name: str, size: int) -> None:
        most = self._budget.most_aside
        if size > most:
            raise ModelTooLargeError(
                f"The model {name!r} takes {size:,} bytes of memory, more than the {most:,} that there are for models "
                "beside the default one. Whoever runs this service can give it more memory, or set "
                "SEEWHY_MEMORY_BYTES, which bounds requests alone."
            )


def _needed(weights: int) -> int:
    return _WEIGHTS * weights + _COMPILED_BYTES


def _model_memory(model: LoadedModel) -> int:
    """Return the bytes that a model takes: its weights, in PyTorch and compiled, and what exporting them takes."""
    values = (*model.module.parameters(), *model.module.buffers())
    return _needed(sum(value.nbytes for value in values if value.device.type == "cpu"))
