"""Grades, sentences and warnings, and networks whose evidence is planted."""

import json
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from seewhy import Calibration, GradCAM, calibrate, compare, explain, explain_many, wrap_model
from seewhy.explainers.calibrate import null_rows
from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.calibration import Comparison
from seewhy.explainers.core.choices import FILLS
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.errors import OptionError, TargetError
from seewhy.explainers.explain import ask_of
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.tasks.classification import ClassPrediction
from seewhy.explainers.tasks.pose import predict
from seewhy.explainers.tasks.values import ValuePrediction
from seewhy.explainers.trust.calibration import false_alarms
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.marking import turned
from seewhy.explainers.trust.proof import Measurement, grade_of, proof_of, reaches_cut, shape_of
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import sentence_of, subject_of
from seewhy.explainers.trust.strangers import digest_of
from seewhy.explainers.trust.trial import Trial
from tests import nets
from tests.explainers.trust.test_faithfulness import bright_corner, brightness, light_meter
from tools.planted.drawings import SIDE, draw, draw_pairs
from tools.planted.networks import ANSWERS
from tools.planted.training import load

COLOURS = ["red", "green", "blue", "yellow", "plain"]

AREA = 0.05


@pytest.fixture(scope="module")
def markers():
    """The classifier with the logits of the classes of markers, without those of objects."""
    module = nets.Wrapped(load("classifier"), lambda logits: logits[:, :ANSWERS])
    return wrap_model(module, input_size=SIDE, labels=COLOURS)


@pytest.fixture(scope="module")
def calibration(markers):
    images = draw(160, "outside", torch.Generator().manual_seed(1)).images
    return calibrate(markers, list(images), proof_area=AREA, proof_fill="mean", batch_size=20)


def proved(model, images: Tensor, maps: Tensor, trial: Trial, **further: Any) -> Attribution:
    outputs = predict(model, images)
    attributions = [Attribution(maps, outputs.argmax(1), outputs, (), signed=False)]
    return prove(model, images, attributions, trial, **further)[0]


def beating(model, images: Tensor, maps: Tensor, calibration: Calibration) -> float:
    """Return the share of maps (N, h, w) that beat 95 percent of the calibration."""
    rows = proved(model, images, maps, Trial(calibration.area, calibration.fill)).rows()
    parts = [calibration.compared(float(row.faithfulness.score)) for row in rows]
    return sum(part.beats >= 0.95 for part in parts) / len(parts)


def test_the_true_place_is_supported_and_a_turned_one_is_not(markers, calibration):
    drawings = draw(100, "outside", torch.Generator().manual_seed(2))
    left, top, right, bottom = drawings.cues[:, :, None].unbind(1)
    x, y = ((torch.arange(SIDE) + 0.5 - middle / 2).abs() for middle in (left + right, top + bottom))
    truth = -torch.maximum(x[:, None, :], y[:, :, None])  # the nearer to the marker, the larger
    assert beating(markers, drawings.images, truth, calibration) >= 0.95
    assert beating(markers, drawings.images, turned(truth), calibration) <= 0.05


def test_noise_is_not_supported(markers, calibration):
    images = draw(240, "outside", torch.Generator().manual_seed(3)).images
    noise = torch.rand(240, 8, 8, generator=torch.Generator().manual_seed(4))
    assert beating(markers, images, noise, calibration) <= 0.07


@pytest.mark.parametrize(("method", "options"), [("random", {"seed": 1}), ("eigencam", {"smooth": "tta"})])
def test_a_map_that_is_the_same_for_every_class_is_not_fully_supported(method, options, markers, calibration):
    trial = {"proof": True, "proof_area": AREA, "proof_fill": "mean", "proof_calibration": calibration}
    images = draw(10, "outside", torch.Generator().manual_seed(5)).images
    grades = []
    for image in images:
        proof = explain(markers, image, method, **trial, **options).proof
        assert "same-for-every-class" in proof.warnings
        grades.append(proof.grade)
    assert "partly supported" in grades
    assert "supported" not in grades


def test_a_part_that_decides_in_all_pictures_reads_so(markers, calibration):
    common = replace(calibration, scores=[2.0] * 100)
    images = draw(4, "outside", torch.Generator().manual_seed(5)).images
    trial = {"proof": True, "proof_area": AREA, "proof_fill": "mean", "proof_calibration": common}
    proofs = [explain(markers, image, "gradcam", **trial).proof for image in images]
    decisive = [proof for proof in proofs if proof.grade == "partly supported"]
    assert decisive
    assert all(
        proof.calibration.beats < 0.8 and "% of maps unrelated to the picture do as well" in proof.sentence
        for proof in decisive
    )


def test_null_scores_are_those_of_copies_and_of_the_picture_before(calibration):
    assert len(calibration.scores) == 3 * 160
    assert calibration.pictures == 160
    assert calibration.false_alarms_at_95 == pytest.approx(0.05, abs=0.05)


