"""Policies: what one says, what it changes, how it is written and locked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from promotion import permissions, selectors
from promotion.checklist import REVIEWER
from promotion.gates import GATES
from promotion.models import Policy, Track
from promotion.services import policies
from promotion.services.policy_rules import SUITE_DIGEST
from promotion.web import policy_form
from promotion.web.review import allowed
from rollouts import selectors as rollout_selectors
from rollouts.api.strict_json import parse_json
from rollouts.errors import AssayError, Conflict, InvalidInput
from rollouts.hashing import sha256_bytes
from rollouts.models import Suite
from rollouts.web.http import acts, reads

MOST_VERSIONS = 50
MOST_SUITES = 200
# parameter -> how a table of gates says it
DEMANDS = {
    "min": "bound ≥ {}",
    "max_drop": "drop ≤ {}",
    "margin": "loses at most {}",
    "max_near": "near ≤ {}",
    "max_p95_ms": "p95 ≤ {} ms",
    "max_memory_mib": "memory ≤ {} MiB",
    "max_percent": "masked ≤ {} %",
    "max_accuracy": "one feature ≤ {}",
    "max_looks": "look ≤ {}",
}


@dataclass(frozen=True, slots=True)
class GateLine:
    """A policy's entry as a line of a table."""

    gate: str
    summary: str
    suite: str
    metric: str
    needs: str
    alpha: str


def gate_lines(document: Mapping[str, Any]) -> list[GateLine]:
    return [_gate_line(entry) for entry in document["gates"]]


def _gate_line(entry: Mapping[str, Any]) -> GateLine:
    gate = GATES.get(entry["gate"])
    needs = [
        DEMANDS.get(key, f"{key.replace('_', ' ')} {{}}").format(value)
        for key, value in policy_form.ordered({"gates": [entry]})["gates"][0].items()
        if key not in ("gate", "suite", "metric", "alpha") and value is not None
    ]
    return GateLine(
        gate=entry["gate"],
        summary=gate.summary.replace("`", "") if gate else "",
        suite=entry.get("suite") or "",
        metric=entry.get("metric") or "",
        needs=", ".join(needs),
        alpha=entry.get("alpha") or "",
    )


def _suites_named(digests: Iterable[str]) -> dict[str, Suite]:
    """Those that there are. What was typed into a form may be no digest, and nothing that a database takes."""
    wanted = [digest for digest in digests if re.fullmatch(SUITE_DIGEST, digest)]
    return {suite.digest: suite for suite in rollout_selectors.suites().filter(digest__in=wanted)}


# reading


@reads
def policy(request: HttpRequest, name: str, version: int) -> HttpResponse:
    found = selectors.track_by_name(name, request.user)
    shown = selectors.policy_by_version(found, version)
    before = policies.previous(shown)
    changes = policies.diff(before.document, shown.document) if before else []
    digests = [part["digest"] for part in shown.document["suites"]]
    context = {
        "area": "tracks",
        "track": found,
        "policy": shown,
        "lines": gate_lines(shown.document),
        "document": policy_form.ordered(shown.document),
        "suites": _suites_named({*digests, *(change.suite for change in changes)}),
        "digests": digests,
        "never_signs": permissions.AUDITOR,
        "before": before,
        "changes": changes,
        "loosened": sum(change.loosens for change in changes),
        "may_edit": allowed(permissions.require_can_edit_policy, request.user),
        "may_lock": shown.locked_at is None and allowed(permissions.require_can_lock_policy, request.user),
    }
    return render(request, "promotion/policy.html", context)


@reads
def policy_diff(request: HttpRequest, name: str, version: int) -> HttpResponse:
    """What a version changes of another, by default of the one before; for a draft, where it is locked."""
    found = selectors.track_by_name(name, request.user)
    return _render_diff(request, found, selectors.policy_by_version(found, version))


