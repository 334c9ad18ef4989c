"""Everything that runs on the CPU runs on another device, gives the same there, and waits no more than necessary."""

import json
import subprocess
import sys

import numpy as np
import pytest

from seewhy.explainers.methods.catalogue import get_method, list_methods

TOLERANCE = 1e-5

EIGEN = {"eigencam", "eigengradcam", "kpcacam"}
LOOK = {"attnlrp", "cam", "deeplift", "excitation-backprop", "fullgrad", "lrp", "votes", "votes-detail"} | EIGEN
"""Methods of a pass or two that look at what they found before they go on; `torch.linalg.eigh` does by itself."""

ONE_PASS = {name for name in list_methods() if {get_method(name).forwards, get_method(name).backwards} <= {*"0123"}}


def run(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "tests.device", *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.slow
def test_every_method_gives_the_same_on_another_device():
    for name, (difference, device, looks) in run().items():
        assert difference <= TOLERANCE, name
        assert device == "away", name
        if name in ONE_PASS:
            assert bool(looks) == (name in LOOK), name


def test_the_methods_that_do_not_look_are_most_of_those_of_a_pass():
    assert len(ONE_PASS - LOOK) > 15
    assert LOOK < ONE_PASS


@pytest.mark.slow
def test_the_embedded_model_gives_the_same_on_another_device():
    here, away = run("answers")
    assert set(here) == {"evaluate", "explain", "prove", "similar", "capture", "sweep", "intervene", "trace"}
    for operation, numbers in here.items():
        assert len(numbers) > 5
        np.testing.assert_allclose(away[operation], numbers, rtol=0, atol=TOLERANCE * np.abs(numbers).max())