def sentence(grade, target=None, against=None, trial=Trial(fill="mean"), lead=None, kept=None, **further):  # noqa: B008
    network = brightness()
    images = bright_corner()
    ask = Ask.single(0, against=1 if against else None)
    (row,) = prove(network, images, [GradCAM(layers=("conv",)).explain(network, images, ask)], trial)
    target = target or ClassPrediction(0, "light", 0.95, 1.5)
    faithfulness = row.faithfulness if kept is None else replace(row.faithfulness, kept=torch.tensor(kept))
    return sentence_of(grade, faithfulness, subject_of(target, against), lead, **further)


def test_sentences_are_plain_english():
    assert sentence("supported") == (
        "The marked quarter decides: with it painted over, 'light' falls from 95.3% to 50.0%; alone, it still gives "
        "95.3%."
    )
    assert sentence("partly supported", trial=Trial(area=0.5, fill="mean")) == (
        "The marked half matters: with it painted over, 'light' falls from 95.3% to 50.0%; alone, it gives 95.3%."
    )
    matters = (
        "The marked quarter matters: with it painted over, 'light' falls from 95.3% to 50.0%; alone, it gives 95.3%."
    )
    common = "23% of maps unrelated to the picture do as well: the model may look at the same place in every picture."
    assert (
        sentence("partly supported", as_well=0.152) == f"{matters} Yet 15% of maps unrelated to the picture do as well."
    )
    assert sentence("partly supported", as_well=0.228, is_common=True) == f"{matters} Yet {common}"
    assert sentence("spread", kept=0.3) == (
        "The marked quarter does not decide alone: the evidence for 'light' seems spread, this heatmap misses some, or "
        "the model reacts to the hiding itself "
        "(95.3% falls to 50.0% with this quarter painted over; alone, it gives 30.0%)."
    )
    assert sentence("not supported", kept=0.3) == (
        "Do not rely on this heatmap: with the marked quarter painted over, the model still says 'light' at 50.0% (was "
        "95.3%)."
    )
    alone = (
        "Do not rely on this heatmap alone: the marked quarter is enough on its own (95.3%), but with it painted over, "
        "the model still says 'light' at 50.0% (was 95.3%)."
    )
    assert sentence("not supported") == alone
    assert sentence("not supported", as_well=0.228, is_common=True) == f"{alone} Moreover, {common}"
    assert sentence("partly supported", trial=Trial(), as_well=0.228, is_common=True).endswith(
        "23% of maps unrelated to the picture do as well: a blur may hide too little, or the model may look at the "
        "same place in every picture."
    )
    contrast = {"against": ClassPrediction(1, "dark", 0.05, -1.5), "as_well": 0.228, "is_common": True}
    assert sentence("not supported", **contrast) == (
        "Do not rely on this heatmap alone: the marked quarter is enough on its own (90.5 points), but with it painted "
        f"over, the lead of 'light' over 'dark' goes from 90.5 points to 0.0 points. Moreover, {common}"
    )
    assert sentence("not supported", kept=-0.98, **contrast) == (  # of such a part, other maps say nothing
        "Do not rely on this heatmap, because the marked quarter does not decide alone: with it painted over, the "
        "lead of 'light' over 'dark' goes from 90.5 points to 0.0 points; alone, it gives −98.0 points."
    )
    assert sentence("not supported", hides_little=True) == (
        "This test can neither support nor refute the heatmap: with the marked quarter painted over, the "
        "model still says 'light' at 50.0% (was 95.3%), and with the rest painted over at 95.3%."
    )
    assert sentence("blank") == "The heatmap is blank: it marks nothing that speaks for 'light'."
    assert sentence(None, against=ClassPrediction(1, "dark", 0.05, -1.5)) == (
        "With the marked quarter painted over, the lead of 'light' over 'dark' goes from 90.5 points to "
        "0.0 points; alone, it gives 90.5 points. That is not graded: fewer than 100 scores of contrasts by "
        "unrelated maps with proof_fill=mean are known."
    )


def test_negative_leads_have_a_minus_sign_and_tiny_shares_read_in_words():
    trailing = Faithfulness(
        0.25, "mean", *(torch.tensor([share]) for share in (-0.223, 0.0314, -0.4)), None, None, None, None,
        torch.tensor([False]), torch.tensor([False]), 2,
    )  # fmt: skip
    subject = subject_of(ClassPrediction(0, "light", 0.2, 1.5), ClassPrediction(1, "dark-2", 0.4, 2.0))
    assert sentence_of(None, trailing, subject).startswith(
        "With the marked quarter painted over, the lead of 'light' over 'dark-2' goes from −22.3 points to −40.0 "
        "points; alone, it gives 3.1 points."
    )
    tiny = replace(trailing, whole=torch.tensor([1e-4]), are_probabilities=torch.tensor([True]))
    assert "gives 'light' less than 0.01%, so" in sentence_of(
        "not supported", tiny, subject_of(ClassPrediction(0, "light", 1e-4, -9.0)), is_improbable=True
    )


