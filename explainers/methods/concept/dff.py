"""Deep feature factorisation: activations as regions times concepts, and the region with the most evidence."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution, Regions
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.feature_maps import FeatureMaps
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed

MOST = 64
"""Maximum number of regions of a factorisation."""

TINY = 1e-12


def factorize(
    question: Question, tensors: LayerTensors, count: int, iterations: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Factorise the activations of a layer, each picture separately; see `nonnegative_factors`.

    Returns:
        (N, k, h, w) float32, not negative: how strong each concept is at each position; and the concepts (N, k, C)
        float32, not negative, of length 1.

    Raises:
        LayerError: there are several layers, or the layer cannot carry a CAM, or its activations are mostly negative.
    """
    if len(tensors.paths) != 1:
        raise LayerError(f"{', '.join(tensors.paths)} are several layers; choose one to factorise.")
    ((path, activations),) = tensors.activations.items()
    positive = activations.clamp_min(0)
    if bool((positive.square().sum(dim=(1, 2, 3)) < (activations - positive).square().sum(dim=(1, 2, 3))).any()):
        raise LayerError(
            f"The activations of layer {path!r} are mostly negative, and a non-negative factorisation would lose "
            "them; choose a layer after a rectifier (ReLU)."
        )
    height, width = activations.shape[2:]
    total = len(activations) * (2 * count + 1)  # the runs of `regions_of`
    strengths, concepts = nonnegative_factors(
        positive.flatten(2).mT, count, iterations, seed, lambda: question.progress.at(0, total)
    )
    lengths = concepts.norm(dim=2).clamp_min(TINY)
    regions = (strengths * lengths[:, None]).mT.reshape(len(activations), count, height, width)
    return regions.float(), (concepts / lengths[:, :, None]).float()


def nonnegative_factors(
    values: Tensor, count: int, iterations: int, seed: int, report: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor]:
    """Factorise non-negative matrices into non-negative factors, by hierarchical alternating least squares.

    Each column of the left factor and each row of the right one is set, in turn, to the values that make the squared
    error smallest. All matrices start from the same random factors, scaled to each matrix.

    Args:
        values: (N, P, C), not negative.
        count: rank of the factors.
        iterations: how often each column and row is set.
        seed: seed of the random factors.
        report: called before each iteration; an exception ends the work.

    Returns:
        (N, P, count) and (N, count, C), float64.
    """
    values = values.double()
    generator = torch.Generator().manual_seed(seed)
    scale = (values.mean(dim=(1, 2), keepdim=True) / count).sqrt()
    left, right = (
        torch.rand(shape, generator=generator, dtype=torch.float64).to(values.device) * scale
        for shape in ((values.shape[1], count), (count, values.shape[2]))
    )
    for _ in range(iterations):
        report()
        right = _least_squares(left.mT @ left, left.mT @ values, right)
        left = _least_squares(right @ right.mT, right @ values.mT, left.mT).mT
    return left, right


def _least_squares(gram: Tensor, sides: Tensor, rows: Tensor) -> Tensor:
    """Return rows (N, k, M) after each was improved once, given the products (N, k, k) and (N, k, M)."""
    rows = rows.clone()
    for number in range(rows.shape[1]):
        change = sides[:, number] - (gram[:, number, None] @ rows)[:, 0]
        rows[:, number] = (rows[:, number] + change / gram[:, number, number, None].clamp_min(TINY)).clamp_min(0)
    return rows


