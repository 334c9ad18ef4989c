"""Attention rollout, Chefer's relevance, and LeGrad: maps made of attention probabilities and their gradients."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.transformer.base import (
    AttentionExplainer,
    Blocks,
    gradients_of,
    identity_of,
    read_rows,
    run_blocks,
)


@method(
    "attention-rollout",
    family="transformer",
    summary="Product of the attention of all blocks: which patches reach the head; the same for every class.",
    paper=Paper(
        "Abnar, Zuidema",
        "Quantifying Attention Flow in Transformers",
        2020,
        "https://arxiv.org/abs/2005.00928",
    ),
    forwards="2",
    discriminates=False,
)
class AttentionRollout(AttentionExplainer):
    r"""Attention rollout: the product of the attention of all blocks, averaged with the identity for the shortcuts.

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
        tensors = run_blocks(question, blocks)
        objective = question.objective(tensors.outputs)
        (slopes,) = gradients_of(objective.scores(tensors.outputs), tensors.tokens[-1:])
        matrix = identity_of(tensors.probabilities[0])
        for probabilities in tensors.probabilities:
            mixing = self._fused(probabilities.detach().float())
            matrix = ((mixing + identity_of(probabilities)) / 2) @ matrix
        return read_rows(matrix, slopes), objective, tensors.outputs

    def _fused(self, probabilities: Tensor) -> Tensor:
        """Return one matrix (N, T, T), whose rows sum to one, of those of the heads (N, heads, T, T)."""
        if self.heads == "mean":
            return probabilities.mean(dim=1)
        fused = probabilities.amax(dim=1) if self.heads == "max" else probabilities.amin(dim=1)
        return fused / fused.sum(dim=2, keepdim=True).clamp_min(1e-30)


@method(
    "chefer",
    family="transformer",
    summary="Attention times its gradient, accumulated over blocks: which patches reach the head, for a class.",
    paper=Paper(
        "Chefer, Gur, Wolf",
        "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
        2021,
        "https://arxiv.org/abs/2103.15679",
    ),
    forwards="2",
)
class Chefer(AttentionExplainer):
    r"""Chefer's relevance: attention weighted by its gradient, accumulated over the blocks.

    .. math:: \bar A_l = \mathbb{E}_h\big[(\nabla A_l^h \odot A_l^h)^+\big], \qquad
              R \leftarrow R + \bar A_l R, \quad R_0 = I

    where :math:`\nabla A_l^h` is the gradient of the logit with respect to the probabilities (equations 5 and 6). The
    map is the row of R for the class token, without its columns for class and register tokens; if the head of the model
    reads several tokens, it is the mean of their rows. It has no negative values. The authors' earlier method (arXiv
    2012.09838) uses LRP relevance instead of the attention.
    """

    def relevance(self, question: Question, blocks: Blocks) -> tuple[Tensor, Objective, Tensor]:
        """Return the rows of the relevance matrix that the head reads."""
        tensors = run_blocks(question, blocks)
        objective = question.objective(tensors.outputs)
        scores = objective.scores(tensors.outputs)
        *gradients, slopes = gradients_of(scores, [*tensors.probabilities, tensors.tokens[-1]])
        matrix = identity_of(tensors.probabilities[0])
        for probabilities, gradient in zip(tensors.probabilities, gradients, strict=True):
            mixing = (gradient * probabilities.detach().float()).clamp_min(0).mean(dim=1)
            matrix = matrix + mixing @ matrix
        return read_rows(matrix, slopes), objective, tensors.outputs


@method(
    "legrad",
    family="transformer",
    summary="Increase of a class's score in each block with attention to a patch, averaged over blocks.",
    paper=Paper(
        "Bousselham, Boggust, Chaybouti, Strobelt, Kuehne",
        "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
        2024,
        "https://arxiv.org/abs/2404.03214",
    ),
    forwards="2",
)
class LeGrad(AttentionExplainer):
    r"""LeGrad: gradients of the score of each block's tokens with respect to the block's attention.

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
        tensors = run_blocks(question, blocks, apart=True, last=_with_means)
        outputs = tensors.outputs[:count]
        objective = question.objective(outputs)
        rows = torch.arange(count, device=outputs.device).repeat(len(blocks.paths))
        scores = objective.rows(rows).scores(tensors.outputs[count:])
        gradients = gradients_of(scores, tensors.probabilities)
        maps = [gradient.clamp_min(0).mean(dim=(1, 2)) for gradient in gradients]
        return torch.stack(maps).mean(dim=0), objective, outputs


def _with_means(tokens: list[Tensor]) -> Tensor:
    """Return the last block's tokens (N, T, C), and for each block as many in which each is the mean of its tokens."""
    means = [values.mean(dim=1, keepdim=True).expand_as(values) for values in tokens]
    return torch.cat([tokens[-1], *means])