def test_a_full_proof_says_how_the_copies_do(markers):
    for lead, does in {0.4: "worse", 1e-5: "about as well", -1e-5: "about as well", -0.4: "better"}.items():
        ending = f" Rotated or mirrored, the heatmap does {does}."
        assert sentence("supported", lead=lead) == sentence("supported") + ending
    images = list(draw(4, "outside", torch.Generator().manual_seed(6)).images)
    for method in ("gradcam", "random"):
        for result in explain_many(markers, images, method, proof="full", proof_fill="mean"):
            copies = result.proof.copies
            assert result.proof.sentence.endswith("does worse.") == (copies.lead >= 0.01) == (copies.beaten == 1)
    assert "mirrored" not in explain(markers, images[0], "gradcam", proof=True, proof_fill="mean").proof.sentence


def test_each_box_has_a_proof_of_its_own_score():
    model = wrap_model(load("detector"), input_size=SIDE, labels=list("01234"), head="detection")
    image = draw_pairs(1, torch.Generator().manual_seed(0))[0].pictures[0]
    results = explain(model, image, "gradcam", target=["box:0", "box:1"], proof=True)
    for result in results:
        measured = result.proof.faithfulness
        assert measured.probability == pytest.approx(result.target.probability, abs=1e-4)
        assert f"{result.target.label!r}" in result.proof.sentence
    assert len({result.proof.faithfulness.kept for result in results}) == 2
    edge = explain(model, image, "gradcam", target="box:0", attribute="x1", proof=True).proof.faithfulness
    assert (edge.probability, edge.hidden is None) == (None, False)


def test_a_value_reads_in_its_unit():
    result = explain(light_meter(), bright_corner()[0], "gradcam", proof=True, proof_fill="mean")
    assert result.proof.sentence == (
        "With the marked quarter painted over, 'light' goes from 1.5 lux to 0 lux; alone, it gives 1.5 lux. That "
        "is not graded: fewer than 100 scores of unrelated maps with proof_fill=mean are known."
    )
    measured = result.proof.faithfulness
    assert (measured.probability, measured.value, measured.hidden, measured.score) == (None, 1.5, 0, 1)
    assert result.proof.cost == Passes(3)
    assert measured.turned_dropped is None


def test_what_lowers_a_value_is_told_by_the_value_itself():
    options = {"sign": "absolute", "proof_fill": "mean"}
    fall = explain(light_meter(), bright_corner()[0], "gradcam", "output:0:down", proof="full", **options).proof
    assert fall.sentence.startswith(
        "With the marked quarter painted over, 'light' goes from 1.5 lux to 0 lux; alone, it gives 1.5 lux."
    )
    measured = fall.faithfulness
    assert (measured.value, measured.kept, measured.dropped, measured.hidden) == (1.5, 1.5, 0, 0)
    assert measured.turned_dropped == 1.5
    assert measured.score == -1  # the marked part raises it
    assert "-0" not in repr(measured)
    height, width = ValuePrediction(1, "height", 1.5, "cm", "down"), ValuePrediction(0, "width", 1.0, "cm")
    assert sentence("blank", height, width).endswith("marks nothing that lowers the lead of 'height' over 'width'.")


def test_a_part_that_decides_is_partly_supported_even_if_other_maps_do_as_well():
    measured = Measurement(0.25, "blur", 0.9, None, 0.61, 0.45, None, None, 0.16)
    comparison = Comparison(0.1, 480, "", "", None, None)
    assert grade_of(measured, 0.5, 0.67, comparison) == "partly supported"
    assert grade_of(measured, 0.5, 0.66, comparison) == "spread"
    assert grade_of(measured, 0.51, 0.67, comparison) == "not supported"
    lead = replace(measured, probability=None, value=90.0, hidden=-10.0)
    assert grade_of(lead, 0.5, 0.67, comparison) == "partly supported"
    assert grade_of(lead, 0.5, 0.66, comparison) == "not supported"


