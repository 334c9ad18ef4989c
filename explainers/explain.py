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

from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.errors import ExplainerError, OptionError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.imaging.decode import PictureSource, read_picture
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method
from seewhy.explainers.methods.shared_pass import explain_together
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.tasks.classification import class_index

Failure: TypeAlias = ExplainerError | OSError
"""What may be wrong with one picture of many."""

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
        model: a `LoadedModel`, from `load_model` or `wrap_model`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        method: a name of `list_methods()`.
        target: class index or label; None for the most probable class.
        layer: dotted path or glob, or several; None for the model's default.
        against: class index or label to contrast the target with; None for no contrast.
        options: the method's own options.

    Raises:
        PictureError: the picture cannot be read.
        OptionError: an unknown method or option, or a value out of bounds.
        LayerError, TargetError: a layer or class that the model lacks.
        UnsupportedModuleError: a bare module, which does not tell how it sees pictures.
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
    """Explain by several methods, which share forward and backward passes where they can.

    `agreement.rank_correlation` says how much two of the maps agree.

    Args:
        model, picture, target, layer, against: as `explain`; also the errors.
        methods: names of `list_methods()`.
        options: each method takes those that it has.

    Returns:
        One explanation per method, all of the same class.
    """
    must_know_pictures(model)
    entries = [get_method(name) for name in methods]
    explainers = explainers_of(entries, layer, options)
    upright = read_picture(picture)
    images = model.preprocess(upright)[None].to(model.device)
    targets, contrast = (
        None if one is None else torch.tensor([class_index(one, model.labels)]) for one in (target, against)
    )
    geometry = model.preprocess.geometry(upright.width, upright.height)
    found = explain_together(explainers, model, images, targets, contrast)
    return [
        explanations(model, entry.name, upright, geometry, attribution)[0]
        for entry, attribution in zip(entries, found, strict=True)
    ]


def explainers_of(
    entries: Sequence[Method], layer: str | Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[Explainer, ...]:
    """Return the explainers of methods; layer, options and errors are those of `compare`."""
    if layer is not None:
        options = {**options, "layers": (layer,) if isinstance(layer, str) else tuple(layer)}
    return build_methods(entries, options)


@dataclass(frozen=True)
class _Prepared:
    """A picture as the model and as a drawing need it."""

    picture: Image.Image
    image: Tensor
    geometry: Geometry


@dataclass(frozen=True)
class _Task:
    """What is asked about each picture."""

    model: Model
    method: str
    explainer: Explainer
    target: int | None
    against: int | None

    def prepare(self, source: PictureSource) -> _Prepared:
        upright = read_picture(source)
        preprocess = self.model.preprocess
        return _Prepared(upright, preprocess(upright), preprocess.geometry(upright.width, upright.height))

    def answer(self, waiting: Sequence["Future[_Prepared]"]) -> list[Explanation | Failure]:
        """Return what becomes of each picture of a batch."""
        outcomes = [_outcome(one) for one in waiting]
        found = iter(self.explain([one for one in outcomes if isinstance(one, _Prepared)]))
        return [next(found) if isinstance(one, _Prepared) else one for one in outcomes]

    def explain(self, batch: Sequence[_Prepared]) -> list[Explanation | Failure]:
        """Explain pictures in one pass; where it fails, each by itself, so that a bad one fails alone."""
        if not batch:
            return []
        images = torch.stack([one.image for one in batch]).to(self.model.device)
        targets, against = (
            None if one is None else torch.full((len(batch),), one) for one in (self.target, self.against)
        )
        try:
            rows = self.explainer.explain(self.model, images, targets, against).rows()
        except ExplainerError as error:
            return [error] if len(batch) == 1 else [found for one in batch for found in self.explain([one])]
        return [
            explanations(self.model, self.method, one.picture, one.geometry, row)[0]
            for one, row in zip(batch, rows, strict=True)
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
    """Explain many pictures, several in each pass through the model; the maps are those of `explain`.

    Options are checked at once. Pictures are taken from the iterable as they are needed, two batches ahead, so there
    may be any number of them: at most that many are in memory, but for what the caller keeps.

    Args:
        model, method, target, layer, against: as `explain`, and the same for all pictures.
        pictures: paths, bytes, PIL images or arrays.
        batch_size: how many share a pass.
        progress: whether to show a bar with the rate and the time left.
        on_error: what to do about a picture that cannot be read or explained: ``raise``, once those before it have
            been given back, or ``yield`` the exception in its place and go on.
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
    classes = [None if one is None else class_index(one, model.labels) for one in (target, against)]
    task = _Task(model, entry.name, explainer, *classes)
    total = len(pictures) if isinstance(pictures, Sized) else None
    return _delivered(_in_batches(task, pictures, batch_size), total, progress, on_error == "raise")


def _in_batches(task: _Task, pictures: Iterable[PictureSource], batch_size: int) -> _Answers:
    source = iter(pictures)
    waiting: deque[Future[_Prepared]] = deque()
    pool = ThreadPoolExecutor(min(_DECODERS, batch_size), thread_name_prefix="decode")
    try:
        while True:
            for picture in islice(source, 2 * batch_size - len(waiting)):
                waiting.append(pool.submit(task.prepare, picture))
            if not waiting:
                return
            yield from task.answer([waiting.popleft() for _ in range(min(batch_size, len(waiting)))])
    finally:
        pool.shutdown(cancel_futures=True)


def _delivered(answers: _Answers, total: int | None, progress: bool, raises: bool) -> Iterator[Explanation | Failure]:
    with closing(answers):
        shown: Iterable[Explanation | Failure] = answers
        if progress:
            from tqdm.auto import tqdm  # asks whether this is a notebook

            shown = tqdm(answers, total=total, unit="picture")
        for one in shown:
            if raises and not isinstance(one, Explanation):
                raise one
            yield one


def _outcome(waiting: "Future[_Prepared]") -> _Prepared | Failure:
    try:
        return waiting.result()
    except (ExplainerError, OSError) as error:
        return error
