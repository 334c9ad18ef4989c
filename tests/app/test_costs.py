"""Costs of requests, and refusals of those that can never finish in time."""

import io
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from seewhy.app.errors import OverloadedError, TooMuchWorkError
from seewhy.app.pipeline.computation import ExplainComputation
from seewhy.app.pipeline.costs import announce, require_time, settle, units
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import Record, begin
from seewhy.app.pipeline.scheduler import CLEARLY, Pace
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.methods.catalogue import METHODS
from tests.app.test_access import app_of
from tests.app.test_errors import problem

SIDE_224 = (3, 224, 224)


def ask(client, cat, path="/explain", **fields):
    data = {**fields, "image": (io.BytesIO(cat), "cat.png")}
    return client.post(path, data=data, headers={"Accept": "application/json"})


@pytest.mark.parametrize(
    ("passes", "shape", "cost"),
    [
        (Passes(1, 0), SIDE_224, 1),
        (Passes(1, 1), SIDE_224, 1),
        (Passes(2, 1), SIDE_224, 2),
        (Passes(4001, 0), SIDE_224, 2001),
        (Passes(51, 50), SIDE_224, 51),
        (Passes(1, 1), (3, 448, 448), 4),
        (Passes(1, 1), (1, 28, 28), 1),
    ],
)
def test_a_forward_and_a_backward_pass_of_a_small_picture_cost_one(passes, shape, cost):
    assert units(passes, shape) == cost


def test_costs_of_one_request_add_up_and_are_charged_once_its_work_is_accepted():
    charged = []
    begin(record := Record(charge=lambda *amounts: charged.append(amounts)))
    try:
        announce(3)
        announce(4)
        assert (record.cost, record.charged) == (7, 0)
        settle()
        settle()
    finally:
        begin(None)
    assert (record.cost, record.charged) == (7, 7)
    assert charged == [(0, 3, False), (0, 7, False), (0, 7, True)]


def test_work_is_refused_only_where_it_takes_clearly_longer_than_there_is_time():
    def ask(least, seconds=60.0):
        require_time(Passes(12_801), least, Deadline.after(seconds), "lite", [METHODS["sscam"]])

    for least in (0.0, 1.0, 60.0, 70.0):
        ask(least)
    ask(1e9, math.inf)  # the command line has no deadline
    with pytest.raises(TooMuchWorkError, match=r"12,801 passes through lite \(sscam\), at least 128 s") as caught:
        ask(128.0)
    assert caught.value.field == "samples"


@pytest.fixture
def slow(service, monkeypatch):
    """The service with a minute for each request, whose model needs a second for each pass, as far as it knows."""
    pace = Pace()
    pace.learn(Passes(1), 1.0)
    monkeypatch.setattr(service, "deadline", lambda: Deadline.after(60))
    monkeypatch.setattr(service.models.engine, "pace", lambda _: pace)
    return service


@pytest.mark.parametrize(
    ("fields", "field", "passes"),
    [
        ({"method": "sscam"}, "samples", "12,801"),
        ({"method": "scorecam"}, "method", "1,281"),
        ({"method": "rise", "samples": "300", "top": "3"}, "samples", "903"),
        ({"method": ["rise", "gradcam"], "samples": "100"}, "samples", "103"),
        ({"method": "integrated-gradients", "smooth": "tta"}, "steps", "606"),
        ({"method": "sobol", "samples": "2", "cells": "7"}, "samples", "103"),
    ],
)
def test_what_can_never_be_done_in_time_is_refused_at_once_with_what_it_takes(
    client, cat, slow, monkeypatch, fields, field, passes
):
    monkeypatch.setattr(slow.models.engine, "submit", lambda *_: pytest.fail("it was queued"))
    document = problem(ask(client, cat, **fields), 422)
    assert document["type"].endswith(":too-much-work")
    assert [error["field"] for error in document["errors"]] == [field]
    assert f"{passes} passes" in document["detail"]
    assert "SEEWHY_DEADLINE" in document["detail"]


