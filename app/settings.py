"""Settings: one table of name, default and help, read from environment variables ``SEEWHY_*``."""

import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, DirectoryPath, Field, FilePath, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from seewhy.explainers.errors import nearest, plain_fault
from seewhy.explainers.execution.choices import ACCELERATOR_NAMES
from seewhy.explainers.imaging.limits import MAX_PIXELS, PIXEL_BYTES
from seewhy.explainers.tasks.choices import BOX_METHOD, DEFAULT_METHOD, REGION_METHOD

PREFIX = "SEEWHY_"


def _origins(text: str) -> str:
    """Return comma-separated origins without spaces."""
    origins = [origin.strip() for origin in text.split(",") if origin.strip()]
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d+)?", origin):
            raise ValueError(
                f"{origin!r} is not an origin; write https://example.org or http://localhost:3000, without a path"
            )
    return ",".join(origins)


def _readable(folder: Path) -> Path:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ValueError("the user that runs the service may not read this folder")
    return folder


Precision = Literal["float32", "tf32", "bfloat16"]
Count = Annotated[int, Field(ge=1)]
MOST_SECONDS = 86_400
"""One day. The system's timers overflow with much larger values."""

Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]


class Settings(BaseSettings):
    """Everything an operator can set. Immutable; `seewhy settings` prints it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on.")
    workers: Count = Field(1, description="Number of processes; each loads its own models, and they share the cores.")
    threads: int = Field(40, ge=2, description="Threads per process for reading requests and rendering responses.")
    max_in_flight: Count = Field(
        32,
        description="Maximum number of concurrent requests per process, not counting probes, metrics and web pages; "
        "requests beyond it are refused with 503. Keep it below SEEWHY_THREADS, so that a thread is free for probes.",
    )
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="Memory limit for all requests of a process together, in bytes: bodies, pixels, tensors and "
        "responses; requests beyond it are refused with 503. The default is the container's limit minus the memory of "
        "the process and its models; a value that you set does not include models.",
    )
    download_seconds: Seconds = Field(
        60.0,
        description="Time limit for sending a response of more than 1 MiB, in seconds; then the connection is closed. "
        "SEEWHY_DEADLINE also applies to event streams.",
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="Device for models: auto, cpu, cuda or cuda:N."
    )
    accelerator: str = Field(
        "auto",
        pattern=rf"^({'|'.join(ACCELERATOR_NAMES)})$",
        description="Runtime for the parts of a model that need no hooks: auto (openvino on a CPU if it is installed, "
        "else eager), openvino, eager (PyTorch) or compile (torch.compile, which needs a C++ compiler; with CUDA "
        "graphs on a GPU).",
    )
    precision: Precision = Field(
        "float32",
        description="Precision of models: float32, tf32 (float32 with products rounded by the GPU) or bfloat16. On a "
        "CPU, bfloat16 applies to the parts that need no hooks, and only to models whose maps "
        "stay the same; `model.precision` in JSON answers names the one used. Maps are always float32.",
    )
    default_model: str = Field("efficientnet_lite0", description="Model for requests that do not name one.")
    default_method: str = Field(
        DEFAULT_METHOD,
        description="Method for requests that do not name one, except for tasks with their own default: "
        f"{REGION_METHOD} for segmenters, {BOX_METHOD} for detectors.",
    )
    models: FilePath | None = Field(None, description="TOML file that declares custom models.")
    methods: str = Field("", description="Comma-separated Python modules that add custom methods.")
    weights_dir: Annotated[DirectoryPath, AfterValidator(_readable)] | None = Field(
        None, description="Folder of weights files (.safetensors, .pth, .pt)."
    )
    download: bool = Field(False, description="Download weights that are not installed.")
    max_models: Count = Field(
        4, description="Maximum number of models in memory; the least recently used idle model is unloaded first."
    )
    max_upload_bytes: Count = Field(32 * 2**20, description="Largest request body, in bytes.")
    max_pixels: Count = Field(
        MAX_PIXELS,
        description=f"Largest picture, in pixels (width times height). Decoding takes {PIXEL_BYTES} bytes per pixel.",
    )
    max_side: int = Field(2048, ge=16, le=16_000, description="Maximum side length of rendered pictures, in pixels.")
    max_targets: Count = Field(16, description="Maximum number of classes in one request.")
    max_instances: Count = Field(
        16, description="Maximum number of pictures in a request to /v1, /v2 or TorchServe routes."
    )
    max_layers: Count = Field(16, description="Maximum number of layer patterns in one request.")
    max_values: Count = Field(32_000_000, description="Maximum number of values in a response with format=npz.")
    max_json_values: Count = Field(
        4_000_000, description="Maximum number of values in a JSON response with values=true."
    )
    max_capture_bytes: Count = Field(256 * 2**20, description="Memory limit for the tensors of one capture, in bytes.")
    max_batch: Count = Field(8, description="Maximum number of pictures in one pass through a model.")
    max_wait_ms: float = Field(
        5.0,
        ge=0,
        le=1000,
        description="Maximum time that a busy model waits for its next batch to fill, in milliseconds. An idle model "
        "never waits.",
    )
    queue_size: Count = Field(
        64, description="Maximum number of pictures that may wait for a model; pictures beyond it are refused with 503."
    )
    sanity: bool = Field(
        True,
        description="While the service is idle, measure on eight pictures of its requests whether the heatmaps of a "
        "method depend on the class and on the model. Proofs report it; for some models it is included.",
    )
    log_format: Literal["text", "json"] = Field("text", description="Log format: text or json.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest log level: debug (includes probes), info (each request), warning or error."
    )
    metrics_classes: int = Field(
        20,
        ge=0,
        le=10_000,
        description="Number of classes of each model that heatmap metrics list by name: the first ones explained. The "
        "rest count as other. With 0 there are no metrics by class.",
    )
    traces: bool = Field(
        False,
        description="Send OpenTelemetry traces (seewhy[otel]), even without OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    deadline: float = Field(60.0, gt=0, description="Time limit for a request, in seconds; then it fails with 504.")
    api_keys: FilePath | None = Field(
        None, description="TOML file of API keys; without it, requests need no key. `seewhy key` creates keys."
    )
    rate_limit: str = Field(
        "",
        description="Rate limit per client, such as 60/minute or 10/second;1000/day; requests beyond it are refused "
        "with 429. A client is an API key or, without keys, an IP address. A method with many passes counts as "
        "several requests (X-SeeWhy-Cost).",
    )
    rate_storage: str = Field(
        "memory://",
        pattern=r"^(memory://|rediss?://.+)$",
        description="Storage of the request counts: memory:// (per process) or redis://HOST:PORT/DB (shared by all "
        "processes and replicas).",
    )
    cors_origins: Annotated[str, AfterValidator(_origins)] = Field(
        "",
        description="Comma-separated origins whose pages may call the service from a browser, such as "
        "https://example.org; * for all.",
    )
    trusted_proxies: int = Field(
        0,
        ge=0,
        le=16,
        description="Number of proxies in front of the service that add to X-Forwarded-For; 0 ignores the header.",
    )

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield variable, current value, default and help of each setting."""
        for name, field in type(self).model_fields.items():
            yield (
                PREFIX + name.upper(),
                _text(getattr(self, name)),
                _text(field.default),
                field.description or "",
            )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # An address may hold a password.
    return "" if value is None else re.sub(r"(?<=://)[^/@]*(?=@)", "***", str(value))


