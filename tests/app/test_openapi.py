import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
from openapi_spec_validator import validate

from seewhy.app import create_app
from seewhy.app.answers import catalogue_schemas, schemas
from seewhy.app.errors import HTTP_KINDS, KINDS
from seewhy.app.http.routes import pages
from seewhy.app.pipeline.choices import InterveneFormat
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import (
    MEDIA_TYPES,
    CaptureFormat,
    CaptureOptions,
    ExplainOptions,
    TraceFormat,
    TraceOptions,
)
from seewhy.app.settings import Settings
from seewhy.explainers.inspection.edits import MAX_EDITS, OPS
from seewhy.explainers.methods import catalogue
from seewhy.explainers.methods.catalogue import METHODS


def document(client):
    return client.get("/openapi.json").get_json()


def test_the_document_is_valid_openapi_3_1_and_describes_every_route(app, client):
    content = document(client)
    assert content["openapi"].startswith("3.1")
    validate(content)
    internal = {"/static/{filename}", "/docs/assets/{name}"}
    served = {re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule) for rule in app.url_map.iter_rules()}
    assert served - internal == set(content["paths"])


def test_every_operation_has_one_of_the_described_tags(client):
    content = document(client)
    paths_of = {}
    for path, verbs in content["paths"].items():
        for operation in verbs.values():
            (tag,) = operation["tags"]
            paths_of.setdefault(tag, []).append(path)
    assert paths_of.keys() == {tag["name"] for tag in content["tags"]}
    assert paths_of["Catalogue"] == ["/models", "/models/{name}", "/models/{name}/layers", "/methods", "/colormaps"]
    assert {path[:3] for path in paths_of["Open Inference Protocol V2"]} == {"/v2"}
    assert all(tag["description"].endswith(".") for tag in content["tags"])


def test_every_option_is_described_for_every_carrier(client):
    explain = document(client)["paths"]["/explain"]["post"]
    options = set(ExplainOptions.model_fields)
    for method in METHODS.values():
        options |= set(method.options) - {"layers"}
    assert {parameter["name"] for parameter in explain["parameters"]} == options
    content = explain["requestBody"]["content"]
    assert set(content["application/json"]["schema"]["properties"]) == options | {"image", "mask"}
    assert content["multipart/form-data"]["schema"]["required"] == ["image"]
    assert "image/*" in content
    assert set(explain["responses"]["200"]["content"]) - {"text/event-stream"} == set(MEDIA_TYPES.values()) - {
        "image/svg+xml",
        "application/x-safetensors",
    }


