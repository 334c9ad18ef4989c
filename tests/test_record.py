"""The comparison of recorded answers pairs arrays by their identity, not by their position."""

import io

import numpy as np

from tools import questions
from tools.documents import Reader, decoded, differences, load, write
from tools.load import METHODS


def answer(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return {"status": 200, "body": decoded("application/x-npz", file.getvalue())}


def places(tmp_path, recorded, present):
    write(tmp_path / "group", {"question": Reader({}).read(recorded)})
    return {place for place, *_ in differences(load(tmp_path / "group")["question"], Reader({}).read(present), 1e-6)}


def test_arrays_of_a_file_are_paired_by_member(tmp_path):
    maps, zeros = np.ones((2, 3)), np.zeros((2, 3))
    assert places(tmp_path, answer(maps_0=maps, maps_1=zeros), answer(maps_1=zeros, maps_0=maps)) == set()
    assert places(tmp_path, answer(maps_0=maps, maps_1=zeros), answer(maps_0=maps, maps_1=maps)) == {".body.maps_1"}


def test_arrays_of_a_list_are_paired_by_key_or_number(tmp_path):
    maps, zeros = np.ones((2, 3)), np.zeros((2, 3))
    tensors = [{"key": "a/output/0", "values": maps}, {"key": "b/output/0", "values": zeros}]
    assert places(tmp_path, tensors, tensors) == set()
    changed = [tensors[0], {"key": "b/output/0", "values": maps}]
    assert places(tmp_path, tensors, changed) == {"[b/output/0].values"}
    assert places(tmp_path, [maps, zeros], [maps, zeros, zeros]) == {"", "[2]"}


def test_numbers_of_a_member_are_compared_together(tmp_path):
    rows = [{"logit": 1000.0}, {"logit": 1e-4}]
    assert places(tmp_path, rows, [rows[0], {"logit": 1e-4 + 1e-9}]) == set()
    assert places(tmp_path, rows, [{"logit": 1001.0}, rows[1]]) == {".logit"}


def test_each_question_has_a_name_of_its_own_and_each_model_weights():
    sections = map(questions.section, ("drawings", "hooks"))
    mixed = questions.explanations(list(METHODS)), questions.compatible(), questions.errors(), questions.limits("key")
    for group in (*mixed, *sections):
        names = [name for name, _ in group]
        assert len(names) == len(set(names))
    assert questions.LAYERS.keys() <= {questions.LITE, *questions.UNTRAINED}
