"""What went wrong in a run, in groups with a sentence each: "52 of 62 misses answered unsupported for a tool that was offered".

A miss is a scored rollout that is wrong on `exact`, the whole task, which every scorer gives. Each miss is in one group, so
that the groups' counts add up to the misses. Pure: rows in, groups out, one row at a time.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollouts.scoring.decision import (
    JSON_WHITESPACE,
    SHAPES,
    NotStrictJson,
    json_equal,
    parse_strict_json,
    shape_problem,
)
from rollouts.scoring.rules import REFUSALS
from rollouts.scoring.tools import wire_name

EXAMPLES = 5
MAX_GROUPS = 40
# beyond this an answer is not read again: it is grouped by what the scorer read it as
READ_CHARS = 20_000
# different details that are counted in a group; what comes later is counted as one of them or not at all
MAX_DETAILS = 200
MAX_DETAIL_CHARS = 60


class Miss(NamedTuple):
    """A scored rollout that is not exactly right.

    `content` is its case's content, with the expectation that it was scored by. `details` are the scorer's. `tool` and
    `decision` are its scores on these metrics, None where they do not apply.
    """

    rollout_id: int
    prompt: str
    content: Mapping[str, Any]
    answer_class: str
    answer: str | None
    details: Mapping[str, Any] | None
    decision: bool | None = None
    tool: bool | None = None


class Found(NamedTuple):
    """The group of a miss: what the model did, the filter of the list in which it is, and what differs inside the group."""

    did: str
    where: tuple[tuple[str, str], ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`n` misses over `prompts` distinct prompts. `where` is the narrowest filter of the list of rollouts that holds them all.

    `detail` is what most of them share (an argument's name, a tool), and `detail_n` of how many it is known; "" and 0
    where nothing more is known. `members` are the misses' ids, packed: to tell them again from the others of `where`
    would take reading every answer. "" in what was stored before members were.
    """

    did: str
    n: int
    prompts: int
    where: dict[str, str]
    detail: str
    detail_n: int
    examples: list[int]
    members: str = ""

    def sentence(self, misses: int) -> str:
        most = f", most often {self.detail} ({self.detail_n:,})" if self.detail_n > 1 else ""
        return f"{self.n:,} of {misses:,} miss{'' if misses == 1 else 'es'} {self.did}{most}."


@dataclass(slots=True)
class _Group:
    where: tuple[tuple[str, str], ...]
    n: int = 0
    prompts: set[int] = field(default_factory=set)
    details: Counter[str] = field(default_factory=Counter)
    members: array[int] = field(default_factory=lambda: array("q"))

    def add(self, miss: Miss, detail: str) -> None:
        self.n += 1
        self.prompts.add(hash(miss.prompt))
        if detail and (detail in self.details or len(self.details) < MAX_DETAILS):
            self.details[detail] += 1
        self.members.append(miss.rollout_id)


def clusters(scorer: str, misses: Iterable[Miss]) -> tuple[int, list[Cluster]]:
    """The number of misses, and their groups, the largest first. Memory grows with distinct prompts, and by 8 bytes a miss."""
    reader, groups, total = _READERS[scorer], dict[str, _Group](), 0
    for miss in misses:
        total += 1
        found = _unread(miss) or reader(miss)
        if found.did not in groups and len(groups) >= MAX_GROUPS:
            found = Found("are of rarer kinds", (("wrong", "exact"),))
        groups.setdefault(found.did, _Group(found.where)).add(miss, found.detail)
    made = [_cluster(did, group) for did, group in groups.items()]
    return total, sorted(made, key=lambda cluster: (-cluster.n, cluster.did))


