"""DAVE: the effective transformation of a transformer, averaged over views of the picture.

A transformer is a chain of linear maps whose entries depend on the picture: attention mixes values by probabilities, an
activation multiplies each of its inputs by a gate, a normalisation divides by a deviation. The gradient of the chain
with all of these held constant is the map that the network applies to this very picture.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.baselines import blurred
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer, Seed
from seewhy.explainers.methods.rules.attention import linear_part
from seewhy.explainers.methods.rules.base import (
    Operation,
    Rules,
    is_linear,
    only_first_depends,
    propagate,
    replaced,
    slope_of,
)
from seewhy.explainers.methods.rules.relevance import WINNERS

OUTLYING = 2.5
"""Deviations from the median beyond which a sample does not count."""

_NORMAL = 1.4826
"""Standard deviation of a normal distribution, over its median absolute deviation."""

_ROWS = 32
"""Rows of pictures whose samples are averaged at a time."""

_GATED = ("gelu", "silu", "mish", "hardswish", "elu", "selu", "celu", "tanh", "relu", "relu6", "leaky_relu")
"""Functions that are zero at zero: each is its input times a gate."""

_BOUNDED = ("hardtanh", "clamp", "clamp_min", "threshold")
"""Functions that are zero at zero where their bounds allow it."""


def _bounded(operation: Operation) -> Tensor | None:
    try:
        is_gated = bool(operation(torch.zeros(1)) == 0)
    except RuntimeError:  # bounds that are tensors on another device
        return None
    return _gated(operation) if is_gated else None


def _gated(operation: Operation) -> Tensor | None:
    """An activation f(x): the gradient is times f(x) / x, at 0 times the limit of that, the slope."""
    if not only_first_depends(operation):
        return None
    values, function = operation.args[0].detach().clone(), operation.apart()

    def backward(gradient: Tensor) -> tuple[Tensor]:
        gates = torch.where(values == 0, slope_of(function, values.new_zeros(1)), function(values) / values)
        return (gradient * gates,)

    return replaced(operation(values), backward, operation.args[0])


def _normalised(operation: Operation) -> Tensor | None:
    """A normalisation: the gradient of its linear part, which centres and scales."""
    apply = linear_part(operation)
    if apply is None:
        return None
    values = operation.args[0]
    shape = values.shape

    def backward(gradient: Tensor) -> tuple[Tensor]:
        with torch.enable_grad():
            leaf = torch.zeros(shape, device=gradient.device, requires_grad=True)
            (slopes,) = torch.autograd.grad(apply(leaf), leaf, gradient.float())
        return (slopes,)

    return replaced(operation(values.detach()), backward, values)


_RULES = Rules(
    "dave",
    dict.fromkeys(_GATED, _gated)
    | dict.fromkeys(_BOUNDED, _bounded)
    | dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), _normalised),
    lambda kind, node: kind in WINNERS or is_linear(kind, node),  # a gate picks the largest of several values too
    constants=frozenset({"softmax", "sigmoid"}),
)


@method(
    "dave",
    family="transformer",
    forwards="1 + samples",
    backwards="samples",
    fine=True,
    rounding="which samples are too far from the median and are omitted",
)
class DAVE(Explainer):
    r"""DAVE: the linear map that a transformer applies to the picture, averaged over shifted and noisy views of it.

    .. math:: M_{ij} = \sum_c x_{cij} \, \operatorname*{mean}_k
              \big(G_k^\top (1 - t_k) L(v_k)\big)_{cij}, \qquad
              v_k = (1 - t_k) \, G_k x + \sqrt{1 - (1 - t_k)^2} \, \epsilon_k

    where :math:`L(v) = \partial y^t / \partial v` is the gradient with everything constant that depends on the picture
    within an operation: the probabilities of attention, the gates of activations (GELU is its input times
    :math:`\Phi`), the deviations of normalisations. :math:`G_k` randomly mirrors, rotates, shifts and scales the
    picture, with bilinear interpolation and zeros outside, and its transpose maps the gradient back. The noise
    increases linearly from sample to sample up to ``noise_level``. A sample counts in the mean of a value of the input
    if its contribution there is within 2.5 scaled median absolute deviations of the median.

    The defaults are those of the authors' code. The authors tune the noise for each model (0.1 for ViT-S/16, 0.3 for
    ViT-B/16, 0.5 for DeiT-S and DeiT III-S, 0.7 for DeiT-B, 0.9 for DeiT III-B), with the lowest values for models that
    are sensitive to noise. Deviations: a single blur replaces their two filters, a Gaussian of 11 by 11 pixels, of
    which they also take half, and a bilateral filter, whose range is in units of the logit and therefore depends on the
    model. They drop negative evidence (kept by ``sign="signed"``) before the blur instead of after it. Here the median
    of an even number of samples is the mean of the middle two.

    Activations that are zero at zero, maxima, group norm and sigmoids are held constant in the same way, so
    convolutional networks and transformers with windows can be explained too. A product of two other activations is
    refused.
    """

    samples: Annotated[int, Field(ge=1, le=500, description="Number of views of the picture.")] = 50
    flips: Annotated[bool, Field(description="Mirror half of the views.")] = True
    rotation: Annotated[float, Field(ge=0, le=180, description="Maximum rotation of a view, in degrees.")] = 20.0
    shift: Annotated[
        float, Field(ge=0, le=1, description="Maximum shift of a view, as a share of the picture's width and height.")
    ] = 0.1
    scaling: Annotated[float, Field(ge=0, le=0.9, description="Maximum change of a view's size, as a share.")] = 0.1
    noise_level: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Noise level n of the last view: its pixels are multiplied by 1 - n, and normal noise "
            "restores a variance of 1 in normalised units. Tune it for each model, 0.1 to 0.9.",
        ),
    ] = 0.3
    blur: Annotated[
        float,
        Field(
            ge=0, le=100, description="Standard deviation in pixels of a blur, which is mixed in by half; 0 for none."
        ),
    ] = 3.0
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per sample."""
        objective, outputs = question.plain()
        images = widened(question.images).float()
        values, samples = torch.zeros_like(images), images.new_empty(self.samples, *images.shape[1:])
        for number, (picture, term) in enumerate(self._terms(question, objective, images)):
            samples[number % self.samples] = term
            present = samples[: number % self.samples + 1]
            if len(present) == self.samples:
                values[picture] = robust_mean(present)
            question.progress.show(partial(self._preview, values, picture, present))
        return self.answer(self._maps(values), objective, outputs)

    def _terms(self, question: Question, objective: Objective, images: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the picture and the contributions (C, H, W) of each sample, picture by picture."""
        views = self._views(images)
        for part in question.chunks(len(images) * self.samples, backward=True):
            pictures, places, parts, noises = zip(*islice(views, part.stop - part.start), strict=True)
            rows, grids = torch.tensor(pictures, device=images.device), torch.stack(places)
            shares = images.new_tensor(parts).view(-1, 1, 1, 1)
            # The noise restores the variance of 1.
            noisy = shares * seen(images[rows], grids) + (1 - shares**2).sqrt() * torch.stack(noises)
            slopes, _, _ = propagate(question, noisy.to(question.images), _RULES, objective=objective.rows(rows))
            terms = images[rows] * laid_back(shares * slopes, grids)
            yield from zip(pictures, terms, strict=True)

    def _views(self, images: Tensor) -> Iterator[tuple[int, Tensor, float, Tensor]]:
        """Yield random views of each picture, (N, C, H, W), which do not depend on the other pictures.

        Each consists of the picture's index, the places of the view's pixels in the picture, (H, W, 2), their factor,
        and normal noise (C, H, W).
        """
        levels = torch.linspace(0, self.noise_level, self.samples).tolist()
        for picture, image in enumerate(images):
            generator = torch.Generator().manual_seed(self.seed)
            for level in levels:
                mirror, turn, right, down, growth = (2 * torch.rand(5, generator=generator) - 1).tolist()
                grid = grid_of(
                    (image.shape[1], image.shape[2]),
                    self.flips and mirror < 0,
                    self.rotation * turn,
                    (self.shift * right, self.shift * down),
                    1 + self.scaling * growth,
                )
                noise = torch.randn(image.shape, generator=generator)
                yield picture, grid.to(image), 1 - level, noise.to(image)

    def _maps(self, values: Tensor) -> Tensor:
        return self.project((values + blurred(values, self.blur)) / 2)

    def _preview(self, values: Tensor, picture: int, samples: Tensor) -> Tensor:
        """Return the maps (N, H, W) so far: of a picture with some samples, those before it, and zeros after it."""
        values = values.clone()
        values[picture] = robust_mean(samples)
        return self._maps(values)


def grid_of(size: tuple[int, int], mirrored: bool, degrees: float, shift: tuple[float, float], scale: float) -> Tensor:
    """Return the places of a view's pixels in the picture, (H, W, 2) float32, as `grid_sample` reads them.

    The picture is mirrored first, then scaled and turned about its middle, then moved.

    Args:
        size: height and width.
        mirrored: from left to right.
        degrees: clockwise.
        shift: to the right and down, as shares of the width and the height.
        scale: scale of the picture in the view.
    """
    height, width = size
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    cosine, sine = float(angle.cos()) / scale, float(angle.sin()) / scale
    # Coordinates of `grid_sample` run from -1 to 1 along both sides; angles are those of pixels.
    turn = torch.tensor([[cosine, sine * height / width], [-sine * width / height, cosine]], dtype=torch.float64)
    if mirrored:
        turn[0] *= -1
    move = -2 * turn @ torch.tensor(shift, dtype=torch.float64)
    matrix = torch.cat([turn, move[:, None]], dim=1)[None].float()
    return functional.affine_grid(matrix, [1, 1, height, width], align_corners=False)[0]


def seen(images: Tensor, grids: Tensor) -> Tensor:
    """Return the views (R, C, H, W) of pictures (R, C, H, W), zero beyond their edges, for grids (R, H, W, 2)."""
    return functional.grid_sample(images, grids, align_corners=False)


def laid_back(values: Tensor, grids: Tensor) -> Tensor:
    """Return gradients (R, C, H, W) by the pixels of pictures, given those by the pixels of their views."""
    with torch.enable_grad():
        leaf = torch.zeros_like(values).requires_grad_()
        (gradients,) = torch.autograd.grad(seen(leaf, grids), leaf, values)
    return gradients


def robust_mean(samples: Tensor) -> Tensor:
    """Return the mean (C, H, W) of samples (S, C, H, W) without those that lie far from the median, value by value."""
    return torch.cat([_inlying_mean(rows) for rows in torch.split(samples, _ROWS, dim=2)], dim=1)


def _inlying_mean(samples: Tensor) -> Tensor:
    distances = (samples - _median(samples)).abs()
    counted = distances <= OUTLYING * (_NORMAL * _median(distances) + 1e-8)
    return (samples * counted).sum(dim=0) / counted.sum(dim=0)


def _median(samples: Tensor) -> Tensor:
    """Return the median along the first axis; of an even number, the mean of the middle two."""
    low, high = samples.median(dim=0).values, -(-samples).median(dim=0).values
    return (low + high) / 2
