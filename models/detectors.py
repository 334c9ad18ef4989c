"""Torchvision's detectors, run by their parts: candidates with raw logits, before any threshold or suppression.

The results of torchvision's own `forward` lack the logits and the indices of the candidates. Here the same public parts
run in the same order under the same paths, and the boxes to show are selected from the candidates.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.models.detection.ssd import SSD
from torchvision.ops import batched_nms, clip_boxes_to_image, remove_small_boxes

from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.tasks.candidates import Candidates, Layout
from seewhy.models.box_head import BoxHead
from seewhy.models.preprocess import Preprocess

LEAST_SIDE = 1e-2
"""Least side of the boxes that Faster R-CNN shows, in pixels."""

Features = dict[str, Tensor]


class DetectorParts(nn.Module):
    """A detector of torchvision that returns its candidates; its modules are the detector's own, under their paths.

    Args:
        detector: stays as it is.

    Attributes:
        box_head: how its candidates are read.
    """

    box_head: BoxHead
    transform: Any  # as torchvision names its parts, all of them modules
    backbone: Any
    head: Any
    anchor_generator: Any
    rpn: Any
    roi_heads: Any

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        for name, part in detector.named_children():
            self.add_module(name, part)
        self.training = detector.training

    def forward(self, images: Tensor) -> Candidates:
        """Return the candidates of pictures (N, 3, H, W), in [0, 1], boxes as fractions of the picture."""
        batch, _ = self.transform(list(images))
        features = self.backbone(batch.tensors)
        if isinstance(features, Tensor):
            features = OrderedDict([("0", features)])
        candidates = self.candidates(batch, features)
        height, width = batch.image_sizes[0]
        return candidates._replace(boxes=candidates.boxes / candidates.boxes.new_tensor((width, height) * 2))

    def candidates(self, batch: ImageList, features: Features) -> Candidates:
        """Return the candidates of transformed pictures, boxes in pixels of these."""
        raise NotImplementedError


class DenseDetector(DetectorParts):
    """RetinaNet, FCOS, SSD and SSDlite: each cell of the feature maps has its own candidates."""

    def __init__(self, detector: RetinaNet | FCOS | SSD) -> None:
        super().__init__(detector)
        self.box_coder = detector.box_coder
        is_ssd, is_fcos = isinstance(detector, SSD), isinstance(detector, FCOS)
        classes = detector.head.classification_head
        self.box_head = BoxHead(
            scoring="softmax" if is_ssd else "geometric-mean" if is_fcos else "sigmoid",
            threshold=detector.score_thresh,
            overlap=detector.nms_thresh,
            most=detector.detections_per_img,
            background=0 if is_ssd else None,
            preselected=("class" if is_ssd else "level", detector.topk_candidates),
            least_side=0,
            shape=Layout(classes.num_columns if is_ssd else classes.num_classes, objectness=is_fcos, levels=not is_ssd),
        )

    def candidates(self, batch: ImageList, features: Features) -> Candidates:
        """Return the candidates of the cells, level by level."""
        maps = list(features.values())
        results = self.head(maps)
        logits, offsets = results["cls_logits"], results["bbox_regression"]
        anchors = torch.cat(self.anchor_generator(batch, maps))
        decode = getattr(self.box_coder, "decode_single", self.box_coder.decode)
        boxes = decode(offsets.flatten(0, 1), anchors).reshape(offsets.shape)
        objectness = results["bbox_ctrness"][..., 0] if "bbox_ctrness" in results else None
        levels = self._levels(maps, logits) if self.box_head.layout.levels else None
        return Candidates(boxes, logits, objectness, levels=levels)

    @staticmethod
    def _levels(maps: list[Tensor], logits: Tensor) -> Tensor:
        """Return the number of each candidate's level, (N, A); each cell has equally many."""
        cells = torch.tensor([values.shape[2] * values.shape[3] for values in maps], device=logits.device)
        per_cell = logits.shape[1] // sum(values.shape[2] * values.shape[3] for values in maps)
        levels = torch.arange(len(maps), device=logits.device, dtype=logits.dtype).repeat_interleave(cells * per_cell)
        return levels.expand(len(logits), -1)


