"""Pictures in, explanations out: one picture by one method, by several, or many pictures."""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias, overload

import torch
from PIL import Image
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.core.task import named_ask
from seewhy.explainers.errors import ExplainerError, OptionError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.imaging.decode import PictureSource, read_picture
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.shared_pass import explain_jointly
from seewhy.explainers.results.explanation import Explanation, explanations

Failure: TypeAlias = ExplainerError | OSError
"""The errors that belong to one picture of many."""

_Answers: TypeAlias = Generator[Explanation | Failure, None, None]

_DECODERS = 4
"""Threads that decode pictures; a model takes longer than these."""


def explain(
    model: Model,
    picture: PictureSource,
    method: str = "gradcam",
    target: int | str | None = None,
    layer: str | Sequence[str] | None = None,
    against: int | str | None = None,
    **options: Any,
) -> Explanation:
    """Explain why a model gave a picture a class.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left as it was.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        method: a name of `list_methods()`.
        target: class index or label; None for the most probable class.
        layer: dotted path or glob, or several; None for the model's default.
        against: class index or label to contrast the target with; None for no contrast.
        options: the method's own options.

    Returns:
        The heatmap in upload coordinates, with predictions and diagnostics.

    Raises:
        PictureError: the picture cannot be read.
        OptionError: an unknown method or option, or a value out of bounds.
        LayerError, TargetError: a layer or class that the model lacks.
        UnsupportedModuleError: a bare module, whose preprocessing is unknown.
    """
    return compare(model, picture, (method,), target, layer, against, **options)[0]


def compare(
    model: Model,
    picture: PictureSource,
    methods: Sequence[str],
    target: int | str | None = None,
    layer: str | Sequence[str] | None = None,
    against: int | str | None = None,
    **options: Any,
) -> list[Explanation]:
    """Explain by several methods, which share forward and backward passes where possible.

    `rank_correlation` measures the agreement of two of the maps.

    Args:
        model, picture, target, layer, against: as `explain`; also the errors.
        methods: names of `list_methods()`.
        options: of the methods; each method gets its own.

    Returns:
        One explanation per method, all of the same class.
    """
    must_know_pictures(model)
    entries = [get_method(name) for name in methods]
    explainers = explainers_of(entries, layer, options)
    view = prepare(model, picture)
    attributions = explain_jointly(explainers, model, view.images, named_ask(model.task, target, against))
    return [
        explanations(model, entry.name, view.picture, view.geometry, attribution)[0]
        for entry, attribution in zip(entries, attributions, strict=True)
    ]


