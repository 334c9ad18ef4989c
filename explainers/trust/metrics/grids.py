"""GridPG and DiFull: mosaics of confidently classified pictures, in which the place of the evidence is known."""

from abc import abstractmethod
from dataclasses import dataclass as plain
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.question import widened
from seewhy.explainers.errors import LayerError, UnmeasurableError, counted
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.trust.marking import resized, top_share
from seewhy.explainers.trust.metrics.base import Metric, Seed, Subject, shares
from seewhy.explainers.trust.metrics.catalogue import entry_of, metric


@plain(frozen=True, eq=False)
class Mosaics:
    """Mosaics of n by n pictures of different classes.

    Attributes:
        members: (M, n * n) int64, the picture in each cell, row by row.
        places: (M,) int64, the cell of the target.
        classes: (N,) int64, the class of each picture.
    """

    members: Tensor
    places: Tensor
    classes: Tensor

    @property
    def side(self) -> int:
        """Cells along each side, n."""
        return isqrt(self.members.shape[1])

    @property
    def targets(self) -> Tensor:
        """(M,) int64, the class of each target."""
        return self.classes[self.members.gather(1, self.places[:, None])[:, 0]]

    def rows(self, rows: slice) -> "Mosaics":
        """Return some of the mosaics."""
        return replace(self, members=self.members[rows], places=self.places[rows])

    def join(self, images: Tensor) -> Tensor:
        """Return the mosaics (M, C, n * H, n * W) of pictures (N, C, H, W)."""
        return joined(images[self.members.flatten()], self.side)

    def cell(self, height: int, width: int) -> Tensor:
        """Return the target's cell in each mosaic, (M, height, width) bool."""
        down, across = torch.arange(height) * self.side // height, torch.arange(width) * self.side // width
        return (down[:, None] * self.side + across)[None].to(self.places.device) == self.places[:, None, None]


@dataclass(frozen=True, kw_only=True)
class Grid(Metric):
    """Base of metrics over mosaics of confidently classified pictures of different classes.

    Each such picture is the target of one mosaic; cells and companions are drawn at random.
    """

    side: Annotated[int, Field(ge=2, le=5, description="Cells along each side of a mosaic.")] = 2
    sure: Annotated[float, Field(ge=0, le=1, description="Minimum probability of a picture's class.")] = 0.9
    seed: Seed = 0

    over_pictures: ClassVar[bool] = True

    def mosaics(self, subject: Subject) -> Mosaics:
        """Return the mosaics of a subject's pictures.

        Raises:
            UnmeasurableError: the targets are not classes, or too few classes are seen with certainty.
        """
        name = entry_of(self).name
        if not isinstance(subject.objective.ask_targets, Tensor):
            raise UnmeasurableError(
                f"Mosaics need classes as targets, but this model's targets lie in the pictures: leave {name} out.",
                "metrics",
            )
        classes = subject.objective.targets
        sure = (subject.probabilities >= self.sure).nonzero()[:, 0].cpu()
        kinds = classes.cpu()[sure]
        cells, count = self.side**2, len(set(kinds.tolist()))
        if count < cells:
            need = f"A mosaic of {self.side} by {self.side} needs pictures of {cells} classes"
            possible = subject.plain[1].shape[1]
            if possible < cells:
                mend = f"leave {name} out" if possible < 4 else f"choose a lower `{name}.side`"
                raise UnmeasurableError(f"{need}, and this model has only {possible}: {mend}.", f"{name}.side")
            raise UnmeasurableError(
                f"{need} whose probability is at least {self.sure:g}; {count} found in "
                f"{counted(len(classes), 'picture')}. Give more pictures, or a lower `{name}.sure`.",
                f"{name}.sure",
            )
        generator = torch.Generator().manual_seed(self.seed)
        members, places = [], []
        for picture, kind in zip(sure.tolist(), kinds.tolist(), strict=True):
            order = torch.randperm(len(sure), generator=generator)
            # The first picture of each other class, in a random order of the pictures.
            first = {int(kinds[number]): int(sure[number]) for number in order.flip(0)}
            companions = [first[other] for other in dict.fromkeys(kinds[order].tolist()) if other != kind][: cells - 1]
            place = int(torch.randint(cells, (), generator=generator))
            members.append([*companions[:place], picture, *companions[place:]])
            places.append(place)
        device = classes.device
        return Mosaics(torch.tensor(members, device=device), torch.tensor(places, device=device), classes)

    @abstractmethod
    def maps(self, subject: Subject, mosaics: Mosaics) -> Tensor:
        """Return the maps (M, h, w) of some mosaics."""

    def score(self, subject: Subject) -> Tensor:
        """Return, for each mosaic, the shares of the positive mass and of the highest positions in the right cell."""
        mosaics, rows = self.mosaics(subject), []
        height, width = subject.images.shape[2:]
        for part in subject.question.chunks(len(mosaics.places), backward=True, copies=self.side**2):
            batch = mosaics.rows(part)
            maps = resized(self.maps(subject, batch), (self.side * height, self.side * width))
            cell = batch.cell(*maps.shape[1:])
            mass = (shares(maps) * cell).sum(dim=(1, 2)).float()
            top = top_share(maps, 1 / self.side**2)
            rows.append(torch.stack([mass, (top & cell).sum(dim=(1, 2)) / top.sum(dim=(1, 2))], dim=1))
        return torch.cat(rows)