def test_what_is_left_of_a_score():
    def left(whole: float, part: float, hidden: float, is_probability: bool) -> float:
        scores = [torch.tensor([score]) for score in (whole, part, part)]
        rest = None, torch.tensor([hidden]), None, None, torch.tensor([is_probability]), torch.tensor([False]), 3
        return Faithfulness(0.25, "blur", *scores, *rest).left(scores[1]).item()

    assert left(0.9, 0.45, 0.1, True) == pytest.approx(0.5)  # a probability, of itself
    assert left(90.0, 40.0, -10.0, False) == pytest.approx(0.5)  # another score, of its change
    assert left(-90.0, -140.0, 10.0, False) == pytest.approx(0.5)
    assert left(90.0, 110.0, -10.0, False) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("beats", "dropped", "score", "warnings", "grade"),
    [
        (0.96, 0.1, 0.4, (), "supported"),
        (0.96, 0.1, 0.4, ("crop-hides",), "supported"),
        (0.96, 0.1, 0.4, ("fill-hides-little",), "not supported"),
        (0.96, 0.1, 0.4, ("ignores-the-model",), "partly supported"),
        (0.96, 0.1, 0.4, ("improbable-target",), "partly supported"),
        (0.85, 0.1, 0.4, (), "partly supported"),
        (0.85, 0.1, 0.05, ("same-for-every-class",), "partly supported"),
        (0.96, 0.89, 0.04, (), "not supported"),
        (0.85, 0.4, -0.04, (), "spread"),
        (0.5, 0.45, 0.4, (), "spread"),
        (0.5, 0.46, 0.4, (), "not supported"),
    ],
)
def test_grades(beats, dropped, score, warnings, grade):
    measured = Measurement(0.25, "blur", 0.9, None, 0.5, dropped, 0.8, None, score)
    comparison = Comparison(beats, 480, "", "", None, None)
    left = dropped / 0.9, 0.5 / 0.9
    assert grade_of(measured, *left, comparison, warnings) == grade
    assert grade_of(measured, *left, None, warnings) is None
    unlikely = replace(measured, probability=0.09)
    assert grade_of(unlikely, *left, comparison, ("improbable-target",)) == "not supported"
    assert grade_of(unlikely, *left, None, ("improbable-target",)) == "not supported"  # whatever the scores
    second = replace(measured, probability=0.25, kept=0.3, dropped=0.05)  # of three classes
    assert grade_of(second, 0.2, 1.2, Comparison(0.96, 480, "", "", None, None), ("improbable-target",)) == (
        "partly supported"
    )


def test_a_part_is_not_enough_where_its_absence_changes_nothing():
    parts = [torch.tensor([value]) for value in (0.95, 0.93, 0.92)]
    measured = Faithfulness(
        0.25, "blur", *parts, None, None, None, None, torch.tensor([True]), torch.tensor([False]), 2
    )
    light = subject_of(ClassPrediction(0, "light", 0.95, 1.5))
    null = Calibration(tuple(number / 100 for number in range(100)), "", "", 0.25, "blur")
    proof = proof_of(measured, np.eye(4, dtype=np.float32), Geometry(8, 8, (0.0, 0.0, 8.0, 8.0)), light, (), null)
    assert "fill-hides-little" in proof.warnings
    assert proof.sentence == (
        "This test can neither support nor refute the heatmap: with the marked quarter blurred, the "
        "model still says 'light' at 92.0% (was 95.0%), and with the rest blurred at 93.0%."
    )
    assert (proof.grade, proof.verdict) == ("not supported", "inconclusive")
    assert replace(proof, warnings=()).verdict == "not supported"
    assert replace(proof, grade="supported").verdict == "supported"
    assert replace(proof, grade=None).verdict == "not graded"


@pytest.mark.parametrize(
    ("whole", "kept", "dropped", "beats", "grade"),
    [
        (0.2, 0.9, 0.05, 75, "supported"),  # the part alone gives more than the whole, which counts as the whole
        (0.02, 0.2, 0.09, 0, "not supported"),  # it rises without the part
        (0.4, 0.6, 0.45, 38, "not supported"),  # likely
    ],
)
def test_parts_of_an_unlikely_picture_count_no_more_than_the_whole(whole, kept, dropped, beats, grade):
    parts = [torch.tensor([value]) for value in (whole, kept, dropped)]
    measured = Faithfulness(
        0.25, "blur", *parts, None, None, None, None, torch.tensor([True]), torch.tensor([False]), 2
    )
    light = subject_of(ClassPrediction(0, "light", whole, 1.5))
    null = Calibration(tuple(number / 100 for number in range(100)), "", "", 0.25, "blur")
    proof = proof_of(measured, np.eye(4, dtype=np.float32), Geometry(8, 8, (0.0, 0.0, 8.0, 8.0)), light, (), null)
    assert round(101 * proof.calibration.beats) == beats
    supported = replace(null, scores=tuple(score / 2 for score in null.scores))
    proof = proof_of(measured, np.eye(4, dtype=np.float32), Geometry(8, 8, (0.0, 0.0, 8.0, 8.0)), light, (), supported)
    assert proof.grade == grade
    assert "enough on its own" not in proof.sentence


