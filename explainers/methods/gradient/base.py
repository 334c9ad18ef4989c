"""What the methods share that are made of gradients with respect to the input."""

import torch
from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError


def input_gradients(
    question: Question, images: Tensor, objective: Objective | None = None
) -> tuple[Tensor, Objective, Tensor]:
    """Return gradients of the score with respect to pictures, from one forward and one backward pass.

    No parameter gets a gradient.

    Args:
        question: whose module is run.
        images: (R, C, H, W): the question's own, or copies of them that were changed.
        objective: that of the rows; None to find the question's own (of its own images).

    Returns:
        Gradients (R, C, H, W) float32, the objective, and outputs (R, ...) float32.

    Raises:
        ModelOutputError: no gradient flows to the input; or no outputs came out.
        TargetError: a class that the model lacks.
    """
    with torch.enable_grad():
        # The clone that `run` makes may be modified in place by the model's first layer; the leaf may not.
        leaf = images.detach().requires_grad_()
        outputs = question.run(leaf)
        objective = objective or question.objective(outputs)
        if not outputs.requires_grad:
            raise ModelOutputError("No gradient flows from the logits to the input: the model switches them off.")
        (gradients,) = torch.autograd.grad(objective.scores(outputs).sum(), leaf, allow_unused=True)
    if gradients is None:
        raise ModelOutputError("No gradient flows from the logits to the input: the model detaches it.")
    return gradients.float(), objective, outputs.detach().float()
