"""For all tests: the scripts of the top level are importable, their warnings are errors."""
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def pytest_configure(config):
    # Warnings raised in our own files; numpy, scipy and torch are free to deprecate things.
    config.addinivalue_line("filterwarnings", "error:::(typhoon|train|models|glue_data|stats)$")
    config.addinivalue_line("filterwarnings", "default::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "default::FutureWarning")
    config.option.reportchars += "s"  # a skipped test says why


@pytest.fixture
def root() -> Path:
    return ROOT
