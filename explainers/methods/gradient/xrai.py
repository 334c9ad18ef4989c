"""XRAI: integrated gradients, gathered in regions of the picture."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.projection import Sign, keep_sign, principal_component
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.gradient.integrated import points_of_lines
from seewhy.explainers.methods.gradient.samples import maps_of_sums

SCALES = (50, 100, 150, 250, 500, 1200)
"""Of Felzenszwalb's segmentation: the larger, the fewer and larger the segments."""

SIDE = 224
"""Pictures are segmented at the size of a square of this side, in their own proportions; what follows is for it."""

SMOOTHING, SMALLEST, DILATION, LEAST = 0.8, 150, 5, 50
"""Blur before segmentation, pixels of a segment at least, pixels that it grows by, new pixels of a region at least."""


@method(
    "xrai",
    family="gradient",
    summary="Integrated gradients averaged over the regions of a segmentation, the strongest regions first.",
    paper=Paper(
        "Kapishnikov, Bolukbasi, Viégas, Terry",
        "XRAI: Better Attributions Through Regions",
        2019,
        "https://arxiv.org/abs/1906.02825",
    ),
    forwards="1 + 2 * steps",
    backwards="2 * steps",
    fine=True,
    rounding="which of two regions of all but equal density is taken first",
)
@dataclass(frozen=True, kw_only=True)
class XRAI(Explainer):
    r"""XRAI: regions of the picture, ranked by the density of their integrated gradients.

    .. math:: s_k = \arg\max_{s \in S} \frac{1}{|s \setminus R_k|} \sum_{i \in s \setminus R_k} A_i,
              \qquad R_{k+1} = R_k \cup s_k, \qquad
              M_i = \frac{1}{|s_k \setminus R_k|} \sum_{j \in s_k \setminus R_k} A_j
              \ \text{ for } i \in s_k \setminus R_k

    A are integrated gradients, the mean of those from two baselines, S the segments that Felzenszwalb's algorithm
    finds at six scales, each grown by some pixels to hold its edges. The region of the highest density is taken first,
    then the one that adds the most dense pixels, and so on; pixels that no region adds in number share their mean.

    As in the authors' code the baselines have the lowest and the highest value of the picture in all channels, black
    and white where it has both, and the numbers of the segmentation are its own. Where it takes the largest of the
    channels, here they are summed, so that with ``sign="signed"`` the map sums to what integrated gradients sum to.
    And pictures that are not square are segmented in their own proportions.

    Attributes:
        steps: points of each line where gradients are taken.
    """

    sign: Annotated[
        Sign, Field(description="Regions for and against the class, those for it only, or magnitudes of regions.")
    ] = "signed"
    steps: Annotated[
        int, Field(ge=1, le=2000, description="Points where gradients are taken, of the lines from each baseline.")
    ] = 50

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per step and baseline."""
        objective, outputs = question.plain()
        images = widened(question.images)
        lines = torch.stack((images.amin(dim=(1, 2, 3)), images.amax(dim=(1, 2, 3))), dim=1)
        pairs = images.repeat_interleave(2, dim=0)
        points = points_of_lines(pairs, lines.view(-1, 1, 1, 1).expand_as(pairs), self.steps)
        halves = (point._replace(picture=point.picture // 2) for point in points)
        reduced = principal_component if self.smooth == "eigen" else partial(torch.sum, dim=1)
        plain = replace(question, progress=question.progress.unseen)  # what is summed here is no map of regions yet
        total = len(pairs) * self.steps
        values = maps_of_sums(plain, objective, halves, total, lambda sums: reduced(sums / 2))
        maps = []
        for value, image in zip(values, images, strict=True):
            cut = []
            for found in regions_at_scales(image):
                cut.append(found)
                # Segments take no pass, but time: others may run the model meanwhile.
                question.progress.at(total, total)
            maps.append(ranked(value.cpu().double(), torch.cat(cut), math.ceil(LEAST * value.numel() / SIDE**2)))
        return self.answer(keep_sign(torch.stack(maps).to(values), self.sign), objective, outputs)


def regions(image: Tensor) -> Tensor:
    """Return the overlapping regions (R, H, W), true or false, of a picture (C, H, W)."""
    return torch.cat(list(regions_at_scales(image)))


def regions_at_scales(image: Tensor) -> Iterator[Tensor]:
    """Yield the regions (R, H, W), true or false, of a picture (C, H, W) at each of `SCALES`."""
    from skimage.segmentation import felzenszwalb

    height, width = image.shape[1:]
    factor = SIDE / math.sqrt(height * width)
    size = max(1, round(height * factor)), max(1, round(width * factor))
    lowest, highest = image.min(), image.max()
    unit = (image - lowest) / (highest - lowest).clamp_min(torch.finfo(image.dtype).tiny)
    if size != (height, width):
        unit = functional.interpolate(unit[None], size=size, mode="bicubic", antialias=True)[0].clamp(0, 1)
    array = (2 * unit - 1).permute(1, 2, 0).cpu().double().numpy()
    rows = ((torch.arange(height) + 0.5) * size[0] / height).long()
    columns = ((torch.arange(width) + 0.5) * size[1] / width).long()
    for scale in SCALES:
        labels = torch.as_tensor(felzenszwalb(array, scale=scale, sigma=SMOOTHING, min_size=SMALLEST))
        yield grown(labels)[:, rows][:, :, columns]


def grown(labels: Tensor) -> Tensor:
    """Return the segments (R, h, w), true or false, of labels (h, w), each grown by a disk of radius `DILATION`."""
    height, width = labels.shape
    count = int(labels.max()) + 1
    # What comes from beyond the border goes to a row of its own, which is dropped.
    padded = functional.pad(labels.long(), (DILATION,) * 4, value=count)
    masks = torch.zeros(count + 1, height * width, dtype=torch.bool)
    for down, across in product(range(2 * DILATION + 1), repeat=2):
        if (down - DILATION) ** 2 + (across - DILATION) ** 2 <= DILATION**2:
            shifted = padded[down : down + height, across : across + width]
            masks.scatter_(0, shifted.reshape(1, -1), True)
    return masks[:count].view(count, height, width)


def ranked(values: Tensor, regions: Tensor, least: int) -> Tensor:
    """Return the map (H, W) where each pixel has the mean of what its region added.

    Args:
        values: (H, W) float64.
        regions: (R, H, W) true or false.
        least: regions that add fewer pixels are left out.
    """
    flat, masks = values.flatten(), regions.flatten(1)
    members = masks.T.contiguous()
    found, free = torch.zeros_like(flat), torch.ones_like(flat, dtype=torch.bool)
    sums, areas = torch.zeros(len(masks), dtype=flat.dtype), torch.zeros(len(masks), dtype=flat.dtype)
    for pixels in torch.split(torch.arange(len(flat)), 8192):
        sums += members[pixels].to(flat).T @ flat[pixels]
        areas += members[pixels].sum(dim=0)
    while bool((areas >= least).any()):
        best = torch.where(areas >= least, sums / areas, -torch.inf).argmax()
        added = (masks[best] & free).nonzero()[:, 0]
        found[added] = flat[added].mean()
        free[added] = False
        # A region loses what another one has taken; each pixel is taken once.
        sums -= members[added].to(flat).T @ flat[added]
        areas -= members[added].sum(dim=0)
    if bool(free.any()):
        found[free] = flat[free].mean()
    return found.view_as(values)