class TwoStageDetector(DetectorParts):
    """Faster, Mask and Keypoint R-CNN: candidates are proposals, and each class has a box of its own."""

    def __init__(self, detector: FasterRCNN) -> None:
        super().__init__(detector)
        heads = detector.roi_heads
        self.box_head = BoxHead(
            scoring="softmax",
            threshold=heads.score_thresh,
            overlap=heads.nms_thresh,
            most=heads.detections_per_img,
            background=0,
            moving=True,
            least_side=LEAST_SIDE / detector.transform.min_size[-1],
            shape=Layout(
                heads.box_predictor.cls_score.out_features, per_class=True, objectness=True, masks=heads.has_mask()
            ),
        )

    def candidates(self, batch: ImageList, features: Features) -> Candidates:
        """Return the candidates of the proposals, padded with empty ones to the maximum number."""
        heads = self.roi_heads
        objectness, proposals = self._proposals(batch, features)
        pooled = heads.box_head(heads.box_roi_pool(features, proposals, batch.image_sizes))
        logits, offsets = heads.box_predictor(pooled)
        boxes = heads.box_coder.decode(offsets, proposals)
        counts = [len(part) for part in proposals]
        most = self.rpn.post_nms_top_n()
        padded = [
            torch.stack([nn.functional.pad(part, (0, 0) * (part.ndim - 1) + (0, most - len(part))) for part in parts])
            for parts in (boxes.split(counts), logits.split(counts), objectness)
        ]
        candidates = Candidates(*padded)
        return self._with_masks(candidates, batch, features) if self.box_head.layout.masks else candidates

    def _proposals(self, batch: ImageList, features: Features) -> tuple[list[Tensor], list[Tensor]]:
        """Return each picture's raw objectness (P,) and proposals (P, 4), as the region proposal network keeps them."""
        rpn, maps = self.rpn, list(features.values())
        levels, offsets = rpn.head(maps)
        anchors = rpn.anchor_generator(batch, maps)
        counts = [level[0].numel() for level in levels]
        objectness, offsets = concat_box_prediction_layers(levels, offsets)
        objectness = objectness.reshape(len(anchors), -1)
        boxes = rpn.box_coder.decode(offsets.detach(), anchors).reshape(len(anchors), -1, 4)
        picks = [
            self._proposed(decoded, scores, counts, size)
            for decoded, scores, size in zip(boxes, objectness.detach(), batch.image_sizes, strict=True)
        ]
        logits = [row[numbers] for row, (numbers, _) in zip(objectness, picks, strict=True)]
        return logits, [proposals for _, proposals in picks]

    def _proposed(
        self, boxes: Tensor, objectness: Tensor, counts: list[int], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return which of a picture's boxes (M, 4) are proposals, (P,), and these, cut at its border."""
        rpn, start, best = self.rpn, 0, []
        for part in torch.split(objectness, counts):
            best.append(part.topk(min(rpn.pre_nms_top_n(), len(part))).indices + start)
            start += len(part)
        levels = torch.repeat_interleave(torch.tensor([len(part) for part in best])).to(boxes.device)
        numbers = torch.cat(best)
        boxes, scores = clip_boxes_to_image(boxes[numbers], size), objectness[numbers].sigmoid()
        order = remove_small_boxes(boxes, rpn.min_size)
        order = order[scores[order] >= rpn.score_thresh]
        order = order[batched_nms(boxes[order], scores[order], levels[order], rpn.nms_thresh)[: rpn.post_nms_top_n()]]
        return numbers[order], boxes[order]

    def _with_masks(self, candidates: Candidates, batch: ImageList, features: Features) -> Candidates:
        """Return the candidates with the mean logits of the masks of those that are shown."""
        heads, sizes = self.roi_heads, batch.image_sizes
        height, width = sizes[0]
        scale = candidates.boxes.new_tensor((width, height) * 2)
        places, boxes = [], []
        for row in range(len(sizes)):
            picture = Candidates(*(part[row].detach() for part in candidates if part is not None))
            numbers, labels = self.box_head.shown(picture._replace(boxes=picture.boxes / scale))
            places.append((torch.full_like(numbers, row), numbers, labels))
            boxes.append(clip_boxes_to_image(picture.boxes[numbers, labels], sizes[row]))
        masks = torch.zeros_like(candidates.logits)
        if any(len(part) for part in boxes):
            rows, numbers, labels = (torch.cat(parts) for parts in zip(*places, strict=True))
            logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, boxes, sizes)))
            logits = logits[torch.arange(len(labels), device=labels.device), labels].flatten(1)
            inside = (logits > 0) | ~(logits > 0).any(dim=1, keepdim=True)
            masks = masks.index_put((rows, numbers, labels), (logits * inside).sum(dim=1) / inside.sum(dim=1))
        return candidates._replace(masks=masks)