def regions_of(question: Question, tensors: LayerTensors, regions: Tensor, concepts: Tensor) -> Regions:
    """Return the regions with their gains and logits, the largest gain first; arguments as `factorize` has them."""
    count, rank = regions.shape[:2]
    # Each concept fills the layer, with the mean strength that it has in its region.
    sums, squares = (regions.pow(power).sum(dim=(2, 3), keepdim=True) for power in (1, 2))
    everywhere = (squares / sums.clamp_min(TINY)).expand_as(regions)
    # One run of the model for each row: an empty layer, each region alone, and each concept everywhere.
    parts = torch.cat([torch.zeros_like(regions[:, :1]), regions, everywhere], dim=1)
    ((path, view),) = tensors.views.items()
    outputs = continued(question, path, view, parts, torch.cat([concepts[:, :1], concepts, concepts], dim=1))
    scores = torch.stack([tensors.objective.scores(rows) for rows in outputs.unbind(1)], dim=1)
    gains = scores[:, 1 : rank + 1] - scores[:, :1]
    order = gains.argsort(dim=1, descending=True, stable=True)
    rows = torch.arange(count, device=order.device)[:, None]
    return Regions(regions[rows, order], gains[rows, order], outputs[:, rank + 1 :][rows, order])


def continued(question: Question, layer: str, view: FeatureMaps, regions: Tensor, concepts: Tensor) -> Tensor:
    """Return the outputs of the model when the layer's output is one concept in one region.

    Args:
        question: its pictures run through the model up to the layer.
        layer: path of a layer that runs once.
        view: how its output holds feature maps.
        regions: (N, R, h, w), how strong the concept is at each position.
        concepts: (N, R, C).

    Returns:
        Outputs (N, R, ...) float32.
    """
    images = question.images
    count, runs = regions.shape[:2]
    regions, concepts = regions.flatten(0, 1), concepts.flatten(0, 1)
    owners = torch.arange(count, device=images.device).repeat_interleave(runs)
    module, run = question.host((layer,))
    outputs = []
    for part in question.chunks(len(owners)):
        copies, features = images[owners[part]], torch.einsum("rhw,rc->rchw", regions[part], concepts[part])

        def replace_output(_module: nn.Module, _args: object, output: Tensor, features: Tensor = features) -> Tensor:
            return view.put(output, features.to(output.dtype)).contiguous()

        with torch.no_grad(), HookSession(module) as hooks:
            hooks.after_forward(replace_output, layer)
            outputs.append(question.outputs(run(copies)).float())
    joined = torch.cat(outputs)
    return joined.reshape(count, runs, *joined.shape[1:])


@method("dff", family="concept", forwards="2 + 2 * concepts", backwards="0")
class DFF(LayerExplainer):
    r"""Deep feature factorisation: the region with the most evidence for the class, out of regions with similar
    features in a layer.

    .. math:: \min_{H \ge 0, W \ge 0} \lVert A - H W \rVert_F^2, \qquad
              k^* = \arg\max_k \; S(H_k W_k), \qquad M = H_{k^*}

    where A has a row per position and a column per channel. A column of H is a region, and a row of W is its concept
    (section 3). The paper has no target class. The map here is the region that gives the target the highest score when
    it alone replaces A in the layer. Drawings show all regions as a labelled panel; JSON and Python
    (``Explanation.regions``) list them, each with its contribution to the score and the best classes of its concept.

    Deviations: each picture is factorised separately, so concepts are not shared between pictures. Negative activations
    are set to zero, as by a ReLU; a layer whose activations are mostly negative is an error.
    """

    sign: Annotated[Sign, Field(description="No effect: regions are never negative.")] = "positive"
    layers: Annotated[
        tuple[str, ...], Field(max_length=1, description="Dotted path of the layer; only one can be factorised.")
    ] = ()
    concepts: Annotated[int, Field(ge=1, le=MOST, description="Number of regions to divide the picture into.")] = 5
    iterations: Annotated[int, Field(ge=1, le=1000, description="Iterations of the factorisation.")] = 200
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, one with nothing in the layer, and two for each region."""
        tensors = collect(question, self.layers_of(question), None)
        parts = factorize(question, tensors, self.concepts, self.iterations, self.seed)
        regions = regions_of(question, tensors, *parts)
        answer = self.answer(self.project(regions.maps[:, :1]), tensors.objective, tensors.outputs, tensors.paths)
        return replace(answer, regions=regions)
