"""The reports of the service and of the command line."""

from typing import Any

from seewhy.app.answers.documents import json_documents
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.pipeline.results import ExplainResult
from seewhy.app.settings import Settings
from seewhy.explainers.results.origin import file_identity
from seewhy.explainers.results.report import SCORES, record_of, repeating_command, report_page

CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""A report loads nothing and runs nothing."""

_UNREPEATED = {"format", "model", "method", "top", "values"}
"""Options that the command spells otherwise, or that a report does not depend on."""


def report_body(
    result: ExplainResult,
    options: ExplainOptions,
    upload: bytes,
    mask: bytes | None,
    settings: Settings,
    name: str,
) -> bytes:
    """Return the report of explanations as UTF-8.

    Args:
        name: name of the picture's file, empty if unknown.
    """
    (document,) = json_documents([result], values=False, max_values=settings.max_json_values)
    geometry, model = result.explanations[0].geometry, result.model
    files: dict[str, Any] = {
        "picture": {
            **file_identity(upload, name).document(),
            "width": geometry.width,
            "height": geometry.height,
        },
        **({} if mask is None else {"mask": file_identity(mask).document()}),
    }
    precision = model.precision if settings.precision == "bfloat16" else settings.precision
    repeating = command(result, options, mask is not None, settings)
    record = record_of(document, files, (str(model.device), precision, model.accelerator), repeating)
    methods = [method for method, _ in result.methods]
    return report_page(record, document, result.explanations, methods, result.style.max_side)


def command(result: ExplainResult, options: ExplainOptions, has_mask: bool, settings: Settings) -> str:
    """Return the command that repeats explanations; its placeholders are those of `placeholders`.

    The model, the methods and the targets are spelled out, even if the request left them to defaults, which may change.
    """
    fields: dict[str, Any] = {"model": result.model.name, "method": [method.name for method, _ in result.methods]}
    if not (options.target or options.region or has_mask):
        fields["target"] = [target.name for target in result.targets]
    fields |= {
        name: value
        for name, value in options.model_dump(mode="json", exclude_unset=True).items()
        if name not in _UNREPEATED and name not in options.method_options and value not in (None, [])
    }
    model = result.model
    if model.calibrations and not model.spec.calibrations:  # the models file does not name it
        fields["proof_calibration"] = SCORES
    device = model.device.type
    return repeating_command(fields, options.method_options, device, settings.precision, has_mask, model.environment)
