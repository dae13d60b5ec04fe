"""Shared by all tests: the scripts of the top level are importable, and a warning is an error."""
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    config.option.reportchars += "s"  # a skipped test says why


@pytest.fixture
def root() -> Path:
    return ROOT
