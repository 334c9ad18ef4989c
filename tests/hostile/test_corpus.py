import pytest

from tests.hostile.targets import CORPUS, MAX_LENGTH, TARGETS, kept, run, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_find_nothing(name):
    assert len(kept(name)) > 20
    for file in kept(name):
        content = file.read_bytes()
        assert len(content) <= MAX_LENGTH
        run(name, content)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_find_nothing(name):
    for content in seeds(name):
        run(name, content)


def test_the_corpus_is_small():
    assert sum(file.stat().st_size for file in CORPUS.rglob("*")) < 300_000