def test_what_is_soon_done_or_runs_parts_of_the_model_alone_is_not_refused(client, cat, slow):
    for method in ("gradcam", "recipro-cam"):
        assert ask(client, cat, method=method).status_code == 200


def test_an_intervention_counts_the_passes_of_both_heatmaps(client, cat, slow):
    edits = '[{"layer": "bn2", "op": "zero"}]'
    answer = ask(client, cat, "/hooks/intervene", method="rise", samples="50", edits=edits)
    assert "102 passes" in problem(answer, 422)["detail"]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"method": "rise", "samples": "300"}, "Use fewer samples or a cheaper method"),
        ({"method": "rise", "samples": "300", "top": "2"}, "Use fewer samples, fewer classes or a cheaper method"),
        ({"method": "scorecam"}, "Use a cheaper method"),
        ({"method": "scorecam", "top": "2"}, "Use fewer classes or a cheaper method"),
    ],
)
def test_a_refusal_advises_fewer_classes_only_where_there_are_several(client, cat, slow, fields, advice):
    assert advice in problem(ask(client, cat, **fields), 422)["detail"]


def test_a_refusal_says_that_proofs_count(client, cat, slow):
    answer = ask(client, cat, method="rise", samples="100", proof="true")
    assert "104 passes through efficientnet_lite0 (rise with its proof)" in problem(answer, 422)["detail"]
    answer = ask(client, cat, method=["rise", "gradcam"], samples="100", proof="true")
    assert "(rise, gradcam with their proofs)" in problem(answer, 422)["detail"]


@pytest.fixture
def limited(service):
    """Return a client of the service with a limit of 40 an hour."""
    app = app_of(rate_limit="40/hour")
    app.extensions["seewhy"] = service
    return app.test_client()


def balance(answer):
    return int(answer.headers["RateLimit"].split("r=")[1].split(";")[0])


@pytest.mark.slow
def test_an_answer_tells_its_cost_and_the_rate_counts_it(limited, cat):
    cheap = ask(limited, cat)
    assert (cheap.headers["X-SeeWhy-Cost"], balance(cheap)) == ("1", 39)
    dear = ask(limited, cat, method="smoothgrad", samples="8")
    assert (dear.headers["X-SeeWhy-Cost"], balance(dear)) == ("9", 30)
    refused = ask(limited, cat, method="smoothgrad", samples="40")
    assert problem(refused, 429)["type"].endswith(":rate-limited")
    assert "costs 41" in refused.get_json()["detail"]
    assert (refused.headers["X-SeeWhy-Cost"], balance(refused)) == ("41", 29)
    assert int(refused.headers["Retry-After"]) > 3000
    assert ask(limited, cat).status_code == 200


@pytest.mark.slow
def test_what_costs_more_than_a_whole_limit_is_answered_when_nothing_else_was_asked(limited, cat):
    answer = ask(limited, cat, method="smoothgrad", samples="45")
    assert answer.status_code == 200
    assert (answer.headers["X-SeeWhy-Cost"], balance(answer)) == ("46", 0)
    assert ask(limited, cat).status_code == 429


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fields", "cost"),
    [
        ("/explain", {"method": "smoothgrad", "samples": "8"}, 9),
        pytest.param(
            "/hooks/intervene",
            {"edits": '[{"layer": "bn2", "op": "zero"}]', "method": "rise", "samples": "10"},
            11,
            marks=pytest.mark.slow,
        ),
        pytest.param("/hooks/trace", {}, 1, marks=pytest.mark.slow),
        pytest.param("/hooks/capture", {"layer": "bn2"}, 2, marks=pytest.mark.slow),
        ("/similar", {}, 2),
    ],
)
def test_what_the_queue_refuses_has_cost_only_its_coming(path, fields, cost, limited, cat, service, monkeypatch):
    def ask_again():
        second = {"reference": (io.BytesIO(cat), "cat.png")} if path == "/similar" else {}
        return ask(limited, cat, path, **fields, **second)

    def refuse(jobs):
        raise OverloadedError("full")

    service.models.model(None, Deadline.after(60))
    with monkeypatch.context() as patch:
        patch.setattr(service.models.engine.threads[service.settings.default_model], "submit", refuse)
        assert (ask_again().status_code, balance(ask_again())) == (503, 38)
    answer = ask_again()
    assert (answer.status_code, answer.headers["X-SeeWhy-Cost"], balance(answer)) == (200, str(cost), 38 - cost)