@pytest.mark.parametrize(
    ("kept", "dropped", "text"),
    [
        (0.98, 0.65, "decides: with it blurred, 'light' falls from 99.0% to 65.0%; alone, it still gives 98.0%."),
        (
            0.98,
            0.97,
            "is enough on its own, but so is the rest: alone, it still gives 98.0%; with it blurred, "
            "'light' falls from 99.0% to 97.0%.",
        ),
        (0.50, 0.1, "decides: with it blurred, 'light' falls from 99.0% to 10.0%; alone, it still gives 50.0%."),
        (0.40, 0.1, "decides: with it blurred, 'light' falls from 99.0% to 10.0%; alone, it gives 40.0%."),
        (
            0.30,
            0.1,
            "matters, but is not all: with it blurred, 'light' falls from 99.0% to 10.0%; alone, it gives 30.0%.",
        ),
        (
            0.60,
            0.67,
            "matters, but is not all: with it blurred, 'light' falls from 99.0% to 67.0%; alone, it gives 60.0%.",
        ),
    ],
)
def test_a_part_decides_only_if_much_is_lost_without_it(kept, dropped, text):
    whole, kept, dropped = torch.tensor([[0.99], [kept], [dropped]])
    is_yes, is_no = torch.tensor([[True], [False]])
    measured = Faithfulness(0.25, "blur", whole, kept, dropped, None, None, None, None, is_yes, is_no, 2)
    assert (
        sentence_of("supported", measured, subject_of(ClassPrediction(0, "light", 0.99, 1.5)))
        == f"The marked quarter {text}"
    )


@pytest.mark.parametrize(("kept", "gives"), [(0.85, "still gives 85.0%"), (0.9, "even gives 90.0%")])
def test_a_part_even_gives_only_what_exceeds_the_whole_by_a_tenth(kept, gives):
    whole, kept, dropped = torch.tensor([[0.8], [kept], [0.1]])
    is_yes, is_no = torch.tensor([[True], [False]])
    measured = Faithfulness(0.25, "blur", whole, kept, dropped, None, None, None, None, is_yes, is_no, 2)
    told = sentence_of("supported", measured, subject_of(ClassPrediction(0, "light", 0.8, 1.5)))
    assert told.endswith(f"; alone, it {gives}.")


@pytest.mark.parametrize(
    ("whole", "kept", "dropped", "text"),
    [
        (0.00031, 0.00042, 0.00012, "matters: with it blurred, 'light' falls from 0.031% to 0.012%; alone, it"),
        (
            0.00010595,
            0.0003,
            0.00010571,
            "speaks for 'light', but is not needed: with it blurred, 'light' stays at 0.011%",
        ),
        (
            0.5006,
            0.53,
            0.4994,
            "is enough on its own, but so is the rest: with it blurred, 'light' falls from 50.1% to 49.9%; al",
        ),
        (
            0.5,
            0.3,
            0.4,
            "matters, but is not all: with it blurred, 'light' falls from 50.0% to 40.0%; alone, it gives 30",
        ),
        (0.5004, 0.53, 0.4996, "speaks for 'light', but is not needed: with it blurred, 'light' stays at 50.0%; alone"),
        (
            0.9997,
            0.9998,
            0.9991,
            "speaks for 'light', but is not needed: with it blurred, 'light' stays at >99.9%; alone",
        ),
        (0.999, 1.0, 0.999, "speaks for 'light', but is not needed: with it blurred, 'light' stays at >99.9%; alone"),
    ],
)
def test_a_change_that_does_not_show_in_the_shares_is_not_told(whole, kept, dropped, text):
    whole, kept, dropped = torch.tensor([[whole], [kept], [dropped]])
    is_yes, is_no = torch.tensor([[True], [False]])
    measured = Faithfulness(0.25, "blur", whole, kept, dropped, None, None, None, None, is_yes, is_no, 2)
    told = sentence_of("partly supported", measured, subject_of(ClassPrediction(0, "light", 0.99, 1.5)))
    assert told.startswith(f"The marked quarter {text}")


def test_the_rank_counts_the_map_itself():
    calibration = Calibration(tuple(number / 100 for number in range(100)), "", "", 0.25, "blur")
    assert calibration.compared(0.5).beats == 50 / 101  # an equal score is not beaten
    assert calibration.compared(2).beats == 100 / 101
    assert Calibration(calibration.scores[1:], "", "", 0.25, "blur").compared(0.5) is None


def test_one_line_never_says_that_a_map_beats_all(markers, calibration):
    (image,) = draw(1, "outside", torch.Generator().manual_seed(6)).images
    options: dict[str, Any] = {"proof": True, "proof_area": AREA, "proof_fill": "mean"}
    sure = replace(calibration, scores=(-9.0,) * 999)
    proof = explain(markers, image, "gradcam", proof_calibration=sure, **options).proof
    assert proof.summary == f"supported; score={proof.faithfulness.score:.2f}; beats=0.99"
    assert "alone, it " in proof.sentence


def test_false_alarms_are_those_on_pictures_left_out():
    assert false_alarms([[float(number)] for number in range(101)]) == pytest.approx(5 / 101, abs=0.01)
    assert false_alarms([[0.0] * 30, [0.0] * 30, [1.0]]) == pytest.approx(1 / 61)
    assert false_alarms([]) is None


