"""Proofs of likenesses: the cosine with only the marked part of a picture, and with that part hidden."""

import torch
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.question import Question
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.likeness.decomposition import Decomposition
from seewhy.explainers.likeness.embedding import Anatomy, Pictures, anatomy_of, embed
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.faithfulness import Scorer, are_blank, marked, scores_of
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial


def prove(
    model: Model,
    pictures: Pictures,
    parts: Decomposition,
    trial: Trial,
    progress: Progress = SILENT,
    strangers: Strangers | None = None,
) -> tuple[Faithfulness, Faithfulness]:
    r"""Return the faithfulness (N = 1) of both maps of a likeness.

    .. math::
        s = \frac{c(\text{keep}) - c(\text{drop})}{|c - c(\text{hidden})|}

    Here :math:`c` is the cosine with the other picture, which stays whole; see
    `seewhy.explainers.trust.faithfulness.prove`.

    Args:
        model: model of the decomposition.
        pictures: each (1, C, H, W).
        parts: the decomposition.
        trial: the parameters of the proof.
        progress: notified of each pass.
        strangers: maps of other pictures, to try one on each picture; None for none.
    """
    anatomy, both = anatomy_of(model), []
    for side, picture in enumerate(pictures):
        with pose(model, picture, progress=progress) as question:
            maps = parts.maps[side][None].to(question.images.device, torch.float32)
            marks = marked(question, maps, (parts.layer,), trial.area)
            is_blank = are_blank(maps)
            none = torch.zeros_like(is_blank)
            foreign = None if strangers is None else strangers.of(question.images, marks, is_blank, none, ~none)
            score = _scorer(question, anatomy, parts.embeddings[1 - side])
            scores = scores_of(question, score, [marks], trial, none, foreign)
            both.append(scores.faithfulness(0, trial, maps.new_tensor([parts.score]), is_blank))
    return both[0], both[1]


def _scorer(question: Question, anatomy: Anatomy, other: Tensor) -> Scorer:
    """Return the function that scores copies of a picture by their cosines with the embedding (F,) of another."""

    def score(copies: Tensor, _: Tensor) -> Tensor:
        embeddings = embed(question, anatomy, copies).double()
        return functional.cosine_similarity(embeddings, other.to(embeddings)[None]).float()

    return score
