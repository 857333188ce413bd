"""What an audit event says to a person: its sentence with what it was about. Pure; the chain itself is never changed by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rollouts.audit import ACTIONS

MOST_CHARS = 200
Data = Mapping[str, Any]


def sentence(action: str, data: bytes) -> str:
    """With the event's own facts; the action's general sentence where it has none, or not those that are known here."""
    general = ACTIONS.get(action, action.replace("_", " "))
    try:
        facts = json.loads(data)
        return _SENTENCES[action](facts) if isinstance(facts, dict) else general
    except (KeyError, TypeError, ValueError):
        return general


def actor(name: str) -> str:
    """`user:ada` is ada, `token:ada:1f2e` is ada by an API token, `system:publish` is Assay itself."""
    kind, _, rest = name.partition(":")
    if kind == "user" and rest:
        return rest
    if kind == "token" and rest:
        return f"{rest.rpartition(':')[0] or rest} by an API token"
    if kind == "system" and rest:
        return f"Assay ({rest.replace('_', ' ')})"
    return name


def _short(text: Any) -> str:
    said = " ".join(str(text).split())
    return said if len(said) <= MOST_CHARS else f"{said[: MOST_CHARS - 1]}…"


def _quoted(intro: str, text: Any) -> str:
    return f"{intro}: {_short(text)}" if text else f"{intro}."


def _digits(digest: Any) -> str:
    """As pages show a digest."""
    return f"{str(digest)[:4]} {str(digest)[4:8]}"


def _counted(n: int, one: str) -> str:
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def _gates(reasons: list[str]) -> str:
    """The names in `gate: reason`, each once, with how often."""
    names = [reason.partition(":")[0] for reason in reasons]
    return ", ".join(
        name if names.count(name) == 1 else f"{name} ×{names.count(name)}" for name in dict.fromkeys(names)
    )


def _judged(data: Data) -> str:
    evidence, blocked = _digits(data["evidence"]), data["blocked_by"]
    if not blocked:
        return f"Judged at {evidence}: every gate lets it pass, and it waits for signatures."
    return f"Judged at {evidence}: blocked by {len(blocked)} ({_short(_gates(blocked))})."


def _signed(data: Data) -> str:
    opened, unopened = data["panels_opened"], data["panels_unopened"]
    parts = f", {opened} of {opened + unopened} parts opened" if opened + unopened else ""
    return _quoted(f"Signed {_digits(data['evidence'])} as {data['role']}{parts}", data["comment"])


def _scored(data: Data) -> str:
    found = [f"{data[state]:,} {state}" for state in ("masked", "unscored", "cancelled") if data.get(state)]
    more = f", {', '.join(found)}" if found else ""
    return f"Closed: {data['scored']:,} of {_counted(data['planned'], 'rollout')} scored{more}."


def _promoted(data: Data) -> str:
    return f"Promoted as v{data['entry']}{', ungated' if data['ungated'] else ''}: {data['export']}."


def _locked(data: Data) -> str:
    loosened = len(data["loosened"])
    more = f", {loosened} of them loosened" if loosened else ""
    return f"Version {data['version']} locked: {_counted(data['changes'], 'change')}{more}."


def _opened(data: Data) -> str:
    return f"Started a thread on {data['anchor']}: {_short(data['text'])}"


def _readers(data: Data) -> str:
    before, after = (", ".join(data[side]) or "everybody with a role" for side in ("before", "after"))
    return f"Seen by {after}; before by {before}."


_SENTENCES: dict[str, Callable[[Data], str]] = {
    "candidate.submitted": lambda data: f"Submitted for the base model {data['base']}.",
    "candidate.build_failed": lambda data: _quoted("The build failed", data.get("reason")),
    "candidate.evaluation_started": lambda data: f"{_counted(len(data['runs']), 'eval run')} started.",
    "candidate.judged": _judged,
    "candidate.signed": _signed,
    "candidate.request_changes": lambda data: _quoted(
        f"Sent back at {_digits(data['evidence'])}", data["comment"]
    ),
    "candidate.reject": lambda data: _quoted(f"Rejected at {_digits(data['evidence'])}", data["comment"]),
    "candidate.signature_refused": lambda data: _quoted("An attempt to sign was refused", data["reason"]),
    "candidate.signature_withdrawn": lambda data: _quoted(
        f"Took back {_counted(data['signatures'], 'signature')} at {_digits(data['evidence'])}",
        data["reason"],
    ),
    "candidate.signature_ended": lambda data: _quoted(
        f"Signatures of {', '.join(data['people'])} ended", data["reason"]
    ),
    "candidate.glass_broken": lambda data: _quoted("Promoted without the signatures", data["reason"]),
    "candidate.glass_reviewed": lambda data: _quoted(
        f"Reviewed the promotion without signatures: {data['verdict']}", data["comment"]
    ),
    "candidate.glass_refused": lambda data: _quoted("Breaking the glass was refused", data["reason"]),
    "candidate.waiver_requested": lambda data: _quoted(f"Asked to waive {data['gate']}", data["reason"]),
    "candidate.waiver_granted": lambda data: (
        f"Granted the waiver of {data['gate']} that {data['requested_by']} asked for, "
        f"until {data['expires_at'][:10]}."
    ),
    "candidate.waiver_ended": lambda data: _quoted(f"Ended the waiver of {data['gate']}", data["why"]),
    "candidate.waiver_refused": lambda data: _quoted("A step of a waiver was refused", data["reason"]),
    "dispute.raised": lambda data: _quoted(f"Disputed case {data['case']}", data["reason"]),
    "dispute.withdrawn": lambda data: f"Took back the dispute of case {data['case']}.",
    "dispute.declined": lambda data: _quoted(f"Left case {data['case']} as it is", data["resolution"]),
    "dispute.accepted": lambda data: _quoted(
        f"Accepted the dispute of case {data['case']}", data["resolution"]
    ),
    "dispute.refused": lambda data: _quoted("A step of a dispute was refused", data["reason"]),
    "candidate.publish_failed": lambda data: _quoted("The publication failed", data["reason"]),
    "candidate.promotion_refused": lambda data: f"Not published: {_short(' '.join(data['blocked_by']))}",
    "candidate.promoted": _promoted,
    "candidate.withdrawn": lambda data: _quoted("Withdrawn", data["reason"]),
    "candidate.summarised": lambda data: _quoted("Wrote what remains risky", data["text"]),
    "candidate.thread_started": _opened,
    "candidate.thread_answered": lambda data: _quoted("Answered in a thread", data["text"]),
    "policy.drafted": lambda data: f"Draft of version {data['version']} saved.",
    "policy.locked": _locked,
    "track.readers_changed": _readers,
    "person.role_granted": lambda data: f"Now {', '.join(data['roles'])}.",
    "run.planned": lambda data: f"{_counted(data['planned'], 'rollout')} planned.",
    "run.scored": _scored,
    "run.failed": lambda data: _quoted(f"Failed, {str(data['code']).replace('_', ' ')}", data["detail"]),
    "run.reopened": lambda data: f"{_counted(data['queued'], 'rollout')} queued again.",
    "run.rescored": lambda data: (
        f"{_counted(data['answers'], 'answer')} scored again: {data['changed']:,} changed."
    ),
    "run.amended": lambda data: (
        f"Case {data['case']} was amended: {_counted(data['changed'], 'score')} changed."
    ),
    "suite.sealed": lambda data: f"Sealed with {_counted(data['cases'], 'case')}.",
    "dataset.registered": lambda data: f"Registered with {_counted(data['rows'], 'row')}.",
}
