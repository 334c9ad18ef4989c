"""Logs: one line per request and per other message, as text or as JSON objects."""

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from seewhy.app.errors import with_notes
from seewhy.app.pipeline.observer import Observer
from seewhy.app.pipeline.record import Record, current
from seewhy.app.settings import Settings

if TYPE_CHECKING:  # it imports PyTorch, and the server's first process imports this before it divides the processors
    from seewhy.models import LoadedModel

_log = logging.getLogger(__name__)
_requests = logging.getLogger("seewhy.requests")

PROBES = ("/healthz", "/readyz", "/metrics")
"""Routes called every few seconds; their successes are logged only at level debug."""

_OURS = ("seewhy", "gunicorn.error")


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig` and gunicorn: one handler, to the standard error."""
    level = settings.log_level.upper()
    formatter = f"{__name__}.{settings.log_format.capitalize()}Formatter"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"seewhy": {"()": formatter}},
        "handlers": {"seewhy": {"class": "logging.StreamHandler", "formatter": "seewhy", "stream": "ext://sys.stderr"}},
        # From other libraries, only what an operator can act on.
        "root": {"level": "ERROR" if level == "ERROR" else "WARNING", "handlers": ["seewhy"]},
        "loggers": {name: {"level": level, "handlers": [], "propagate": True} for name in _OURS},
    }


class Logs(Observer):
    """Logs requests and models."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def request_finished(self, record: Record) -> None:
        """Log a request that is over."""
        level = logging.INFO
        if record.status >= 500:
            level = logging.ERROR if record.status == 500 else logging.WARNING
        elif record.route in PROBES and record.status < 400:
            level = logging.DEBUG
        if _requests.isEnabledFor(level):
            message = f"{record.verb} {record.route} {record.status}"
            _requests.log(level, "%s", message, extra={"fields": fields(record)})

    def model_loaded(self, model: "LoadedModel", seconds: float) -> None:
        """Log a model, and that the service is ready if it is the default one."""
        _log.info("Loaded the model %s in %.1f s", model.name, seconds)
        if model.name == self._settings.default_model:
            _log.info("Ready on http://%s:%d", self._settings.host, self._settings.port)

    def model_failed(self, name: str, error: BaseException) -> None:
        """Log a model that could not be loaded."""
        _log.error("The model %s could not be loaded: %s", name, with_notes(error))

    def weights_missing(self, name: str, error: Exception) -> None:
        """Log a model without weights. It is not a failure: clients may request any model."""
        _log.warning("The model %s cannot be loaded: %s", name, with_notes(error))

    def model_dropped(self, model: "LoadedModel") -> None:
        """Log a model that was dropped."""
        _log.info("Unloaded the model %s to free memory", model.name)


def fields(record: Record) -> dict[str, Any]:
    """Return the fields of a request's line; unknown ones are left out."""
    values = {
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "client": record.client,
        "address": record.address,
        "verb": record.verb,
        "route": record.route,
        "status": record.status,
        "problem": record.problem,
        "model": record.model,
        "method": record.method,
        "options": list(record.options),
        "cache": record.cache,
        "bytes_in": record.received,
        "bytes_out": record.sent,
        "duration_ms": round(record.seconds * 1000, 1),
        "stages_ms": {name: round(milliseconds, 1) for name, milliseconds in record.stages.items()},
    }
    return {name: value for name, value in values.items() if value not in ("", None, [], {})}


class JsonFormatter(logging.Formatter):
    """One JSON object per line, ASCII only; an exception is a member with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        request = current()
        if request.request_id:
            line["request_id"] = request.request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, process, level and message; for requests also their fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it the traceback of an exception."""
        moment = _moment(record).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{moment} [{record.process}] {record.levelname:<7} {record.getMessage()}"
        facts = getattr(record, "fields", None)
        if facts is not None:
            line += "".join(f" {name}={_plain(value)}" for name, value in facts.items() if name not in _MESSAGE_FIELDS)
        for frames in (record.exc_info and self.formatException(record.exc_info), record.stack_info):
            line += f"\n{frames}" if frames else ""
        return line


_MESSAGE_FIELDS = ("verb", "route", "status")
"""Fields that the message already has."""


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    """Return a value as one word, with escapes for characters that would break the line."""
    if isinstance(value, dict):
        value = ",".join(f"{name}:{part}" for name, part in value.items())
    elif isinstance(value, list):
        value = ",".join(value)
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)