def test_the_shape_of_a_map():
    whole = Geometry(100, 100, (0, 0, 100, 100))
    uniform = shape_of(np.ones((7, 7), np.float32), whole)
    assert (uniform.border_mass, uniform.unseen, uniform.gini) == pytest.approx((1 - (12 / 14) ** 2, 0, 0))
    dot = np.zeros((8, 8), np.float32)
    dot[0, 0] = -1
    assert shape_of(dot, whole).border_mass is None
    assert shape_of(-dot, whole).gini == pytest.approx(63 / 64)
    assert shape_of(-dot, whole).border_mass > 0.4
    assert shape_of(-dot, Geometry(200, 100, (50, 0, 150, 100))).unseen == 0.5
    assert shape_of(0 * dot, whole).gini is None


def test_a_map_reaches_the_sides_beyond_which_most_is_cut_off():
    wide, high = Geometry(200, 100, (60, 10, 140, 90)), Geometry(100, 200, (10, 60, 90, 140))
    for place, is_wide, is_high in (((0, 4), False, True), ((4, 7), True, False), ((4, 4), False, False)):
        dot = np.zeros((8, 8), np.float32)
        dot[place] = 1
        assert (reaches_cut(dot, wide), reaches_cut(dot, high)) == (is_wide, is_high)
        assert not reaches_cut(-dot, wide)


def test_a_blank_map_claims_nothing():
    proof = explain(light_meter(), bright_corner()[0] * 0, "gradcam", proof="full").proof
    assert (proof.grade, proof.faithfulness, proof.copies, proof.calibration) == ("blank", None, None, None)
    assert "blank-map" in proof.warnings


def test_over_one_pixel_every_map_is_blank(markers, calibration):
    options = {"proof_area": calibration.area, "proof_fill": calibration.fill, "proof_calibration": calibration}
    result = explain(markers, Image.new("RGB", (1, 1), (200, 90, 30)), "gradcam", proof=True, **options)
    assert result.map.min() < result.map.max()
    assert (result.proof.grade, result.proof.faithfulness, result.proof.calibration) == ("blank", None, None)
    assert result.proof.warnings[-1] == "blank-map"
    assert result.proof.sentence.startswith("The heatmap is blank")


def test_the_proof_is_the_same_by_all_ways(markers, calibration):
    images = list(draw(3, "outside", torch.Generator().manual_seed(5)).images)
    options: dict[str, Any] = {"proof": "full", "proof_area": AREA, "proof_fill": "mean"}
    options["proof_calibration"] = calibration
    results = list(explain_many(markers, images, "gradcam", batch_size=2, **options))
    for image, result in zip(images, results, strict=True):
        alone = explain(markers, image, "gradcam", target=result.target.index, **options)
        (first, _) = compare(markers, image, ["gradcam", "saliency"], **options)
        several = explain(markers, image, "gradcam", target=["red", "blue", result.target.index], **options)[2]
        for other in (alone, first, several):
            assert other.proof.faithfulness.score == pytest.approx(result.proof.faithfulness.score, abs=1e-4)
            assert other.proof.grade == result.proof.grade
        assert result.proof.copies.beaten in (0, 0.5, 1)
        (part,) = alone.document()["explanations"]
        assert part["proof"] == asdict(alone.proof)
        assert json.loads(str(alone.arrays()["proofs"][0]))["grade"] == alone.proof.grade


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"proof": "half"}, "proof"),
        ({"proof": True, "proof_area": 0.0}, "proof_area"),
        ({"proof": True, "proof_fill": "noise"}, "proof_fill"),
        ({"proof": True, "proof_area": 0.25}, "proof_calibration"),
        ({"proof_area": 0.2}, "proof_area"),
        ({"proof_fill": "mean"}, "proof_fill"),
    ],
)
def test_bad_options_say_what_to_do(options, field, markers, calibration):
    with pytest.raises(OptionError) as caught:
        explain(markers, torch.zeros(3, SIDE, SIDE), proof_calibration=calibration, **options)
    assert caught.value.field == field


def test_options_of_proofs_need_a_proof(markers):
    picture = torch.zeros(3, SIDE, SIDE)
    with pytest.raises(OptionError, match="give `proof` too"):
        compare(markers, picture, ["gradcam"], proof_area=0.2)
    with pytest.raises(OptionError, match="give `proof` too"):
        explain_many(markers, [picture], proof_fill="mean")
    assert explain(markers, picture, proof_area=0.25, proof_fill="blur").proof is None


def test_a_calibration_needs_enough_pictures(markers):
    with pytest.raises(OptionError, match="30 scores"):
        calibrate(markers, list(draw(10, "outside", torch.Generator()).images) * 5)  # repeated pictures do not count
    with pytest.raises(OptionError, match="Give several pictures"):
        calibrate(markers, "shapes")
    with pytest.raises(OptionError, match=r"33 pictures cannot give the 100 scores .* at least 34"):
        calibrate(markers, [None] * 33)  # refused before any is read