def _render_diff(
    request: HttpRequest, track: Track, shown: Policy, *, error: str = "", status: int = 200
) -> HttpResponse:
    against = _against(request, track, shown)
    changes = policies.diff(against.document, shown.document) if against else []
    context = {
        "area": "tracks",
        "track": track,
        "policy": shown,
        "against": against,
        "changes": sorted(changes, key=lambda change: not change.loosens),
        "loosened": sum(change.loosens for change in changes),
        "suites": _suites_named({change.suite for change in changes if change.suite}),
        "versions": selectors.policies_of(track).exclude(pk=shown.pk)[:MOST_VERSIONS],
        "usual": against == policies.previous(shown),
        "why_not": _why_not_lock(shown, request),
        "error": error,
    }
    return render(request, "promotion/policy_diff.html", context, status=status)


def _against(request: HttpRequest, track: Track, shown: Policy) -> Policy | None:
    wanted = request.GET.get("with", "")
    if not wanted:
        return policies.previous(shown)
    if not wanted.isascii() or not wanted.isdigit() or len(wanted) > 9:
        raise InvalidInput("with", "must be the number of a version.")
    return selectors.policy_by_version(track, int(wanted))


def _why_not_lock(shown: Policy, request: HttpRequest) -> str:
    """Why this person cannot lock this draft; empty where they can, or where nothing is left to lock."""
    if shown.locked_at is not None:
        return ""
    try:
        permissions.require_can_lock_policy(request.user)
    except AssayError as error:
        return error.message
    if shown.version > 1 and request.user.get_username() in policies.who_wrote(shown):
        return "You wrote it, or a part of it. A changed policy is locked by somebody else."
    return ""


@acts(permissions.require_can_lock_policy)
def lock(request: HttpRequest, name: str, version: int) -> HttpResponse:
    """Locks exactly the draft whose changes were shown."""
    found = selectors.track_by_name(name, request.user)
    shown = selectors.policy_by_version(found, version)
    try:
        policies.lock(policy_id=shown.pk, by=request.user, digest=request.POST.get("digest", ""))
    except (Conflict, InvalidInput) as error:
        shown = selectors.policy_by_version(found, version)
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_diff(request, found, shown, error=error.message, status=status)
    messages.success(
        request, f"Version {version} is locked: it judges everything that is evaluated from now on."
    )
    return redirect("promotion:policy", name, version)


# writing


@reads
def policy_edit(request: HttpRequest, name: str) -> HttpResponse:
    """The draft, or what would become one: the policy in force, or a beginning."""
    permissions.require_can_edit_policy(request.user)
    track = selectors.track_by_name(name, request.user)
    newest = selectors.policies_of(track).first()
    document = newest.document if newest else policy_form.SKELETON
    return _render_editor(request, track, document, [])


@acts(permissions.require_can_edit_policy)
def policy_change(request: HttpRequest, name: str) -> HttpResponse:
    """One of the editor's buttons. What the JSON said or what the form said is the document, by the button."""
    track = selectors.track_by_name(name, request.user)
    act, _, about = request.POST.get("do", "form").partition(":")
    try:
        if act in ("json", "save-json"):
            document = _from_json(request.POST.get("json", ""))
        else:
            # through JSON, so that what no database takes is refused here too
            document = parse_json(json.dumps(policy_form.document_from(request.POST)).encode())
    except InvalidInput as error:
        shown = policy_form.document_from(request.POST)
        return _render_editor(request, track, shown, [], json_error=error.message, status=422)
    if _altered(document, act, about, request.POST.get(f"{act}-which", "")):
        return _render_editor(request, track, document, [])
    wrong = policies.problems(document)
    if wrong:
        return _render_editor(request, track, document, wrong, status=422)
    if act.startswith("save"):
        return _saved(request, track, document)
    return _render_editor(request, track, document, [], fits=True)


def _from_json(text: str) -> dict[str, Any]:
    document = parse_json(text.encode())
    if not isinstance(document, dict):
        raise InvalidInput("body", "must be an object.")
    return document


