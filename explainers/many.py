"""Explanations of many pictures, several in each pass of the model."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, Extent, Fill
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import ExplainerError, OptionError, TargetError
from seewhy.explainers.explain import Layers, Target, ask_of, explained, explainers_of, layer_paths
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.methods.catalogue import Method, get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.pose import named_ask
from seewhy.explainers.trust.calibration import check_calibration
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.trial import Trial, trial_of
from seewhy.explainers.view import View, ViewSource, check_series, prepare

Failure: TypeAlias = ExplainerError | OSError
"""The errors that concern a single one of many pictures."""

Pair: TypeAlias = Sequence[Any]
"""A picture and its target; or a batch of inputs (N, C, H, W) and N targets, as loaders give them."""

_Answers: TypeAlias = Generator[Explanation | Failure, None, None]

_DECODERS = 4
"""Number of threads that decode pictures; the model takes longer than they do."""


@dataclass(frozen=True)
class _Series:
    """The question about each of many pictures; `ask` applies to pictures without their own target."""

    model: Model
    method: Method
    explainer: Explainer
    ask: Ask
    trial: Trial | None
    calibration: Calibration | None

    def prepare(self, picture: ViewSource | Callable[[], ViewSource], target: int | str | None) -> tuple[View, Ask]:
        """Return the model's view of a picture, and the question about it."""
        ask = self.ask
        if target is not None:
            if ask.function is not None:
                raise TargetError(
                    "A target function applies to all pictures; pass only pictures, not pairs with targets."
                )
            ask = replace(ask, targets=named_ask(self.model.task, target).targets)
        view = prepare(self.model, picture() if callable(picture) else picture)
        return view, ask.placed(view.geometry)

    def answer(self, futures: Sequence["Future[tuple[View, Ask]]"]) -> list[Explanation | Failure]:
        """Return the explanation, or the error, of each picture of a batch."""
        prepared = [_prepared(future) for future in futures]
        answers = iter(self.explain([pair for pair in prepared if isinstance(pair, tuple)]))
        return [next(answers) if isinstance(pair, tuple) else pair for pair in prepared]

    def explain(self, batch: Sequence[tuple[View, Ask]]) -> list[Explanation | Failure]:
        """Explain pictures in one batch; if it fails, one by one, so that a bad picture fails alone."""
        if not batch:
            return []
        images = torch.stack([view.image for view, _ in batch]).to(self.model.device)
        ask = Ask.stacked([ask for _, ask in batch])
        try:
            attribution = self.explainer.explain(self.model, images, ask)
            (attribution,) = prove(self.model, images, [attribution], self.trial, ask, explainers=[self.explainer])
            rows = attribution.rows()
        except ExplainerError as error:
            return [error] if len(batch) == 1 else [answer for pair in batch for answer in self.explain([pair])]
        return [
            explained(self.model, self.method, self.explainer, view, row, ask, self.calibration)[0]
            for (view, _), row in zip(batch, rows, strict=True)
        ]


