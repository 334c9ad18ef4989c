"""One request, straight down: plan what is asked, prepare the pictures, submit them to a model, present what comes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from seewhy.app.pipeline.computation import Computation, Predict
from seewhy.app.pipeline.costs import spend
from seewhy.app.pipeline.decode import Decoder, PreparedPicture, Source
from seewhy.app.pipeline.disconnect import client_disconnected
from seewhy.app.pipeline.jobs import Deadline, Outcome
from seewhy.app.pipeline.model_store import ModelStore
from seewhy.app.pipeline.observer import UNOBSERVED, Observer
from seewhy.app.pipeline.options import ExplainOptions, PredictOptions
from seewhy.app.pipeline.plan import Plan, drawing_style, explain_methods, explain_plan
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import ExplainResult, PredictResult
from seewhy.app.pipeline.ticket import Submission, Ticket
from seewhy.app.pipeline.timings import Timings
from seewhy.app.settings import Settings
from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import PictureError
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.explanation import explanations
from seewhy.models import LoadedModel

VERSIONS = {name: version(name) for name in ("seewhy", "torch", "torchvision", "timm", "pillow")}


class Service:
    """Pictures and questions to results: what the routes, the streams and the command line call.

    Args:
        settings: limits and defaults.
        warm: see `ModelStore`.
        observer: is told what happens to models, and what was explained.

    Attributes:
        settings: as given.
        models: those of the service.
        processors: held by whoever decodes or draws; see `Decoder`.
    """

    def __init__(self, settings: Settings, warm: bool = True, observer: Observer = UNOBSERVED) -> None:
        self.settings = settings
        self.models = ModelStore(settings, warm, observer)
        self._observer = observer
        self._decoder = Decoder(settings.max_pixels, settings.max_side)
        self.processors = self._decoder.processors

    def deadline(self) -> Deadline:
        """Return the deadline of a request that begins now."""
        return Deadline.after(self.settings.deadline, client_disconnected.get())

    def predict(self, upload: bytes, options: PredictOptions) -> PredictResult:
        """Classify a picture; raises what `explain` raises."""
        (result,) = self.classify([upload], options.model, options.top)
        return result

    def classify(self, sources: Sequence[Source], name: str | None, top: int = 0) -> list[PredictResult]:
        """Classify pictures, which share passes of the model; raises what `explain` raises.

        Args:
            sources: the pictures.
            name: of the model; None for the default one.
            top: how many of the most probable classes to return.
        """
        deadline = self.deadline()
        model = self.models.model(name, deadline)
        self.spend(model, Predict(), len(sources), deadline)
        plan = Plan(model, Predict(), (DEFAULT_ASK,), deadline, "predict")
        ticket = self.submit(self._prepare(sources, [plan] * len(sources), drawn=False))
        pairs = zip(ticket.submissions, ticket.result(), strict=True)
        return [_predict_result(submission, outcome, top) for submission, (outcome,) in pairs]

    def explain(self, upload: bytes, options: ExplainOptions, drawn: bool = True) -> ExplainResult:
        """Explain one or several classes of a picture; nothing is drawn yet.

        Args:
            upload: the bytes of the picture.
            options: checked by their schema.
            drawn: whether the answer is to be drawn.

        Raises:
            FieldError, OptionError, LayerError, TargetError: an option with a bad value.
            PictureError: a picture that cannot be read, or is too large.
            ModelError: the model cannot be had.
            TooMuchWorkError, OverloadedError, DeadlineError: too much to do.
            TooCostlyError: it costs more than what is left of the client's rate.
        """
        (result,) = self.present(self.ask([upload], [options], drawn))
        return result

    def ask(
        self,
        sources: Sequence[Source],
        questions: Sequence[ExplainOptions],
        drawn: bool = True,
        watched: bool = False,
        computation: Computation | None = None,
    ) -> Ticket:
        """Begin to explain pictures; raises what `explain` raises.

        Args:
            sources: the pictures.
            questions: about each; they differ in their targets alone.
            drawn: whether the answer is to be drawn.
            watched: whether somebody wants to see how maps grow.
            computation: what the model does in place of explaining; the cost is that of explaining.
        """
        keys = [tuple(question.target) for question in questions]
        unique = dict(zip(keys, questions, strict=True))
        plans = {key: self.plan(question, keys.count(key)) for key, question in unique.items()}
        if computation is not None:
            plans = {key: replace(plan, computation=computation) for key, plan in plans.items()}
        return self.submit(self._prepare(sources, [plans[key] for key in keys], drawn), watched)

    def plan(self, options: ExplainOptions, pictures: int = 1) -> Plan:
        """Check what a request asks for, whatever its pictures are, and get the model; raises what `explain` raises."""
        deadline = self.deadline()
        methods = explain_methods(options, self.settings)
        style = drawing_style(options, self.settings)
        plan = explain_plan(options, methods, style, self.models.model(options.model, deadline), deadline)
        self.spend(plan.model, plan.computation, pictures * plan.count, deadline, [method for method, _ in methods])
        return plan

    def spend(
        self,
        model: LoadedModel,
        computation: Computation,
        times: int,
        deadline: Deadline,
        methods: Sequence[Method] = (),
    ) -> Passes | None:
        """Add what a computation costs to what the request does; see `seewhy.app.pipeline.costs.spend`."""
        return spend(model, computation, times, deadline, self.models.engine.pace(model.name), methods)

    def decode(
        self, source: Source, model: LoadedModel, timings: Timings, deadline: Deadline, drawn: bool = True
    ) -> PreparedPicture:
        """Return a picture as a model and a drawing need it; see `Decoder.prepare`."""
        return self._decoder.prepare(source, model.preprocess, timings, deadline, drawn)

    def submit(self, submissions: Sequence[Submission], watched: bool = False) -> Ticket:
        """Queue pictures for their model together: half of its queue is left to others."""
        return Ticket(self.models.engine, submissions, max(1, self.settings.queue_size // 2), watched)

    def present(self, ticket: Ticket) -> list[ExplainResult]:
        """Wait for explanations, and return them for each picture; raises what `Ticket.result` raises."""
        pairs = zip(ticket.submissions, ticket.result(), strict=True)
        results = [_explain_result(submission, outcomes) for submission, outcomes in pairs]
        self._observer.explained(ticket.plan.model, [part for result in results for part in result.explanations])
        return results

    def etag(self, upload: bytes, options: ExplainOptions, media_type: str) -> str | None:
        """Return the tag of the answer: a digest of everything it depends on; None before the model is loaded."""
        model = self.models.engine.loaded(options.model or self.settings.default_model)
        if model is None:
            return None
        parts = (
            json.dumps(options.model_dump(mode="json"), sort_keys=True, default=str),
            media_type,
            model.fingerprint,
            self.settings.precision,
            str(self.settings.max_side),
            str(VERSIONS),
        )
        digest = hashlib.sha256(upload)
        digest.update("\0".join(parts).encode())
        return digest.hexdigest()[:32]

    def _prepare(self, sources: Sequence[Source], plans: Sequence[Plan], drawn: bool) -> list[Submission]:
        """Return pictures as their model needs them; an error says which picture is at fault."""
        submissions = []
        for number, (source, plan) in enumerate(zip(sources, plans, strict=True)):
            plan.deadline.check()
            timings = current().timed()
            try:
                picture = self.decode(source, plan.model, timings, plan.deadline, drawn)
            except PictureError as error:
                if len(sources) == 1:
                    raise
                raise type(error)(f"Picture {number + 1} of {len(sources)}: {error}") from error
            submissions.append(Submission(plan, picture, timings))
        return submissions


def _predict_result(submission: Submission, outcome: Outcome, top: int) -> PredictResult:
    model, outputs = submission.plan.model, outcome.result.outputs[0]
    return PredictResult(model, model.task.describe(outputs, top=top), outputs.numpy(), submission.timings)


def _explain_result(submission: Submission, outcomes: Sequence[Outcome]) -> ExplainResult:
    """Lay the maps of one picture back onto it."""
    plan, picture = submission.plan, submission.picture
    return ExplainResult(
        model=plan.model,
        methods=plan.methods,
        explanations=[
            explanations(plan.model, method.name, picture.picture, picture.geometry, attribution)[0]
            for outcome in outcomes
            for (method, _), attribution in zip(plan.methods, outcome.result, strict=True)
        ],
        style=plan.style,
        outputs=outcomes[0].result[0].outputs[0].numpy(),
        timings=submission.timings,
        deadline=plan.deadline,
    )
