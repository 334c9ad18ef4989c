"""Triton's statistics of models, from the metrics of all processes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from seewhy.app.compatible import schemas
from seewhy.app.compatible.routes import VERSION

_STAGES = {"queue": "queue", "decode": "compute_input", "render": "compute_output", "encode": "compute_output"}
"""Triton's names of the stages of a request; all others are `compute_infer`."""


@dataclass
class Duration:
    """A sum of durations.

    Attributes:
        count: number of durations.
        seconds: their sum.
    """

    count: int = 0
    seconds: float = 0.0

    def add(self, member: str, value: float) -> None:
        """Add the sample `count` or `sum` of a histogram; its other samples are ignored."""
        if member == "count":
            self.count += round(value)
        elif member == "sum":
            self.seconds += value

    @property
    def answer(self) -> schemas.V2Duration:
        """The sum, as Triton gives it."""
        return schemas.V2Duration(count=self.count, ns=round(self.seconds * 1e9))


@dataclass
class Statistics:
    """The statistics of one model.

    Attributes:
        end: end of the latest batch, in seconds since 1970; 0 without one.
        parts: durations by their names in Triton's statistics.
        batches: durations of batches by number of pictures.
    """

    end: float = 0.0
    parts: defaultdict[str, Duration] = field(default_factory=lambda: defaultdict(Duration))
    batches: defaultdict[int, Duration] = field(default_factory=lambda: defaultdict(Duration))

    def answer(self, name: str) -> schemas.V2ModelStatistics:
        """Return the statistics as Triton gives them."""
        batches = sorted(self.batches.items())
        names = schemas.V2InferenceStatistics.model_fields
        return schemas.V2ModelStatistics(
            name=name,
            version=VERSION,
            last_inference=round(self.end * 1000),
            inference_count=sum(size * duration.count for size, duration in batches),
            execution_count=sum(duration.count for _, duration in batches),
            inference_stats=schemas.V2InferenceStatistics(**{part: self.parts[part].answer for part in names}),
            batch_stats=[
                schemas.V2BatchStatistics(batch_size=size, compute_infer=duration.answer) for size, duration in batches
            ],
        )


def statistics_of(families: Iterable[Metric]) -> defaultdict[str, Statistics]:
    """Return the statistics of each model that has any, by its name."""
    models: defaultdict[str, Statistics] = defaultdict(Statistics)
    for family in families:
        for sample in family.samples:
            model, member = sample.labels.get("model"), sample.name.removeprefix(f"{family.name}_")
            if not model:
                continue
            if family.name == "seewhy_stage_duration_seconds":
                models[model].parts[_STAGES.get(sample.labels["stage"], "compute_infer")].add(member, sample.value)
            elif family.name == "seewhy_batch_duration_seconds":
                models[model].batches[int(sample.labels["size"])].add(member, sample.value)
            elif family.name == "seewhy_last_batch_timestamp_seconds":
                models[model].end = sample.value
            elif family.name == "seewhy_request_duration_seconds":
                part = {"2": "success", "4": "fail", "5": "fail"}.get(sample.labels["status"][0])
                if part is not None:
                    models[model].parts[part].add(member, sample.value)
    return models
