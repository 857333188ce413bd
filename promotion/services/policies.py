"""Policies: written as a draft, validated strictly, locked before results; loosening takes a second person."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from promotion import permissions
from promotion.models import Policy, Track
from promotion.selectors import who_wrote
from promotion.services.policy_diff import Change, Kind, diff, loosening
from promotion.services.policy_rules import (
    LAST_GATE,
    Document,
    canonical,
    parse,
    problems,
    unlockable_reasons,
    validate,
)
from rollouts import audit
from rollouts.errors import Conflict, NotFound
from rollouts.hashing import sha256_json

__all__ = [
    "LAST_GATE",
    "Change",
    "Document",
    "Kind",
    "canonical",
    "changes_of",
    "diff",
    "draft",
    "lock",
    "loosening",
    "parse",
    "previous",
    "problems",
    "unlockable_reasons",
    "validate",
    "who_wrote",
]

DRAFTED = "policy.drafted"
MOST_LISTED = 100


def draft(*, track: Track, document: dict[str, Any], by: User, replaces: str | None = None) -> Policy:
    """Save the next version as the track's one draft, or replace the draft there is.

    `replaces` is the digest of the draft that the writer saw ("" for none): raises `Conflict` where it is another
    by now. Saving what is saved already writes nothing.
    """
    permissions.require_can_edit_policy(by)
    parsed = validate(document)
    values = canonical(parsed)
    digest = sha256_json(values)
    with transaction.atomic():
        Track.objects.select_for_update(no_key=True).get(pk=track.pk)
        existing = Policy.objects.filter(track=track, locked_at__isnull=True).first()
        there = existing.digest if existing else ""
        if replaces is not None and replaces != there:
            raise Conflict("Somebody saved or locked the draft since you opened it. Open it again.")
        if existing is not None and there == digest:
            return existing
        last = Policy.objects.filter(track=track, locked_at__isnull=False).aggregate(Max("version"))[
            "version__max"
        ]
        policy = existing or Policy(track=track, version=(last or 0) + 1)
        policy.document, policy.digest = values, digest
        policy.created_at, policy.created_by = timezone.now(), by
        policy.save()
        audit.record(
            DRAFTED,
            subject=policy,
            actor=by,
            version=policy.version,
            digest=policy.digest,
            loosened=_listed(changes_of(policy)),
        )
    return policy


def lock(*, policy_id: int, by: User, digest: str | None = None) -> Policy:
    """Lock a draft: from now on it is the track's policy. A version after the first needs a second person.

    `digest` is that of the draft whose changes the person saw: raises `Conflict` where it is another by now.
    """
    permissions.require_can_lock_policy(by)
    with transaction.atomic():
        policy = (
            Policy.objects.select_for_update(no_key=True, of=("self",))
            .select_related("track")
            .filter(pk=policy_id)
            .first()
        )
        if policy is None:
            raise NotFound("There is no such policy.")
        # a promotion holds the same lock: the policy cannot change between its check and its entry
        Track.objects.select_for_update(no_key=True).get(pk=policy.track_id)
        if policy.locked_at is not None:
            raise Conflict(f"Policy {policy.version} is locked already. Draft a new version.")
        if digest is not None and digest != policy.digest:
            raise Conflict("The draft changed since it was shown. Read its changes again before you lock it.")
        changes = changes_of(policy)
        if policy.version > 1 and by.get_username() in who_wrote(policy):
            raise Conflict(
                "A changed policy needs a second person: whoever wrote it may not lock it.",
                loosened=_listed(changes),
            )
        validate(policy.document)
        policy.locked_at, policy.locked_by = timezone.now(), by
        policy.save(update_fields=["locked_at", "locked_by"])
        audit.record(
            "policy.locked",
            subject=policy,
            actor=by,
            version=policy.version,
            digest=policy.digest,
            loosened=_listed(changes),
            changes=len(changes),
        )
    return policy


def previous(policy: Policy) -> Policy | None:
    """The version that was in force before this one, or that is in force while this one is a draft."""
    earlier = Policy.objects.filter(
        track_id=policy.track_id, version__lt=policy.version, locked_at__isnull=False
    )
    return earlier.select_related("created_by", "locked_by").order_by("-version").first()


def changes_of(policy: Policy) -> list[Change]:
    """What it changes of the version before it. Nothing for a first version: there was no rule to loosen."""
    before = previous(policy)
    return diff(before.document, policy.document) if before else []


def _listed(changes: list[Change]) -> list[str]:
    found = [str(change)[:300] for change in changes if change.loosens]
    more = len(found) - MOST_LISTED
    return found if more <= 0 else [*found[:MOST_LISTED], f"and {more} more"]
