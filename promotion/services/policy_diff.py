"""What changed between two policies, and what of it could let more pass. Pure: documents in, changes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from promotion.checklist import REVIEWER
from promotion.gates.base import parse_params
from promotion.services.policy_rules import canonical_gate
from rollouts.errors import InvalidInput

Entry = Mapping[str, Any]
Key = tuple[str, str, str]


class Kind(StrEnum):
    TIGHTENED = "tightened"
    LOOSENED = "loosened"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"


# Anything that could let pass what did not pass before. Every entry of a policy must hold, so one less is looser.
LOOSENS = frozenset([Kind.LOOSENED, Kind.REMOVED])


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, with both values as text ("" where there is none). `suite` is the digest it is about."""

    kind: Kind
    what: str
    before: str
    after: str
    suite: str = ""

    @property
    def loosens(self) -> bool:
        return self.kind in LOOSENS

    def __str__(self) -> str:
        where = f" on suite {self.suite[:12]}" if self.suite else ""
        values = {
            Kind.ADDED: f" ({self.after})" if self.after else "",
            Kind.REMOVED: f" ({self.before})" if self.before else "",
        }.get(self.kind, f": {self.before or 'none'} is now {self.after or 'none'}")
        return f"{self.kind} {self.what}{where}{values}"


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """From `old` to `new`, both of a policy's shape, in the document's order. Empty exactly where they are equal.

    What nobody can tell the direction of counts as loosened.
    """
    found = [
        *_suites(old["suites"], new["suites"]),
        *_general(old, new),
        *_gates(old["gates"], new["gates"]),
        *_approval(old["approval"], new["approval"]),
    ]
    if old.get("note", "") != new.get("note", ""):
        found.append(Change(Kind.CHANGED, "note", _text(old.get("note")), _text(new.get("note"))))
    if not found and old != new:
        found.append(Change(Kind.CHANGED, "how the same is written", "", ""))
    return found


