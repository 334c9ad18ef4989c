"""Files of arrays, made piece by piece: readers of npz and safetensors get back the original arrays."""

import io
import tracemalloc

import numpy as np
import pytest
import safetensors.torch
import torch

from seewhy.explainers.results.array_files import PIECE_BYTES, ArrayFile

TENSORS = {
    "layer/output/0": torch.arange(60.0).reshape(3, 4, 5).transpose(0, 2),  # numbers in another order
    "half": torch.linspace(-1, 1, 7).bfloat16(),
    "number": torch.tensor(3.0),
    "nothing": torch.zeros(0, 4),
    "whole": torch.arange(10),
    "true": torch.tensor([True, False]),
    "large": torch.arange(PIECE_BYTES, dtype=torch.float64),
}


def plain(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def test_an_npz_holds_what_was_put_in():
    arrays = {**TENSORS, "names": np.array(["saliency", "rise"]), "turned": np.asfortranarray(np.eye(3)[:2])}
    file = ArrayFile("npz", arrays)
    whole = b"".join(file.pieces())
    assert len(whole) == file.length
    with np.load(io.BytesIO(whole)) as archive:
        assert set(archive) == set(arrays)
        for name, array in arrays.items():
            expected = plain(array) if isinstance(array, torch.Tensor) else array
            assert archive[name].dtype == expected.dtype
            np.testing.assert_array_equal(archive[name], expected)


def test_a_safetensors_file_holds_what_was_put_in():
    file = ArrayFile("safetensors", TENSORS)
    whole = b"".join(file.pieces())
    assert len(whole) == file.length
    tensors = safetensors.torch.load(whole)
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_no_more_than_a_few_pieces_are_in_memory(form):
    arrays = {str(number): torch.zeros(2**21) for number in range(4)}
    file = ArrayFile(form, arrays)
    tracemalloc.start()
    try:
        assert sum(map(len, file.pieces())) == file.length
        assert tracemalloc.get_traced_memory()[1] < 6 * PIECE_BYTES
    finally:
        tracemalloc.stop()


def test_an_npz_of_several_gigabytes_does_not_tell_its_length(monkeypatch):
    monkeypatch.setattr("seewhy.explainers.results.array_files.zipfile.ZIP64_LIMIT", 1000)
    assert ArrayFile("npz", TENSORS).length is None
    assert ArrayFile("safetensors", TENSORS).length is not None


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_a_file_may_be_given_up_in_the_middle(form):
    pieces = ArrayFile(form, TENSORS).pieces()
    assert next(pieces)
    pieces.close()
