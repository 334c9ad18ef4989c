"""Several pictures in one request: they are queued for the model together, and so share its passes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seewhy.app.compatible.instances import Encoded, Given, Normalized, Range, Taken, drawable
from seewhy.app.errors import FieldError, ModelNotFoundError, TooManyPicturesError
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.decode import Decoded
from seewhy.app.pipeline.jobs import Deadline, Done, Job, Work
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.pipeline.plan import Explained, Plan
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.timings import Timings
from seewhy.app.pipeline.work import ChannelGradients, Predict
from seewhy.explainers.errors import PictureError
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import fit
from seewhy.explainers.methods.gradient.integrated import IntegratedGradients
from seewhy.explainers.tasks.classification import probabilities
from seewhy.models import LoadedModel
from seewhy.models.errors import UnknownModelError, WeightsUnavailableError
from seewhy.models.spec import ModelSpec


@dataclass(frozen=True)
class Classified:
    """What a model says of some pictures.

    Attributes:
        model: which model.
        logits: (N, K) float32.
    """

    model: LoadedModel
    logits: NDArray[np.float32]

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(N, K) float32, of the logits."""
        found: NDArray[np.float32] = probabilities(torch.from_numpy(self.logits.astype(np.float64))).float().numpy()
        return found


class InstanceService:
    """What the routes of other servers ask for.

    Args:
        service: whose models and limits are used.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def spec(self, name: str) -> ModelSpec:
        """Describe a model that a path names.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        try:
            return self._service.registry.spec(name)
        except UnknownModelError as error:
            raise ModelNotFoundError(str(error)) from error

    def names(self) -> list[str]:
        """Return the names of the models whose weights are at hand."""
        registry = self._service.registry
        return [spec.name for spec in registry.specs() if registry.availability(spec).available]

    def ready(self, name: str) -> ModelSpec:
        """Return a model that a path names, if a request for it would be answered; where need be it is loaded then.

        Raises:
            ModelNotFoundError: there is no such model.
            WeightsUnavailableError: its weights are not at hand, and are not to be fetched.
        """
        spec = self.spec(name)
        availability = self._service.registry.availability(spec)
        if not availability.available and not self._service.settings.download:
            raise WeightsUnavailableError(availability.reason)
        return spec

    def taken(self, spec: ModelSpec, meaning: Range | None) -> Taken:
        """Return which pictures a model takes.

        Args:
            spec: of the model.
            meaning: of numbers, where the request says it.
        """
        return Taken(spec.preprocess, self._service.settings.max_pixels, meaning)

    def check_count(self, count: int) -> None:
        """Refuse a request without pictures, or with too many.

        Raises:
            FieldError, TooManyPicturesError: as it says.
        """
        most = self._service.settings.max_instances
        if count < 1:
            raise FieldError("There is no picture; send one or more.", field="instances")
        if count > most:
            raise TooManyPicturesError(f"{count} pictures are more than the {most} that one request may hold.")

    def predict(self, name: str, pictures: Sequence[Given]) -> Classified:
        """Classify pictures; raises what `Service.predict` raises."""
        deadline = self._service.deadline()
        model = self._service.model(name, deadline)
        self._service.spend(model, Predict(), len(pictures), deadline)
        timings = [current().timed() for _ in pictures]
        images = [shown.image for shown in self._shown(pictures, model, deadline, False, timings)]
        done = self._run(model, Predict(), [(image, None) for image in images], deadline)
        for spent, one in zip(timings, done, strict=True):
            spent.count(one, "predict")
        return Classified(model, np.concatenate([one.result.logits.numpy() for one in done]))

    def explain(self, pictures: Sequence[Given], options: Sequence[ExplainOptions], drawn: bool) -> list[Explained]:
        """Explain each of some pictures; raises what `Service.explain` raises.

        Args:
            pictures: decoded here.
            options: of each; they differ in their targets alone.
            drawn: whether the answer is to be drawn.
        """
        kinds = {tuple(one.target): one for one in options}
        counts = Counter(tuple(one.target) for one in options)
        plans = {targets: self._service.plan(one, counts[targets]) for targets, one in kinds.items()}
        own = [plans[tuple(one.target)] for one in options]
        plan = own[0]
        timings = [current().timed() for _ in pictures]
        shown = list(self._shown(pictures, plan.model, plan.deadline, drawn, timings))
        found = self._explained(plan, [(one, its.first) for one, its in zip(shown, own, strict=True)], timings)
        others = [(one, its.others(done[0])) for one, its, done in zip(shown, own, found, strict=True)]
        for done, more in zip(found, self._explained(plan, others, timings), strict=True):
            done += more
        results = zip(shown, found, timings, strict=True)
        explained = [its.explained(*one) for its, one in zip(own, results, strict=True)]
        self._service.observer.explained(plan.model, [part for one in explained for part in one.explanations])
        return explained

    def channels(self, picture: Given, explainer: IntegratedGradients, options: ExplainOptions) -> NDArray[np.float32]:
        """Return the integrated gradients (C, H, W) of the model's input; raises what `explain` raises."""
        plan = self._service.plan(options)
        timings = current().timed()
        (shown,) = self._shown([picture], plan.model, plan.deadline, False, [timings])
        (done,) = self._run(
            plan.model, ChannelGradients(explainer), [(shown.image, plan.first[0])], plan.deadline, plan.against
        )
        timings.count(done, "explain")
        gradients: NDArray[np.float32] = done.result.numpy()
        return gradients

    def _explained(
        self, plan: Plan, wanted: Sequence[tuple[Decoded, Sequence[int | None]]], timings: Sequence[Timings]
    ) -> list[list[Done]]:
        """Return what came of each class wanted of each picture."""
        jobs = [(shown.image, target) for shown, targets in wanted for target in targets]
        rest = iter(self._run(plan.model, plan.work, jobs, plan.deadline, plan.against))
        found = [[next(rest) for _ in targets] for _, targets in wanted]
        for spent, done in zip(timings, found, strict=True):
            if done:
                spent.count(done[-1], "explain")
        return found

    def _run(
        self,
        model: LoadedModel,
        work: Work,
        wanted: Sequence[tuple[Any, int | None]],
        deadline: Deadline,
        against: int | None = None,
    ) -> list[Done]:
        """Run jobs, as many at a time as leave half of the queue to others."""
        jobs = [Job(work, image, target, deadline, against) for image, target in wanted]
        room = max(1, self._service.settings.queue_size // 2)
        parts = (jobs[start : start + room] for start in range(0, len(jobs), room))
        return [done for part in parts for done in self._service.engine.run(model.name, part)]

    def _shown(
        self,
        pictures: Sequence[Given],
        model: LoadedModel,
        deadline: Deadline,
        drawn: bool,
        timings: Sequence[Timings],
    ) -> Iterator[Decoded]:
        """Yield pictures as the model and a drawing need them; an error says which picture is at fault."""
        for number, (picture, spent) in enumerate(zip(pictures, timings, strict=True)):
            deadline.check()
            try:
                yield self._decoded(picture, model, drawn, spent, deadline)
            except PictureError as error:
                if len(pictures) == 1:
                    raise
                raise type(error)(f"Picture {number + 1} of {len(pictures)}: {error}") from error

    def _decoded(self, given: Given, model: LoadedModel, drawn: bool, timings: Timings, deadline: Deadline) -> Decoded:
        if isinstance(given, Encoded):
            return self._service.decode(given.content, model, timings, deadline, drawn)
        if isinstance(given, Normalized):
            height, width = model.preprocess.size
            geometry = Geometry(width, height, (0.0, 0.0, float(width), float(height)))
            return Decoded(given.image, geometry, drawable(given.image, model.preprocess))
        with timings.stage("decode"), self._service.processors:
            size = given.picture.size
            picture = fit(given.picture, self._service.settings.max_side, size) if drawn else given.picture
            return Decoded(model.preprocess(given.picture), model.preprocess.geometry(*size), picture)