def _cluster(did: str, group: _Group) -> Cluster:
    detail, detail_n = min(group.details.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    examples, members = group.members[:EXAMPLES].tolist(), pack(group.members)
    return Cluster(did, group.n, len(group.prompts), dict(group.where), detail, detail_n, examples, members)


def pack(ids: Iterable[int]) -> str:
    """Ids as short text: the steps from one to the next in bytes of seven bits, compressed. Equal ids are kept once."""
    packed, before = bytearray(), 0
    for number in sorted(set(ids)):
        step, before = number - before, number
        while step > 0x7F:
            packed.append(step & 0x7F | 0x80)
            step >>= 7
        packed.append(step)
    return base64.b64encode(zlib.compress(bytes(packed), 9)).decode()


def unpack(text: str) -> list[int]:
    """The ids that `pack` was given, the smallest first."""
    ids, number, step, shift = [], 0, 0, 0
    for byte in zlib.decompress(base64.b64decode(text)):
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            number += step
            ids.append(number)
            step = shift = 0
    return ids


_UNREAD = {
    "truncated": "were cut off at the token limit",
    "empty": "said nothing",
    "reasoning_only": "thought, and then said and called nothing",
    "not_object": "are JSON, but not an object",
    "unknown_decision": "name a decision that does not exist",
    "turns_exhausted": "still called tools when their turns were used up",
}


def _unread(miss: Miss) -> Found | None:
    """What the scorer could not read an answer in, whatever was expected."""
    where = (("wrong", "exact"), ("read_as", miss.answer_class))
    if miss.answer_class == "not_json":
        refused = _is_refusal(miss.answer or "")
        return Found("refused in words" if refused else "are not one JSON value", where)
    did = _UNREAD.get(miss.answer_class)
    return Found(did, where) if did else None


def _is_refusal(text: str) -> bool:
    start = text[:400].lstrip(" \t\r\n>*_#-\"'").lower().replace("’", "'")
    return start.startswith(REFUSALS)


# decision


def _decision(miss: Miss) -> Found:
    expected, body = _mapping(miss.content.get("expected")), _object(miss.answer)
    wanted, got = expected.get("decision"), body.get("decision")
    if got not in SHAPES:  # longer than is read again
        return Found("answered at a length that is not read again", (("wrong", "exact"),))
    offered = _offered(miss.content)
    called = body.get("tool") if got == "call" else None
    if wanted != "call":
        return _no_call_was_right(str(wanted), str(got), called, body, offered)
    if got != "call":
        there = "was offered" if wire_name(str(expected.get("tool"))) in offered else "was not offered"
        return Found(
            f"answered {got} for a tool that {there}", (("wrong", "decision"),), _named(expected.get("tool"))
        )
    if called != expected.get("tool"):
        return _another_tool(called, offered, expected.get("tool"))
    if problem := shape_problem(body):
        return Found("called the right tool in a malformed answer", (("wrong", "exact"),), problem)
    detail = _argument(_mapping(body.get("arguments")), _mapping(expected.get("arguments")))
    return Found("called the right tool with wrong arguments", (("wrong", "exact"),), detail)


def _no_call_was_right(
    wanted: str, got: str, called: Any, body: Mapping[str, Any], offered: set[str]
) -> Found:
    if got == "call":
        known = isinstance(called, str) and wire_name(called) in offered
        which = "an offered tool" if known else "a tool that was not offered"
        return Found(f"called {which} where {wanted} was right", (("wrong", "safe"),), _named(called))
    if got != wanted:
        return Found(f"answered {got} where {wanted} was right", (("wrong", "decision"),))
    if problem := shape_problem(body):
        return Found(f"answered {wanted} rightly in a malformed answer", (("wrong", "exact"),), problem)
    return Found(
        f"answered {wanted} rightly with another reason code",
        (("wrong", "exact"),),
        _named(body.get("reason_code")),
    )


def _another_tool(called: Any, offered: set[str], wanted: Any) -> Found:
    where = (("wrong", "tool"),)
    if not isinstance(called, str):
        return Found("called nothing by name", where)
    if wire_name(called) in offered:
        return Found("called another offered tool", where, f"{_named(called)} for {_named(wanted)}")
    return Found("called a tool that was not offered", where, _named(called))


def _argument(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first argument in which a call is wrong, and how."""
    for name in wanted:
        if name not in got:
            return f'"{_named(name)}" missing'
        if not json_equal(got[name], wanted[name]):
            return f'"{_named(name)}" wrong'
    extra = next((name for name in got if name not in wanted), None)
    return "" if extra is None else f'"{_named(extra)}" not expected'


# function_call: which calls were made stands in the scorer's mismatches


def _function_call(miss: Miss) -> Found:
    said = _mismatches(miss.details)
    expected = miss.content.get("expected_calls") or []
    if not expected:
        return _call_although_none(said, _offered(miss.content))
    if miss.decision is False:
        where = (("wrong", "decision"),)
        return Found("called nothing where a call was right", where, _named(expected[0].get("name")))
    if miss.tool is False:
        return _wrong_calls(said, _offered(miss.content))
    tool, _, why = said[0].partition(": ") if said else ("", "", "")
    if "strict JSON" in why:
        return Found("wrote arguments that are not JSON", (("wrong", "exact"),), _named(tool))
    return Found("called the right tool with wrong arguments", (("wrong", "exact"),), _argument_said(why))


def _call_although_none(said: list[str], offered: set[str]) -> Found:
    names = [line.rpartition(" is called ")[0] for line in said if line.endswith(" too often")]
    unknown = [name for name in names if name not in offered]
    which = "a tool that was not offered" if unknown else "an offered tool"
    where = (("wrong", "safe"),)
    return Found(f"called {which} where no call was right", where, _named((unknown or names or [""])[0]))


def _wrong_calls(said: list[str], offered: set[str]) -> Found:
    where = (("wrong", "tool"),)
    if said and said[0].endswith(" are right"):
        made, _, wanted = said[0].removesuffix(" are right").partition(" calls, and ")
        which = "fewer" if made.isdigit() and wanted.isdigit() and int(made) < int(wanted) else "more"
        return Found(f"made {which} calls than are right", where, said[0].removesuffix(" are right"))
    pairs = [line.partition(": ") for line in said]
    instead = [
        (tool, why.removesuffix(" is called instead"))
        for tool, _, why in pairs
        if why.endswith(" is called instead")
    ]
    if not instead:
        return Found("called another tool", where, _named(pairs[0][0]) if pairs else "")
    wanted, called = instead[0]
    return _another_tool(called, offered, wanted)


def _argument_said(why: str) -> str:
    for ending, word in (
        (" is required and missing", "missing"),
        (" is missing", "missing"),
        (" is not expected", "not expected"),
    ):
        if why.endswith(ending):
            return f'"{_named(why.removesuffix(ending))}" {word}'
    name, found, _ = why.partition(" is ")
    return f'"{_named(name)}" wrong' if found else ""


def _mismatches(details: Mapping[str, Any] | None) -> list[str]:
    found = _mapping(details).get("mismatches")
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


# rules, judge


def _rules(miss: Miss) -> Found:
    checks = _mapping(miss.details).get("checks")
    failed = [
        check
        for check in (checks if isinstance(checks, list) else ())
        if isinstance(check, Mapping) and check.get("passed") is False
    ]
    ops = list(dict.fromkeys(str(check.get("op")) for check in failed))
    if not ops:
        return Found("fail without a failed check", (("wrong", "exact"),))
    names = (
        " and ".join(ops) if len(ops) <= 2 else f"{ops[0]}, {ops[1]} and {len(ops) - 2} more kinds of check"
    )
    first = failed[0]
    said = first.get("problem") or first.get("arg")
    return Found(f"fail {names}", (("wrong", "exact"),), "" if said is None else _named(said))


def _judge(miss: Miss) -> Found:
    return Found("were graded below the pass score", (("wrong", "exact"),))


_READERS: dict[str, Callable[[Miss], Found]] = {
    "decision": _decision,
    "function_call": _function_call,
    "rules": _rules,
    "judge": _judge,
}


def _object(answer: str | None) -> Mapping[str, Any]:
    """The answer's object; empty where it is none, or longer than is read again."""
    if not answer or len(answer) > READ_CHARS:
        return {}
    try:
        return _mapping(parse_strict_json(answer.strip(JSON_WHITESPACE)))
    except NotStrictJson:
        return {}


def _offered(content: Mapping[str, Any]) -> set[str]:
    tools = content.get("tools") or ()
    return {wire_name(str(tool["name"] if isinstance(tool, Mapping) else tool)) for tool in tools}


def _named(value: Any) -> str:
    """A name that a model or a case gave, short enough to count by."""
    text = str(value)
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[: MAX_DETAIL_CHARS - 1]}…"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