def test_a_calibration_of_a_target_leaves_out_pictures_without_it():
    segmenter = wrap_model(load("segmenter"), input_size=SIDE, labels=list("abcdef"), head="segmentation")
    images = draw(12, "outside", torch.Generator().manual_seed(9)).images
    having = [image for image in images if (predict(segmenter, image[None]).argmax(1) == 2).any()]
    assert 1 < len(having) < 12
    trials = [Trial(AREA, "mean", full=True)]
    (rows,) = null_rows(segmenter, GradCAM(), list(images), trials, 4, ask_of(segmenter, "c"))
    options: dict[str, Any] = {"proof": True, "proof_area": AREA, "proof_fill": "mean"}
    proofs = [explain(segmenter, image, "gradcam", "c", **options).proof.faithfulness for image in having]
    assert [float(row.target.score) for row in rows] == pytest.approx([proof.score for proof in proofs], abs=1e-3)
    assert [len(row.target.null_scores) for row in rows] == [2, *(len(rows) - 1) * [3]]
    with pytest.raises(OptionError, match=f"^{len(having)} pictures gave .* pictures that show the target"):
        calibrate(segmenter, [*images] * 3, "gradcam", target="c")  # repeated ones do not count
    with pytest.raises(TargetError, match="predicts 'c' nowhere"):
        calibrate(segmenter, images[[0]][:, :, :8, :8].repeat(34, 1, 1, 1), target="c")


def test_contrasts_of_the_most_probable_class_are_graded_by_their_like(markers, calibration):
    images = draw(200, "outside", torch.Generator().manual_seed(8)).images
    best, second = predict(markers, images).topk(2).indices.T
    attribution = GradCAM().explain(markers, images, Ask(best, second))
    for maps, least, most in ((attribution.maps, 0.95, 1), (attribution.maps.roll(1, 0), 0, 0.15)):
        (proved,) = prove(markers, images, [replace(attribution, maps=maps)], Trial(AREA, "mean"))
        beaten = [calibration.of_contrasts.compared(float(row.faithfulness.score)).beats for row in proved.rows()]
        assert least <= sum(part >= 0.95 for part in beaten) / len(beaten) <= most
    options: dict[str, Any] = {"proof": True, "proof_area": AREA, "proof_fill": "mean"}
    options["proof_calibration"] = calibration
    pair = {"target": int(best[0]), "against": int(second[0])}
    proof = explain(markers, images[0], "gradcam", **pair, **options).proof
    assert (proof.grade, proof.calibration.of) == ("supported", len(calibration.contrast.scores))
    pair = {"target": int(second[0]), "against": int(best[0])}
    proof = explain(markers, images[0], "gradcam", **pair, **options).proof
    reason = "contrasts are graded only for the most probable class, if it has at least 30%"
    assert proof.sentence.endswith(f"That is not graded: {reason}.")
    options["proof_calibration"] = replace(calibration, contrast=None)  # a file of an earlier release
    assert explain(markers, images[0], "gradcam", against=int(second[0]), **options).proof.grade is None


def test_a_calibration_digests_each_picture_once(monkeypatch, markers):
    digested = []
    for module in ("seewhy.explainers.calibrate", "seewhy.explainers.trust.strangers"):
        monkeypatch.setattr(sys.modules[module], "digest_of", lambda image: digested.append(1) or digest_of(image))
    trials = [Trial(AREA, fill, full=True) for fill in FILLS]
    null_rows(markers, GradCAM(), list(draw(5, "outside", torch.Generator()).images), trials)
    assert len(digested) == 5


def test_a_method_that_is_the_same_for_every_class_is_never_fully_supported(monkeypatch, markers, calibration):
    same = Sanity(same_with_random_head=0.9, same_with_random_model=0.1, same_for_an_unlikely_class=0.95, pictures=8)
    monkeypatch.setattr("seewhy.explainers.results.explanation.sanity_of", lambda _digest, _size, method: same)
    (image,) = draw(1, "outside", torch.Generator().manual_seed(6)).images
    options: dict[str, Any] = {"proof": True, "proof_area": AREA, "proof_fill": "mean"}
    usual = explain(markers, image, "gradcam", proof_calibration=calibration, **options).proof
    assert usual.sanity == same
    assert usual.warnings == ("same-for-every-class",)
    assert usual.grade != "supported"
    other = explain(markers, image, "gradcam", proof_calibration=calibration, sign="absolute", **options).proof
    assert other.sanity is None  # it was measured with the default options


