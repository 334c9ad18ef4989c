"""Observer of events of requests and models: metrics, traces, logs, liveness."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seewhy.app.pipeline.record import Record

if TYPE_CHECKING:  # the server's first process also imports this, without PyTorch
    from seewhy.app.pipeline.jobs import Job
    from seewhy.app.pipeline.scheduler import Tier
    from seewhy.explainers.results.explanation import Explanation
    from seewhy.models import LoadedModel


class Observer:
    """Gets the events of requests and models, in the threads where they happen. This base class ignores them."""

    def request_started(self, record: Record, headers: Mapping[str, str]) -> None:
        """A request has arrived; names of headers are in lower case."""

    def request_finished(self, record: Record) -> None:
        """A request is over and its answer has been sent."""

    def model_loaded(self, model: "LoadedModel", seconds: float) -> None:
        """A model was loaded, which took these seconds."""

    def model_failed(self, name: str, error: BaseException) -> None:
        """A model could not be loaded."""

    def weights_missing(self, name: str, error: Exception) -> None:
        """A requested model's weights are not on this machine."""

    def model_dropped(self, model: "LoadedModel") -> None:
        """A model was dropped for another one."""

    def queue_changed(self, name: str, jobs: int) -> None:
        """The number of jobs waiting for a model has changed."""

    def batch_started(self, name: str, jobs: "Sequence[Job]") -> None:
        """Jobs start to run as a batch."""

    def batch_finished(
        self, name: str, jobs: "Sequence[Job]", started: float, seconds: float, *, succeeded: bool
    ) -> Any:
        """A batch has run or failed. Return its trace, for the requests of its jobs."""

    def batches_changed(self, name: str, batches: "Mapping[Tier, int]") -> None:
        """The number of running batches of a model, by tier, has changed."""

    def batch_paused(self, name: str, tier: "Tier") -> None:
        """A batch of a tier has let others run before its next pass."""

    def model_idle(self, name: str, model: "LoadedModel") -> None:
        """A model has no more jobs waiting."""

    def memory_changed(self, used: int, size: int) -> None:
        """Requests use `used` bytes of memory of the `size` that they may use together."""

    def pictures_explained(self, model: "LoadedModel", explanations: "Sequence[Explanation]") -> None:
        """A request has its explanations."""

    def close(self) -> None:
        """No more events follow in this process."""


UNOBSERVED = Observer()
