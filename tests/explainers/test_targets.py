import numpy as np
import pytest
import torch

from seewhy.explainers.errors import TargetError, near_matches
from seewhy.explainers.tasks.box_target import ATTRIBUTES, parse_target
from seewhy.explainers.tasks.classification import Classification, best, class_index
from seewhy.explainers.tasks.segmentation import Segmentation
from seewhy.explainers.tasks.values import Values

LABELS = ["tabby", "Tiger cat", "crane", "crane", "7"]


@pytest.mark.parametrize(
    ("target", "index"),
    [(0, 0), ("tabby", 0), (" TABBY ", 0), ("tiger CAT", 1), ("3", 3), ("+2", 2), ("7", 4), (4, 4)],
)
def test_labels_and_indices_name_classes(target, index):
    assert class_index(target, LABELS) == index


def test_case_tells_labels_apart_where_it_must():
    labels = ["Cardigan", "cardigan", "Crane", "crane", "crane"]
    assert [class_index(label, labels) for label in labels[:3]] == [0, 1, 2]
    for ambiguous in ("CARDIGAN", "crane"):
        with pytest.raises(TargetError, match="give one of these numbers"):
            class_index(ambiguous, labels)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("taby", "Near matches: tabby"),
        ("cat", "Near matches: Tiger cat"),
        ("zebra", "It has tabby, Tiger cat"),
        ("crane", "classes 2, 3"),
        ("", "no class ''"),
        ("1.5", "no class '1.5'"),
        ("--1", "--1"),
        (5, "classes 0 to 4"),
        ("-1", "classes 0 to 4"),
        ("999999999", "classes 0 to 4"),
        ("9" * 5000, "no class"),
    ],
)
def test_what_names_no_class_is_refused_with_a_way_out(target, message):
    with pytest.raises(TargetError, match=message):
        class_index(target, LABELS)


def test_predictions_are_softmax_in_the_order_asked_for():
    logits = torch.tensor([1.0, 3.0, 1.0]).log()
    ranking = Classification(["a", "b", "c"]).describe(logits, [2, 1], top=0)
    assert [(row.index, row.label) for row in ranking] == [(2, "c"), (1, "b")]
    assert np.allclose([row.probability for row in ranking], [0.2, 0.6])
    assert ranking[1].logit == np.float32(np.log(3))


def test_the_best_come_first_and_equal_ones_in_class_order():
    logits = np.array([0.0, 3.0, 0.0, -1.0], np.float32)
    assert best(logits, 3) == [1, 0, 2]
    assert best(logits, 9) == [1, 0, 2, 3]


def test_predictions_of_large_logits_do_not_overflow():
    ranking = Classification(["a", "b"]).describe(torch.tensor([1e4, -1e4]), [0, 1], top=0)
    assert [row.probability for row in ranking] == [1.0, 0.0]


def test_near_matches_that_hold_the_word_come_first():
    names = ["scar", "cur", "sports car", "car wheel", "carton"]
    assert near_matches("Car", names) == "Near matches: car wheel, sports car, scar, carton."


def test_names_far_less_similar_than_the_nearest_one_are_no_near_matches():
    assert near_matches("gradcm", ["gradcam", "xgradcam", "random", "legrad"]) == "Near matches: gradcam, xgradcam."


def test_a_place_is_no_target_of_a_classifier():
    for place in ("box:3", "region:1,2,3,4", "pixel:3,4"):
        with pytest.raises(TargetError, match=f"'{place}' is a place, but this model classifies whole pictures"):
            Classification(LABELS).target(place)
    assert Classification(["box:3"]).target("box:3") == 0


def test_few_labels_are_listed():
    with pytest.raises(TargetError, match=r"no class 'quokka'\. It has tabby, Tiger cat, crane, crane, 7\."):
        class_index("quokka", LABELS)
    with pytest.raises(TargetError, match="`seewhy models NAME` or GET /models/NAME lists its labels"):
        class_index("quokka", [f"class {number}" for number in range(1000)])


def test_listed_labels_with_commas_are_quoted():
    labels = ["healthy", "benign, maybe", "malignant"]
    with pytest.raises(TargetError, match=r"It has healthy, 'benign, maybe', malignant\."):
        class_index("quokka", labels)
    with pytest.raises(TargetError, match=r"Near matches: 'benign, maybe'\."):
        class_index("benign", labels)
    with pytest.raises(TargetError, match="There are healthy, 'benign, maybe', malignant; add :down"):
        Values(labels).target("quokka")


PUZZLING = ["dog", "score", "x1", "Dog:x1", "box:1", "label", "border", "sky:border"]
"""Labels that read like what else is asked about boxes and regions."""

DOG, SCORE, X1, DOG_X1, BOX_1, LABEL, BORDER, SKY_BORDER = range(len(PUZZLING))


@pytest.mark.parametrize(
    ("target", "kind", "label", "attribute"),
    [
        ("dog", "label", DOG, "score"),
        ("dog:y1", "label", DOG, "y1"),
        ("dog:x1", "label", DOG_X1, "score"),
        ("label:dog:x1", "label", DOG_X1, "score"),
        ("label:dog:x1:x1", "label", DOG_X1, "x1"),
        ("score", "label", SCORE, "score"),
        ("label:score", "label", SCORE, "score"),
        ("label:score:x1", "label", SCORE, "x1"),
        ("label:x1:x1", "label", X1, "x1"),
        ("label:label", "label", LABEL, "score"),
        ("label", "label", LABEL, "score"),
        ("label:box:1", "label", BOX_1, "score"),
        ("box:1", "box", None, "score"),
        ("box:1:x1", "box", None, "x1"),
        ("box:1:x1:score", "box", X1, "score"),
        ("box:1:dog:y2", "box", DOG, "y2"),
        ("box:1,2,3,4:x1:y2", "near", X1, "y2"),
        ("region:1,2,3,4:y1", "region", None, "y1"),
        ("region:1,2,3,4:score:score", "region", SCORE, "score"),
        ("region:1,2,3,4:box:1", "region", BOX_1, "score"),
    ],
)
def test_a_target_of_a_detector_means_one_thing(target, kind, label, attribute):
    parsed = parse_target(target, PUZZLING, ATTRIBUTES)
    assert (parsed.kind, parsed.label, parsed.attribute, parsed.name) == (kind, label, attribute, target)


@pytest.mark.parametrize("place", ["region:1,2,3,4", "box:1,2,3,4"])
def test_a_class_called_like_an_attribute_is_named_in_full(place):
    for name in ("score", "x1"):
        with pytest.raises(TargetError, match=f"end the target in {name}:score .* or pass attribute={name}"):
            parse_target(f"{place}:{name}", PUZZLING, ATTRIBUTES)
    assert parse_target(f"{place}:x1", ["dog"], ATTRIBUTES).attribute == "x1"


@pytest.mark.parametrize(
    ("target", "label", "part"),
    [
        ("border", BORDER, "region"),
        ("label:border", BORDER, "region"),
        ("label:border:border", BORDER, "border"),
        ("dog:border", DOG, "border"),
        ("sky:border", SKY_BORDER, "region"),
        ("sky:border:picture", SKY_BORDER, "picture"),
        (":border", None, "border"),
    ],
)
def test_a_target_of_a_segmenter_means_one_thing(target, label, part):
    region = Segmentation(PUZZLING).target(target)
    assert (region.label, region.part) == (label, part)
