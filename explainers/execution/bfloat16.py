"""The part of a model before a cut in bfloat16, if its explanations stay the same."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.correlations import rank_correlations
from seewhy.explainers.execution.conversion import convert
from seewhy.explainers.execution.cut import Cut
from seewhy.explainers.execution.runtime import BATCH, Run, faster, openvino_run

LEAST_RANK_CORRELATION = 0.99
"""Minimum rank correlation of a map with that in float32."""

TIE = 0.05
"""The best outputs are tied if they differ by less than this share of the largest."""


class UnsuitableError(Exception):
    """The model stays in float32."""


def rounded(cut: Cut, outputs: Callable[[Any], Tensor], shape: tuple[int, int, int]) -> Run:
    """Return the prefix of a cut in bfloat16, on OpenVINO.

    It is compared with float32 on as many pictures as a batch has, and on fewer, for which OpenVINO has other graphs.

    Args:
        cut: cut of a model in float32 and in evaluation mode.
        outputs: reads the outputs (N, ...) from the model's result.
        shape: (C, H, W) of the images.

    Raises:
        UnsuitableError: the maps rank differently, the best output changes, or bfloat16 is not faster.
        Exception: whatever the trace or the runtime raises.
    """
    images = _likely_images(BATCH, shape)
    model = convert(cut.prefix, images[:1])
    exact, in_bfloat16 = openvino_run(model), openvino_run(model, "bf16")
    with torch.no_grad():
        expected = cut.prefix(images.clone())
    for count in (1, 3, len(images)):
        _must_agree(cut, outputs, [values[:count] for values in expected], in_bfloat16(images[:count]))
    if faster((exact, in_bfloat16), images) is exact:
        raise UnsuitableError("It is not faster on this processor.")
    return in_bfloat16


def _must_agree(
    cut: Cut, outputs: Callable[[Any], Tensor], expected: Sequence[Tensor], actual: Sequence[Tensor]
) -> None:
    """Raise `UnsuitableError` if maps rank differently, or another output becomes the best one."""
    scores, maps = _scores_and_maps(cut, outputs, expected)
    other_scores, other_maps = _scores_and_maps(cut, outputs, actual)
    best = other_scores.argmax(1, keepdim=True)
    lead = scores.amax(1) - scores.gather(1, best)[:, 0]
    if not (lead <= TIE * scores.abs().max()).all():  # nor if one is not a number
        raise UnsuitableError("The best output changes.")
    varies = maps.amin(1) < maps.amax(1)
    correlations = rank_correlations(maps[varies], other_maps[varies])
    if not (correlations >= LEAST_RANK_CORRELATION).all():
        raise UnsuitableError(f"The rank correlation of maps falls to {correlations.min():.3f}.")


def _scores_and_maps(cut: Cut, outputs: Callable[[Any], Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return all outputs (N, K), and maps (N, places) of the best one: activations times gradients, over channels."""
    with torch.enable_grad():
        leaves = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in values]
        scores = outputs(cut.suffix(*(leaf.clone() for leaf in leaves))).flatten(1)  # a model may modify its input
        floating = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(scores.amax(1).sum(), floating, materialize_grads=True)
    products = [leaf.detach() * gradient for leaf, gradient in zip(floating, gradients, strict=True)]
    maps = [(product.sum(1) if product.ndim == 4 else product).flatten(1) for product in products]
    return scores.detach(), torch.cat(maps, dim=1)


def _likely_images(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Return images (N, C, H, W) of mean 0 and deviation 1, with the spectrum of photographs."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, *shape, generator=generator) + 2 * torch.randn(count, 1, *shape[1:], generator=generator)
    height, width = shape[1:]
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = torch.inf  # no mean
    images: Tensor = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=(height, width))
    return images / images.std(dim=(1, 2, 3), keepdim=True)
