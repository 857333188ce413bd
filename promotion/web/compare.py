"""What changed between two evidence documents, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST = 40
_COUNTS = ("planned", "scored", "masked", "unscored", "cancelled", "truncated")
_ARTIFACT = {
    "gguf_sha256": "The GGUF",
    "adapter_source_sha256": "The adapter's files",
    "base_sha256": "The base model's file",
    "chat_template_sha256": "The chat template",
    "verification": "The verification of the GGUF",
}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Sentences, the weightiest first, at most 40. Empty where the documents are equal."""
    if old == new:
        return []
    found = [
        *_candidate(old, new),
        *_policy(old, new),
        *_champion(old, new),
        *_datasets(old, new),
        *_suites(old, new),
        *_waivers(old, new),
        *_statement(old, new),
        *_people(old, new),
    ]
    if not found:
        found = [
            f"{path}: {_short(before)} is now {_short(after)}." for path, before, after in _leaves(old, new)
        ]
    more = len(found) - MOST
    return found if more <= 0 else [*found[:MOST], f"And {more} more."]


def _candidate(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old["candidate"]["revision"], new["candidate"]["revision"]
    for key, what in _ARTIFACT.items():
        if old["artifact"].get(key) != new["artifact"].get(key):
            was, now = (_short(document["artifact"].get(key)) for document in (old, new))
            yield f"{what} changed: {was} is now {now}."
    if before != after:
        yield (
            f"The candidate's revision went from {before} to {after}: it was sent back, evaluated again or "
            "changed, and signatures on the earlier revision no longer count."
        )


def _policy(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old["policy"], new["policy"]
    if before == after:
        return
    if before is None or after is None:
        was, now = (policy["version"] if policy else "none" for policy in (before, after))
        yield f"The policy was {was} and is {now}."
        return
    yield f"The policy went from version {before['version']} to {after['version']} ({after['digest'][:8]})."
    for path, was, now in _leaves(before["document"], after["document"]):
        yield f"Policy {path}: {_short(was)} is now {_short(now)}."


def _champion(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old["champion"], new["champion"]
    if before != after:
        yield f"The champion was {_entry(before)} and is {_entry(after)}."


def _entry(champion: Mapping[str, Any] | None) -> str:
    return f"v{champion['entry']} ({champion['name']})" if champion else "none"


def _suites(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before = {part["digest"]: part for part in old["suites"]}
    after = {part["digest"]: part for part in new["suites"]}
    for digest in before.keys() - after.keys():
        yield f"Suite {before[digest]['name']} is no longer part of the evidence."
    for digest, part in after.items():
        if digest not in before:
            yield f"Suite {part['name']} was added ({part['case_count']} cases)."
            continue
        yield from _amended(part["name"], before[digest], part)
        for who in ("candidate", "champion"):
            yield from _run(part["name"], who, before[digest][who], part[who])


def _amended(suite: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Evidence from before cases could be amended names none."""
    for amendment in new.get("amended", ()):
        if amendment not in old.get("amended", ()):
            yield (
                f"{suite}: case {amendment['case']} expects something else since {amendment['proposed_by']} proposed it "
                f"and {amendment['accepted_by']} agreed."
            )


def _run(suite: str, who: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    where = f"{suite}, {who}"
    if old == new:
        return
    if old is None or new is None:
        yield f"{where}: {'a run was added' if new else 'its run no longer counts'}."
        return
    if old["run"] != new["run"]:
        yield f"{where}: another run counts now ({new['run'][:8]}, it was {old['run'][:8]})."
    elif old["finished_at"] != new["finished_at"]:
        yield f"{where}: its run was opened again and closed again at {str(new['finished_at'])[:19]}Z."
    for key in _COUNTS:
        if old[key] != new[key]:
            yield f"{where}: {key} {old[key]} is now {new[key]}."
    for metric, counts in new["metrics"].items():
        was = old["metrics"].get(metric)
        if was is not None and was != counts:
            yield f"{where}: {metric} right {_of(was)} is now {_of(counts)}."
    if old["latency_ms"] != new["latency_ms"]:
        yield f"{where}: p95 {old['latency_ms']['p95']} ms is now {new['latency_ms']['p95']} ms."


def _of(counts: Mapping[str, int]) -> str:
    missing = f", {counts['missing']} without a score" if counts["missing"] else ""
    return f"{counts['successes']} of {sum(counts.values())}{missing}"


def _datasets(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Evidence of before format 2 says nothing of datasets and waivers."""
    before, after = (
        {part["digest"]: part for part in document.get("datasets", ())} for document in (old, new)
    )
    for digest in before.keys() - after.keys():
        yield f"Dataset {before[digest]['name']} is no longer declared."
    for digest, part in after.items():
        if digest not in before:
            yield f"Dataset {part['name']} v{part['version']} was declared ({part['role']}, {part['rows']} rows)."
        elif part != before[digest]:
            yield f"What is known of dataset {part['name']} v{part['version']} changed: it was compared or read again."


def _waivers(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old.get("waivers", ()), new.get("waivers", ())
    for waiver in after:
        if waiver not in before:
            yield (
                f"{waiver['gate']} was waived until {waiver['expires_at'][:10]}, asked for by "
                f"{waiver['requested_by']} and granted by {waiver['granted_by']}."
            )
    for waiver in before:
        if waiver not in after:
            yield f"The waiver of {waiver['gate']} ended or is of other measurements."


def _statement(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old.get("statement"), new.get("statement")
    if after and before != after:
        yield f"{after['written_by']} wrote the risk summary anew: {_short(after['text'])}"


def _people(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for path, before, after in _leaves(old["people"], new["people"]):
        yield f"People, {path.replace('_', ' ')}: {_short(before)} is now {_short(after)}."


def _leaves(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Paths at which the two differ. Lists differ as wholes unless they are of equal length."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _leaves(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(before, after, f"{path}.{index}")
    else:
        yield path, old, new


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(str(part) for part in value) or "nobody"
    if isinstance(value, dict):
        return str(value.get("status", f"{len(value)} values"))
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text[:120]
