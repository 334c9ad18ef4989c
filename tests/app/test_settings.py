import os

import pytest
from pydantic import ValidationError

from seewhy.app.errors import FieldError
from seewhy.app.pipeline.model_store import torch_device
from seewhy.app.settings import Settings, misspelt, setting_faults


def test_variables_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEWHY_PORT", "9000")
    monkeypatch.setenv("SEEWHY_WEIGHTS_DIR", str(tmp_path))
    monkeypatch.setenv("SEEWHY_DOWNLOAD", "1")
    monkeypatch.setenv("SEEWHY_MODELS", "")
    settings = Settings()
    assert settings.port == 9000
    assert settings.weights_dir == tmp_path
    assert settings.download is True
    assert settings.models is None


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("WORKERS", "0", "It must be greater than or equal to 1."),
        ("DEADLINE", "nan", "It must be"),
        ("MAX_SIDE", "1000000", "It must be less than or equal to 16000."),
        ("TRUSTED_PROXIES", "-1", "It must be greater than or equal to 0."),
        ("RATE_STORAGE", "memcached://localhost", "The value is invalid."),
        ("WORKERS", "two", "It must be an integer."),
        ("DOWNLOAD", "maybe", "It must be true or false."),
        ("LOG_FORMAT", "yaml", "It must be 'text' or 'json'."),
        ("MODELS", "nowhere.toml", "There is no file 'nowhere.toml'."),
        (
            "API_KEYS",
            "nowhere.toml",
            "There is no file 'nowhere.toml'. `seewhy key NAME` creates a key and prints its line for the file.",
        ),
        ("WEIGHTS_DIR", "nowhere", "There is no folder 'nowhere'."),
        ("DEVICE", "gpu", "The value is invalid. Device for models: auto, cpu, cuda or cuda:N."),
        ("CORS_ORIGINS", "a.org", "'a.org' is not an origin; write https://example.org or http://localhost:3000, "),
        ("PORT", "http", "It must be an integer."),
        ("PORT", "tcp://10.0.0.1:80", "It must be an integer, not 'tcp://10.0.0.1:80'. Kubernetes sets this "),
    ],
)
def test_a_bad_value_is_told_by_its_variable_in_plain_words(monkeypatch, variable, value, fault):
    monkeypatch.setenv(f"SEEWHY_{variable}", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert setting_faults(caught.value).startswith(f"SEEWHY_{variable}: {fault}")


def test_a_folder_of_weights_that_may_not_be_read_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEWHY_WEIGHTS_DIR", str(tmp_path))
    Settings()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # whoever administers the system may all
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert setting_faults(caught.value).endswith(": The user that runs the service may not read this folder.")


def test_what_an_option_of_the_command_gave_is_told_by_the_option(monkeypatch):
    monkeypatch.setenv("SEEWHY_WORKERS", "2")
    monkeypatch.setenv("SEEWHY_THREADS", "1")
    options = {"workers": 0}
    with pytest.raises(ValidationError) as caught:
        Settings(**options)
    assert setting_faults(caught.value, options).splitlines() == [
        "--workers: It must be greater than or equal to 1.",
        "SEEWHY_THREADS: It must be greater than or equal to 2.",
    ]


@pytest.mark.parametrize(
    ("variable", "near"),
    [("SEEWHY_WORKER", "SEEWHY_WORKERS"), ("seewhy_max_pixel", "SEEWHY_MAX_PIXELS"), ("SEEWHY_PROT", "SEEWHY_PORT")],
)
def test_a_misspelt_variable_is_told_with_near_matches(variable, near):
    (warning,) = misspelt({"PATH": "/bin", variable: "2"})
    assert warning.startswith(f"Unknown setting {variable} (ignored). Did you mean {near}")


def test_settings_and_what_kubernetes_sets_are_not_misspelt():
    services = {
        f"SEEWHY_{name}{rest}": value
        for name in ("", "WORKER_", "DEFAULT_MODEL_")
        for rest, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "80",
            "SERVICE_PORT_HTTP": "80",
            "PORT": "tcp://10.0.0.1:80",
            "PORT_80_TCP": "tcp://10.0.0.1:80",
            "PORT_80_TCP_PROTO": "tcp",
            "PORT_80_TCP_PORT": "80",
            "PORT_80_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    settings = {variable: "" for variable, *_ in Settings.model_construct().rows()}
    unrelated = {"WORKERS": "2", "_SEEWHY_COMPLETE": "bash_source", "SEEWHY_XYZZY": "1", "seewhy_workers": "2"}
    assert list(misspelt({**services, **settings, **unrelated})) == []


def test_a_device_that_the_machine_lacks_is_refused_by_name():
    with pytest.raises(FieldError, match="no device cuda:99") as caught:
        torch_device(Settings(device="cuda:99"))
    assert caught.value.field == "device"


def test_every_setting_has_help_and_a_default():
    for variable, _, _, help_text in Settings().rows():
        assert variable.startswith("SEEWHY_")
        assert help_text.endswith(".")


def test_a_password_in_an_address_is_neither_shown_nor_told(monkeypatch):
    values = {name: value for name, value, *_ in Settings(rate_storage="redis://user:s3cret@redis:6379/0").rows()}
    assert values["SEEWHY_RATE_STORAGE"] == "redis://***@redis:6379/0"
    assert Settings().rate_storage == "memory://"
    monkeypatch.setenv("SEEWHY_RATE_STORAGE", "http://user:s3cret@redis")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "s3cret" not in setting_faults(caught.value)