@pytest.mark.slow
def test_of_two_requests_at_once_that_pass_the_test_one_is_refused(limited, cat, service, monkeypatch):
    submit, rivals = service.models.engine._ready, []

    def meanwhile(*args):
        """Let another request come between the test of the limit and the count."""
        if not rivals:
            rivals.append(None)
            with ThreadPoolExecutor(1) as pool:
                client = limited.application.test_client()
                rivals.append(pool.submit(ask, client, cat, method="smoothgrad", samples="24").result().status_code)
        return submit(*args)

    service.models.model(None, Deadline.after(60))
    monkeypatch.setattr(service.models.engine, "_ready", meanwhile)
    refused = ask(limited, cat, method="smoothgrad", samples="24")
    assert rivals == [None, 200]
    assert problem(refused, 429)["type"].endswith(":rate-limited")
    assert balance(refused) == 14


def test_a_sweep_costs_a_pass_for_each_channel(limited, cat, service):
    def sweep(**edit):
        edits = json.dumps([{"layer": "bn2", "op": "zero", **edit}])
        return ask(limited, cat, "/hooks/intervene", edits=edits, each_channel="true")

    few = sweep(channels=[1, 2, 3, 4, 5])
    assert (few.status_code, few.headers["X-SeeWhy-Cost"], balance(few)) == (200, "3", 37)
    refused = sweep()
    assert (refused.status_code, refused.headers["X-SeeWhy-Cost"], balance(refused)) == (429, "641", 36)


def test_work_of_nobody_knows_how_many_passes_costs_as_much_as_medium_work(service, limited, cat, monkeypatch):
    monkeypatch.setattr(ExplainComputation, "passes", lambda *_: None)
    answer = ask(limited, cat)
    assert (answer.status_code, answer.headers["X-SeeWhy-Cost"]) == (200, "400")


def test_what_asks_no_model_costs_nothing(limited):
    answer = limited.get("/methods")
    assert "X-SeeWhy-Cost" not in answer.headers
    assert balance(answer) == 39


def test_methods_tell_what_their_cost_on_a_loaded_model_is_made_of(client, cat, slow):
    answer = client.get("/methods").get_json()
    methods = {method["name"]: method for method in answer["methods"]}
    assert answer["deadline"] == slow.settings.deadline
    assert methods["scorecam"]["quantities"] == {"channels": 1280, "positions": 49}
    assert methods["rise"]["quantities"] == {}
    assert methods["rise"]["seconds_per_pass"] == 1
    assert methods["rise"]["most_passes"] == CLEARLY * slow.settings.deadline
    assert [name for name, method in methods.items() if method["partial"]] == ["ablationcam", "recipro-cam"]
    assert methods["ablationcam"]["seconds_per_pass"] is None  # its passes are through a part of the model
    for method in client.get("/methods?model=resnet18").get_json()["methods"]:
        assert method["quantities"] is None
        assert method["seconds_per_pass"] is None
        assert method["most_passes"] is None


@pytest.mark.slow
def test_passes_through_a_part_of_the_model_are_measured_by_requests_with_the_default_layer(app_of, cat):
    client = app_of().test_client()

    def known():
        methods = client.get("/methods").get_json()["methods"]
        return {method["name"]: method["seconds_per_pass"] for method in methods if method["seconds_per_pass"]}

    ask(client, cat)
    ask(client, cat, method="recipro-cam", layer="blocks.4")
    assert known().keys().isdisjoint({"recipro-cam", "ablationcam"})
    assert ask(client, cat, method="recipro-cam", proof="true").status_code == 200
    assert 0 < known()["recipro-cam"] < known()["rise"]
    assert "ablationcam" not in known()
    methods = {method["name"]: method for method in client.get("/methods").get_json()["methods"]}
    assert methods["recipro-cam"]["most_passes"] is None  # it is not refused
