"""Every path by which a person can shape the evidence keeps their signature, their glass and their waiver out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from promotion import evidence as evidence_module
from promotion import permissions
from promotion.models import Candidate, CandidateState
from promotion.services import candidate_datasets, gating, glass, policies, waivers
from rollouts.errors import NotAllowed
from rollouts.models import EvalRun, Rollout
from rollouts.services import amendments, datasets, runs
from tests import factories
from tests.disputes.conftest import capture
from tests.factories import House, sign
from tests.rule.worlds import break_glass, breakable, state_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]
Path = Callable[[House, User], Candidate]
ALL = ("engineer", "approver", "administrator")


def measured(house: House, candidate: Candidate, by: User | None = None, **counts: int) -> Candidate:
    """Evaluated by `by`, with these outcomes, and judged."""
    backend, by = house.backend, by or house.engineer
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=backend, by=by):
        factories.finish_run(run, **(counts if run.label == candidate.name else {}))
    gating.judge_if_measured(candidate.pk)
    candidate.refresh_from_db()
    return candidate


def locked(house: House, *, written_by: list[User], locked_by: User, note: str = "") -> None:
    """Another version of the policy; each of the writers saves the draft with other words."""
    for number, writer in enumerate(written_by):
        document = {**house.policy.document, "note": f"{note}{number}"}
        draft = policies.draft(track=house.track, document=document, by=writer)
    house.policy = policies.lock(policy_id=draft.pk, by=locked_by)


# the paths


def submits(house: House, person: User) -> Candidate:
    return measured(house, factories.built_candidate(house.track, house.base, person))


def registers_the_base(house: House, person: User) -> Candidate:
    house.base = factories.base_model(person, name="another", data=b"GGUF another base")
    return measured(house, house.candidate())


def registers_its_data(house: House, person: User) -> Candidate:
    data = datasets.register(name="bulk", data=b'{"prompt": "Play it."}', by=person)
    candidate = house.candidate()
    candidate_datasets.attach_datasets(
        candidate_id=candidate.pk, by=house.engineer, datasets=[{"digest": data.digest, "role": "train"}]
    )
    return measured(house, candidate)


def seals_a_suite(house: House, person: User) -> Candidate:
    house.suite = factories.suite(person, name="sealed-by-them")
    document = factories.policy_document([house.suite], approvers=2)
    document["approval"]["break_glass"] = True
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=User.objects.get(username="locker"))
    return measured(house, house.candidate())


def saves_the_backend(house: House, person: User) -> Candidate:
    house.backend = factories.backends.save(
        name="local", kind="llama_cpp", config={}, by=person, timeout_s=99
    )
    return measured(house, house.candidate())


def starts_the_runs(house: House, person: User) -> Candidate:
    return measured(house, house.candidate(), by=person)


def starts_the_champions_runs(house: House, person: User) -> Candidate:
    house.adopt()
    candidate = house.candidate()
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer):
        if run.label != candidate.name:
            EvalRun.objects.filter(pk=run.pk).update(created_by=person)
        factories.finish_run(run)
    gating.judge_if_measured(candidate.pk)
    return candidate


def runs_again_what_failed(house: House, person: User) -> Candidate:
    candidate = measured(house, house.candidate(), masked=1)
    run = EvalRun.objects.get(label=candidate.name)
    runs.run_again(run_id=run.pk, by=person)
    for rollout in run.rollouts.filter(state="queued"):
        factories.give(rollout, "right")
        rollout.save()
    assert runs.close_if_done(run.pk)
    gating.judge_now(candidate.pk)
    return candidate


def scores_again(house: House, person: User) -> Candidate:
    candidate = measured(house, house.candidate())
    run = EvalRun.objects.get(label=candidate.name)
    capture(run)
    # as a scorer of before had it: scored again without a change, nobody would have had a part
    Rollout.objects.filter(pk=run.rollouts.all()[0].pk).update(decision=False, exact=False, tool=False)
    runs.rescore(run_id=run.pk, by=person)
    gating.judge_now(candidate.pk)
    return candidate


def _amended(house: House, proposed_by: User, accepted_by: User) -> Candidate:
    candidate = measured(house, house.candidate())
    capture(EvalRun.objects.get(label=candidate.name))
    case = house.suite.cases.select_related("suite").order_by("id")[0]
    expected = {**case.content["expected"], "tool": "write_file"}
    with transaction.atomic():
        amendments.amend(
            case_id=case.pk, expected=expected, reason="r", proposed_by=proposed_by, accepted_by=accepted_by
        )
    gating.judge_now(candidate.pk)
    return candidate


def proposes_an_amendment(house: House, person: User) -> Candidate:
    return _amended(house, person, factories.person("another", "approver"))


def accepts_an_amendment(house: House, person: User) -> Candidate:
    return _amended(house, factories.person("another", "approver"), person)


def writes_the_policy(house: House, person: User) -> Candidate:
    locked(house, written_by=[person], locked_by=house.administrator)
    return measured(house, house.candidate())


def wrote_an_earlier_draft_of_it(house: House, person: User) -> Candidate:
    locked(house, written_by=[person, house.administrator], locked_by=User.objects.get(username="locker"))
    return measured(house, house.candidate())


def locks_the_policy(house: House, person: User) -> Candidate:
    locked(house, written_by=[house.administrator], locked_by=person)
    return measured(house, house.candidate())


def _waived(house: House, requested_by: User, granted_by: User) -> Candidate:
    candidate = measured(house, house.candidate(), wrong=10)
    asked = waivers.request(
        candidate_id=candidate.pk,
        gate="generalization_accuracy_floor",
        suite_digest=house.suite.digest,
        reason="r",
        days=1,
        by=requested_by,
    )
    waivers.grant(waiver_id=asked.pk, by=granted_by)
    return candidate


def asks_for_a_waiver(house: House, person: User) -> Candidate:
    return _waived(house, person, factories.person("another", "approver"))


def grants_a_waiver(house: House, person: User) -> Candidate:
    return _waived(house, house.engineer, person)


PATHS: list[Path] = [
    submits,
    registers_the_base,
    registers_its_data,
    seals_a_suite,
    saves_the_backend,
    starts_the_runs,
    starts_the_champions_runs,
    runs_again_what_failed,
    scores_again,
    proposes_an_amendment,
    accepts_an_amendment,
    writes_the_policy,
    wrote_an_earlier_draft_of_it,
    locks_the_policy,
    asks_for_a_waiver,
    grants_a_waiver,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_who_shaped_the_evidence_decides_nothing_about_it(path: Path) -> None:
    house = breakable()
    person = factories.person("person", *ALL)
    candidate = path(house, person)
    assert state_of(candidate) == CandidateState.IN_REVIEW

    with pytest.raises(NotAllowed, match="person may not sign: they"):
        sign(candidate, person)
    with pytest.raises(NotAllowed, match="person may not break the glass: they"):
        break_glass(candidate, person)
    broken = break_glass(candidate, factories.person("breaker", "administrator"))
    with pytest.raises(NotAllowed, match="person may not review this: they"):
        glass.review_glass(glass_id=broken.pk, by=person, verdict="upheld", comment="x")
    if path is not grants_a_waiver:  # whoever granted one may grant another
        with pytest.raises(NotAllowed, match="person may not grant this waiver"):
            permissions.require_can_grant_waiver(person, involved=involved_in_waivers(candidate))


def involved_in_waivers(candidate: Candidate) -> list[str]:
    document = evidence_module.build(candidate).document
    return waivers.involved_in(document, waivers.waivers_of(candidate))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_a_signature_that_another_way_in_would_give_does_not_count(path: Path) -> None:
    """The gate asks the same list of people, so that a row alone is no signature."""
    house = breakable(approvers=1)
    person = factories.person("person", *ALL)
    candidate = path(house, person)
    signed = sign(candidate, factories.person("clean", "approver"))
    candidate.approvals.filter(pk=signed.pk).update(approver=person)

    with transaction.atomic():
        locked_one = gating.locked_candidate(candidate.pk)
        outcome = gating.approvals_outcome(locked_one, gating.freeze(locked_one)[0])

    assert outcome.outcome == "not_evaluated" and outcome.numbers["signed_by"] == []


def test_a_person_without_a_part_signs_and_breaks_and_reviews() -> None:
    house = breakable()
    candidate = measured(house, house.candidate())
    person = factories.person("person", *ALL)

    assert sign(candidate, person).approver == person
    assert break_glass(candidate, person).broken_by == person


def test_everybody_whom_the_evidence_names_is_kept_out() -> None:
    """A new kind of part in the evidence keeps its people out too, or this fails."""
    house = breakable(champion=True)
    candidate = measured(house, house.candidate())
    document = evidence_module.build(candidate).document
    names = {f"person-{number}": key for number, key in enumerate(document["people"])}
    people: dict[str, Any] = {
        key: [name] if isinstance(document["people"][key], list) else name for name, key in names.items()
    }

    kept_out = gating.involved_people({**document, "people": people})

    assert {names[name] for name in kept_out} == set(document["people"]), json.dumps(people)
