"""Methods that read attention: rollout, Chefer's relevance and LeGrad.

Their base finds the blocks that attend, their probabilities and gradients, and the tokens of the picture.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError, UnsuitableModelError
from seewhy.explainers.hooks.attention import AttentionCall, AttentionSession
from seewhy.explainers.hooks.selection import is_within
from seewhy.explainers.layers.layout import TokenGrid
from seewhy.explainers.methods.cam.layer_tensors import survey_for
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer

MOST_TOKENS = 1024
"""Maximum number of tokens of a model that is searched for attention when it is loaded: matrices hold its square."""


@plain(frozen=True)
class Blocks:
    """The blocks of a transformer in which all tokens of the picture attend to each other.

    Attributes:
        paths: paths of the blocks, in order: modules with one attention each, which take and return tokens (N, T, C).
        grid: grid of the tokens.
    """

    paths: tuple[str, ...]
    grid: TokenGrid


@dataclass(frozen=True, kw_only=True)
class AttentionExplainer(Explainer):
    """Base of methods that read the attention of a transformer whose tokens all attend to each other."""

    reads_attention: ClassVar[bool] = True

    def must_suit(self, question: Question) -> None:
        """Raise an error also if the model has no such blocks, unless looking for them would take much memory."""
        super().must_suit(question)
        layers = survey_for(question).layers
        if all(layer.tokens is None or layer.tokens.size <= MOST_TOKENS for layer in layers):
            blocks_of(question)

    def attribute(self, question: Question) -> Attribution:
        """A pass of one picture, which finds the blocks, and one of all pictures, forward and back."""
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
    with torch.no_grad(), AttentionSession(question.module, values=False) as attention:
        question.run(question.images[:1])
    calls = [call for call in attention.calls if call.probabilities.shape[-2] > 1]  # one query pools the tokens
    if not calls:
        raise _unsuitable("this model computes no attention that can be observed")
    layers = [layer for layer in survey_for(question).layers if layer.calls == 1]
    grids = {layer.path: layer.tokens for layer in layers if layer.tokens is not None}
    paths = tuple(_path(call, calls, grids) for call in calls)
    sizes = dict.fromkeys(grids[path].size for path in paths)
    if len(sizes) > 1:
        raise _unsuitable(f"the blocks of this model have {', '.join(map(str, sizes))} tokens, as in stages")
    return Blocks(paths, grids[paths[0]])


def _path(call: AttentionCall, calls: Sequence[AttentionCall], grids: Mapping[str, TokenGrid]) -> str:
    """Return the outermost module around an attention that has no other in it and returns the tokens that attend."""
    shape = tuple(call.probabilities.shape)
    grids = {path: grid for path, grid in grids.items() if len(shape) == 4 and shape[2:] == (grid.size, grid.size)}
    if not grids or shape[0] != 1:
        raise _unsuitable(f"the attention of {call.path!r} is of shape {shape}, as within windows or over channels")
    alone = (path for path in grids if [other.path for other in calls if is_within(other.path, path)] == [call.path])
    path = min(alone, key=len, default=None)
    if path is None:
        raise _unsuitable(f"no module around the attention of {call.path!r} returns the tokens of one block")
    return path


def _unsuitable(reason: str) -> UnsuitableModelError:
    return UnsuitableModelError(
        "This method needs a transformer in which all tokens of the picture attend to each other, such as ViT, DeiT, "
        f"BEiT or DINO; {reason}. Use attnlrp, which follows any attention, or saliency."
    )


def run_blocks(
    question: Question, blocks: Blocks, apart: bool = False, last: Callable[[list[Tensor]], Tensor] | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run the model with a graph that begins at the first block; no parameter gets a gradient.

    Args:
        question: its pictures.
        blocks: blocks of its model.
        apart: whether each block has a graph of its own, which begins at its input.
        last: returns the replacement of the last block's tokens, given those of all blocks.

    Returns:
        The outputs (N, ...), as the model's task reads them; for each block the probabilities (N, heads, T, T), and the
        tokens (N, T, C) that it returned; all in the graph of the pass.

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
    return outputs, probabilities, tokens


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_() if value.is_floating_point() else value


def gradients_of(scores: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of scores (N,), by picture, with respect to tensors, in float32.

    Raises:
        ModelOutputError: none of them gets a gradient.
    """
    gradients = torch.autograd.grad(scores.sum(), tensors, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ModelOutputError("No gradient flows from the logits to the attention: the model detaches it.")
    pairs = zip(gradients, tensors, strict=True)
    return [(torch.zeros_like(tensor) if gradient is None else gradient).float() for gradient, tensor in pairs]


def read_rows(matrix: Tensor, slopes: Tensor) -> Tensor:
    """Return the relevance (N, T) of tokens for the tokens that the head reads, given their relevance for each token.

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


@method("attention-rollout", family="transformer", forwards="2", discriminates=False)
class AttentionRollout(AttentionExplainer):
    r"""Attention rollout: product of the attention of all blocks: which patches reach the head; the same for every
    class.

    .. math:: \tilde A_l = \tfrac{1}{2} \big(\mathbb{E}_h[A_l^h] + I\big), \qquad R = \tilde A_L \cdots \tilde A_1

    where :math:`A_l^h` are the probabilities of head h in block l. The map is the row of R for the class token, without
    its columns for class and register tokens; if the head of the model reads several tokens, it is the mean of their
    rows. The gradients with respect to the last block's tokens show which tokens it reads; no other gradients are used.
    The maximum or the minimum over the heads, which are not in the paper, is divided by the sum of its row.
    """

    heads: Annotated[
        Literal["mean", "max", "min"], Field(description="Reduction over the probabilities of a block's heads.")
    ] = "mean"

    def relevance(self, question: Question, blocks: Blocks) -> tuple[Tensor, Objective, Tensor]:
        """Return the rows of the product that the head reads."""
        outputs, attention, tokens = run_blocks(question, blocks)
        objective = question.objective(outputs)
        (slopes,) = gradients_of(objective.scores(outputs), tokens[-1:])
        matrix = identity_of(attention[0])
        for probabilities in attention:
            mixing = self._fused(probabilities.detach().float())
            matrix = ((mixing + identity_of(probabilities)) / 2) @ matrix
        return read_rows(matrix, slopes), objective, outputs

    def _fused(self, probabilities: Tensor) -> Tensor:
        """Return one matrix (N, T, T), whose rows sum to one, of those of the heads (N, heads, T, T)."""
        if self.heads == "mean":
            return probabilities.mean(dim=1)
        fused = probabilities.amax(dim=1) if self.heads == "max" else probabilities.amin(dim=1)
        return fused / fused.sum(dim=2, keepdim=True).clamp_min(1e-30)


@method("chefer", family="transformer", forwards="2")
class Chefer(AttentionExplainer):
    r"""Chefer's relevance: attention times its gradient, accumulated over blocks: which patches reach the head, for a
    class.

    .. math:: \bar A_l = \mathbb{E}_h\big[(\nabla A_l^h \odot A_l^h)^+\big], \qquad
              R \leftarrow R + \bar A_l R, \quad R_0 = I

    where :math:`\nabla A_l^h` is the gradient of the logit with respect to the probabilities (equations 5 and 6). The
    map is the row of R for the class token, without its columns for class and register tokens; if the head of the model
    reads several tokens, it is the mean of their rows. It has no negative values. The authors' earlier method (arXiv
    2012.09838) uses LRP relevance instead of the attention.
    """

    def relevance(self, question: Question, blocks: Blocks) -> tuple[Tensor, Objective, Tensor]:
        """Return the rows of the relevance matrix that the head reads."""
        outputs, attention, tokens = run_blocks(question, blocks)
        objective = question.objective(outputs)
        *gradients, slopes = gradients_of(objective.scores(outputs), [*attention, tokens[-1]])
        matrix = identity_of(attention[0])
        for probabilities, gradient in zip(attention, gradients, strict=True):
            mixing = (gradient * probabilities.detach().float()).clamp_min(0).mean(dim=1)
            matrix = matrix + mixing @ matrix
        return read_rows(matrix, slopes), objective, outputs


@method("legrad", family="transformer", forwards="2")
class LeGrad(AttentionExplainer):
    r"""LeGrad: increase of a class's score in each block with attention to a patch, averaged over blocks.

    .. math:: E_k = \frac{1}{L} \sum_l \frac{1}{h T} \sum_{h, q}
              \Big(\frac{\partial s_l}{\partial A^h_{l, q k}}\Big)^+, \qquad
              s_l = f\Big(\frac{1}{T} \sum_q z_{l, q}\Big)

    where :math:`z_{l, q}` are the T tokens after block l, f is the model's head behind its last block, and :math:`s_l`
    the logit that it gives to their mean. The gradient is taken with respect to the block's own attention; the results
    of earlier blocks are constants. Columns of class and register tokens are omitted. The map has no negative values.

    As in the authors' code, the mean of all tokens replaces each token before the head, which may then read any of
    them. All blocks count; the authors omit the first blocks of large models. The paper scales the map to [0, 1], as
    drawings do here.
    """

    def relevance(self, question: Question, blocks: Blocks) -> tuple[Tensor, Objective, Tensor]:
        """One pass, in which the head sees the tokens of the last block and then the means of all blocks."""
        count = len(question.images)
        outputs, attention, _ = run_blocks(question, blocks, apart=True, last=_with_means)
        objective = question.objective(outputs[:count])
        rows = torch.arange(count, device=outputs.device).repeat(len(blocks.paths))
        gradients = gradients_of(objective.rows(rows).scores(outputs[count:]), attention)
        maps = [gradient.clamp_min(0).mean(dim=(1, 2)) for gradient in gradients]
        return torch.stack(maps).mean(dim=0), objective, outputs[:count]


def _with_means(tokens: list[Tensor]) -> Tensor:
    """Return the last block's tokens (N, T, C), and for each block as many in which each is the mean of its tokens."""
    means = [values.mean(dim=1, keepdim=True).expand_as(values) for values in tokens]
    return torch.cat([tokens[-1], *means])
