"""Whoever is first: nothing is ever promoted on a signature of other evidence. Two threads a pair, 200 pairs.

The commit order is read from the audit chain, whose lock each writer takes last: what stands before the promotion there
was committed before it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion.gates import Outcome
from promotion.models import (
    Approval,
    BrokenGlass,
    Candidate,
    CandidateState,
    Decision,
    RegistryEntry,
    Waiver,
)
from promotion.services import (
    candidates,
    gating,
    glass,
    policies,
    registry,
    risk_summaries,
    signatures,
    waivers,
)
from rollouts.errors import AssayError
from rollouts.models import AuditEvent, EvalRun
from rollouts.services import runs
from tests import factories
from tests.factories import House, sign
from tests.rule.worlds import break_glass, breakable, state_of
from tests.threads import in_threads

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("sent"),
]
PAIRS = 200
FLOOR = "generalization_accuracy_floor"


@dataclass(frozen=True, slots=True)
class Scene:
    house: House
    locker: User
    breaker: User
    granter: User


Act = Callable[[Scene, Candidate], Any]


@pytest.fixture
def scene() -> Scene:
    """One signature is enough, or an administrator's glass; a case more masked or two wrong still pass."""
    gates = [{"gate": FLOOR, "metric": "decision", "min": "0.30", "alpha": "0.05"}]
    house = breakable(calls=6, gates=gates, approvers=1)
    return Scene(
        house,
        locker=User.objects.get(username="locker"),
        breaker=factories.person("breaker", "administrator"),
        granter=factories.person("granter", "approver"),
    )


# edits: each changes what a signature would be of, takes one back, or changes nothing


def run_again(scene: Scene, candidate: Candidate) -> Any:
    return runs.run_again(run_id=EvalRun.objects.get(label=candidate.name).pk, by=scene.house.engineer)


def send_back(scene: Scene, candidate: Candidate) -> Any:
    return sign(candidate, scene.house.approver_2, decision=Decision.REQUEST_CHANGES, comment="Explain.")


def lock_another_policy(scene: Scene, candidate: Candidate) -> Any:
    house = scene.house
    document = {**house.policy.document, "note": candidate.name}
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    house.policy = policies.lock(policy_id=draft.pk, by=scene.locker)
    return house.policy


def end_the_waiver(scene: Scene, candidate: Candidate) -> Any:
    waiver = Waiver.objects.get(candidate=candidate)
    return waivers.end(waiver_id=waiver.pk, by=scene.granter, reason="It was a mistake.")


def summarise(scene: Scene, candidate: Candidate) -> Any:
    digest = factories.digest_of(candidate)
    by = scene.house.engineer
    return risk_summaries.write(candidate_id=candidate.pk, text="It forgets files.", digest=digest, by=by)


def withdraw_the_signature(scene: Scene, candidate: Candidate) -> Any:
    by = scene.house.approver
    return signatures.withdraw_signature(candidate_id=candidate.pk, by=by, reason="I misread.")


def judge_again(scene: Scene, candidate: Candidate) -> Any:
    return gating.judge_again(candidate_id=candidate.pk, by=scene.house.engineer)


# edit -> the event that says that it was done; "" where it changes nothing that is signed
EDITS: dict[Act, str] = {
    run_again: "run.reopened",
    send_back: "candidate.request_changes",
    lock_another_policy: "policy.locked",
    end_the_waiver: "candidate.waiver_ended",
    summarise: "candidate.summarised",
    withdraw_the_signature: "candidate.signature_withdrawn",
    judge_again: "",
}


# what an edit races with


def sign_and_publish(scene: Scene, candidate: Candidate) -> Any:
    sign(candidate, scene.house.approver, digest=factories.digest_of(candidate))
    return registry.publish(candidate.pk)


def publish(scene: Scene, candidate: Candidate) -> Any:
    return registry.publish(candidate.pk)


def break_and_publish(scene: Scene, candidate: Candidate) -> Any:
    break_glass(candidate, scene.breaker)
    return registry.publish(candidate.pk)


OTHERS: tuple[Act, ...] = (sign_and_publish, publish, break_and_publish)


def prepared(scene: Scene, number: int, edit: Act, other: Act) -> Candidate:
    """In review; approved already where it is only published."""
    house, counts = scene.house, {"masked": 1}
    if edit is end_the_waiver:
        counts = {"wrong": 4}
    candidate = house.evaluated(f"cand-{number}", **counts)
    if edit is end_the_waiver:
        asked = waivers.request(
            candidate_id=candidate.pk,
            gate=FLOOR,
            suite_digest=house.suite.digest,
            reason="r",
            days=1,
            by=house.engineer,
        )
        waivers.grant(waiver_id=asked.pk, by=scene.granter)
    if other is publish:
        sign(candidate, house.approver)
    assert state_of(candidate) == (CandidateState.APPROVED if other is publish else CandidateState.IN_REVIEW)
    return candidate


