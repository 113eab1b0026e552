"""The fixture model RAND, written once."""

from pathlib import Path

import pytest

from tests.support.models import rand_model


@pytest.fixture(scope="session")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))
