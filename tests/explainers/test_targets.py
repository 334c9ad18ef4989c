import numpy as np
import pytest
import torch

from seewhy.explainers.errors import TargetError, near_matches
from seewhy.explainers.tasks.classification import Classification, best, class_index

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
        ("zebra", "See the list of the model's labels."),
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
    assert near_matches("Car", names) == "Near matches: car wheel, sports car, scar, cur, carton."