def test_200_pairs_of_a_change_and_a_decision_at_once(scene: Scene, capsys: Any) -> None:
    pairs = [(edit, other) for edit in EDITS for other in OTHERS]
    tally: Counter[str] = Counter()

    for number in range(PAIRS):
        edit, other = pairs[number % len(pairs)]
        candidate = prepared(scene, number, edit, other)
        before = AuditEvent.objects.order_by("-sequence")[0].sequence

        # each round the edit comes a little later, so that both orders and what lies between are tried
        wait_s = number // len(pairs) * 0.008
        results = in_threads(
            lambda: (time.sleep(wait_s), edit(scene, candidate)),  # noqa: B023
            lambda: other(scene, candidate),  # noqa: B023
        )

        unexpected = [r for r in results if isinstance(r, Exception) and not isinstance(r, AssayError)]
        assert not unexpected, (edit, other, unexpected)
        registry.publish(candidate.pk)  # whatever is approved by now ends as it must
        assert_sound(candidate, EDITS[edit], since=before)
        tally[f"{edit.__name__:24}{other.__name__:18}{state_of(candidate)}"] += 1
        _put_away(scene, candidate)

    assert sum(tally.values()) == PAIRS
    with capsys.disabled():
        print("\n" + "\n".join(f"{count:4} {what}" for what, count in sorted(tally.items())))


def _put_away(scene: Scene, candidate: Candidate) -> None:
    """What is over is not judged again with every policy that comes after it, and nothing waits for its run."""
    run = EvalRun.objects.filter(label=candidate.name).latest("id")
    for rollout in run.rollouts.filter(state="queued"):
        factories.give(rollout, "right")
        rollout.save()
    runs.close_if_done(run.pk)
    if candidate.state != CandidateState.PROMOTED:
        candidates.withdraw(candidate_id=candidate.pk, by=scene.house.engineer, reason="Over.")


def assert_sound(candidate: Candidate, changed: str, *, since: int) -> None:
    entry = RegistryEntry.objects.filter(candidate=candidate).first()
    state = state_of(candidate)
    assert (state == CandidateState.PROMOTED) == (entry is not None)
    assert state in (
        CandidateState.PROMOTED,
        CandidateState.IN_REVIEW,
        CandidateState.BLOCKED,
    ), state
    if entry is None:
        return
    digest = entry.evidence.digest
    assert entry.record["evidence_digest"] == digest
    assert all(signature["evidence_digest"] == digest for signature in entry.record["signatures"])
    approval = entry.record["gates"][-1]
    assert (approval["gate"], approval["outcome"]) == ("human_approval_record", Outcome.PASSED)
    standing = Approval.objects.filter(
        candidate=candidate, evidence_digest=digest, decision=Decision.APPROVE, withdrawn_at=None
    )
    assert standing.exists() or BrokenGlass.objects.filter(evidence_digest=digest).exists()
    assert_no_change_came_between(candidate, digest, changed, since)


def assert_no_change_came_between(candidate: Candidate, digest: str, changed: str, since: int) -> None:
    """The evidence that was promoted is newer than every change that was committed before the promotion."""
    events = AuditEvent.objects.filter(sequence__gt=since)
    promoted = events.get(action="candidate.promoted")
    assert json.loads(bytes(promoted.data))["evidence"] == digest
    earlier = events.filter(sequence__lt=promoted.sequence)
    acts = ("candidate.signed", "candidate.glass_broken")
    decided = [
        event.sequence
        for event in AuditEvent.objects.filter(action__in=acts, subject_id=str(candidate.pk))
        if json.loads(bytes(event.data))["evidence"] == digest
    ]
    for change in earlier.filter(action=changed):
        # somebody decided on what stood after it: on nothing else may it be promoted
        assert decided and max(decided) > change.sequence, (changed, digest)


def test_a_signature_taken_back_before_the_promotion_is_in_none(scene: Scene) -> None:
    """Either the promotion stands with the signature that stood then, or there is none."""
    for number in range(15):
        candidate = prepared(scene, number, withdraw_the_signature, publish)

        in_threads(lambda: withdraw_the_signature(scene, candidate), lambda: publish(scene, candidate))  # noqa: B023

        registry.publish(candidate.pk)
        entry = RegistryEntry.objects.filter(candidate=candidate).first()
        withdrawn = Approval.objects.get(candidate=candidate).withdrawn_at
        assert (entry is None) == (withdrawn is not None)
        assert state_of(candidate) == (CandidateState.PROMOTED if entry else CandidateState.IN_REVIEW)
        _put_away(scene, candidate)


def test_one_glass_broken_at_once_is_broken_once(scene: Scene) -> None:
    candidate = prepared(scene, 0, judge_again, sign_and_publish)
    digest = factories.digest_of(candidate)
    others = [factories.person(f"breaker-{number}", "administrator") for number in range(3)]

    results = in_threads(*[lambda by=by: break_glass(candidate, by, digest=digest) for by in others])

    assert sum(isinstance(result, BrokenGlass) for result in results) == 1
    assert all(isinstance(result, BrokenGlass | AssayError) for result in results), results
    assert BrokenGlass.objects.count() == 1


def test_one_glass_reviewed_at_once_is_reviewed_once(scene: Scene) -> None:
    candidate = prepared(scene, 0, judge_again, sign_and_publish)
    broken = break_glass(candidate, scene.breaker)
    reviewers = (scene.house.approver, scene.house.approver_2)

    results = in_threads(
        *[
            lambda by=by, verdict=verdict: glass.review_glass(
                glass_id=broken.pk, by=by, verdict=verdict, comment="c"
            )
            for by, verdict in zip(reviewers, ("upheld", "condemned"), strict=True)
        ]
    )

    kept = BrokenGlass.objects.get()
    assert [result.verdict for result in results if isinstance(result, BrokenGlass)] == [kept.verdict]
    assert state_of(candidate) == (
        CandidateState.IN_REVIEW if kept.verdict == "condemned" else CandidateState.APPROVED
    )
