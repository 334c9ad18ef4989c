"""XRAI: integrated gradients, gathered in regions of the picture."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign, keep_sign, principal_component
from seewhy.explainers.core.question import Question, widened
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.base import maps_of_sums
from seewhy.explainers.methods.gradient.integrated import points_of_lines

SCALES = (50, 100, 150, 250, 500, 1200)
"""Scales of Felzenszwalb's segmentation: the larger, the fewer and larger the segments."""

SIDE = 224
"""Pictures are segmented at the area of a square of this side, in their own proportions. The next numbers suit it."""

SMOOTHING, SMALLEST, DILATION, LEAST = 0.8, 150, 5, 50
"""In pixels: blur before segmentation, smallest segment, growth of segments, minimum of new pixels of a region."""


@method(
    "xrai",
    family="gradient",
    forwards="1 + 2 * steps",
    backwards="2 * steps",
    fine=True,
    rounding="which of two regions with almost equal density comes first",
)
class XRAI(Explainer):
    r"""XRAI: integrated gradients averaged over the regions of a segmentation, the strongest regions first.

    .. math:: s_k = \arg\max_{s \in S} \frac{1}{|s \setminus R_k|} \sum_{i \in s \setminus R_k} A_i,
              \qquad R_{k+1} = R_k \cup s_k, \qquad
              M_i = \frac{1}{|s_k \setminus R_k|} \sum_{j \in s_k \setminus R_k} A_j
              \ \text{ for } i \in s_k \setminus R_k

    A are integrated gradients, the mean over two baselines. S are the segments of Felzenszwalb's algorithm at six
    scales, each dilated by some pixels to include its edges. The region with the highest density comes first, then the
    one whose new pixels are the densest, and so on. The remaining pixels, too few for a region, share their mean.

    As in the authors' code, the baselines have the lowest and the highest value of the picture in all channels (black
    and white, if the picture has both), and the parameters of the segmentation are the same. That code uses the largest
    of the channels; here they are summed, so with ``sign="signed"`` the map has the same sum as integrated gradients.
    Pictures that are not square are segmented in their own aspect ratio.
    """

    sign: Annotated[
        Sign, Field(description="Regions for and against the class, for it only, or magnitudes of regions.")
    ] = "signed"
    steps: Annotated[
        int,
        Field(
            ge=1, le=2000, description="Number of points where gradients are computed, on the line from each baseline."
        ),
    ] = 50

    def attribute(self, question: Question) -> Attribution:
        """One pass to find the class, then a forward and a backward pass per step and baseline."""
        images = widened(question.images)
        lines = torch.stack((images.amin(dim=(1, 2, 3)), images.amax(dim=(1, 2, 3))), dim=1)
        pairs = images.repeat_interleave(2, dim=0)
        points = points_of_lines(pairs, lines.view(-1, 1, 1, 1).expand_as(pairs), self.steps)
        halves = (point._replace(picture=point.picture // 2) for point in points)
        project = principal_component if self.smooth == "eigen" else partial(torch.sum, dim=1)
        plain = replace(question, progress=question.progress.unseen)  # the sums of pixels are not a map of regions yet
        steps = 2 * self.steps
        values, objective, outputs = maps_of_sums(plain, halves, steps, lambda sums: project(sums / 2))
        total = len(images) * steps
        maps = []
        for value, image in zip(values, images, strict=True):
            segments = []
            for masks in regions_at_scales(image):
                segments.append(masks)
                question.progress.at(total, total)  # segments take time but no pass: others may run the model meanwhile
            maps.append(ranked(value.cpu().double(), torch.cat(segments), math.ceil(LEAST * value.numel() / SIDE**2)))
        return self.answer(keep_sign(torch.stack(maps).to(values), self.sign), objective, outputs)


def regions_at_scales(image: Tensor) -> Iterator[Tensor]:
    """Yield the regions (R, H, W), true or false, of a picture (C, H, W) at each of `SCALES`."""
    from skimage.segmentation import felzenszwalb  # slow to import

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
    # Pixels from beyond the border have a label of their own, which is dropped at the end.
    padded = functional.pad(labels.long(), (DILATION,) * 4, value=count)
    masks = torch.zeros(count + 1, height * width, dtype=torch.bool)
    for down, across in product(range(2 * DILATION + 1), repeat=2):
        if (down - DILATION) ** 2 + (across - DILATION) ** 2 <= DILATION**2:
            shifted = padded[down : down + height, across : across + width]
            masks.scatter_(0, shifted.reshape(1, -1), True)
    return masks[:count].view(count, height, width)


def ranked(values: Tensor, regions: Tensor, least: int) -> Tensor:
    """Return the map (H, W) where each pixel has the mean of the values that its region added.

    Args:
        values: (H, W) float64.
        regions: (R, H, W) true or false.
        least: regions that would add fewer pixels than this are left out.
    """
    flat, masks = values.flatten(), regions.flatten(1)
    members = masks.T.contiguous()
    result, free = torch.zeros_like(flat), torch.ones_like(flat, dtype=torch.bool)
    sums, areas = torch.zeros(len(masks), dtype=flat.dtype), torch.zeros(len(masks), dtype=flat.dtype)
    for pixels in torch.split(torch.arange(len(flat)), 8192):
        sums += members[pixels].to(flat).T @ flat[pixels]
        areas += members[pixels].sum(dim=0)
    while bool((areas >= least).any()):
        best = torch.where(areas >= least, sums / areas, -torch.inf).argmax()
        new = (masks[best] & free).nonzero()[:, 0]
        result[new] = flat[new].mean()
        free[new] = False
        # Sums and areas of all regions are kept up to date by the pixels just taken: each pixel is taken once, so the
        # whole loop costs as much as one look at all regions.
        sums -= members[new].to(flat).T @ flat[new]
        areas -= members[new].sum(dim=0)
    if bool(free.any()):
        result[free] = flat[free].mean()
    return result.view_as(values)
