"""A track whose policy lets the glass be broken, and people without a part in its candidates."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from promotion.models import BrokenGlass, Candidate, CandidateState
from promotion.services import glass, policies
from promotion.services.proofs import Password
from tests import factories
from tests.factories import House

REASON = "The champion answers with the files of other people."


def breakable(*, approvers: int = 2, separated: bool = True, **options: Any) -> House:
    """The usual house under a second policy with `break_glass`, which another administrator locked."""
    house = factories.house(approvers=approvers, **options)
    document = house.policy.document
    document["approval"] |= {"break_glass": True, "separation_of_duties": separated}
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    house.policy = policies.lock(policy_id=draft.pk, by=factories.person("locker", "administrator"))
    return house


def breaker(name: str = "breaker") -> User:
    return factories.person(name, "administrator")


def break_glass(candidate: Candidate, by: User, *, digest: str | None = None, **words: Any) -> BrokenGlass:
    proof = Password(words.pop("password", factories.PASSWORD))
    return glass.break_glass(
        candidate_id=candidate.pk,
        evidence_digest=digest or factories.digest_of(candidate),
        by=by,
        proof=proof,
        **{"reason": REASON, **words},
    )


def state_of(candidate: Candidate) -> CandidateState:
    candidate.refresh_from_db()
    return CandidateState(candidate.state)