@metric("gridpg", aspect="localisation", better="higher", columns=("gridpg", "gridpg-top"), explanations="mosaics")
class GridPG(Grid):
    r"""Grid pointing game: share of the map in the cell of a mosaic that shows the class.

    .. math:: \frac{\sum_{i \in C} \max(M_i, 0)}{\sum_i \max(M_i, 0)}, \qquad \frac{|T \cap C|}{|T|},\; |T| = |C|

    where C is the cell, and T are the positions with the largest values, as many as C has. The second number
    (``gridpg-top``) does not change if the map is raised to a power. Chance is one over the number of cells. With
    ``size=native``, each cell has the size of an input, as in the paper; the network must take pictures of any size.
    With ``size=input``, the whole mosaic has the size of an input.
    """

    size: Annotated[
        Literal["input", "native"],
        Field(
            description="`input`: the mosaic has the size of the model's input. `native`: each cell has this size; "
            "for models that take pictures of any size."
        ),
    ] = "input"

    def quantities(self) -> dict[str, int]:
        """Return the cost of a mosaic in explanations of a picture."""
        return {"mosaics": 1 if self.size == "input" else self.side**2}

    def maps(self, subject: Subject, mosaics: Mosaics) -> Tensor:
        """Return the method's maps of the mosaics."""
        images = mosaics.join(widened(subject.images))
        if self.size == "input":
            images = functional.interpolate(images, size=subject.images.shape[2:], mode="bilinear", antialias=True)
        return subject.explained(images, Ask(mosaics.targets))


@metric("difull", aspect="localisation", better="higher", columns=("difull", "difull-top"), explanations="mosaics")
class DiFull(Grid):
    r"""DiFull: share of the map in the only cell of a mosaic that the class's score depends on.

    .. math:: y^k(x_1, \dots, x_{n^2}) = f^k(x_{c(k)})

    Each cell passes through the network separately, and the logit of the class in cell c depends on cell c alone, so
    everything that a map shows elsewhere is wrong. Methods that read layers see a layer's outputs for all cells as one
    grid. The numbers are defined as in ``gridpg``.
    """

    def quantities(self) -> dict[str, int]:
        """Return the number of pictures that pass through the network for each mosaic."""
        return {"mosaics": self.side**2}

    def maps(self, subject: Subject, mosaics: Mosaics) -> Tensor:
        """Return the method's maps of the disconnected network."""
        explainer, layers = subject.explainer, tuple[str, ...]()
        if isinstance(explainer, LayerExplainer):
            layers = module_paths(subject.question.module, explainer.layers_of(subject.question))
        images = mosaics.join(subject.images)
        maps = []
        # One by one: a method may run any number of copies of any of its pictures, all of which show the same classes.
        for row in range(len(images)):
            subject.question.progress.cancel()
            classes = mosaics.classes[mosaics.members[row]]
            network = SeparateCells(subject.question.module, layers, classes, int(mosaics.places[row]))
            if isinstance(explainer, LayerExplainer):
                explainer = replace(explainer, layers=network.paths)
            target = mosaics.targets[row : row + 1]
            maps.append(explainer.explain(network, images[row : row + 1], target).maps)
        return torch.cat(maps)


class SeparateCells(nn.Module):
    """A network that processes each cell of a mosaic separately; a class has the logit of the cell that shows it.

    Args:
        network: returns logits (N, K); it is not changed.
        layers: paths of layers (N, C, h, w) of the network; `paths` are those of modules here through which their
            outputs pass as one grid.
        classes: (n * n,) int64, the classes of the cells, row by row.
        place: the target's cell, which also gives the logits of all classes that no cell shows.
    """

    def __init__(self, network: nn.Module, layers: tuple[str, ...], classes: Tensor, place: int) -> None:
        super().__init__()
        self.network = network
        self.grids = nn.ModuleList(nn.Identity() for _ in layers)
        self._layers = layers
        self._classes = classes
        self._place = place
        self._side = isqrt(len(classes))

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the modules that see grids."""
        return tuple(f"grids.{number}" for number in range(len(self.grids)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, K) of mosaics (N, C, n * H, n * W)."""
        with HookSession(self.network) as hooks:
            for layer, grid in zip(self._layers, self.grids, strict=True):
                hooks.after_forward(partial(self._through, grid), layer)
            logits: Tensor = self.network(split(images, self._side))
        logits = logits.view(len(images), len(self._classes), -1)
        cells = torch.full((logits.shape[2],), self._place, device=logits.device)
        cells[self._classes] = torch.arange(len(self._classes), device=logits.device)
        return logits.gather(1, cells.expand(len(images), 1, -1))[:, 0]

    def _through(self, grid: nn.Module, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        """Return a layer's output, passed through a module as one grid."""
        if not isinstance(output, Tensor) or output.ndim != 4:
            raise LayerError("The outputs of this layer for several cells do not form a grid; omit difull.")
        return split(grid(joined(output, self._side)), self._side)


def joined(cells: Tensor, side: int) -> Tensor:
    """Return mosaics (M, C, n * h, n * w) of cells (M * n * n, C, h, w)."""
    _, channels, height, width = cells.shape
    rows = cells.reshape(-1, side, side, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return rows.reshape(-1, channels, side * height, side * width)


def split(mosaics: Tensor, side: int) -> Tensor:
    """Return the cells (M * n * n, C, h, w) of mosaics (M, C, n * h, n * w)."""
    _, channels, height, width = mosaics.shape
    size = (height // side, width // side)
    cells = mosaics.reshape(-1, channels, side, size[0], side, size[1]).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(-1, channels, *size)
