"""Inputs of the export's tests. What is missing is skipped, or fails if ASSAY_REQUIRE names it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from promotion.export.base_header import BaseHeader, read_base_header
from tests.export import tiny

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY.parent / "shared" / "data"
BASE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def missing(what: str, reason: str) -> None:
    """Skips the test, or fails it if `what` is required here."""
    if what in os.environ.get("ASSAY_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_base(tmp_path_factory.mktemp("base") / "llama.gguf")


@pytest.fixture(scope="session")
def header(tiny_base: Path) -> BaseHeader:
    return read_base_header(tiny_base)


@pytest.fixture(scope="session")
def tied_header(tmp_path_factory: pytest.TempPathFactory) -> BaseHeader:
    return read_base_header(tiny.write_base(tmp_path_factory.mktemp("base") / "tied.gguf", tied=True))


@pytest.fixture(scope="session")
def real_base() -> Path:
    path = Path(os.environ.get("ASSAY_TEST_BASE_GGUF") or REPOSITORY / "var" / "models" / BASE_NAME)
    if not path.is_file():
        missing("llama", f"{BASE_NAME} is not there; set ASSAY_TEST_BASE_GGUF")
    return path


@pytest.fixture(scope="session")
def real_adapters() -> Path:
    """The folder of the trained adapters r1, r2 and r3."""
    folder = DATA / "toolcaller-smollm2" / "adapters"
    if not folder.is_dir():
        pytest.skip(f"the trained adapters are not in {folder}")
    return folder


@pytest.fixture
def llama() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        missing("llama", "xllamacpp is not installed")
