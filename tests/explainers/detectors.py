"""Torchvision's seven detectors with tiny backbones and fixed random weights, and one of our own."""

from collections import OrderedDict
from functools import partial

import torch
from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN, KeypointRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.ops import FeaturePyramidNetwork

from seewhy import BoxHead, Candidates

LABELS = ["__background__", "dog", "cup", "tree"]
SIDE = 64
CHANNELS = 32


class Pyramid(nn.Module):
    """Two levels of features, of four and eight pixels, and what a feature pyramid makes of them."""

    out_channels = CHANNELS

    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 6, 5, stride=4, padding=2), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU())
        self.fpn = FeaturePyramidNetwork([6, 8], CHANNELS)

    def forward(self, images):
        fine = self.fine(images)
        return self.fpn(OrderedDict([("0", fine), ("1", self.coarse(fine))]))


class Steps(nn.Module):
    """Two levels of features, one after the other, as those of SSD."""

    def __init__(self):
        super().__init__()
        self.out_channels = [6, 8]
        self.features = nn.Sequential(nn.Conv2d(3, 6, 5, stride=4, padding=2), nn.ReLU(inplace=True))
        self.extra = nn.ModuleList([nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True))])

    def forward(self, images):
        features = self.features(images)
        return OrderedDict([("0", features), ("1", self.extra[0](features))])


def anchors(ratios=(0.5, 1.0, 2.0)):
    return AnchorGenerator(((12,), (24,)), (ratios, ratios))


def two_stage(kind, **arguments):
    classes = arguments.pop("num_classes", len(LABELS))
    module = kind(
        Pyramid(),
        classes,
        min_size=SIDE,
        max_size=2 * SIDE,
        rpn_anchor_generator=anchors(),
        rpn_post_nms_top_n_test=40,
        rpn_pre_nms_top_n_test=60,
        rpn_nms_thresh=0.3,
        box_detections_per_img=12,
        box_score_thresh=0.05,
        **arguments,
    )
    module.roi_heads.box_head = TwoMLPHead(CHANNELS * 49, 24)
    module.roi_heads.box_predictor = FastRCNNPredictor(24, classes)
    return module


def with_small_masks(module):
    module.roi_heads.mask_head = MaskRCNNHeads(CHANNELS, (8,), 1)
    module.roi_heads.mask_predictor = MaskRCNNPredictor(8, 8, len(LABELS))
    return module


def with_small_keypoints(module):
    module.roi_heads.keypoint_head = KeypointRCNNHeads(CHANNELS, (8,))
    module.roi_heads.keypoint_predictor = KeypointRCNNPredictor(8, 3)
    return module


def dense(kind, ratios, **arguments):
    return kind(
        Pyramid(), len(LABELS), min_size=SIDE, max_size=2 * SIDE, anchor_generator=anchors(ratios),
        topk_candidates=50, detections_per_img=20, **arguments,
    )  # fmt: skip


def single_shot(is_lite):
    boxes = DefaultBoxGenerator([[2], [2, 3]])
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    head = SSDLiteHead([6, 8], boxes.num_anchors_per_location(), len(LABELS), norm) if is_lite else None
    return SSD(Steps(), boxes, (SIDE, SIDE), len(LABELS), head=head, detections_per_img=20, topk_candidates=30)


KINDS = {
    "Faster R-CNN": lambda: two_stage(FasterRCNN),
    "Mask R-CNN": lambda: with_small_masks(two_stage(MaskRCNN)),
    "Keypoint R-CNN": lambda: with_small_keypoints(two_stage(KeypointRCNN, num_classes=2)),
    "RetinaNet": lambda: dense(RetinaNet, (0.5, 1.0, 2.0), score_thresh=0.2),
    "FCOS": lambda: dense(FCOS, (1.0,), score_thresh=0.2),
    "SSD": lambda: single_shot(is_lite=False),
    "SSDlite": lambda: single_shot(is_lite=True),
}
"""A builder of each."""


def detector(kind):
    """Return one of torchvision's detectors with fixed random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = KINDS[kind]()
        generator = torch.Generator().manual_seed(5)
        for value in module.parameters():
            spread = 1 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.1
            value.data.copy_(torch.randn(value.shape, generator=generator) * spread)
    return module.eval()


class Windows(nn.Module):
    """A head like YOLO's: each window of eight pixels says how far a box reaches around its middle, and what it is."""

    def __init__(self):
        super().__init__()
        self.see = nn.Conv2d(3, 6, 8, stride=8)
        self.say = nn.Conv2d(6, 3 + 4 + 1, 1)
        generator = torch.Generator().manual_seed(4)
        for value in self.parameters():
            value.data.copy_(torch.randn(value.shape, generator=generator) / value[0].numel() ** 0.5)

    def forward(self, images):
        return self.say(self.see(images).tanh())


def decode(raw):
    """Return the boxes of 8 by 8 windows, in pixels."""
    cells = raw.flatten(2).mT
    middles = 8 * torch.cartesian_prod(torch.arange(8), torch.arange(8)).flip(1) + 4.0
    reach = 4 + 4 * cells[..., 3:7].sigmoid()
    boxes = torch.cat([middles - reach[..., :2], middles + reach[..., 2:]], dim=2)
    return Candidates(boxes, cells[..., :3], cells[..., 7])


WINDOWS = BoxHead(decode, threshold=0.2, overlap=0.1)