def loosening(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Those changes that could let more pass."""
    return [change for change in diff(old, new) if change.loosens]


def _suites(old: list[Entry], new: list[Entry]) -> Iterator[Change]:
    before, after = [part["digest"] for part in old], [part["digest"] for part in new]
    yield from (Change(Kind.REMOVED, "suite", digest, "", digest) for digest in before if digest not in after)
    yield from (Change(Kind.ADDED, "suite", "", digest, digest) for digest in after if digest not in before)
    if before != after and set(before) == set(after):
        yield Change(Kind.CHANGED, "order of the suites", "", "")


def _general(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """What shapes the measurement itself has no strict side: other answers may pass where these did not."""
    yield from _differs("format", old, new)
    yield from _differs("samples", old, new)
    for key in sorted(old["sampling"].keys() | new["sampling"].keys()):
        yield from _differs(key, old["sampling"], new["sampling"], "sampling ")
    if old["spend_alpha"] != new["spend_alpha"]:
        kind = Kind.TIGHTENED if new["spend_alpha"] else Kind.LOOSENED
        yield Change(kind, "alpha spent over looks", _text(old["spend_alpha"]), _text(new["spend_alpha"]))


def _differs(key: str, old: Entry, new: Entry, what: str = "") -> Iterator[Change]:
    if old.get(key) != new.get(key):
        yield Change(Kind.LOOSENED, f"{what}{key}", _text(old.get(key)), _text(new.get(key)))


def _gates(old: list[Entry], new: list[Entry]) -> Iterator[Change]:
    """Entries are the same by gate, suite and metric; where several are, the first is compared with the first."""
    before, after = _by_key(old), _by_key(new)
    for key in dict.fromkeys([*before, *after]):
        was, now = before[key], after[key]
        for one, other in zip(was, now, strict=False):
            yield from _parameters(key, one, other)
        yield from (_whole(Kind.REMOVED, key, entry) for entry in was[len(now) :])
        yield from (_whole(Kind.ADDED, key, entry) for entry in now[len(was) :])
    if [_key(entry) for entry in old] != [_key(entry) for entry in new] and _counts(before) == _counts(after):
        yield Change(Kind.CHANGED, "order of the gates", "", "")


def _key(entry: Entry) -> Key:
    return (
        canonical_gate(str(entry.get("gate"))),
        str(entry.get("suite") or ""),
        str(entry.get("metric") or ""),
    )


def _by_key(entries: list[Entry]) -> defaultdict[Key, list[Entry]]:
    found: defaultdict[Key, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[_key(entry)].append(entry)
    return found


def _counts(entries: Mapping[Key, list[Entry]]) -> dict[Key, int]:
    return {key: len(found) for key, found in entries.items() if found}


def _named(key: Key) -> str:
    gate, _, metric = key
    return f"{gate}, {metric}" if metric else gate


def _whole(kind: Kind, key: Key, entry: Entry) -> Change:
    shown = ", ".join(f"{name} {_text(value)}" for name, value in _values(entry).items())
    removed = kind is Kind.REMOVED
    return Change(kind, _named(key), shown if removed else "", "" if removed else shown, key[1])


def _values(entry: Entry) -> dict[str, Any]:
    """The entry's parameters, what it leaves out at its default; as they stand where they do not fit the gate."""
    try:
        values = parse_params(entry, "gate").model_dump()
    except InvalidInput:
        values = dict(entry)
    return {
        name: value
        for name, value in values.items()
        if name not in ("gate", "suite", "metric") and value is not None
    }


def _parameters(key: Key, old: Entry, new: Entry) -> Iterator[Change]:
    before, after = _values(old), _values(new)
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was != now and (_number(was) is None or _number(was) != _number(now)):
            yield Change(_direction(name, was, now), f"{_named(key)}: {name}", _text(was), _text(now), key[1])


def _direction(name: str, was: Any, now: Any) -> Kind:
    """By the parameter's name: floors are stricter when higher, everything allowed when lower; none is no demand."""
    if name == "min" or name.startswith("min_"):
        higher_is_stricter = True
    elif name in ("margin", "alpha") or name.startswith("max_"):
        higher_is_stricter = False
    else:
        return Kind.LOOSENED
    if was is None:
        return Kind.TIGHTENED
    before, after = _number(was), _number(now)
    if before is None or after is None:
        return Kind.LOOSENED
    return Kind.TIGHTENED if (after > before) is higher_is_stricter else Kind.LOOSENED


def _number(value: Any) -> Decimal | None:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _approval(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = ({part["group"]: part["count"] for part in rule["approvers"]} for rule in (old, new))
    for group in dict.fromkeys([*before, *after]):
        was, now = before.get(group), after.get(group)
        if now is None:
            yield Change(Kind.REMOVED, f"signatures of {group}", _text(was), "")
        elif was is None:
            yield Change(Kind.ADDED, f"signatures of {group}", "", _text(now))
        elif was != now:
            kind = Kind.TIGHTENED if now > was else Kind.LOOSENED
            yield Change(kind, f"signatures of {group}", _text(was), _text(now))
    if old["separation_of_duties"] != new["separation_of_duties"]:
        kind = Kind.TIGHTENED if new["separation_of_duties"] else Kind.LOOSENED
        values = (_text(rule["separation_of_duties"]) for rule in (old, new))
        yield Change(kind, "separation of duties", *values)
    was, now = old["expires_after_days"], new["expires_after_days"]
    if was != now:
        kind = Kind.TIGHTENED if now < was else Kind.LOOSENED
        yield Change(kind, "a signature expires", f"after {was} days", f"after {now} days")
    yield from _checklist(old.get("checklist", []), new.get("checklist", []))
    was, now = old.get("break_glass", False), new.get("break_glass", False)
    if was != now:
        kind = Kind.LOOSENED if now else Kind.TIGHTENED
        yield Change(kind, "promotion without the signatures, reviewed afterwards", _text(was), _text(now))


def _checklist(old: list[Entry], new: list[Entry]) -> Iterator[Change]:
    """Items are the same by key. Other words, or another who answers, have no strict side."""
    before, after = ({item["key"]: _question(item) for item in items} for items in (old, new))
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, ""), after.get(key, "")
        if was != now:
            kind = Kind.REMOVED if not now else Kind.LOOSENED if was else Kind.ADDED
            yield Change(kind, f"checklist: {key}", was, now)
    if list(before) != list(after) and before.keys() == after.keys():
        yield Change(Kind.CHANGED, "order of the checklist", "", "")


def _question(item: Entry) -> str:
    return f"{item['text']} ({item.get('answered_by', REVIEWER)})"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
