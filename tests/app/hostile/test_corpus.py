import pytest

from tools.hostile.corpus import CORPUS, archive, inputs, pack
from tools.hostile.targets import MAX_LENGTH, TARGETS, run, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_find_nothing(name):
    assert len(inputs(name)) > 20
    for content in inputs(name).values():
        assert len(content) <= MAX_LENGTH
        run(name, content)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_find_nothing(name):
    for content in seeds(name):
        run(name, content)


def test_the_corpus_is_an_archive_for_each_target():
    assert {file.stem for file in CORPUS.iterdir()} == set(TARGETS)
    assert sum(archive(name).stat().st_size for name in TARGETS) < 300_000


def test_an_input_is_packed_once_whatever_the_order(monkeypatch, tmp_path):
    monkeypatch.setattr("tools.hostile.corpus.CORPUS", tmp_path)
    pack("edits", [b"b", b"a", b"b"])
    packed = archive("edits").read_bytes()
    assert sorted(inputs("edits").values()) == [b"a", b"b"]
    pack("edits", [b"a", b"b"])
    assert archive("edits").read_bytes() == packed
