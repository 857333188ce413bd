"""What each proof refuses, whatever page it comes from."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from promotion.services.proofs import (
    Act,
    ActRefused,
    NoProof,
    Passkey,
    SingleSignOn,
    SingleSignOnRefused,
    WrongPassword,
)
from tests.auth.conftest import bind
from tests.factories import House

pytestmark = pytest.mark.django_db
SUBJECT = "sub-of-the-approver"


@pytest.fixture
def act(house: House) -> Act:
    bind(house.approver, SUBJECT)
    return Act("sign", house.approver.pk, "oidc", {"decision": "approve"}, 7)


def proof_of(act: Act | None, nonce: str = "", **claims: Any) -> SingleSignOn:
    told = {
        "sub": SUBJECT,
        "nonce": nonce or (act.nonce if act else ""),
        "auth_time": int(time.time()),
        **claims,
    }
    return SingleSignOn(act, "sso", SUBJECT, {key: value for key, value in told.items() if value is not None})


def test_a_sign_in_for_the_act_proves_it_with_the_providers_time(house: House, act: Act) -> None:
    at = int(time.time()) + 3

    found = proof_of(act, auth_time=at).check(house.approver)

    assert found.method == "oidc" and found.at.timestamp() == at


@pytest.mark.parametrize(
    "seconds, holds", [(-29, True), (-31, False), (29, True), (32, False), (-86400, False)]
)
def test_the_sign_in_is_of_the_act_within_half_a_minute_of_clocks(
    house: House, act: Act, seconds: int, holds: bool
) -> None:
    proof = proof_of(act, auth_time=int(act.began_at) + seconds)
    if holds:
        assert proof.check(house.approver)
        return
    with pytest.raises(SingleSignOnRefused, match="earlier sign-in" if seconds < 0 else "later than now"):
        proof.check(house.approver)


@pytest.mark.parametrize(
    "auth_time", [None, "now", str(int(time.time())), True, float(int(time.time())), [], {}]
)
def test_no_whole_number_for_auth_time_proves_nothing(house: House, act: Act, auth_time: Any) -> None:
    with pytest.raises(SingleSignOnRefused, match="no auth_time that is a whole number"):
        proof_of(act, auth_time=auth_time).check(house.approver)


def test_another_account_at_the_provider_is_refused(house: House, act: Act) -> None:
    bind(house.approver_2, "another")
    proof = replace(proof_of(act, sub="another"), subject="another")
    with pytest.raises(SingleSignOnRefused, match="somebody else"):
        proof.check(house.approver)


def test_an_account_of_another_provider_is_refused(house: House, act: Act) -> None:
    with pytest.raises(SingleSignOnRefused, match="somebody else"):
        replace(proof_of(act), provider="other").check(house.approver)


def test_an_id_token_about_another_than_the_account_is_refused(house: House, act: Act) -> None:
    with pytest.raises(SingleSignOnRefused, match="somebody else"):
        proof_of(act, sub="another").check(house.approver)


def test_an_id_token_for_another_act_is_refused(house: House, act: Act) -> None:
    with pytest.raises(SingleSignOnRefused, match="another act"):
        proof_of(act, nonce="of another").check(house.approver)


def test_an_act_of_another_person_or_method_or_none_is_refused(house: House, act: Act) -> None:
    bind(house.approver_2, "another")
    with pytest.raises(ActRefused):
        proof_of(act).check(house.approver_2)
    with pytest.raises(ActRefused):
        proof_of(replace(act, method="passkey")).check(house.approver)
    with pytest.raises(ActRefused):
        proof_of(None).check(house.approver)
    with pytest.raises(ActRefused):
        Passkey(act, {}, "localhost").check(house.approver)


def test_an_act_waits_five_minutes_at_the_provider_too(house: House, act: Act) -> None:
    with pytest.raises(ActRefused, match="too late"):
        proof_of(replace(act, began_at=time.time() - 301)).check(house.approver)


def test_no_proof_is_none(house: House, act: Act) -> None:
    with pytest.raises(SingleSignOnRefused, match="not confirmed"):
        NoProof(act, "It was not confirmed.").check(house.approver)


def test_a_challenge_is_of_every_word_of_its_act(act: Act) -> None:
    others = [
        replace(act, candidate=8),
        replace(act, person=act.person + 1),
        replace(act, nonce="another"),
        replace(act, purpose="another"),
        replace(act, words={"decision": "reject"}),
        replace(act, words={**act.words, "comment": "x"}),
    ]
    challenges = {act.challenge, *(other.challenge for other in others)}
    assert len(challenges) == 7 and {len(challenge) for challenge in challenges} == {32}


def test_a_password_that_nobody_can_use_signs_nothing(house: House) -> None:
    from promotion.services.proofs import Password

    house.approver.set_unusable_password()
    house.approver.save(update_fields=["password"])
    with pytest.raises(WrongPassword):
        Password("").check(house.approver)
