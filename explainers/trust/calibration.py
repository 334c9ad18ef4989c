"""Checks that a calibration suits a model and a trial, and its rate of false alarms."""

from collections.abc import Sequence

from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.calibration import ENOUGH, Calibration, beats
from seewhy.explainers.core.choices import LIKELY
from seewhy.explainers.core.model import Model
from seewhy.explainers.core.task import Prediction, Task
from seewhy.explainers.errors import OptionError
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.trust.trial import Trial


def is_leading(target: Prediction, best: Prediction) -> bool:
    """Whether contrasts of a target can be compared with others: whether it is the most probable class, and likely."""
    return target.index == best.index and (best.probability or 0.0) >= LIKELY


def is_comparable(task: Task, attribution: Attribution) -> bool:
    """Whether the score of a map (N = 1) is compared with others. A classifier's contrasts are compared only for the
    most probable class, if it is likely, because the scores of the others are distributed differently."""
    part, target = attribution.faithfulness, attribution.targets
    if part is None or bool(part.are_probabilities) or not isinstance(task, Classification):
        return True
    return isinstance(target, Tensor) and is_leading(*task.describe(attribution.outputs[0], [int(target)], top=1))


def check_calibration(calibration: Calibration | None, model: Model, trial: Trial | None) -> None:
    """Refuse a calibration that cannot grade the proofs of a model's maps.

    Args:
        calibration: as users pass it; None for none.
        model: model of the maps.
        trial: parameters of the proofs; None if there are none to grade.

    Raises:
        OptionError: there are no proofs to grade; or the object is not a calibration, or is for another area or fill;
            or as in `check_model`.
    """
    if calibration is None:
        return
    if trial is None:
        raise OptionError("proof_calibration grades proofs; ask for them with proof=True.", "proof_calibration")
    if not isinstance(calibration, Calibration):
        raise OptionError(
            f"proof_calibration is {calibration!r}; pass the result of `calibrate` or of `Calibration.load`.",
            "proof_calibration",
        )
    part = calibration.trials.get((trial.area, trial.fill))
    if part is None:
        raise OptionError(
            f"The calibration was made with {trials_text([calibration])}; use the same values here, or another "
            "calibration.",
            "proof_calibration",
        )
    check_model(part, model.identity.name, model.preprocess.size, model.sha256)


def trials_text(calibrations: Sequence[Calibration]) -> str:
    """Return the trials of calibrations, as the options of a proof."""
    fills: dict[float, list[str]] = {}
    for area, fill in (trial for calibration in calibrations for trial in calibration.trials):
        fills.setdefault(area, []).append(repr(fill))
    return ", or ".join(f"proof_area={area:g} and proof_fill={' or '.join(names)}" for area, names in fills.items())


def check_model(calibration: Calibration, name: str, size: tuple[int, int], sha256: str | None) -> None:
    """Refuse a calibration of another model, as far as name, size of the input and weights file are known.

    Args:
        calibration: to compare the model's proofs with.
        name, size, sha256: those of the model, see `Calibration`.

    Raises:
        OptionError: it is of another model, or has too few scores.
    """
    if len(calibration.scores) < ENOUGH:
        raise OptionError(
            f"The calibration has {len(calibration.scores)} scores, but {ENOUGH} are needed; make one with more "
            "pictures.",
            "proof_calibration",
        )
    for what, value, wanted in (
        ("model", calibration.model or None, name),
        ("input size", calibration.size, size),
        ("SHA-256 of the weights", calibration.sha256, sha256),
    ):
        if None not in (value, wanted) and value != wanted:
            is_same = what == "model" and not (calibration.sha256 and sha256 and calibration.sha256 != sha256)
            same = f", or, if it is the same network, give it the name {value}" if is_same else ""
            raise OptionError(
                f"The calibration was made for another model ({what} {value}, not {wanted}); make one for this model "
                f"with `calibrate`{same}.",
                "proof_calibration",
            )


def false_alarms(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the share of null scores that beat 95 % of those of the other pictures; None without scores.

    Args:
        groups: the scores of each picture.
    """
    alarms = []
    for number, group in enumerate(groups):
        null = sorted(score for place, rest in enumerate(groups) if place != number for score in rest)
        alarms += [beats(null, score) >= 0.95 for score in group]
    return sum(alarms) / len(alarms) if alarms else None
