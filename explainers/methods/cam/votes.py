"""Votes: class maps in which each position counts by what it votes for; and the same in detail."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import keep_sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.hooks.registered import is_hooked
from seewhy.explainers.hooks.selection import is_within, module_paths
from seewhy.explainers.layers.survey import Layer, Survey
from seewhy.explainers.methods.cam.base import LayerExplainer, aligned, fuse, stage_ends
from seewhy.explainers.methods.cam.class_maps import Contest, contest_at
from seewhy.explainers.methods.cam.gradcam import GradCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect, survey_for
from seewhy.explainers.methods.catalogue import method

STRIDES = (16, 8)
"""Pixels from one position to the next, of the grids that add detail to a layer of 16 pixels or more."""

_STEP = 0.1
"""Maximum difference of the step of a grid from a stride, as a share: 225 pixels in 14 rows."""

_UNAVAILABLE = Diagnostic(
    "votes-unavailable",
    "Grad-CAM drew this map, because votes cannot be counted here: they need classes that compete, and a head that "
    "pools this layer's positions or reads them as a list, without attention between them and without another branch.",
)

_IN_ONE_MAP = Diagnostic(
    "votes-unavailable",
    "Grad-CAM drew this map, because votes can be counted either only without the edits or only with them, and maps of "
    "two methods cannot be compared.",
)

_ONE_GRID = Diagnostic(
    "no-finer-layers",
    "No layer before the chosen one adds detail: it takes one with a stride of 16 or 8 pixels or, if the chosen one is "
    "finer than 16, of half or a quarter of its stride.",
)


@method("votes", family="cam", backwards="0")
class Votes(LayerExplainer):
    r"""Votes: class maps by the head's weights, with positions weighted by their votes for the class.

    .. math:: V(i) = \max(z_c(i), 0)\, p(i), \qquad
              p(i) = \frac{e^{z_c(i) + b_c}}{e^{z_c(i) + b_c} + \sum_{\mathrm{rivals}\, k} w_k\, e^{z_k(i) + b_k}},
              \qquad w_k = \min(1, 1 - \rho_k)^2

    where the rivals are all other classes, or only the one of a contrast; the only rival of a label of a multi-label
    model is its absence, whose logit is 0. :math:`z_k(i)` is the evidence for class k at position i, as in CAM:
    :math:`W_k \cdot A(i)` for a linear head after global pooling, with the features A and the bias b.
    :math:`\rho_k` is Pearson's correlation of :math:`z_k` and :math:`z_c` over the positions: a rival competes to the
    extent that its evidence lies elsewhere in the picture; otherwise near-synonyms would take each other's votes. If a
    map varies by less than 2^-6 of its logits, rounding would decide the correlation, which therefore decreases to 0
    with the variation. W and b are centred over the class and its rivals, because a softmax ignores what is added to
    all of them: heads with equal predictions give equal maps.

    For any other head h after pooling, :math:`z_k(i) = h_k(A(i)) - h_k(0)` and :math:`b_k = h_k(0)`. For a head that
    reads the list of all positions, like VGG's, :math:`z_k(i)` is the number of positions times
    :math:`\sum_j A^j(i)\, \partial y_k / \partial A^j(i)`, for the target and its 50 strongest rivals, with one
    backward pass through the head for each, and :math:`b_k` is the rest of the logit :math:`y_k`. For a linear head,
    all of these are equal. With listed positions, gradients describe the contribution of a position to this picture,
    not its evidence on its own: on a planted network HiResCAM points at the cue more often than votes do.

    For all other models, such as a transformer with a class token, and for targets that are not classes, the map is
    Grad-CAM's. It then takes an extra forward pass and a backward pass, and a diagnostic (``votes-unavailable``)
    reports it.

    This method is our own. In the first paper, classes compete for each pixel of gradients times inputs; the others
    contrast classes, too. With ``sign="signed"`` the map is :math:`z_c\, p`. ``smooth="eigen"`` changes nothing.
    """

    def attribute(self, question: Question) -> Attribution:
        """One forward pass."""
        tensors = collect(question, self.layers_of(question), None)
        contests = self._contests(question, tensors, tensors.paths)
        if not contests:
            return _without_votes(self.substitute.attribute(question))
        maps = fuse([contest.votes(self.sign) for contest in contests.values()])
        return self.answer(maps, tensors.objective, tensors.outputs, tensors.paths)

    @property
    def substitute(self) -> GradCAM:
        """The method that draws the map where votes cannot be counted."""
        return GradCAM(layers=self.layers, sign=self.sign, smooth=self.smooth)

    def _contests(self, question: Question, tensors: LayerTensors, paths: Iterable[str]) -> dict[str, Contest]:
        """Return the contests in the layers at these paths; none where one of them has no class maps."""
        rivals = tensors.objective.rivals(tensors.outputs)
        if rivals is None:
            return {}
        contests = {}
        for path in paths:
            contest = contest_at(question, path, tensors, rivals)
            if contest is None:
                return {}
            contests[path] = contest
        return contests


@method("votes-detail", family="cam")
class VotesDetail(Votes):
    r"""Votes × detail: evidence from finer layers, kept only where it favours the class over the other answers.

    .. math:: M = \Big(\frac{V}{\max V} \cdot \frac{E_{16}}{\max E_{16}} \cdot \frac{E_8}{\max E_8}\Big)^{1/3},
              \qquad E_s(i) = \sum_k \max\Big(F_s^k(i) \sum_{j:\, z_c(j) > 0} p(j)
              \frac{\partial y_c}{\partial A(j)} \frac{\partial A(j)}{\partial F_s^k(i)},\, 0\Big)

    where V, p, z and the features A are those of ``votes``, and :math:`F_s` are the features of the last block with a
    position every s pixels: the gradient from each position of A is weighted by its share of the vote. :math:`y_c` is
    the logit minus the mean of the competing logits. If A itself is finer than 16 pixels, as in small
    networks, the strides are half and a quarter of its own instead of 16 and 8. Each factor is resized bilinearly
    to the finest of the grids. With only one such grid, M is the square root of two factors; with none, it uses E on
    A's own grid, and a diagnostic (``no-finer-layers``) says so. The root does not change ranks. ``layer`` is the layer
    of A. If a module after :math:`F_s` convolves or pools and skips positions, as the shortcuts of ResNets do, the
    gradient is large at every second or fourth position and would draw a lattice of dots. It is then averaged over as
    many rows and columns around each position.

    This method is our own. Features times positive gradients on earlier grids are LayerCAM's idea, and the product of
    stages is RefineCAM's. If there are no votes, the map is Grad-CAM's, as in ``votes``, but without extra passes. A
    product of signed maps would be meaningless, so ``sign="signed"`` is not available; ``smooth="eigen"`` has no
    effect.
    """

    sign: Annotated[
        Literal["positive", "absolute"],
        Field(description="What is multiplied: `positive`, evidence for the class; `absolute`, magnitudes."),
    ] = "positive"

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and a backward pass to the finest grid."""
        layers = self.layers_of(question)
        paths = module_paths(question.module, layers)
        survey = survey_for(question)
        details = detail_layers(survey, paths)
        # An accelerated model is not cut at nested layers: if a layer contains its detail layers, its last part takes
        # its place.
        ends = {path: _last_part(question.module, path, details) for path in paths}
        contests: dict[str, Contest] = {}

        def gate(tensors: LayerTensors) -> dict[str, Tensor]:
            contests.update(
                self._contests(question, tensors, [path for path in tensors.paths if path in ends.values()])
            )
            return {path: contest.gates(self.sign) for path, contest in contests.items()}

        def scores(objective: Objective, outputs: Tensor) -> Tensor:
            return _lead(objective, outputs) if contests else objective.scores(outputs)

        recorded = (*(ends.get(layer, layer) for layer in layers), *details)
        tensors = collect(question, tuple(dict.fromkeys(recorded)), scores, gate)
        if not contests:
            return _without_votes(self.substitute.combine(tensors.only(ends.values())))
        votes = fuse([contest.votes(self.sign) for contest in contests.values()])
        evidence, skipping = [], _skipping(question.module)
        for path in details:
            gradients = averaged(tensors.gradients[path], _periods(survey, skipping, path))
            evidence.append(keep_sign(tensors.activations[path] * gradients, self.sign).sum(dim=1))
        maps = [votes, *evidence]
        mean = aligned(maps, torch.mul) ** (1 / len(maps))
        answer = self.answer(mean, tensors.objective, tensors.outputs, tensors.paths)
        has_finer = any(path not in ends.values() for path in details)
        return answer if has_finer else replace(answer, diagnostics=((_ONE_GRID,),) * len(mean))


