"""Who is told what happens to requests and models: metrics, traces, logs, liveness."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seewhy.app.pipeline.record import Record

if TYPE_CHECKING:  # the server's first process listens too, and imports no PyTorch
    from seewhy.app.pipeline.jobs import Job
    from seewhy.app.pipeline.scheduler import Tier
    from seewhy.explainers.results.explanation import Explanation
    from seewhy.models import LoadedModel


class Observer:
    """Is told what happens to requests and models, in the threads where it happens. This one listens to nothing."""

    def begun(self, record: Record, headers: Mapping[str, str]) -> None:
        """A request has come, with these headers, their names in lower case."""

    def answered(self, record: Record) -> None:
        """A request is over, and its answer sent."""

    def loaded(self, model: "LoadedModel", seconds: float) -> None:
        """A model was loaded, in so many seconds."""

    def not_loaded(self, name: str, error: BaseException) -> None:
        """A model could not be loaded."""

    def missing(self, name: str, error: Exception) -> None:
        """A model was asked for whose weights are not on this machine."""

    def unloaded(self, model: "LoadedModel") -> None:
        """A model has made room for another one."""

    def waiting(self, name: str, jobs: int) -> None:
        """So many jobs wait for a model."""

    def starting(self, name: str, jobs: "Sequence[Job]") -> None:
        """Jobs start to run as one batch."""

    def finished(self, name: str, jobs: "Sequence[Job]", started: float, seconds: float) -> Any:
        """A batch has run, or failed. Return its trace, for the requests whose jobs were in it."""

    def underway(self, name: str, batches: "Mapping[Tier, int]") -> None:
        """So many batches of a model are under way, by tier."""

    def yielded(self, name: str, tier: "Tier") -> None:
        """A batch of a tier lets others run before its next pass."""

    def rests(self, name: str, model: "LoadedModel") -> None:
        """A model has run all that waited."""

    def memory(self, used: int, size: int) -> None:
        """Requests hold so many bytes of memory, of those that they may take together."""

    def explained(self, model: "LoadedModel", found: "Sequence[Explanation]") -> None:
        """A request has its explanations."""

    def close(self) -> None:
        """Nothing more happens in this process."""


UNOBSERVED = Observer()
