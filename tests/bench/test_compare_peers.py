"""Environments of peers: what pip is asked for. (Installing one takes minutes, and is nobody's test.)"""

import sys
from pathlib import Path

import pytest

from octavo.bench.compare.peers import list_requirements
from octavo.core.errors import ConfigurationError

PYTHON = Path(sys.executable)


def test_requirements_of_an_installed_package() -> None:
    listed = list_requirements(PYTHON, "pytest", ())
    assert any(line.startswith("pluggy") for line in listed)
    assert not any("extra" in line for line in listed)
    assert listed != (fewer := list_requirements(PYTHON, "pytest", ("pluggy",)))
    assert not any(line.startswith("pluggy") for line in fewer)


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="no-such-package"):
        list_requirements(PYTHON, "no-such-package", ())