def _without_votes(attribution: Attribution, note: Diagnostic = _UNAVAILABLE) -> Attribution:
    """Return an attribution of Grad-CAM with a diagnostic that says so."""
    return replace(attribution, diagnostics=((note,),) * len(attribution.maps))


def counts_votes(attribution: Attribution) -> bool:
    """Whether votes made the map of one picture, and not Grad-CAM in their place."""
    return (_UNAVAILABLE,) not in attribution.diagnostics


def drawn_alike(attribution: Attribution) -> Attribution:
    """Return an attribution of Grad-CAM, drawn because votes cannot be counted in another one, with that remark."""
    return _without_votes(attribution, _IN_ONE_MAP)


def _lead(objective: Objective, outputs: Tensor) -> Tensor:
    """Return the scores (N,) minus the mean of all that compete: a vector added to all classes changes nothing."""
    rivals = objective.rivals(outputs)
    if rivals is None:
        return objective.scores(outputs)
    scores, others = objective.alone.scores(outputs), (outputs.float() * rivals).sum(dim=1)
    return scores - (scores + others) / (1 + rivals.sum(dim=1).clamp_min(1))


def detail_layers(survey: Survey, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layers that add detail: the ends of the stages of some strides up to some layers, or else these."""
    own = [layer for layer in survey.layers if layer.path in paths]
    places = [place for place, layer in enumerate(survey.layers) if any(is_within(layer.path, path) for path in paths)]
    before = [
        layer
        for layer in survey.layers[: max(places, default=0)]
        if layer.cam and not any(is_within(path, layer.path) for path in paths)
    ]
    step = max((max(layer.grid.step) for layer in own if layer.grid is not None), default=0)
    strides = (step / 2, step / 4) if 0 < step < (1 - _STEP) * STRIDES[0] else STRIDES
    ends = stage_ends(before, lambda layer: _stride(layer, strides))
    ends |= {_stride(layer, strides): layer.path for layer in own}
    return tuple(ends[stride] for stride in strides if stride in ends) or paths


def _skipping(module: nn.Module) -> dict[str, list[int]]:
    """Return the convolutions and poolings that skip some rows (0) or columns (1) of their input, by path."""
    return {path: axes for path, part in module.named_modules() if (axes := _skipped_axes(part))}


def _periods(survey: Survey, skipping: dict[str, list[int]], fine: str) -> tuple[int, int]:
    """Return after how many rows and columns of a layer's grid the positions repeat that later layers skip; 1 if they
    skip none."""
    grid, periods = None, [1, 1]
    for layer in survey.layers if skipping else ():
        if layer.path == fine:
            grid = layer.grid
        elif grid and layer.grid:
            for axis in skipping.get(layer.path, ()):
                if grid.step[axis]:  # 0 for a single position
                    periods[axis] = max(periods[axis], round(layer.grid.step[axis] / grid.step[axis]))
    return periods[0], periods[1]


def _skipped_axes(module: nn.Module) -> list[int]:
    if not isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return []
    sizes = module.kernel_size, module.stride, getattr(module, "dilation", 1)
    pairs = [(size, size) if isinstance(size, int) else size for size in sizes]
    return [
        axis
        for axis, (kernel, stride, dilation) in enumerate(zip(*pairs, strict=True))
        if len({place * dilation % stride for place in range(kernel)}) < stride
    ]


def averaged(values: Tensor, periods: tuple[int, int]) -> Tensor:
    """Return values (N, C, h, w) averaged over a period of rows and columns around each position.

    Each position of a period has the same weight. At its edges, the grid goes on with its first and last period.
    """
    for axis, period in zip((2, 3), periods, strict=True):
        size = values.shape[axis]
        if not 1 < period <= size:
            continue
        half = period // 2
        ends = values.narrow(axis, period - half, half), values.narrow(axis, size - period, half)
        values = torch.cat([ends[0], values, ends[1]], axis).unfold(axis, period, 1).mean(-1)
        if period % 2 == 0:  # the windows lie between two positions
            values = values.unfold(axis, 2, 1).mean(-1)
    return values


def _last_part(module: nn.Module, path: str, others: tuple[str, ...]) -> str:
    """Return the path of the last part of a sequence of modules that contains no others; it returns the same.

    The output of a module with hooks of its own may be another one than that of its last part.
    """
    part = module.get_submodule(path)
    while (
        type(part) is nn.Sequential
        and len(part)
        and not is_hooked(part)
        and any(is_within(other, path) and other != path for other in others)
    ):
        name = [name for name, _ in part.named_children()][-1]
        part, path = part[-1], f"{path}.{name}".lstrip(".")
    return path


def _stride(layer: Layer, strides: tuple[float, ...]) -> float | None:
    """Return the stride of a layer's grid, if it is one of these; None otherwise, and for tokens."""
    steps = () if layer.grid is None else layer.grid.step
    return next(
        (stride for stride in strides if steps and all(abs(step / stride - 1) <= _STEP for step in steps)), None
    )
