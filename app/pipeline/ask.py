"""The path of a request: plan, prepare the pictures, submit them to a model, present the results."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seewhy.app.pipeline.computation import Computation, ExplainComputation, PredictComputation
from seewhy.app.pipeline.costs import UNKNOWN, announce, require_time, units
from seewhy.app.pipeline.decode import Decoder, Source
from seewhy.app.pipeline.jobs import Deadline, Outcome
from seewhy.app.pipeline.model_store import ModelStore
from seewhy.app.pipeline.null_scores import LIKENESS, Explained, NullScores
from seewhy.app.pipeline.observer import UNOBSERVED, Observer
from seewhy.app.pipeline.options import (
    ExplainOptions,
    Options,
    PredictOptions,
    ProofOptions,
    SegmentOptions,
    SimilarOptions,
)
from seewhy.app.pipeline.plan import Plan, build_explainers, explain_plan
from seewhy.app.pipeline.record import Timings, current
from seewhy.app.pipeline.results import DetectResult, ExplainResult, PredictResult, SegmentResult
from seewhy.app.pipeline.sanity import SanityChecks
from seewhy.app.pipeline.ticket import Submission, Ticket
from seewhy.app.pipeline.validation import check_counts
from seewhy.app.settings import Settings
from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.detect import detected, must_detect
from seewhy.explainers.errors import PictureError, UnsuitableModelError, at_fault
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.explanation import explanations
from seewhy.explainers.results.origin import VERSIONS
from seewhy.explainers.segment import segmentation_of, segments_of
from seewhy.explainers.tasks.choices import CLASS_METHOD, DEFAULT_METHOD
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.tasks.detected import located
from seewhy.explainers.tasks.detection import Detection
from seewhy.explainers.tasks.regions import Mask
from seewhy.explainers.trust.calibration import is_comparable
from seewhy.explainers.view import View
from seewhy.models import LoadedModel


class Service:
    """The service behind the routes, the streams and the command line: pictures and questions in, results out.

    Args:
        warm, calibration: see `ModelStore`; without `warm`, sanity is not measured.

    Attributes:
        processors: semaphore for decoding and drawing; see `Decoder`.
        null: scores that proofs are compared with if none are included.
    """

    def __init__(
        self,
        settings: Settings,
        warm: bool = True,
        observer: Observer = UNOBSERVED,
        calibration: Calibration | None = None,
    ) -> None:
        self.settings = settings
        self.models = ModelStore(settings, warm, observer, calibration)
        self._observer = observer
        self.null = NullScores()
        self._sanity = SanityChecks(self.models.engine, self.models.memory, settings.sanity and warm)
        self._decoder = Decoder(settings.max_pixels, settings.max_side)
        self.processors = self._decoder.processors

    def deadline(self) -> Deadline:
        """Return the deadline of a request that starts now."""
        return Deadline.after(self.settings.deadline, current().is_disconnected)

    def predict(self, upload: bytes, options: PredictOptions) -> PredictResult:
        """Classify a picture; errors as in `explain`."""
        (result,) = self.classify([upload], options.model, options.top)
        return result

    def classify(self, sources: Sequence[Source], name: str | None, top: int = 0) -> list[PredictResult]:
        """Classify pictures, which share passes of the model; errors as in `explain`."""
        return [_predict_result(submission, outcome, top) for submission, outcome in self._outcomes(sources, name)]

    def detect(self, upload: bytes, options: Options) -> DetectResult:
        """Return the boxes that a detector shows in a picture.

        Raises:
            UnsuitableModelError: the model is not a detector; `field` is ``model``.
            Exception: errors as in `explain`.
        """
        with at_fault("model", UnsuitableModelError):
            ((place, outcome),) = self._outcomes([upload], options.model, must_detect)
        model = place.plan.model
        return DetectResult(model, place.timings, detected(model, outcome.result.outputs[0], place.picture.geometry))

    def segment(self, upload: bytes, options: SegmentOptions, drawn: bool = True) -> SegmentResult:
        """Segment a picture.

        Raises:
            OptionError: the model does not segment.
            Exception: errors as in `explain`.
        """
        ((place, outcome),) = self._outcomes([upload], options.model, segmentation_of, "segment", drawn)
        model = place.plan.model
        segments = segments_of(model, outcome.result.outputs[0], place.picture)
        return SegmentResult(model, place.timings, segments, options)

    def _outcomes(
        self,
        sources: Sequence[Source],
        name: str | None,
        check: Callable[[LoadedModel], object] = lambda model: None,
        stage: str = "predict",
        drawn: bool = False,
    ) -> list[tuple[Submission, Outcome]]:
        """Run pictures once, in shared passes; return each with the model's outputs. Errors as `explain`.

        Args:
            check: refuses unsuitable models, before any picture is decoded.
        """
        deadline = self.deadline()
        model = self.models.model(name, deadline)
        check(model)
        self.spend(model, PredictComputation(), len(sources), deadline)
        plan = Plan(model, PredictComputation(), (DEFAULT_ASK,), deadline, stage)
        ticket = self.submit(self._prepare(sources, [plan] * len(sources), drawn))
        pairs = zip(ticket.submissions, ticket.result(), strict=True)
        return [(submission, outcome) for submission, (outcome,) in pairs]

    def explain(
        self, upload: bytes, options: ExplainOptions, drawn: bool = True, mask: bytes | None = None
    ) -> ExplainResult:
        """Explain one or several classes of a picture; nothing is drawn yet.

        Args:
            mask: the bytes of a picture that marks the region to explain.

        Raises:
            FieldError, OptionError, LayerError, TargetError: an option has an invalid value.
            PictureError: the picture cannot be read, or is too large.
            ModelError: the model is not available.
            TooMuchWorkError, OverloadedError, DeadlineError: there is too much work.
            TooCostlyError: the request costs more than what is left of the client's rate limit.
        """
        (result,) = self.present(self.ask([upload], [options], drawn, mask=mask))
        return result

    def ask(
        self,
        sources: Sequence[Source],
        questions: Sequence[ExplainOptions],
        drawn: bool = True,
        watched: bool = False,
        computation: Computation | None = None,
        mask: bytes | None = None,
        most: int | None = None,
    ) -> Ticket:
        """Start to explain pictures; errors as in `explain`.

        Args:
            questions: the options for each picture, which differ only in their targets.
            watched: whether previews of the maps are wanted.
            computation: the computation to run in place of explaining, at the cost of explaining.
            mask: the bytes of a picture that marks the region to explain, as large as each of the pictures.
            most: maximum number of maps for each picture and method, in place of the setting's: with 1, a class of a
                detector means its most confident box.
        """
        keys = [tuple(question.target) for question in questions]
        unique = dict(zip(keys, questions, strict=True))
        plans = {key: self.plan(question, keys.count(key), mask, most) for key, question in unique.items()}
        if computation is not None:
            plans = {key: replace(plan, computation=computation) for key, plan in plans.items()}
        return self.submit(self._prepare(sources, [plans[key] for key in keys], drawn), watched)

    def default_method(self, model: str | None) -> str:
        """Return the method that explains a model, or the default one, if a request names none."""
        method = self.models.registry.spec(model or self.settings.default_model).task.default_method
        return self.settings.default_method if method == DEFAULT_METHOD else method

    def recommended_method(self, model: str | None) -> str:
        """Return the method that the page starts with for a model, or for the default one."""
        task = self.models.registry.spec(model or self.settings.default_model).task
        return CLASS_METHOD if isinstance(task, Classification) else self.default_method(model)

    def plan(
        self, options: ExplainOptions, pictures: int = 1, mask: bytes | None = None, most: int | None = None
    ) -> Plan:
        """Check the options of a request, independently of its pictures, and get the model; errors as in `explain`."""
        deadline = self.deadline()
        spec = self.models.registry.spec(options.model or self.settings.default_model)
        check_counts(options, self.settings, None if isinstance(spec.task, Detection) else len(spec.labels))
        names = options.method or [self.default_method(options.model)]
        methods = build_explainers(names, options, self.settings)
        style = options.style(self.settings.max_side)
        model = self.models.model(options.model, deadline)
        region = None if mask is None else self.mask(mask, deadline, "mask")
        most = most or self.settings.max_targets // len(methods)
        plan = explain_plan(options, methods, style, model, deadline, most, region, self.null)
        less = "fewer classes" if plan.count > 1 else None
        chosen = [method for method, _ in methods]
        self.spend(plan.model, plan.computation, pictures * plan.count, deadline, chosen, less)
        return plan

    def spend(
        self,
        model: LoadedModel,
        computation: Computation,
        times: int,
        deadline: Deadline,
        methods: Sequence[Method] = (),
        less: str | None = None,
    ) -> Passes | None:
        """Add the cost of a computation to its request's, and refuse work that cannot finish in time.

        The cost is charged once the model's queue has accepted the work.

        Args:
            times: number of pictures times classes.
            methods: methods of the computation, for the message of a refusal.
            less: another quantity that can be reduced, for the same message; None if there is none.

        Returns:
            The total number of passes; None if unknown.

        Raises:
            TooMuchWorkError: the work cannot finish before the deadline.
            TooCostlyError: the work costs more than what is left of the client's rate limit.
        """
        passes = computation.passes(model)
        if passes is None:
            announce(units(UNKNOWN * times, model.spec.image_shape))
            return None
        passes *= times
        if computation.runs_whole:
            least = self.models.engine.pace(model.name).least(passes)
            is_proved = isinstance(computation, ExplainComputation) and computation.trial is not None
            require_time(passes, least, deadline, model.name, methods, less, is_proved)
        announce(units(passes, model.spec.image_shape))
        return passes

    def decode(
        self, source: Source, model: LoadedModel, timings: Timings, deadline: Deadline, drawn: bool = True
    ) -> View:
        """Return a picture prepared for a model and for drawing; see `Decoder.prepare`."""
        return self._decoder.prepare(source, model.preprocess, timings, deadline, drawn)

    def mask(self, upload: bytes, deadline: Deadline, field: str) -> Mask:
        """Return (H, W) bool: where a picture is above zero; errors as in `decode`, at this field."""
        with at_fault(field):
            return self._decoder.mask(upload, deadline)

    def submit(self, submissions: Sequence[Submission], watched: bool = False) -> Ticket:
        """Queue pictures for their model together, leaving half of its queue to others."""
        return Ticket(self.models.engine, submissions, max(1, self.settings.queue_size // 2), watched)

    def run(self, plan: Plan, picture: View, timings: Timings) -> Any:
        """Return the result of a plan for one picture and one question; errors as in `Ticket.result`."""
        ticket = self.submit([Submission(plan, picture, timings)])
        current().watch(ticket)
        ((outcome,),) = ticket.result()
        return outcome.result

    def present(self, ticket: Ticket) -> list[ExplainResult]:
        """Wait for the explanations and return them for each picture; errors as in `Ticket.result`."""
        pairs = zip(ticket.submissions, ticket.result(), strict=True)
        results = [_explain_result(submission, outcomes, self.null, self._sanity) for submission, outcomes in pairs]
        if ticket.plan.is_proved:
            for submission in ticket.submissions:
                self._sanity.offer(submission.plan.model, submission.plan.methods, submission.picture.image)
        ticket.release(sum(result.outputs.nbytes for result in results))
        self._observer.pictures_explained(
            ticket.plan.model, [part for result in results for part in result.explanations]
        )
        return results

    def etag(self, uploads: Sequence[bytes], options: Options, media_type: str) -> str | None:
        """Return the ETag of the answer: a digest of everything it depends on.

        None before the model is loaded, and for proofs that are compared with scores from earlier requests.
        """
        model = self.models.engine.loaded(options.model or self.settings.default_model)
        if model is None:
            return None
        if isinstance(options, ProofOptions) and self._gathers(options, model):
            return None
        parts = (
            json.dumps(options.model_dump(mode="json"), sort_keys=True, default=str),
            media_type,
            model.fingerprint,
            self.settings.precision,
            self.settings.default_method,
            str(self.settings.max_side),
            str(VERSIONS),
        )
        digest = hashlib.sha256()
        for upload in uploads:
            digest.update(hashlib.sha256(upload).digest())
        digest.update("\0".join(parts).encode())
        return digest.hexdigest()[:32]

    def _gathers(self, options: ProofOptions, model: LoadedModel) -> bool:
        """Whether a request asks for proofs that are compared with scores from earlier requests."""
        of: Explained = LIKENESS if isinstance(options, SimilarOptions) else "target"
        gathers = self.null.gathers(model, options.proof_area, options.proof_fill, of)
        return bool(options.proof) and (gathers or (of == "target" and self._sanity.measures(model)))

    def _prepare(self, sources: Sequence[Source], plans: Sequence[Plan], drawn: bool) -> list[Submission]:
        """Prepare pictures for their model; an error names the picture at fault."""
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
    predictions = located(model.task.describe(outputs, top=top), submission.picture.geometry)
    return PredictResult(model, submission.timings, predictions, _own(outputs))


def _own(outputs: Tensor) -> "NDArray[np.float32]":
    """Return the outputs (K, ...) of a picture, without those of others in its batch, which would stay in memory."""
    is_alone = outputs.untyped_storage().nbytes() == outputs.nbytes
    return (outputs if is_alone else outputs.clone()).numpy()


def _explain_result(
    submission: Submission, outcomes: Sequence[Outcome], null: NullScores, sanity: SanityChecks
) -> ExplainResult:
    """Map the heatmaps of one picture back to its coordinates."""
    plan, picture = submission.plan, submission.picture
    return ExplainResult(
        model=plan.model,
        methods=plan.methods,
        explanations=[
            explanations(
                plan.model,
                method.name,
                picture.picture,
                picture.geometry,
                attribution,
                calibration=null.calibration(plan.model, attribution.faithfulness)
                if is_comparable(plan.model.task, attribution)
                else None,
                explainer=explainer,
                sanity=sanity.of(plan.model, explainer),
                remarks=picture.remarks,
            )[0]
            for outcome in outcomes
            for (method, explainer), attribution in zip(plan.methods, outcome.result, strict=True)
        ],
        style=plan.style,
        outputs=_own(outcomes[0].result[0].outputs[0]),
        timings=submission.timings,
        deadline=plan.deadline,
    )
