"""Sanity of methods on networks without included measurements, measured on pictures of requests in idle time.

One thread does it, a picture and a network at a time, as a job of the model's queue like any other. It waits until no
model has worked for a while before each, so that a request waits for one such job at most. It gives up if requests
leave it no time, the model leaves memory, or memory is short.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from seewhy.app.errors import ServiceError
from seewhy.app.memory.budget import OUTPUTS, MemoryBudget
from seewhy.app.pipeline.computation import SoloComputation
from seewhy.app.pipeline.engine import Engine
from seewhy.app.pipeline.jobs import Deadline, Job
from seewhy.app.system.stopping import stopping
from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.execution.replay import structure_of
from seewhy.explainers.methods.catalogue import Method, passes_of
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.sanity import has_sanity, networks_of, sanity_of
from seewhy.explainers.trust.embedded import ships_sanity
from seewhy.explainers.trust.sanity import Sanity
from seewhy.models import LoadedModel, ModelError

_log = logging.getLogger(__name__)

PICTURES = 8
"""Number of pictures that sanity is measured on."""

MOST_PASSES = 8
"""Maximum passes of a method whose sanity is measured."""

MOST_BYTES = 2**25
"""Maximum size of the pictures of a model."""

MOST_MODELS = 2
"""Maximum number of models whose pictures are kept; those seen least recently are forgotten first."""

MOST_RESULTS = 256
"""Maximum number of methods and models whose sanity is kept."""

QUIET = 0.5
"""Seconds without work, of all models, before each step."""

PATIENCE = 120.0
"""Seconds for all steps of a method; then it waits for new pictures."""

_STEP_SECONDS = 30.0
"""Time limit for one step."""


class _PostponedError(Exception):
    """There is no time, no memory or no model for it now."""


@dataclass(eq=False)
class _Wish:
    """The pending measurements on a model.

    Attributes:
        pictures: different pictures, each (1, C, H, W), on the CPU.
    """

    model: LoadedModel
    explainers: set[Explainer] = field(default_factory=set)
    pictures: list[Tensor] = field(default_factory=list)

    def add(self, image: Tensor) -> None:
        """Add a picture (1, C, H, W) if it is new, as long as there are too few."""
        if len(self.pictures) < PICTURES and not any(torch.equal(image, other) for other in self.pictures):
            self.pictures.append(image.clone())


class SanityChecks:
    """The sanity of methods on models, as far as it is measured.

    Args:
        memory: the budget of requests, which random copies of networks share.
    """

    def __init__(self, engine: Engine, memory: MemoryBudget, enabled: bool) -> None:
        self._engine = engine
        self._memory = memory
        self._enabled = enabled
        self._results: OrderedDict[tuple[str, Explainer], Sanity | None] = OrderedDict()
        self._wishes: OrderedDict[str, _Wish] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def measures(self, model: LoadedModel) -> bool:
        """Whether the sanity of methods is measured on a model, so that answers may depend on earlier requests."""
        size = 4 * PICTURES * torch.Size(model.spec.image_shape).numel()
        ships = ships_sanity(model.sha256, model.preprocess.size)
        return self._enabled and not ships and has_sanity(model) and size <= MOST_BYTES

    def of(self, model: LoadedModel, explainer: Explainer) -> Sanity | None:
        """Return the sanity of a method on a model; None if it is not measured yet, or cannot be."""
        with self._lock:
            return self._results.get((model.fingerprint, explainer))

    def offer(self, model: LoadedModel, methods: Sequence[tuple[Method, Explainer]], image: Tensor) -> None:
        """Keep a picture of a request, if the sanity of its methods is to be measured; begin with enough pictures."""
        if not self.measures(model):
            return
        suitable = {explainer for method, explainer in methods if _suits(method, explainer, model)}
        with self._lock:
            missing = {explainer for explainer in suitable if (model.fingerprint, explainer) not in self._results}
            if not missing:
                return
            wish = self._wishes.setdefault(model.fingerprint, _Wish(model))
            self._wishes.move_to_end(model.fingerprint)
            if len(self._wishes) > MOST_MODELS:
                self._wishes.popitem(last=False)
            wish.explainers |= missing
            wish.add(image[None].cpu())
            if len(wish.pictures) == PICTURES and self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._measure, name="sanity", daemon=True)
        try:
            # The caller holds the lock, which the thread needs before it can end.
            thread.start()
        except RuntimeError:  # the system has no thread left; the next request tries again
            return
        self._thread = thread

    def _measure(self) -> None:
        """Measure the pending methods, until none is left with enough pictures."""
        while (wish := self._next()) is not None:
            images = torch.cat(wish.pictures)
            while wish.explainers:
                explainer = wish.explainers.pop()
                try:
                    sanity = self._checked(wish.model, explainer, images)
                except (_PostponedError, ServiceError, ModelError):
                    break
                except Exception as error:  # a network that the method does not suit
                    level = logging.INFO if isinstance(error, ExplainerError) else logging.WARNING
                    _log.log(level, "Sanity on %s is unknown: %s", wish.model.name, error)
                    sanity = None
                with self._lock:
                    self._results[wish.model.fingerprint, explainer] = sanity
                    if len(self._results) > MOST_RESULTS:
                        self._results.popitem(last=False)
            del wish, images

    def _next(self) -> _Wish | None:
        """Take the next model for which there are enough pictures, which are dropped; the thread ends without one."""
        with self._lock:
            for key, wish in self._wishes.items():
                if len(wish.pictures) == PICTURES:
                    return self._wishes.pop(key)
            self._thread = None
            return None

    def _checked(self, model: LoadedModel, explainer: Explainer, images: Tensor) -> Sanity:
        """Return the sanity of a method on a model.

        Raises:
            _PostponedError: there is no time or memory for it now.
        """
        until = time.monotonic() + PATIENCE
        self._await_quiet(model, until)
        size = sum(value.nbytes for value in model.module.parameters())
        if self._memory.occupancy + size > self._memory.size:
            raise _PostponedError
        self._memory.take(size, 0, OUTPUTS)
        try:

            def run(explainer: Explainer, network: AnyModel, images: Tensor, classes: Tensor | None) -> Attribution:
                rows = range(len(images))
                parts = [
                    self._step(model, explainer, network, images[row], None if classes is None else classes[row], until)
                    for row in rows
                ]
                return _joined(parts)

            return sanity_of(explainer, networks_of(model, self._structures(model)), images, run)
        finally:
            self._memory.give(size)

    def _structures(self, model: LoadedModel) -> tuple[nn.Module, nn.Module]:
        """Return copies of a model that share its parameters.

        Raises:
            _PostponedError: work began meanwhile, whose hooks may be in the copies.
        """
        before = self._engine.worked
        copies = structure_of(model.module), structure_of(model.module)
        if self._engine.worked != before:
            raise _PostponedError
        return copies

    def _step(
        self,
        model: LoadedModel,
        explainer: Explainer,
        network: AnyModel,
        image: Tensor,
        target: Tensor | None,
        until: float,
    ) -> Attribution:
        """Explain one picture by one network, once all models are idle."""
        self._await_quiet(model, until)
        classes = None if target is None else target[None]
        computation = SoloComputation(
            lambda _, images, __, progress: explainer.explain(network, images, classes, progress=progress),
            passes_of(explainer, model, model.spec.image_shape),
        )
        job = Job(computation, image, DEFAULT_ASK, Deadline.after(_STEP_SECONDS))
        self._engine.submit(model.name, [job])
        attribution: Attribution = job.result().result
        return attribution

    def _await_quiet(self, model: LoadedModel, until: float) -> None:
        """Wait until no model has worked for a while.

        Raises:
            _PostponedError: the time is over, or the model has left memory.
        """
        while (left := QUIET - (time.monotonic() - self._engine.worked)) > 0:
            if stopping.value or time.monotonic() > until:
                raise _PostponedError
            time.sleep(min(left, QUIET))
        if self._engine.loaded(model.name) is not model:
            raise _PostponedError


def _suits(method: Method, explainer: Explainer, model: LoadedModel) -> bool:
    """Whether the sanity of a method is measured: with its default options, and few passes."""
    passes = passes_of(explainer, model, model.spec.image_shape)
    is_short = passes is not None and passes.total <= MOST_PASSES
    return is_short and explainer == method.build({}) and not {"region", "boxes", "attention"} & {*method.needs}


def _joined(parts: Sequence[Attribution]) -> Attribution:
    """Return the attributions of single pictures as one."""
    targets = [part.targets for part in parts if isinstance(part.targets, Tensor)]
    return replace(
        parts[0],
        maps=torch.cat([part.maps for part in parts]),
        outputs=torch.cat([part.outputs for part in parts]),
        targets=torch.cat(targets),
    )