@pytest.mark.parametrize(
    ("path", "options", "forms"),
    [
        ("trace", TraceOptions, get_args(TraceFormat)),
        ("capture", CaptureOptions, get_args(CaptureFormat)),
        ("intervene", InterveneOptions, get_args(InterveneFormat)),
    ],
)
def test_every_option_and_format_about_hooks_is_described(client, path, options, forms):
    route = document(client)["paths"][f"/hooks/{path}"]["post"]
    described = {parameter["name"] for parameter in route["parameters"]}
    method_options = _method_options() if path == "intervene" else set()
    assert described == set(options.model_fields) | method_options
    assert set(route["responses"]["200"]["content"]) == {MEDIA_TYPES[form] for form in forms}
    assert ("other" in route["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]) is (
        path == "intervene"
    )


def _method_options():
    return {name for method in METHODS.values() for name in method.options} - {"layers"}


def test_an_option_of_several_methods_takes_what_any_of_them_takes(client):
    parameters = {entry["name"]: entry for entry in document(client)["paths"]["/explain"]["post"]["parameters"]}
    for name in _method_options():
        schema = parameters[name]["schema"]
        assert "default" not in schema, name  # forms would fill it in, and send it to methods without the option
        for method in METHODS.values():
            own = method.options.get(name, {})
            assert set(own.get("enum", [])) <= set(schema.get("enum", [])), (name, method.name)
            for bound in ("minimum", "maximum"):
                if bound in own and bound in schema:
                    assert (own[bound] - schema[bound]) * (1 if bound == "minimum" else -1) >= 0, (name, method.name)
    samples = parameters["samples"]
    assert samples["schema"].items() >= {"type": "integer", "minimum": 1, "maximum": 20000}.items()
    assert (
        "sobol: Number of rows of the two matrices of masks; powers of two cover the space best. Default 16. At least "
        "2, at most 4096." in (samples["description"])
    )
    assert parameters["gamma"]["schema"]["minimum"] == 0
    assert "exclusiveMinimum" not in parameters["gamma"]["schema"]
    assert (
        "refinecam, votes-detail: What is multiplied: `positive`, evidence for the class; `absolute`, magnitudes. "
        "Default 'positive'. One of " in (parameters["sign"]["description"])
    )
    assert (
        "lime, rise: Score to explain: the `logit` or the `probability` of the class. Default 'probability'."
        in (parameters["score"]["description"])
    )
    assert parameters["smooth"]["description"].startswith("All methods: ")


def test_the_document_does_not_depend_on_the_order_in_which_methods_were_imported(client):
    methods = dict(METHODS)
    try:
        catalogue._methods.clear()
        catalogue._methods.update(reversed(methods.items()))
        backwards = create_app(Settings()).test_client().get("/openapi.json").get_json()
    finally:
        catalogue._methods.clear()
        catalogue._methods.update(methods)
    assert backwards == document(client)


def test_what_must_be_given_stands_in_the_form_and_in_the_example(client):
    paths = document(client)["paths"]
    for path, name in (("capture", "layer"), ("intervene", "edits")):
        content = paths[f"/hooks/{path}"]["post"]["requestBody"]["content"]
        field = content["multipart/form-data"]["schema"]["properties"][name]
        example = content["application/json"]["example"][name]
        assert field["example"] == (example if isinstance(example, str) else json.dumps(example))
        assert set(content["application/json"]["example"]) == {"image", name}
    layer = content["application/json"]["schema"]["properties"]["layer"]
    assert [schema["type"] for schema in layer["anyOf"]] == ["string", "array"]


def test_edits_are_described_op_by_op(client):
    description = document(client)
    content = description["paths"]["/hooks/intervene"]["post"]["requestBody"]["content"]
    edits = content["application/json"]["schema"]["properties"]["edits"]
    assert edits["type"] == "array"
    assert edits["maxItems"] == MAX_EDITS
    named = edits["items"]["discriminator"]["mapping"]
    assert set(named) == set(OPS)
    scale = description["components"]["schemas"]["Scale"]
    assert set(scale["required"]) == {"layer", "value", "op"}
    assert scale["additionalProperties"] is False


def test_every_status_of_explain_is_described(client):
    responses = document(client)["paths"]["/explain"]["post"]["responses"]
    statuses = {kind.status for kind in KINDS.values()} - {404}
    assert {str(status) for status in statuses} <= set(responses)
    assert {404, 405} < set(HTTP_KINDS)


def test_no_parameter_may_be_empty_nor_all_together_too_long(client):
    described = [verb for verbs in document(client)["paths"].values() for verb in verbs.values()]
    queries = [parameter for route in described for parameter in route["parameters"] if parameter["in"] == "query"]
    assert queries
    assert not any("allowEmptyValue" in query for query in queries)
    assert client.get("/models?source=").status_code == 422
    assert {"414" in route["responses"] for route in described if route["parameters"]} == {True}
    assert {"414" in route["responses"] for route in described if not route["parameters"]} == {False}


def test_answers_match_their_schemas(client, post, cat):
    schemas.ExplainAnswer.model_validate(post(cat, format="json").get_json())
    catalogue_schemas.ModelsAnswer.model_validate(client.get("/models?source=embedded").get_json())
    catalogue_schemas.LayersAnswer.model_validate(client.get("/models/resnet18/layers").get_json())
    catalogue_schemas.MethodsAnswer.model_validate(client.get("/methods").get_json())


def test_documentation_page_loads_nothing_from_elsewhere(client):
    with client.get("/docs") as response:
        page = response.get_data(as_text=True)
    assert "http" not in page
    for path in ("/docs/assets/js/swagger-ui-bundle.js", "/docs/assets/css/swagger-ui.css", "/static/docs.js"):
        assert path in page
        with client.get(path) as part:
            assert part.status_code == 200
    assert client.get("/docs/assets/../plugins.py").status_code == 404


def test_the_document_is_written_once_for_all_who_ask_at_once(monkeypatch):
    documents = []

    def slowly(app):
        documents.append(1)
        time.sleep(0.1)  # what must not happen has no event: a moment in which others could write it too
        return "{}"

    app = create_app(Settings())
    monkeypatch.setattr(pages, "document", slowly)
    with ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(lambda _: app.test_client().get("/openapi.json").text, range(8)))
    assert texts == {"{}"}
    assert len(documents) == 1
