"""Class maps: a head's outputs for the features at each position, for all classes that compete.

Three ways lead to them. A linear head behind pooling is a product with its weights. For any other head behind pooling,
each position's features are run as if they filled the layer. For a head that reads the list of all positions, features
are multiplied by gradients, for the target and its strongest rivals.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.projection import Sign, keep_sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.execution.suffix import suffix_of
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, survey_for
from seewhy.explainers.methods.cam.linear_head import linear_head, relative_difference, tolerance
from seewhy.explainers.methods.quotients import CERTAIN

STRONGEST = 50
"""Maximum number of rivals of a target, if their class maps take a backward pass each."""

_ROWS, _BYTES = 1024, 2**26
"""Maximum number of feature maps that a head gets at a time, and their maximum bytes."""


class Contest(NamedTuple):
    """The result of the competition between classes at each position.

    Attributes:
        evidence: (N, h, w), the targets' class maps, centred over all that compete.
        shares: (N, h, w), of the vote that the target gets.
    """

    evidence: Tensor
    shares: Tensor

    def votes(self, sign: Sign) -> Tensor:
        """Return (N, h, w): a part of the evidence times its shares."""
        return keep_sign(self.evidence, sign) * self.shares

    def gates(self, sign: Sign) -> Tensor:
        """Return (N, h, w): the shares where there is such evidence, else 0."""
        return self.shares * (keep_sign(self.evidence, sign) != 0)


def _contest(values: Tensor, constants: Tensor, targets: Tensor, rivals: Tensor) -> Contest:
    """Return the result of the competition for each target; a target without rivals competes with its absence.

    Args:
        values: (N, J, h, w) float32: the class's logit where all positions are like this one, minus the constant.
        constants: (N, J) float32: its logit without any features.
        targets: (N,) int64: the explained class, of J.
        rivals: (N, J) bool: which of the J compete with it.
    """
    competing = rivals.scatter(1, targets[:, None], True)
    competing = torch.cat([competing, ~rivals.any(dim=1, keepdim=True)], dim=1)
    # The absence is one more class, whose logit is 0 everywhere.
    values, constants = functional.pad(values, (0, 0, 0, 0, 0, 1)), functional.pad(constants, (0, 1))
    shares = competing / competing.sum(dim=1, keepdim=True)
    values = values - torch.einsum("nj,njhw->nhw", shares, values)[:, None]
    logits = values + (constants - (shares * constants).sum(dim=1, keepdim=True))[:, :, None, None]
    units, rows = _standardised(logits), torch.arange(len(values), device=values.device)
    correlations = (units * units[rows, targets, None]).sum(dim=(2, 3))  # Pearson's; 0 for constant maps
    elsewhere = (1 - correlations).clamp_max(1).square()
    elsewhere[rows, targets] = 1
    total = ((elsewhere * competing).log()[:, :, None, None] + logits).logsumexp(dim=1)
    return Contest(values[rows, targets], (logits[rows, targets] - total).exp())


def _standardised(maps: Tensor) -> Tensor:
    """Return maps (N, J, h, w) less their means, of length 1; less if they vary so little that rounding shows."""
    deviations = maps - maps.mean(dim=(2, 3), keepdim=True)
    length, magnitude = (values.norm(dim=(2, 3), keepdim=True) for values in (deviations, maps))
    least = torch.maximum(length, CERTAIN * magnitude)
    return deviations / torch.where(least > 0, least, 1.0)


Head = Callable[[Tensor], Tensor]
"""From feature maps (R, C, h, w) float32 to outputs (R, K) float32; raises an error for maps of another size."""


def contest_at(question: Question, path: str, tensors: LayerTensors, rivals: Tensor) -> Contest | None:
    """Return the contest of the targets, by the class maps of a layer.

    Args:
        question: about the model.
        path: path of the layer.
        tensors: tensors of a forward pass.
        rivals: (N, K), see `Objective.rivals`.

    Returns:
        The contest; None if the head is of another kind, without class maps.
    """
    features, outputs, targets = tensors.activations[path], tensors.outputs, tensors.objective.targets
    linear = linear_head(question, features, outputs)
    if linear is not None and linear.exact:
        values = torch.einsum("kc,nchw->nkhw", linear.weight, features)
        return _contest(values, linear.bias.expand(len(values), -1), targets, rivals)
    head = _head_behind(question, path, tensors.views[path])
    if head is None:
        return None
    agrees = partial(_agree, tolerance(question))
    with torch.no_grad():
        maps = _of_positions(head, features, outputs, agrees)
        if maps is not None:
            return _contest(*maps, targets, rivals)
        if _is_spread_behind(question, path) or not agrees(_outputs(head, features), outputs):
            return None
    return _of_gradients(head, features, outputs, targets, rivals)


def _head_behind(question: Question, path: str, view: FeatureMaps) -> Head | None:
    """Return the part of the model after a layer; None if the outputs depend on more than the layer's feature maps."""
    if not isinstance(view, GridMaps):
        return None
    suffix = suffix_of(question.module, path, question.images, partial(question.progress.at, 0, 1))
    if suffix is None:
        return None

    def head(features: Tensor) -> Tensor:
        # A copy, because a model may modify it in place.
        values = view.put(features, features).to(question.images.dtype, copy=True)
        # Not called, because that prints the traceback of an error, which only says that the head takes no such maps.
        return question.task.outputs(suffix.forward(values)).float()

    return head