_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Suffixes of the variables that Kubernetes sets in containers for a Service, after the Service's name."""

_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""Prefix of values that are addresses, such as Kubernetes' `SEEWHY_PORT` for a Service named seewhy."""


def setting_faults(error: ValidationError, options: Container[str] = ()) -> str:
    """Return the errors in settings, one per line.

    Args:
        error: raised by `Settings`.
        options: names of the settings set on the command line, which override the variables.
    """
    lines = []
    for fault in error.errors():
        name = str(fault["loc"][0])
        lines.append(f"{f'--{name}' if name in options else PREFIX + name.upper()}: {_message(name, fault)}")
    return "\n".join(lines)


def _message(name: str, fault: Mapping[str, Any]) -> str:
    kind, value = fault["type"], str(fault["input"])
    if name == "port" and _SERVICE_ADDRESS.match(value):
        return (
            f"It must be an integer, not {value!r}. Kubernetes sets this for a Service named seewhy: add "
            "`enableServiceLinks: false` to the pod's spec, or set the variable there."
        )
    if kind == "path_not_file":
        hint = " `seewhy key NAME` creates a key and prints its line for the file." if name == "api_keys" else ""
        return f"There is no file {value!r}.{hint}"
    if kind == "path_not_directory":
        return f"There is no folder {value!r}."
    if kind == "string_pattern_mismatch":  # the value is not shown: it may hold a password
        return f"The value is invalid. {Settings.model_fields[name].description}"
    return plain_fault(fault)


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that looks like a setting and is not."""
    names = [name.upper() for name in Settings.model_fields]
    for variable, value in environment.items():
        name = variable.upper().removeprefix(PREFIX)
        if name in (variable.upper(), *names) or _SERVICE_LINK.fullmatch(name) or _SERVICE_ADDRESS.match(value):
            continue
        if close := [PREFIX + match for match in nearest(name, names)]:
            yield f"Unknown setting {variable} (ignored). Did you mean {' or '.join(close)}?"