@pytest.mark.parametrize(
    ("whole", "kept", "dropped", "warns"),
    [
        (0.9, 0.82, 0.82, True),
        (0.9, 0.8, 0.9, False),
        (0.9, 0.9, 0.8, False),
        (0.29, 0.29, 0.29, False),  # too little for shares of it to mean much
    ],
)
def test_a_fill_that_hides_neither_part_is_told(whole, kept, dropped, warns):
    parts = [torch.tensor([value]) for value in (whole, kept, dropped)]
    of_parts = (0.25, "blur", *parts, None, None, None, None)
    light = subject_of(ClassPrediction(0, "light", whole, 1.5))
    for is_blank in (False, True):
        measured = Faithfulness(*of_parts, torch.tensor([True]), torch.tensor([is_blank]), 2)
        proof = proof_of(measured, np.eye(4, dtype=np.float32), Geometry(8, 8, (0.0, 0.0, 8.0, 8.0)), light)
        assert ("fill-hides-little" in proof.warnings) is (warns and not is_blank)
    contrast = Faithfulness(*of_parts, torch.tensor([False]), torch.tensor([False]), 2)
    proof = proof_of(contrast, np.eye(4, dtype=np.float32), Geometry(8, 8, (0.0, 0.0, 8.0, 8.0)), light)
    assert "fill-hides-little" not in proof.warnings


@pytest.mark.parametrize(
    ("whole", "kept", "dropped", "hidden", "of_contrast", "of_value"),
    [
        (0.741, 0.803, 0.643, 0.7433, True, True),  # the lead comes from an empty picture
        (0.74, 0.8, 0.3, 0.4, True, False),
        (-0.74, -0.8, -0.3, -0.4, True, False),
        (0.74, 0.8, 0.3, 0.36, False, False),
        (0.3, 0.4, -0.2, -0.4, False, False),
        (0.96, 0.986, 0.963, 0.1, True, False),  # each part keeps the lead
        (-0.96, -0.986, -0.963, -0.1, True, False),
        (0.96, 0.986, 0.85, 0.1, False, False),
        (0.02, 0.4, -0.3, -0.01, True, True),  # the parts change it more than the whole picture
        (0.0, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_a_value_that_an_empty_picture_has_too_is_not_tested(whole, kept, dropped, hidden, of_contrast, of_value):
    parts = [torch.tensor([value]) for value in (whole, kept, dropped)]
    measured = Faithfulness(
        *(0.25, "blur", *parts, None, torch.tensor([hidden]), None, None),
        *(torch.tensor([False]), torch.tensor([False]), 3),
    )
    null = Calibration(tuple(number / 1000 for number in range(-50, 50)), "", "", 0.25, "blur", are_probabilities=False)
    light, dark = ClassPrediction(0, "light", 0.87, 2.0), ClassPrediction(1, "dark", 0.13, 0.1)
    size = ValuePrediction(0, "size", 0.7)
    for subject, warns in ((subject_of(light, dark), of_contrast), (subject_of(size), of_value)):
        geometry = Geometry(8, 8, (0.0, 0.0, 8.0, 8.0))
        proof = proof_of(measured, np.eye(4, dtype=np.float32), geometry, subject, (), null)
        assert ("fill-hides-little" in proof.warnings) is warns
        assert (proof.verdict == "inconclusive") is warns
    if whole == 0.96 and dropped == 0.963:
        proof = proof_of(measured, np.eye(4, dtype=np.float32), geometry, subject_of(light, dark), (), null)
        assert proof.sentence == (
            "This test can neither support nor refute the heatmap: with the marked quarter blurred, the lead of "
            "'light' over 'dark' is still 96.3 points (was 96.0 points); alone, it gives 98.6 points."
        )
    if whole == 0.741:
        proof = proof_of(measured, np.eye(4, dtype=np.float32), geometry, subject_of(light, dark), (), null)
        assert proof.sentence == (
            "This test can neither support nor refute the heatmap: with everything blurred, the lead of 'light' over "
            "'dark' is still 74.3 points (with the whole picture: 74.1 points)."
        )


def test_large_areas_of_one_colour_survive_a_blur():
    """A network that sees the colour of a disc: no map can be tested by a blur, but one by the mean colour can."""
    net = nets.Weighted((20.0, -20.0, 0.0), (-20.0, 20.0, 0.0))
    model = wrap_model(net, ["red", "green"], input_size=32)
    picture = Image.new("RGB", (32, 32), (90, 90, 90))
    picture.paste((200, 60, 60), (8, 8, 24, 24))
    warned = {fill: explain(model, picture, proof=True, proof_fill=fill).proof.warnings for fill in ("blur", "mean")}
    assert "fill-hides-little" in warned["blur"]
    assert "fill-hides-little" not in warned["mean"]


def test_what_warns():
    assert Sanity(0.81, 0.0, 0.81, 8).is_same_for_every_class
    assert not Sanity(1.0, 0.0, 0.8, 8).is_same_for_every_class
    assert not Sanity(0.8, 0.0, 1.0, 8).is_same_for_every_class
    assert Sanity(0.0, 0.81, 0.0, 8).ignores_the_model
    assert not Sanity(0.8, 0.8, 0.8, 8).ignores_the_model