def _altered(document: dict[str, Any], act: str, about: str, which: str) -> bool:
    """Adds or removes a row. What is half filled in is not found fault with yet."""
    index = int(about) if about.isascii() and about.isdigit() and len(about) < 4 else MOST_SUITES * 10
    if act == "add-suite":
        policy_form.add_suite(document, which)
    elif act == "remove-suite":
        policy_form.remove_suite(document, index)
    elif act == "add-gate":
        policy_form.add_gate(document, which)
    elif act == "remove-gate":
        del document["gates"][index : index + 1]
    elif act == "add-approver":
        document["approval"]["approvers"].append({"group": "", "count": 1})
    elif act == "remove-approver":
        del document["approval"]["approvers"][index : index + 1]
    elif act == "add-item":
        item = {"key": "", "text": "", "answered_by": REVIEWER}
        document["approval"].setdefault("checklist", []).append(item)
    elif act == "remove-item":
        policy_form.remove_item(document, index)
    else:
        return False
    return True


def _saved(request: HttpRequest, track: Track, document: dict[str, Any]) -> HttpResponse:
    try:
        saved = policies.draft(
            track=track, document=document, by=request.user, replaces=request.POST.get("replaces", "")
        )
    except (Conflict, InvalidInput) as error:
        wrong = [error] if isinstance(error, InvalidInput) else []
        return _render_editor(request, track, document, wrong, error=error.message, status=error.status)
    messages.success(
        request, f"Version {saved.version} is saved as a draft. It judges nothing until it is locked."
    )
    return redirect("promotion:policy", track.name, saved.version)


def _render_editor(
    request: HttpRequest,
    track: Track,
    document: dict[str, Any],
    wrong: list[InvalidInput],
    *,
    json_error: str = "",
    error: str = "",
    fits: bool = False,
    status: int = 200,
) -> HttpResponse:
    versions = list(selectors.policies_of(track)[:2])
    draft = next((policy for policy in versions if policy.locked_at is None), None)
    in_force = next((policy for policy in versions if policy.locked_at is not None), None)
    form = policy_form.form_of(
        document,
        wrong,
        named=_suites_named(policy_form.digests_of(document)),
        offered=_usable_suites()[:MOST_SUITES],
        groups=Group.objects.exclude(name=permissions.AUDITOR)
        .order_by("name")
        .values_list("name", flat=True),
    )
    text = policy_form.text_of(document)
    typed = request.POST.get("json", "").replace("\r\n", "\n")
    lost = bool(typed) and sha256_bytes(typed.encode()) != request.POST.get("shown", "") and typed != text
    changes = _changes(in_force, document, wrong)
    context = {
        "area": "tracks",
        "track": track,
        "form": form,
        "json": typed if json_error else text,
        # what the JSON said when it was rendered: who edits it and presses a button of the form is told
        "shown": sha256_bytes(text.encode()),
        "dropped": typed
        if lost and not json_error and not request.POST.get("do", "").endswith("json")
        else "",
        "json_error": json_error,
        "error": error,
        "fits": fits,
        "replaces": request.POST.get("replaces", draft.digest if draft else ""),
        "draft": draft,
        "in_force": in_force,
        "changes": changes,
        "suites": _suites_named({change.suite for change in changes if change.suite}),
        "loosened": sum(change.loosens for change in changes),
        "back_url": request.path.removesuffix("change/"),
    }
    return render(request, "promotion/policy_edit.html", context, status=status)


def _usable_suites() -> QuerySet[Suite]:
    """Newest first. A judge's word is no evidence for a gate yet."""
    return rollout_selectors.suites().exclude(scorer="judge").order_by("-pk")


def _changes(in_force: Policy | None, document: Any, wrong: list[InvalidInput]) -> list[policies.Change]:
    """Of the version in force, as far as the document has a policy's shape."""
    if in_force is None:
        return []
    try:
        policies.parse(document)
    except InvalidInput:
        return []
    return sorted(policies.diff(in_force.document, document), key=lambda change: not change.loosens)
