"""Who may do which verb: one function a verb, called by services, pages, API and commands alike.

Each raises `NotAllowed` with the reason, or returns. An inactive person may do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User

from rollouts.errors import NotAllowed
from rollouts.permissions import (
    ADMINISTRATOR,
    APPROVER,
    AUDITOR,
    ENGINEER,
    ROLES,
    groups_of,
    own_groups,
    require_can_read,
    require_can_register,
)
from rollouts.permissions import require_can_run as require_can_evaluate
from rollouts.permissions import require_roles as _require

__all__ = [
    "ADMINISTRATOR",
    "APPROVER",
    "AUDITOR",
    "ENGINEER",
    "ROLES",
    "groups_of",
    "own_groups",
    "require_can_break_glass",
    "require_can_comment",
    "require_can_create_track",
    "require_can_decide_dispute",
    "require_can_dispute",
    "require_can_edit_policy",
    "require_can_end_waiver",
    "require_can_evaluate",
    "require_can_grant_waiver",
    "require_can_judge",
    "require_can_lock_policy",
    "require_can_mark_seen",
    "require_can_read",
    "require_can_register",
    "require_can_request_waiver",
    "require_can_resolve_thread",
    "require_can_retry",
    "require_can_review",
    "require_can_review_glass",
    "require_can_set_readers",
    "require_can_sign",
    "require_can_submit",
    "require_can_summarise",
    "require_can_withdraw",
    "require_can_withdraw_dispute",
    "require_can_withdraw_signature",
]


def require_can_create_track(person: User) -> None:
    _require(person, [ADMINISTRATOR], "create a track")


def require_can_set_readers(person: User) -> None:
    _require(person, [ADMINISTRATOR], "say who may see a track")


def require_can_edit_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR], "write a policy")


def require_can_lock_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR, APPROVER], "lock a policy")


def require_can_submit(person: User) -> None:
    _require(person, [ENGINEER], "submit a candidate")


def require_can_withdraw(person: User, submitted_by_id: int) -> None:
    if not person.is_active or person.pk != submitted_by_id:
        _require(person, [ADMINISTRATOR], "withdraw another's candidate")


def require_can_judge(person: User) -> None:
    """Judge again what is there: it measures nothing, so whoever is to sign may ask for it too."""
    _require(person, [ENGINEER, APPROVER], "have a candidate judged again")


def require_can_request_waiver(person: User) -> None:
    _require(person, [ENGINEER, APPROVER], "request a waiver")


def require_can_grant_waiver(person: User, *, requested_by: str = "", involved: Sequence[str] = ()) -> None:
    """`involved` are the user names of those with a part in the candidate, as for signing; always kept apart."""
    _require(person, [APPROVER, ADMINISTRATOR], "grant a waiver")
    if person.get_username() == requested_by:
        raise NotAllowed(f"{requested_by} may not grant this waiver: they requested it. Somebody else must.")
    if person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not grant this waiver: they have a part in this candidate, its data, its "
            "suites, its policy or its waivers. Somebody else must."
        )


def require_can_end_waiver(person: User, requested_by_id: int) -> None:
    """To end one only makes gates stricter: whoever asked for it may, and those who could grant it."""
    if person.pk != requested_by_id:
        _require(person, [APPROVER, ADMINISTRATOR], "end another's waiver")
    else:
        require_can_read(person)


def require_can_dispute(person: User) -> None:
    _require(person, [ENGINEER, APPROVER], "dispute what a case expects")


def require_can_decide_dispute(person: User, *, raised_by: str = "", submitters: Sequence[str] = ()) -> None:
    """Accept or decline one. `submitters` are the user names of those whose models are compared by the case."""
    _require(person, [APPROVER, ADMINISTRATOR], "decide a dispute")
    if person.get_username() == raised_by:
        raise NotAllowed(f"{raised_by} may not decide this dispute: they raised it. Somebody else must.")
    if person.get_username() in submitters:
        raise NotAllowed(
            f"{person.get_username()} may not decide this dispute: they submitted a model that the suite "
            "judges. Somebody else must."
        )


def require_can_withdraw_dispute(person: User, raised_by: str) -> None:
    require_can_read(person)
    if person.get_username() != raised_by:
        raise NotAllowed(f"Only {raised_by} may withdraw this dispute. Decide it instead.")


def require_can_retry(person: User) -> None:
    """A failed build or a failed publication."""
    _require(person, [ENGINEER, ADMINISTRATOR], "try that again")


def require_can_sign(person: User, *, involved: Sequence[str], separated: bool, groups: Sequence[str]) -> str:
    """The group in which the person signs: the first of the rule's groups that they are in.

    `involved` are the user names of those who could shape what is signed: see `gating.involved_people`.
    """
    # auditors change nothing; a policy locked before that was refused may still name them
    signing = [group for group in groups if group != AUDITOR]
    # the groups as they are given: neither a superuser nor anybody else signs in a group they are not in
    own = own_groups(person)
    if not person.is_active or not own & set(signing):
        needed = (
            f"that needs {' or '.join(signing)}" if signing else "its policy names auditors, who sign nothing"
        )
        raise NotAllowed(f"{person.get_username()} may not sign: {needed}.")
    if separated:
        _require_no_part(person, involved, "sign")
    return next(group for group in signing if group in own)


def require_can_review(person: User, *, groups: Sequence[str]) -> None:
    """Open what must be opened and tick the checklist: whoever is in a group of the rule, but auditors change nothing."""
    if not person.is_active or not (own_groups(person) - {AUDITOR}) & set(groups):
        raise NotAllowed(
            f"{person.get_username()} does not sign this, so nothing of its review is theirs: that needs "
            f"{' or '.join(groups)}."
        )


def require_can_comment(person: User) -> None:
    """Start a thread, answer in it, and open it again."""
    _require(person, [ENGINEER, APPROVER, ADMINISTRATOR], "comment on a candidate")


def require_can_resolve_thread(person: User, *, started_by_id: int, submitted_by_id: int) -> None:
    """Who asked says when it is answered; else an approver, but never the submitter of what was asked about."""
    require_can_comment(person)
    if person.pk == started_by_id:
        return
    if person.pk == submitted_by_id:
        raise NotAllowed(
            f"{person.get_username()} may not resolve this thread: it is about their own candidate, and somebody else "
            "started it. Answer in it; whoever asked resolves it."
        )
    _require(person, [APPROVER], "resolve another's thread")


def require_can_mark_seen(person: User) -> None:
    """Keep what of a review page one has seen."""
    _require(person, [ENGINEER, APPROVER, ADMINISTRATOR], "mark a review as read")


def require_can_summarise(person: User, submitted_by_id: int) -> None:
    """Write what remains risky: the submitter's own words, so nobody else's."""
    require_can_comment(person)
    if person.pk != submitted_by_id:
        raise NotAllowed(
            f"{person.get_username()} may not write the risk summary: it is the submitter's statement. Comment on it."
        )


def require_can_withdraw_signature(person: User, signed_by_id: int) -> None:
    """To withdraw one only makes the approval stricter: its signer may, whatever roles they still have."""
    require_can_read(person)
    if person.pk != signed_by_id:
        raise NotAllowed(
            f"{person.get_username()} may not withdraw another's signature. Ask for changes instead."
        )


def require_can_break_glass(person: User, *, involved: Sequence[str], separated: bool) -> None:
    """Promote without the signatures: the same people are kept out as from signing, and a superuser's right is not enough."""
    if not person.is_active or ADMINISTRATOR not in own_groups(person):
        raise NotAllowed(f"{person.get_username()} may not break the glass: that needs {ADMINISTRATOR}.")
    if separated:
        _require_no_part(person, involved, "break the glass")


def require_can_review_glass(person: User, *, broken_by: str = "", involved: Sequence[str] = ()) -> None:
    """Look afterwards at what was promoted without signatures: always another person, and none with a part in it."""
    if not person.is_active or APPROVER not in own_groups(person):
        raise NotAllowed(f"{person.get_username()} may not review this: that needs {APPROVER}.")
    if person.get_username() == broken_by:
        raise NotAllowed(f"{broken_by} may not review this: they broke the glass. Somebody else must.")
    _require_no_part(person, involved, "review this")


def _require_no_part(person: User, involved: Sequence[str], verb: str) -> None:
    if person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not {verb}: they submitted this candidate, registered its base or its data, "
            "sealed its suites, amended a case, saved the backend of its runs, started its runs, wrote or locked its "
            "policy, or asked for or granted a waiver. Somebody else must."
        )