def _outputs(head: Head, features: Tensor) -> Tensor | None:
    """Return a head's outputs (R, K) of feature maps (R, C, h, w); None where it takes none of their size."""
    try:
        return torch.cat([head(part) for part in torch.split(features, _rows(features))])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ExplainerError):  # from PyTorch, or from a task that finds no outputs
        return None


def _rows(features: Tensor) -> int:
    """Return the number of rows of feature maps that a head gets at a time."""
    return max(1, min(_ROWS, _BYTES // features[0].nbytes))


def _agree(limit: float, values: Tensor | None, outputs: Tensor) -> bool:
    """Whether values are the outputs up to rounding."""
    return values is not None and values.shape == outputs.shape and bool(relative_difference(values, outputs) < limit)


def _of_positions(
    head: Head, features: Tensor, outputs: Tensor, agrees: Callable[[Tensor | None, Tensor], bool]
) -> tuple[Tensor, Tensor] | None:
    """Return the values and constants of `_contest`, by running the head on each position as a map of its own.

    Returns:
        None unless the outputs are those of the mean position, or the mean of those of all positions.
    """
    count, channels, height, width = features.shape
    means, empty = features.mean(dim=(2, 3), keepdim=True), features.new_zeros(1, channels, 1, 1)
    probe = _outputs(head, torch.cat([means, empty]))
    if probe is None:
        return None
    is_pooled = agrees(probe[:-1], outputs)
    if not is_pooled and not _averages_pairs(head, features[:1], agrees):
        return None
    positions = features.flatten(2).mT.reshape(-1, channels, 1, 1)
    values = _outputs(head, positions)
    if values is None:
        return None
    values = values.reshape(count, height * width, -1).mT.reshape(count, -1, height, width)
    if not is_pooled and not agrees(values.mean(dim=(2, 3)), outputs):
        return None
    constants = probe[-1:]
    return values - constants[:, :, None, None], constants.expand(count, -1)


def _averages_pairs(head: Head, features: Tensor, agrees: Callable[[Tensor | None, Tensor], bool]) -> bool:
    """Whether the outputs of a map of two positions are the mean of theirs, for the strongest and the weakest one."""
    positions = features.flatten(2)
    strength = positions.norm(dim=1)
    pair = torch.cat([positions[:, :, place] for place in (strength.argmax(), strength.argmin())])[:, :, None, None]
    single, joint = _outputs(head, pair), _outputs(head, pair.transpose(0, 3))
    return joint is not None and single is not None and agrees(single.mean(dim=0, keepdim=True), joint)


def _is_spread_behind(question: Question, path: str) -> bool:
    """Whether a layer with parameters behind a layer returns a grid or tokens, so that its positions mix or move."""
    layers = survey_for(question).layers
    paths = [layer.path for layer in layers]
    behind = layers[paths.index(path) + 1 :] if path in paths else layers
    return any(layer.parameters and layer.cells > 1 and not layer.path.startswith(f"{path}.") for layer in behind)


def _of_gradients(head: Head, features: Tensor, outputs: Tensor, targets: Tensor, rivals: Tensor) -> Contest:
    """Return the contest of the targets and their strongest rivals, by features times gradients.

    The product is multiplied by the number of positions, which makes it that of the weights of a linear head.
    """
    count, _, height, width = features.shape
    strongest = outputs.masked_fill(~rivals, -torch.inf).topk(min(STRONGEST, outputs.shape[1] - 1)).indices
    classes = torch.cat([targets[:, None], strongest], dim=1)
    rows = torch.arange(classes.numel(), device=features.device)
    maps = []
    for part in torch.split(rows, _rows(features)):
        leaves = features[part // classes.shape[1]].requires_grad_()
        with torch.enable_grad():
            scores = head(leaves).gather(1, classes.flatten()[part][:, None])
        (gradients,) = torch.autograd.grad(scores.sum(), leaves)
        maps.append((leaves.detach() * gradients).sum(dim=1) * (height * width))
    values = torch.cat(maps).reshape(count, -1, height, width)
    constants = outputs.gather(1, classes) - values.mean(dim=(2, 3))
    return _contest(values, constants, torch.zeros_like(targets), rivals.gather(1, classes))