@overload
def explain_many(
    model: Model,
    pictures: Iterable[ViewSource | Callable[[], ViewSource] | Pair],
    method: str | None = None,
    target: Target | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["raise"] = "raise",
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Iterator[Explanation]: ...


@overload
def explain_many(
    model: Model,
    pictures: Iterable[ViewSource | Callable[[], ViewSource] | Pair],
    method: str | None = None,
    target: Target | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["yield"],
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Iterator[Explanation | Failure]: ...


def explain_many(
    model: Model,
    pictures: Iterable[ViewSource | Callable[[], ViewSource] | Pair],
    method: str | None = None,
    target: Target | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["raise", "yield"] = "raise",
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Iterator[Explanation | Failure]:
    """Explain many pictures in batches; the maps equal those of `explain`.

    Options are checked immediately. Pictures are read from the iterable on demand, at most two batches ahead, so their
    number is unlimited.

    Args:
        model, method, layer, against, proof, proof_area, proof_fill, proof_calibration: as in `explain`, the same for
            all pictures.
        pictures: pictures as for `explain`, or functions that return one, called in the threads that decode; or pairs
            of a picture and its target, such as ``zip(paths, labels)``; or a `DataLoader` of batches: tensors
            (N, C, H, W), or pairs of these and N targets.
        target: target of all pictures without their own: class index or label; None for the most probable class.
        batch_size: pictures per pass, at least 1.
        progress: whether to show a bar with the rate and the remaining time.
        on_error: ``raise`` the exception of a picture that cannot be read or explained, after all earlier explanations;
            or ``yield`` the exception instead and continue.
        options: the method's own options.

    Returns:
        An iterator of the explanations, in the order of the pictures.

    Raises:
        OptionError, LayerError, TargetError: as in `explain`.
        PictureError, OSError: while iterating: a picture that cannot be read, with ``on_error="raise"``.
    """
    check_series(model, pictures, batch_size, on_error, "yield")
    entry = get_method(model.task.default_method if method is None else method)
    (explainer,) = explainers_of([entry], layer, options, model.module, explain_many)
    if layers := layer_paths(model.module, layer):
        module_paths(model.module, layers)
    trial = trial_of(proof, proof_area, proof_fill)
    check_calibration(proof_calibration, model, trial)
    series = _Series(model, entry, explainer, ask_of(model, target, against), trial, proof_calibration)
    dataset = getattr(pictures, "dataset", pictures)  # a loader's own length is that of its batches
    total = len(dataset) if isinstance(dataset, Sized) else None
    return _deliver(_in_batches(series, pictures, batch_size), total, progress, on_error == "raise")


def _in_batches(series: _Series, pictures: Iterable[Any], batch_size: int) -> _Answers:
    source = one_by_one(pictures)
    futures: deque[Future[tuple[View, Ask]]] = deque()
    pool = ThreadPoolExecutor(min(_DECODERS, batch_size), thread_name_prefix="decode")
    try:
        while True:
            for picture, target in islice(source, 2 * batch_size - len(futures)):
                futures.append(pool.submit(series.prepare, picture, target))
            if not futures:
                return
            yield from series.answer([futures.popleft() for _ in range(min(batch_size, len(futures)))])
    finally:
        pool.shutdown(cancel_futures=True)


def one_by_one(pictures: Iterable[Any]) -> Iterator[tuple[Any, int | str | None]]:
    """Yield each picture with its own target; batches of a loader are taken apart.

    Raises:
        OptionError: neither a picture nor a pair, or a batch with another number of targets.
    """
    for item in pictures:
        picture, targets = item if isinstance(item, list | tuple) and len(item) == 2 else (item, None)
        if isinstance(picture, Tensor) and picture.ndim == 4:
            rows = [None] * len(picture) if targets is None else list(targets)
            if len(rows) != len(picture):
                raise OptionError(f"A batch of {len(picture)} pictures has {len(rows)} targets.", field="pictures")
            yield from ((image, _plain(row)) for image, row in zip(picture, rows, strict=True))
        else:
            yield picture, _plain(targets)


def _plain(target: Any) -> Any:
    """Return the target of one picture; loaders give tensors of one number."""
    return target.item() if isinstance(target, Tensor) and target.numel() == 1 else target


def _deliver(answers: _Answers, total: int | None, progress: bool, raises: bool) -> Iterator[Explanation | Failure]:
    with closing(answers):
        rows: Iterable[Explanation | Failure] = answers
        if progress:
            from tqdm.auto import tqdm  # asks whether this is a notebook

            rows = tqdm(answers, total=total, unit="picture")
        for row in rows:
            if raises and not isinstance(row, Explanation):
                raise row
            yield row


def _prepared(future: "Future[tuple[View, Ask]]") -> tuple[View, Ask] | Failure:
    try:
        return future.result()
    except (ExplainerError, OSError) as error:
        return error
