"""Finds and parses the files of a foundry: the registry, round configs, dataset sidecars and tool schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from promotion.importers.fields import Finding
from rollouts.api.strict_json import parse_json
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes

REGISTRY = "PROMOTION_REGISTRY.json"
MAX_BYTES = 16 << 20
MAX_FILES = 1_000
BOM = b"\xef\xbb\xbf"


class Layout(NamedTuple):
    """Where each kind lies below the folder: as in a checkout of the repository, or copied together flat."""

    registry: str
    configs: str
    sidecars: str
    schemas: str


LAYOUTS = (
    Layout(REGISTRY, "configs", "meta", "schemas"),
    Layout(
        f"training_pit/foundry/{REGISTRY}",
        "training_pit/foundry/configs",
        "training_pit/datasets",
        "training_pit/schemas",
    ),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file. `sha256` is of its bytes; `sha256_lf` of them with LF line ends, as schema hashes are taken."""

    file: str
    what: str
    value: Any
    size_bytes: int
    sha256: str
    sha256_lf: str

    @property
    def name(self) -> str:
        return self.file.rsplit("/", 1)[-1]


@dataclass(slots=True)
class Files:
    registry: Source | None = None
    configs: list[Source] = field(default_factory=list)
    sidecars: list[Source] = field(default_factory=list)
    schemas: list[Source] = field(default_factory=list)

    def all(self) -> list[Source]:
        found = [*self.configs, *self.sidecars, *self.schemas]
        return [self.registry, *found] if self.registry else found

    @staticmethod
    def named(path: str | None, among: list[Source]) -> Source | None:
        """The file that a path of the original tree names: by its last part, which a copied folder keeps."""
        wanted = (path or "").replace("\\", "/").rsplit("/", 1)[-1]
        return next((source for source in among if wanted and source.name == wanted), None)


def find(folder: Path, findings: list[Finding]) -> Files:
    """Every file of the folder that belongs to a foundry. What cannot be parsed becomes a finding."""
    files = Files()
    if not folder.is_dir():
        findings.append(Finding(str(folder), "", "is no folder."))
        return files
    layout = next((found for found in LAYOUTS if (folder / found.registry).is_file()), None)
    if layout is None:
        wanted = " or ".join(found.registry for found in LAYOUTS)
        findings.append(Finding(REGISTRY, "", f"is missing: looked for {wanted}."))
        return files
    files.registry = _parsed(folder, folder / layout.registry, "registry", findings)
    for what, below, pattern, into in (
        ("config", layout.configs, "*.json", files.configs),
        ("sidecar", layout.sidecars, "*.meta.json", files.sidecars),
        ("schema", layout.schemas, "*.json", files.schemas),
    ):
        for path in _paths(folder / below, pattern, findings):
            source = _parsed(folder, path, what, findings)
            if source is not None:
                into.append(source)
    return files


def _paths(folder: Path, pattern: str, findings: list[Finding]) -> Iterator[Path]:
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) > MAX_FILES:
        findings.append(Finding(folder.name, "", f"holds more than {MAX_FILES} files of {pattern}."))
    yield from found[:MAX_FILES]


def _parsed(folder: Path, path: Path, what: str, findings: list[Finding]) -> Source | None:
    file = path.relative_to(folder).as_posix()
    try:
        if path.stat().st_size > MAX_BYTES:
            findings.append(Finding(file, "", f"is larger than {MAX_BYTES >> 20} MiB."))
            return None
        data = path.read_bytes()
    except OSError as error:
        findings.append(Finding(file, "", f"cannot be read: {error.strerror}."))
        return None
    try:
        value = parse_json(data.removeprefix(BOM))
    except InvalidInput as error:
        place = "" if error.field == "body" else error.field
        findings.append(Finding(file, place, error.message.removeprefix(f"{error.field}: ")))
        return None
    lf = data.replace(b"\r\n", b"\n")
    return Source(file, what, value, len(data), sha256_bytes(data), sha256_bytes(lf))
