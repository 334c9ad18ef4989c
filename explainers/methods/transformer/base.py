"""The base of methods that read attention: which blocks attend, their probabilities, and the tokens of the picture."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError, UnsuitableModelError
from seewhy.explainers.hooks.attention import AttentionCall, AttentionSession
from seewhy.explainers.layers.layout import TokenGrid
from seewhy.explainers.methods.cam.layer_tensors import survey_for
from seewhy.explainers.methods.explainer import Explainer


@plain(frozen=True)
class Blocks:
    """The blocks of a transformer in which all tokens of the picture attend to each other.

    Attributes:
        paths: of the blocks, in order: modules with one attention each, which take and return tokens (N, T, C).
        grid: of the tokens.
    """

    paths: tuple[str, ...]
    grid: TokenGrid


@plain(frozen=True, eq=False)
class BlockTensors:
    """What a forward pass shows of the blocks, in its graph, which begins at the first block.

    Attributes:
        outputs: (N, ...), as the model's task reads them.
        probabilities: (N, heads, T, T), for each block.
        tokens: (N, T, C), what each block returned.
    """

    outputs: Tensor
    probabilities: list[Tensor]
    tokens: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class AttentionExplainer(Explainer):
    """Base of methods that read the attention of a transformer whose tokens all attend to each other."""

    reads_attention: ClassVar[bool] = True

    def attribute(self, question: Question) -> Attribution:
        """A pass of one picture, which shows the blocks, and one of all, forward and back."""
        blocks = blocks_of(question)
        with torch.enable_grad():
            relevance, objective, outputs = self.relevance(question, blocks)
        inside = relevance[:, blocks.grid.before : relevance.shape[1] - blocks.grid.after]
        values = inside.reshape(-1, 1, blocks.grid.rows, blocks.grid.columns)
        return self.answer(self.project(values), objective, outputs)

    @abstractmethod
    def relevance(self, question: Question, blocks: Blocks) -> tuple[Tensor, Objective, Tensor]:
        """Return the relevance (N, T) of the tokens, the objective, and the outputs (N, ...)."""


def blocks_of(question: Question) -> Blocks:
    """Return the blocks of a question's model.

    Raises:
        UnsuitableModelError: the model has no attention, or one that is not of all tokens with each other.
    """
    with torch.no_grad(), AttentionSession(question.module) as attention:
        question.run(question.images[:1])
    calls = [call for call in attention.calls if call.probabilities.shape[-2] > 1]  # one query pools the tokens
    if not calls:
        raise _unsuitable("no attention is seen in this model")
    layers = [layer for layer in survey_for(question).layers if layer.calls == 1]
    grids = {layer.path: layer.tokens for layer in layers if layer.tokens is not None}
    paths = tuple(_path(call, calls, grids) for call in calls)
    return Blocks(paths, grids[paths[0]])


def _path(call: AttentionCall, calls: Sequence[AttentionCall], grids: Mapping[str, TokenGrid]) -> str:
    """Return the outermost module around an attention that has no other in it and returns the tokens that attend."""
    shape = tuple(call.probabilities.shape)
    grids = {path: grid for path, grid in grids.items() if len(shape) == 4 and shape[2:] == (grid.size, grid.size)}
    if not grids or shape[0] != 1:
        raise _unsuitable(f"the attention of {call.path!r} is of shape {shape}, as within windows or over channels")
    alone = (path for path in grids if [other.path for other in calls if _holds(path, other.path)] == [call.path])
    path = min(alone, key=len, default=None)
    if path is None:
        raise _unsuitable(f"no module around the attention of {call.path!r} returns the tokens of one block")
    return path


def _holds(path: str, inner: str) -> bool:
    """Whether a module is another one or lies around it."""
    return not path or path == inner or inner.startswith(f"{path}.")


def _unsuitable(reason: str) -> UnsuitableModelError:
    return UnsuitableModelError(
        "This method needs a transformer in which all tokens of the picture attend to each other, such as ViT, DeiT, "
        f"BEiT or DINO; {reason}. Use attnlrp, which follows any attention, or saliency."
    )


def run_blocks(
    question: Question, blocks: Blocks, apart: bool = False, last: Callable[[list[Tensor]], Tensor] | None = None
) -> BlockTensors:
    """Run the model with a graph that begins at the first block; no parameter gets a gradient.

    Args:
        question: its pictures.
        blocks: of its model.
        apart: whether each block has a graph of its own, which begins at its input.
        last: returns what takes the place of the last block's tokens, given those of all blocks.

    Raises:
        ModelOutputError: no gradient flows from the outputs to the blocks; or as `Question.outputs`.
    """
    tokens: list[Tensor] = []

    def begin(_module: nn.Module, args: tuple[Any, ...]) -> Any:
        return tree_map_only(Tensor, _leaf, args)

    def end(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        tokens.append(output)
        return last(tokens) if last is not None and len(tokens) == len(blocks.paths) else None

    with AttentionSession(question.module) as attention:
        attention.hooks.before_forward(begin, *(blocks.paths if apart else blocks.paths[:1]))
        attention.hooks.after_forward(end, *blocks.paths)
        outputs = question.outputs(question.run_copy(question.images))
    if not outputs.requires_grad:
        raise ModelOutputError("No gradient flows from the logits to the attention: the model switches it off.")
    size = blocks.grid.size
    probabilities = [call.probabilities for call in attention.calls if call.probabilities.shape[-2:] == (size, size)]
    return BlockTensors(outputs, probabilities, tokens)


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_() if value.is_floating_point() else value


def gradients_of(scores: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of scores (N,), by picture, with respect to tensors, in float32.

    Raises:
        ModelOutputError: none of them gets any.
    """
    gradients = torch.autograd.grad(scores.sum(), tensors, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ModelOutputError("No gradient flows from the logits to the attention: the model detaches it.")
    pairs = zip(gradients, tensors, strict=True)
    return [(torch.zeros_like(tensor) if gradient is None else gradient).float() for gradient, tensor in pairs]


def read_rows(matrix: Tensor, slopes: Tensor) -> Tensor:
    """Return the relevance (N, T) of tokens for those that the head reads, given that for each token.

    Args:
        matrix: (N, T, T), a row for each token after the last block.
        slopes: (N, T, C), the gradients of the score by these tokens, which are zero where the head does not read.

    Returns:
        The row of the class token, or where the head reads several tokens the mean of their rows.
    """
    weights = (slopes != 0).any(dim=2).to(matrix)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.einsum("nq,nqk->nk", weights, matrix)


def identity_of(probabilities: Tensor) -> Tensor:
    """Return identity matrices (N, T, T) float32 for probabilities (N, heads, T, T)."""
    count, _, _, size = probabilities.shape
    return torch.eye(size, device=probabilities.device).expand(count, size, size)
