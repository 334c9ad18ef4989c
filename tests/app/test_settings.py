from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("SEEWHY_PORT", "9000")
    monkeypatch.setenv("SEEWHY_WEIGHTS_DIR", "/weights")
    monkeypatch.setenv("SEEWHY_DOWNLOAD", "1")
    monkeypatch.setenv("SEEWHY_MODELS", "")
    settings = Settings()
    assert settings.port == 9000
    assert settings.weights_dir == Path("/weights")
    assert settings.download is True
    assert settings.models is None


def test_values_out_of_bounds_are_refused(monkeypatch):
    monkeypatch.setenv("SEEWHY_WORKERS", "0")
    with pytest.raises(ValidationError):
        Settings()


def test_every_setting_has_help_and_a_default():
    for variable, _, _, said in Settings().rows():
        assert variable.startswith("SEEWHY_")
        assert said.endswith(".")
