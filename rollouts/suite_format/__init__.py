"""Reads a suite from JSONL and refuses it whole at the first thing that would make a score doubtful.

A row is a chat: `messages` (system, user, assistant), `example_id`, `lineage_group_id`, `family`, and what the suite's
scorer needs; each scorer has its reader here. What else a row holds becomes a tag. docs/suites.md shows the formats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.suite_format import decision, function_call, judge, rules
from rollouts.suite_format.lines import (
    MAX_CASE_BYTES,
    MAX_SUITE_BYTES,
    Line,
    check_storable,
    rows,
    short,
)
from rollouts.suite_format.parts import MAX_FAMILY_CHARS, Messages, Part, messages_of, name_of

__all__ = [
    "EXPECTED_KEYS",
    "MAX_CASE_BYTES",
    "MAX_SUITE_BYTES",
    "SCORERS",
    "CaseSpec",
    "Expectation",
    "ParsedSuite",
    "digest_of_cases",
    "parse_suite",
    "read_expectation",
]

FORMAT = 1
_READERS: dict[str, Callable[[Line, dict[str, Any], Messages], Part]] = {
    "decision": decision.read,
    "function_call": function_call.read,
    "rules": rules.read,
    "judge": judge.read,
}
SCORERS = tuple(_READERS)
# where a case's content holds what is expected. What a judge is told is not among them: to score by it takes calls
EXPECTED_KEYS = {"decision": "expected", "function_call": "expected_calls", "rules": "checks"}
# keys that make a row one of some scorer; in another's they are a mistake, not a tag
_FORMAT_KEYS = frozenset({"decision", "expected", "tools"}) | function_call.KEYS | rules.KEYS | judge.KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSpec:
    """One case. `content` is everything that shapes the prompt or the score, as JSON; `digest` is its SHA-256.

    Every content has key, family, group, messages (as sent: the reference answer is not among them) and tags.
    """

    key: str
    family: str
    group: str
    # whether a call is right
    expects_call: bool
    content: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSuite:
    """A suite's cases in file order. `digest` is of content: line ends and key order do not change it."""

    source: str
    scorer: str
    cases: tuple[CaseSpec, ...]
    digest: str


def parse_suite(data: bytes, *, source: str, scorer: str = "decision") -> ParsedSuite:
    """Reads a whole suite; `source` is the file's name, used in messages only; `scorer` is one of `SCORERS`.

    The digest is the SHA-256 of canonical {"format": 1, "scorer": "decision", "cases": [content, ...]}.
    Raises `InvalidInput` for the first fault, with the line and the key, for example "line 17: example_id".
    """
    if scorer not in _READERS:
        raise InvalidInput("scorer", f"{short(scorer)} is unknown; use one of {', '.join(SCORERS)}.")
    cases: list[CaseSpec] = []
    canonical: list[bytes] = []
    line_of_key: dict[str, int] = {}
    for at, row in rows(data, source):
        case, case_bytes = _case(at, row, scorer)
        if case.key in line_of_key:
            at.refuse(
                "example_id",
                f"{short(case.key)} is also that of line {line_of_key[case.key]}; give each case its own.",
            )
        line_of_key[case.key] = at.number
        cases.append(case)
        canonical.append(case_bytes)
    if not cases:
        raise InvalidInput(source, "holds no case; give one JSON object a line.", source=source)
    digest = _suite_digest(canonical, scorer)
    return ParsedSuite(source=source, scorer=scorer, cases=tuple(cases), digest=digest)


class Expectation(NamedTuple):
    """What a case expects, as a sealed case's content holds it, and whether a call is right then."""

    value: Any
    expects_call: bool


def read_expectation(scorer: str, content: Mapping[str, Any], proposed: Any) -> Expectation:
    """Reads another expectation of a sealed case as the suite's own reader reads one.

    `scorer` is one of `EXPECTED_KEYS`. Raises `InvalidInput` with the field as a suite's row names it.
    """
    key, at = EXPECTED_KEYS[scorer], Line("", 0)
    row = {**content, key: proposed}
    check_storable(at, {key: proposed})
    part = _READERS[scorer](at, row, Messages(content["messages"], None))
    if len(canonical_bytes(part.content)) > MAX_CASE_BYTES:
        at.refuse(key, f"makes the case larger than {MAX_CASE_BYTES} bytes; expect less.")
    return Expectation(part.content[key], part.expects_call)


def digest_of_cases(contents: Iterable[Any], *, scorer: str = "decision") -> str:
    """The digest a suite with these case contents, in this order, has: what was sealed can be proved again."""
    return _suite_digest(map(canonical_bytes, contents), scorer)


def _suite_digest(cases: Iterable[bytes], scorer: str) -> str:
    # Canonical JSON sorts keys and adds no spaces, so the parts join without encoding every case again.
    digest = hashlib.sha256(b'{"cases":[')
    for number, case in enumerate(cases):
        digest.update(b"," + case if number else case)
    digest.update(b'],"format":%d,"scorer":"%s"}' % (FORMAT, scorer.encode()))
    return digest.hexdigest()


def _case(at: Line, row: dict[str, Any], scorer: str) -> tuple[CaseSpec, bytes]:
    key = name_of(at, row, "example_id")
    family = name_of(at, row, "family", MAX_FAMILY_CHARS)
    group_field = next((name for name in ("lineage_group_id", "group_id") if row.get(name) is not None), None)
    group = name_of(at, row, group_field) if group_field else key
    messages = messages_of(at, row.get("messages"))
    if scorer != "decision":
        _check_keys(at, row, messages, scorer)
    part = _READERS[scorer](at, row, messages)
    used = part.used | {"example_id", "family", group_field, "messages"}
    content = {
        "key": key,
        "family": family,
        "group": group,
        "messages": messages.sent,
        "tags": {name: value for name, value in row.items() if name not in used},
        **part.content,
    }
    case_bytes = canonical_bytes(content)
    case = CaseSpec(
        key=key,
        family=family,
        group=group,
        expects_call=part.expects_call,
        content=content,
        digest=sha256_bytes(case_bytes),
    )
    return case, case_bytes


def _check_keys(at: Line, row: dict[str, Any], messages: Messages, scorer: str) -> None:
    if messages.answer is not None:
        at.refuse(
            "messages", "ends with an answer, which this scorer does not read; end with the user's message."
        )
    own = {"function_call": function_call.KEYS, "rules": rules.KEYS, "judge": judge.KEYS}[scorer]
    for name in row:
        if name in _FORMAT_KEYS - own:
            at.refuse(name, f"does not belong to a row of {scorer}; remove it or seal with another scorer.")