def detector_parts(module: nn.Module) -> DetectorParts | None:
    """Return a detector of torchvision as one that returns its candidates; None for any other module."""
    if isinstance(module, DetectorParts):
        return module
    if isinstance(module, RetinaNet | FCOS | SSD):
        return DenseDetector(module)
    return TwoStageDetector(module) if isinstance(module, FasterRCNN) else None


def box_head_of(module: nn.Module, size: tuple[int, int]) -> BoxHead | None:
    """Return the head of a detector with an attribute `box_head`; None for any other module.

    Args:
        module: not torchvision's; runs once on an empty picture.
        size: height and width of its input.

    Raises:
        ModelOutputError: its results hold no candidates.
    """
    head = getattr(module, "box_head", None)
    if not isinstance(head, BoxHead):
        return None
    parameter = next(module.parameters())
    with torch.no_grad(), evaluation_mode(module):
        image = torch.zeros((1, 3, *size), device=parameter.device, dtype=parameter.dtype)
        return head.fitted(module(image), size)


def pyramid(module: DetectorParts, image_shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Return the paths of the modules that make the feature maps of a detector, the finest first.

    For a map that is computed outside modules, this is the last module whose output has its shape. Maps of a single
    cell are left out, and so are maps without such a module, such as the one that torchvision pools only for proposals.
    """
    backbone = module.backbone
    paths = {part: f"backbone.{path}".rstrip(".") for path, part in backbone.named_modules()}
    outputs: list[tuple[str, Tensor]] = []

    def note(part: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.append((paths[part], output))  # a block around a convolution comes after it

    parameter = next(module.parameters())
    image = torch.zeros(image_shape, device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad(), evaluation_mode(module), HookSession(backbone) as hooks:
        hooks.after_forward(note, paths.__contains__)
        batch, _ = module.transform([image])
        maps = [value for value in tree_leaves(backbone(batch.tensors)) if value.shape[-2:].numel() > 1]
    levels = []
    for values in maps:
        makers = [path for path, output in outputs if output is values]
        levels += (makers or [path for path, output in outputs if output.shape == values.shape])[-1:]
    return tuple(dict.fromkeys(levels))


def preprocess_of_detector(module: nn.Module) -> Preprocess:
    """Return the preprocessing for a detector of torchvision, which normalises and resizes pictures itself."""
    transform: Any = module.transform
    side = transform.min_size[-1]
    return detector_preprocess(transform.fixed_size or side, is_stretched=bool(transform.fixed_size))


def detector_preprocess(side: int | tuple[int, int], is_stretched: bool) -> Preprocess:
    """Return a preprocessing that leaves normalisation to the detector.

    Args:
        side: side of the input in pixels, or (width, height).
        is_stretched: whether pictures lose their proportions, as for SSD; otherwise they get a black border where they
            are not square.
    """
    width, height = (side, side) if isinstance(side, int) else side
    return Preprocess(
        size=(height, width),
        scale_size=(height, width),
        resize="exact" if is_stretched else "longer",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
