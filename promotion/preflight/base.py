"""What the checks share: a finding, what is checked, and both files read once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rollouts.dataset_format import DatasetRow, lines, row_of
from rollouts.errors import InvalidInput
from rollouts.leakage import Asked, asked, plain_tool, schema_sha256
from rollouts.scoring.decision import NotStrictJson, parse_strict_json

ERROR, WARNING = "error", "warning"
TRAIN, EVAL = "train", "eval"
MAX_LISTED = 20


class Finding(NamedTuple):
    """`severity` is error (the data cannot pass) or warning; `where` names a file and line, or a document and key."""

    code: str
    severity: str
    where: str
    text: str
    remedy: str


class SuiteCases(NamedTuple):
    """A suite of the policy, and what its cases ask."""

    name: str
    schema_sha256: str
    cases: Sequence[Asked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is checked. Documents are JSON values, or the bytes of a file that should hold one; None: not given.

    `policy_problems` are (path, sentence) of what the policy's own rules refuse. `has_champion` None: no track was named.
    """

    train: bytes | None = None
    evaluation: bytes | None = None
    sidecar: Any = None
    evaluation_sidecar: Any = None
    policy: Any = None
    policy_problems: Sequence[tuple[str, str]] = ()
    config: Any = None
    tool_schema: Any = None
    suites: Sequence[SuiteCases] = ()
    has_champion: bool | None = None


Findings = Iterator[Finding]


def parsed(where: str, value: Any) -> Any:
    """A document's JSON value. Raises `InvalidInput` where its bytes are none."""
    if not isinstance(value, bytes):
        return value
    try:
        return parse_strict_json(value.decode().strip())
    except UnicodeDecodeError as error:
        raise InvalidInput(where, f"is not UTF-8 at byte {error.start}.") from error
    except NotStrictJson as error:
        raise InvalidInput(where, f"is not strict JSON ({error}).") from error


@dataclass
class Side:
    """One of the two files, read once. `refused` are lines that are no JSON object, `unusable` rows in another form."""

    role: str
    data: bytes
    rows: list[DatasetRow] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unusable: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            for at, line in lines(self.data, self.role):
                if isinstance(line, InvalidInput):
                    self.refused.append(self._told(line))
                    continue
                try:
                    row = row_of(at, line)
                except InvalidInput as error:
                    self.unusable.append(self._told(error))
                else:
                    self.rows.append(row)
        except InvalidInput as error:  # the file as a whole
            self.refused.append((self.role, error.message.removeprefix(f"{error.field}: ")))

    def _told(self, error: InvalidInput) -> tuple[str, str]:
        return f"{self.role} {error.field}", error.message.removeprefix(f"{error.field}: ")

    @cached_property
    def asked(self) -> list[Asked]:
        return [asked(name=row.name, id=row.id, group=row.group, text=row.text) for row in self.rows]

    @cached_property
    def schema(self) -> str:
        tools = {
            json.dumps(plain_tool(tool), sort_keys=True): tool for row in self.rows for tool in row.tools
        }
        return schema_sha256(tools.values())


class Check:
    """The inputs as far as they can be read, and whether going on makes sense."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.stopped = False
        self.unreadable: list[tuple[str, str]] = []
        self.sidecars = {
            TRAIN: self._document("sidecar", inputs.sidecar),
            EVAL: self._document("evaluation sidecar", inputs.evaluation_sidecar),
        }
        if inputs.evaluation_sidecar is None:
            self.sidecars[EVAL] = self.sidecars[TRAIN]
        self.policy = self._document("policy", inputs.policy)
        self.config = self._document("config", inputs.config)
        self.tool_schema = self._value("tool schema", inputs.tool_schema)
        self.sides = {
            role: Side(role, data)
            for role, data in ((TRAIN, inputs.train), (EVAL, inputs.evaluation))
            if data is not None
        }

    def _value(self, where: str, value: Any) -> Any:
        try:
            return parsed(where, value)
        except InvalidInput as error:
            self.unreadable.append((where, error.message.removeprefix(f"{error.field}: ")))
            return None

    def _document(self, where: str, value: Any) -> dict[str, Any] | None:
        found = self._value(where, value)
        if found is None or isinstance(found, dict):
            return found
        self.unreadable.append((where, "is not a JSON object."))
        return None

    @property
    def required(self) -> dict[str, Any]:
        """What a round's configuration asks of its data; empty without one."""
        found = (self.config or {}).get("gates")
        return found if isinstance(found, dict) else {}

    @cached_property
    def gates(self) -> set[str]:
        """The names of the policy's gates, as far as they can be read."""
        entries = (self.policy or {}).get("gates")
        names = (
            [entry.get("gate") for entry in entries if isinstance(entry, dict)]
            if isinstance(entries, list)
            else []
        )
        return {name for name in names if isinstance(name, str)}

    def severity(self, *, gate: str = "", flag: str = "") -> str:
        """An error where a gate of the policy, or the round's own configuration, asks for it."""
        return ERROR if gate in self.gates or self.required.get(flag) is True else WARNING


def different(check: Check) -> list[tuple[str, dict[str, Any]]]:
    """Each sidecar once, with the name that findings use."""
    train, evaluation = check.sidecars[TRAIN], check.sidecars[EVAL]
    found = [("sidecar", train), ("evaluation sidecar", None if evaluation is train else evaluation)]
    return [(where, sidecar) for where, sidecar in found if sidecar is not None]


def decision_of(answer: str) -> str | None:
    try:
        value = parse_strict_json(answer.strip())
    except NotStrictJson:
        return None
    decision = value.get("decision") if isinstance(value, dict) else None
    return decision if isinstance(decision, str) else None


def each(code: str, faults: Sequence[tuple[str, str]], remedy: str) -> Findings:
    """One finding a fault, and one for all that are beyond what anybody reads."""
    for where, text in faults[:MAX_LISTED]:
        yield Finding(code, ERROR, where, text, remedy)
    if len(faults) > MAX_LISTED:
        more = len(faults) - MAX_LISTED
        yield Finding(
            code, ERROR, faults[MAX_LISTED][0], f"and {more} more lines have faults like these.", remedy
        )


def places(rows: Sequence[DatasetRow]) -> str:
    listed = ", ".join(str(row.line) for row in rows[:10])
    return f"lines {listed}{'…' if len(rows) > 10 else ''}" if len(rows) > 1 else f"line {listed}"


def short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:80]
