"""Linear heads: layers that compute the outputs from the averages of feature maps."""

from dataclasses import dataclass

from torch import Tensor, nn

from seewhy.explainers.core.question import Question


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear layer, or a convolution of one position.

    Attributes:
        weight: (K, C) float32.
        bias: (K,) float32.
        difference: largest difference of its results for the averages from the outputs, as a share of the largest
            output.
        exact: whether the difference is mere rounding.
    """

    weight: Tensor
    bias: Tensor
    difference: float
    exact: bool


def linear_head(question: Question, features: Tensor, outputs: Tensor) -> LinearHead | None:
    """Return the linear layer of a model whose results for the averages of feature maps are nearest to the outputs.

    Args:
        question: about the model.
        features: (N, C, h, w) float32.
        outputs: (N, K) float32.

    Returns:
        The layer; None where no layer takes C features and gives K outputs.
    """
    averages, heads = features.mean(dim=(2, 3)), list[LinearHead]()
    for part in linear_layers(question.module, outputs.shape[1], averages.shape[1]):
        matrix = part.weight.detach().float().flatten(1)
        bias = matrix.new_zeros(len(matrix)) if part.bias is None else part.bias.detach().float()
        difference = float(relative_difference(averages @ matrix.T + bias, outputs))
        heads.append(LinearHead(matrix, bias, difference, difference < tolerance(question)))
        if heads[-1].exact:
            break
    return min(heads, key=lambda head: head.difference, default=None)


def linear_layers(module: nn.Module, outputs: int, features: int) -> list[nn.Linear | nn.Conv2d]:
    """Return the linear layers and convolutions of one position with these numbers of outputs and input features."""
    return [
        part
        for part in module.modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
        and isinstance(part.weight, Tensor)
        and part.weight.shape[:2] == (outputs, features)
        and part.weight[0, 0].numel() == 1
    ]


def relative_difference(values: Tensor, outputs: Tensor) -> Tensor:
    """Return the largest difference (), as a share of the largest output."""
    return (values - outputs).abs().max() / outputs.abs().max().clamp_min(1e-30)


def tolerance(question: Question) -> float:
    """Return the largest relative difference of outputs that counts as rounding: half precision rounds features too."""
    return 1e-3 if question.is_precise else 0.05
