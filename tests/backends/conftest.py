"""Plug-ins that are really installed: a package with entry points in a folder of the test's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollouts.backends import plugins

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(source, name="module:attribute", ..., package="helpers") makes a package that offers these plug-ins."""
    made: list[str] = []

    def add(source: str, package: str = "helpers", version: str = "1.2", **entries: str) -> None:
        folder = tmp_path / package
        info = folder / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        module = f"{package}_code"
        (folder / f"{module}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = [f"{name} = {module}:{value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("[assay.backends]\n" + "\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        made.append(module)
        importlib.invalidate_caches()
        plugins.installed.cache_clear()

    yield add
    for module in made:
        sys.modules.pop(module, None)
    monkeypatch.undo()
    importlib.invalidate_caches()
    plugins.installed.cache_clear()
