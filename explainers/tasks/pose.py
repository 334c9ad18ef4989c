"""The task of a model, or of a bare module, and the questions put to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask, SpatialTarget
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import Question, must_be_images, ready
from seewhy.explainers.core.task import Task
from seewhy.explainers.errors import OptionError, TargetError, UnsuitableModelError, UnsupportedOperationError, at_fault
from seewhy.explainers.execution.deferred_checks import deferred
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.hooks.selection import as_module
from seewhy.explainers.layers.survey import Survey, survey_module
from seewhy.explainers.tasks.box_target import BoxTarget, checked
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.tasks.detection import Detection
from seewhy.explainers.tasks.function import FunctionTask

_PROBABILITIES = (
    "(The model returns probabilities or their logarithms, from a final softmax or sigmoid. Return the logits before "
    "it, which methods explain.)"
)


_BARE = Classification()


def task_of(model: AnyModel, ask: Ask = DEFAULT_ASK) -> Task:
    """Return the task of a model, with the function that is asked for; a bare module classifies."""
    task = _BARE if isinstance(model, nn.Module) else model.task
    return task if ask.function is None else FunctionTask(task, ask.function)


def survey(
    model: AnyModel, image_shape: tuple[int, int, int], layers: tuple[str, ...] = (), task: Task | None = None
) -> Survey:
    """Run the model once on an empty picture and describe every module that ran.

    A model on the ``meta`` device is surveyed without any arithmetic. Compiled and scripted submodules, where hooks do
    not reach, are neither listed nor touched, and parametrisations of weights count as part of their module.

    Args:
        model: an `nn.Module` or a `LoadedModel`.
        image_shape: (C, H, W) of the input.
        layers: declared default layers; empty to choose them automatically.
        task: task of a bare module that is not a classifier.

    Raises:
        LayerError: a declared layer that cannot carry a CAM.
    """
    return survey_module(as_module(model), image_shape, (task or task_of(model)).outputs, layers)


def named_target(
    task: Task, target: Any, attribute: str | None = None, label: int | str | None = None
) -> int | SpatialTarget | None:
    """Return the target that a user names, see `Task.target`; None for the default target.

    Args:
        task: task of the model.
        target: its name, or None.
        attribute: the attribute of a box to explain instead of its score.
        label: class of a box that is named by its place.

    Raises:
        TargetError: as in `Task.target`.
        OptionError: the task has no boxes, or these lack the attribute.
    """
    must_have_boxes(task, attribute, label)
    result = None if target is None else task.target(target)
    if isinstance(task, Detection):
        if label is not None:
            with at_fault("label", TargetError):
                result = task.with_label(result, label)
        if attribute is not None:
            result = replace(result or BoxTarget(), attribute=checked(attribute, task.attributes))
    return result


def must_have_boxes(task: Task, attribute: str | None, label: int | str | None) -> None:
    """Raise OptionError if a task without boxes gets an option that only boxes have."""
    for field, value in (("label", label), ("attribute", attribute)):
        if value is not None and not isinstance(task, Detection):
            raise OptionError(f"Only a detector's boxes have {field}s; omit {field}.", field)


def named_ask(
    task: Task,
    target: Any,
    against: int | str | None = None,
    attribute: str | None = None,
    label: int | str | None = None,
) -> Ask:
    """Return the question about one picture, from user input.

    Args:
        task, target, attribute, label: as in `named_target`, including the errors.
        against: the class that the target is contrasted with.

    Raises:
        TargetError: the contrast names no class.
    """
    contrast = None if against is None else task.target(against)
    if contrast is not None and not isinstance(contrast, int):
        contrast = contrast.label
        if contrast is None:
            raise TargetError(f"{against!r} is not a class to contrast with; give an index or a label.")
    return Ask.single(named_target(task, target, attribute, label), contrast)


def each_ask(task: Task, outputs: Tensor, ask: Ask) -> list[Ask]:
    """Return the questions that a question about one picture stands for, given its outputs (...): one for each box of a
    class.

    Raises:
        TargetError: there is none.
    """
    target = ask.targets[0] if isinstance(ask.targets, tuple) else None
    if not (isinstance(task, Detection) and isinstance(target, BoxTarget)):
        return [ask]
    return [replace(ask, targets=(box,)) for box in task.each(outputs, target)]


@contextmanager
def pose(model: AnyModel, images: Tensor, ask: Ask = DEFAULT_ASK, progress: Progress = SILENT) -> Iterator[Question]:
    """Yield a question about images of a module that is ready; errors are those of `Explainer.explain`."""
    must_be_images(images)
    if isinstance(ask.targets, tuple) and len(ask.targets) != len(images):
        raise TargetError(f"Expected one target per image, {len(images)} in all, got {len(ask.targets)}.")
    for numbers in (None if isinstance(ask.targets, tuple) else ask.targets, ask.against):
        if numbers is not None and not isinstance(numbers, Tensor):
            raise TargetError(
                f"Expected a tensor of one integer per image, got {numbers!r}; give {_tensor_of(numbers, len(images))}."
            )
        if numbers is not None and (numbers.shape != images.shape[:1] or numbers.is_floating_point()):
            raise TargetError(f"Expected one integer target per image, {len(images)} in all, got {numbers!r}.")
    with deferred(), ready(model, images) as (module, copies):
        question = Question(model, task_of(model, ask), module, copies, ask, progress)
        try:
            yield question
        except (UnsuitableModelError, UnsupportedOperationError) as error:
            if _returns_probabilities(question):
                error.args = (f"{error} {_PROBABILITIES}",)
            raise


def _tensor_of(numbers: object, count: int) -> str:
    """Return the tensor of `count` targets that was probably meant, as Python code."""
    if isinstance(numbers, list) and len(numbers) == count:
        return f"torch.tensor({numbers})"
    number = numbers if isinstance(numbers, int) else 281
    return f"torch.tensor({[number] * count})" if count <= 4 else f"torch.full(({count},), {number})"


def _returns_probabilities(question: Question) -> bool:
    """Whether the model's outputs look like probabilities."""
    try:
        with torch.no_grad():  # not inference mode, because the model may keep tensors
            outputs = question.task.outputs(question.run_copy(question.images[:1]))
            return question.task.are_probabilities(outputs)
    except Exception:  # the model may raise anything, but the current error says more
        return False


def predict(model: AnyModel, images: Tensor) -> Tensor:
    """Return the outputs (N, ...), float32, of a batch of images (N, C, H, W), without a graph.

    Raises:
        ModelOutputError: the model returns no outputs, or NaN.
    """
    with pose(model, images) as question:
        return question.predict(question.images).float()
