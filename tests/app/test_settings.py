import pytest
from pydantic import ValidationError

from app.errors import FieldError
from app.settings import Settings


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
    ("variable", "value"),
    [
        ("SEEWHY_WORKERS", "0"),
        ("SEEWHY_DEVICE", "gpu"),
        ("SEEWHY_WEIGHTS_DIR", "/no/such/folder"),
        ("SEEWHY_MODELS", "/no/such/file.toml"),
        ("SEEWHY_MAX_SIDE", "1000000"),
        ("SEEWHY_API_KEYS", "/no/such/file.toml"),
        ("SEEWHY_RATE_STORAGE", "memcached://localhost"),
        ("SEEWHY_CORS_ORIGINS", "example.org"),
        ("SEEWHY_TRUSTED_PROXIES", "-1"),
    ],
)
def test_values_out_of_bounds_are_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError):
        Settings()


def test_a_device_that_the_machine_lacks_is_refused_by_name():
    with pytest.raises(FieldError, match="no device cuda:99") as caught:
        Settings(device="cuda:99").torch_device()
    assert caught.value.field == "device"


def test_every_setting_has_help_and_a_default():
    for variable, _, _, said in Settings().rows():
        assert variable.startswith("SEEWHY_")
        assert said.endswith(".")


def test_a_password_in_an_address_is_not_shown():
    shown = {name: value for name, value, *_ in Settings(rate_storage="redis://user:s3cret@redis:6379/0").rows()}
    assert shown["SEEWHY_RATE_STORAGE"] == "redis://***@redis:6379/0"
    assert Settings().rate_storage == "memory://"
