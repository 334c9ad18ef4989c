"""The same maps as other libraries' on stock architectures with fixed random weights: each method on one of them.

`make peers` compares on all of them; the table is in docs/peers.md.
"""

import re

import pytest

from seewhy.explainers.methods.catalogue import METHODS
from tools.peers import NETS, PAGE, PEERS, TARGETS, TOLERANCE, Peer, difference

pytestmark = pytest.mark.filterwarnings("ignore")


SHORT = ("gradcam", "saliency")
"""The methods that `make test` compares, on the first network."""

LARGE = "vgg11"
"""The network of most weights, which takes no turn."""


def pairs():
    """Yield each peer with one network where it can be compared; the others take turns, but for long methods."""
    for place, peer in enumerate(PEERS):
        names = [name for name in NETS if name not in {*peer.without, LARGE}] or [LARGE]
        is_short, is_long = peer.method in SHORT, METHODS[peer.method].forwards not in ("1", "2")
        name = names[0 if is_short or is_long else (place + 1) % len(names)]
        yield pytest.param(peer, name, marks=[] if is_short else [pytest.mark.slow], id=f"{peer.method}-{peer.library}")


@pytest.mark.parametrize(("peer", "name"), list(pairs()))
def test_maps_are_equal(peer: Peer, name: str):
    # Relevance of two pictures is so small on VGG that captum's stabiliser of denominators shows.
    count = len(TARGETS) if peer.method == "lrp" else 1 + (METHODS[peer.method].forwards in ("1", "2"))
    assert difference(peer, name, count) < TOLERANCE


def test_the_table_in_the_docs_is_that_of_these_peers():
    text = PAGE.read_text(encoding="utf-8").partition("## Known differences")[0]
    rows = re.findall(r"^\| `([^`]+)`.*? \| ([a-z-]+) \| (.*) \|$", text, re.MULTILINE)
    assert [(method, library) for method, library, _ in rows] == [(peer.method, peer.library) for peer in PEERS]
    for (_, _, cells), peer in zip(rows, PEERS, strict=True):
        for name, cell in zip(NETS, cells.split(" | "), strict=True):
            if name in peer.without:
                assert re.fullmatch(r"\[\d\]", cell)
            else:
                assert float(cell) < TOLERANCE, (peer.method, name)
    assert {peer.method for peer in PEERS} <= set(METHODS)