def explainers_of(
    entries: Sequence[Method], layer: str | Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[Explainer, ...]:
    """Return the explainers of methods; layer, options and errors are those of `compare`."""
    if layer is not None:
        options = {**options, "layers": (layer,) if isinstance(layer, str) else tuple(layer)}
    return build_methods(entries, options)


@dataclass(frozen=True, eq=False)
class View:
    """A picture, and the model's input made from it.

    Attributes:
        picture: upright, RGB.
        image: (C, H, W) float32, normalised.
        geometry: the part of the picture that the model sees.
        device: of the model.
    """

    picture: Image.Image
    image: Tensor
    geometry: Geometry
    device: torch.device

    @property
    def images(self) -> Tensor:
        """(1, C, H, W), on the model's device."""
        return self.image[None].to(self.device)


def prepare(model: Model, picture: PictureSource) -> View:
    """Read a picture and make the model's input from it.

    Raises:
        PictureError: the picture cannot be read.
        UnsupportedModuleError: a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model)
    upright = read_picture(picture)
    geometry = model.preprocess.geometry(upright.width, upright.height)
    return View(upright, model.preprocess(upright), geometry, model.device)


@dataclass(frozen=True)
class _Series:
    """The question about each picture of many."""

    model: Model
    method: str
    explainer: Explainer
    ask: Ask

    def answer(self, futures: Sequence["Future[View]"]) -> list[Explanation | Failure]:
        """Return the explanation, or the error, of each picture of a batch."""
        views = [_view(future) for future in futures]
        answers = iter(self.explain([view for view in views if isinstance(view, View)]))
        return [next(answers) if isinstance(view, View) else view for view in views]

    def explain(self, batch: Sequence[View]) -> list[Explanation | Failure]:
        """Explain pictures in one batch; if it fails, one by one, so that a bad picture fails alone."""
        if not batch:
            return []
        images = torch.stack([view.image for view in batch]).to(self.model.device)
        ask = Ask.stacked([self.ask] * len(batch))
        try:
            rows = self.explainer.explain(self.model, images, ask.targets, ask.against).rows()
        except ExplainerError as error:
            return [error] if len(batch) == 1 else [answer for view in batch for answer in self.explain([view])]
        return [
            explanations(self.model, self.method, view.picture, view.geometry, row)[0]
            for view, row in zip(batch, rows, strict=True)
        ]


@overload
def explain_many(
    model: Model,
    pictures: Iterable[PictureSource],
    method: str = "gradcam",
    target: int | str | None = None,
    layer: str | Sequence[str] | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["raise"] = "raise",
    **options: Any,
) -> Iterator[Explanation]: ...


@overload
def explain_many(
    model: Model,
    pictures: Iterable[PictureSource],
    method: str = "gradcam",
    target: int | str | None = None,
    layer: str | Sequence[str] | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["yield"],
    **options: Any,
) -> Iterator[Explanation | Failure]: ...


def explain_many(
    model: Model,
    pictures: Iterable[PictureSource],
    method: str = "gradcam",
    target: int | str | None = None,
    layer: str | Sequence[str] | None = None,
    against: int | str | None = None,
    *,
    batch_size: int = 8,
    progress: bool = False,
    on_error: Literal["raise", "yield"] = "raise",
    **options: Any,
) -> Iterator[Explanation | Failure]:
    """Explain many pictures, several in each pass of the model; the maps are those of `explain`.

    Options are checked at once. Pictures are read from the iterable on demand, two batches ahead, so their number is
    unlimited: no more than two batches are in memory.

    Args:
        model, method, target, layer, against: as `explain`, and the same for all pictures.
        pictures: paths, bytes, PIL images or arrays.
        batch_size: pictures in a pass, at least 1.
        progress: whether to show a bar with the rate and the remaining time.
        on_error: ``raise`` the exception of a picture that cannot be read or explained, after the explanations before
            it; or ``yield`` the exception in its place and go on.
        options: the method's own options.

    Returns:
        An iterator of the explanations, in the order of the pictures.

    Raises:
        OptionError, LayerError, TargetError: as `explain`.
        PictureError, OSError: while iterating: a picture that cannot be read, with ``on_error="raise"``.
    """
    must_know_pictures(model)
    if isinstance(pictures, str | bytes | os.PathLike | Image.Image):
        raise OptionError("Give several pictures, such as a list of paths; `explain` takes one.", field="pictures")
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}; it must be 1 or more.", field="batch_size")
    if on_error not in ("raise", "yield"):
        raise OptionError(f"on_error is {on_error!r}; it must be 'raise' or 'yield'.", field="on_error")
    entry = get_method(method)
    (explainer,) = explainers_of([entry], layer, options)
    if layer is not None:
        module_paths(model.module, (layer,) if isinstance(layer, str) else tuple(layer))
    series = _Series(model, entry.name, explainer, named_ask(model.task, target, against))
    total = len(pictures) if isinstance(pictures, Sized) else None
    return _deliver(_in_batches(series, pictures, batch_size), total, progress, on_error == "raise")


def _in_batches(series: _Series, pictures: Iterable[PictureSource], batch_size: int) -> _Answers:
    source = iter(pictures)
    futures: deque[Future[View]] = deque()
    pool = ThreadPoolExecutor(min(_DECODERS, batch_size), thread_name_prefix="decode")
    try:
        while True:
            for picture in islice(source, 2 * batch_size - len(futures)):
                futures.append(pool.submit(prepare, series.model, picture))
            if not futures:
                return
            yield from series.answer([futures.popleft() for _ in range(min(batch_size, len(futures)))])
    finally:
        pool.shutdown(cancel_futures=True)


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


def _view(future: "Future[View]") -> View | Failure:
    try:
        return future.result()
    except (ExplainerError, OSError) as error:
        return error
