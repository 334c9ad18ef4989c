"""Comparison of proofs without included scores: maps of earlier requests, on the pictures of later ones."""

import pytest
import torch

from seewhy import wrap_model
from seewhy.app.pipeline import null_scores
from seewhy.app.pipeline.computation import ExplainComputation
from seewhy.app.pipeline.null_scores import NullScores
from seewhy.explainers.core import faithfulness as trials
from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.execution.progress import SILENT
from seewhy.explainers.methods.cam.gradcam import GradCAM
from seewhy.explainers.results.explanation import explanations
from seewhy.explainers.trust.calibration import is_comparable
from seewhy.explainers.trust.trial import Trial
from seewhy.explainers.view import prepare
from tests.nets import Net


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return wrap_model(Net(), input_size=16)


def pictures(count, seed=0):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def run(model, null, images, ask=DEFAULT_ASK, trial=Trial()):  # noqa: B008
    return ExplainComputation((GradCAM(),), trial, null).run(model, images, ask, SILENT)


def count(model, null, rows):
    return len(null.calibration(model, rows[0][0].faithfulness).scores)


def test_each_picture_is_tried_once_with_the_map_of_the_one_before_it(model):
    null = NullScores()
    assert count(model, null, run(model, null, pictures(1))) == 0
    four = pictures(4, seed=1)
    assert count(model, null, run(model, null, four)) == 4
    assert count(model, null, run(model, null, four[-1:])) == 4
    assert count(model, null, run(model, null, four[-1:].expand(3, -1, -1, -1), Ask(torch.tensor([0, 1, 2])))) == 4
    rows = run(model, null, four)
    assert count(model, null, rows) == 4
    assert rows[0][0].faithfulness.forwards == 2  # nothing is tried that would not count
    assert count(model, null, run(model, null, torch.cat([four, pictures(2)]))) == 6


def test_improbable_targets_give_no_scores(model, monkeypatch):
    """Scores are shares of the probability: of a small one, they may be of any size."""
    images = pictures(5)
    probabilities = [float(row.faithfulness.whole) for (row,) in run(model, NullScores(), images)]
    null = NullScores()
    monkeypatch.setattr(trials, "LIKELY", sum(sorted(probabilities)[2:4]) / 2)
    assert count(model, null, run(model, null, images)) == 2


def test_contrasts_count_only_of_the_most_probable_class(model):
    """The scores of the others are distributed differently."""
    null, images = NullScores(), pictures(4)
    best = run(model, NullScores(), images)[0][0].targets  # the same of all
    others = torch.tensor([index for index in range(3) if index != best])
    leading = run(model, null, images, Ask(best.expand(2).repeat(2), others.repeat(2)))
    assert count(model, null, leading) == 4
    trailing = run(model, null, pictures(4, seed=1), Ask(others.repeat(2), best.expand(2).repeat(2)))
    assert count(model, null, trailing) == 4
    assert [is_comparable(model.task, row) for (row,) in (leading[0], trailing[0])] == [True, False]


def test_a_map_is_graded_once_there_are_a_hundred(model):
    null, view = NullScores(), prepare(model, pictures(1)[0])

    def proof(attribution):
        calibration = null.calibration(model, attribution.faithfulness)
        return explanations(model, "gradcam", view.picture, view.geometry, attribution, calibration=calibration)[
            0
        ].proof

    for seed in range(13):
        rows = run(model, null, pictures(8, seed))
        if seed == 4:
            assert proof(rows[0][0]).grade is None
            assert proof(rows[0][0]).sentence.endswith("has at least 30% (40 so far).")
    assert proof(rows[0][0]).grade is not None
    assert proof(rows[0][0]).calibration.of == proof(rows[0][0]).calibration.pictures == 104


def test_gathering_ends_and_its_passes_with_it(model, monkeypatch):
    monkeypatch.setattr(null_scores, "MOST", 5)
    null = NullScores()
    computation = ExplainComputation((GradCAM(),), Trial(), null)
    assert computation.passes(model) == Passes(1 + 3 + 2, 1)
    rows = run(model, null, pictures(8))
    assert rows[0][0].faithfulness.forwards == 4
    assert count(model, null, rows) == 5
    assert computation.passes(model) == Passes(1 + 3, 1)
    assert run(model, null, pictures(8, seed=1))[0][0].faithfulness.forwards == 2


def test_scores_of_other_kinds_and_areas_are_not_mixed(model):
    null = NullScores()
    run(model, null, pictures(8))
    lead = run(model, null, pictures(2, seed=1), Ask(torch.tensor([1, 1]), torch.tensor([0, 2])))
    assert count(model, null, lead) == 2
    assert count(model, null, run(model, null, pictures(2, seed=1))) == 10  # a contrast does not use a picture up
    half = run(model, null, pictures(2, seed=2), trial=Trial(area=0.5))
    assert null.calibration(model, half[0][0].faithfulness) is None
    assert half[0][0].faithfulness.forwards == 2


def test_equal_computations_share_a_batch_whoever_gathers():
    assert ExplainComputation((GradCAM(),), Trial(), NullScores()) == ExplainComputation((GradCAM(),), Trial())
    assert ExplainComputation((GradCAM(),), Trial()) != ExplainComputation((GradCAM(),))
