"""Who sees which page, and who may press which button."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from promotion.models import Export
from rollouts.models import Case, EvalRun, Rollout
from tests import factories
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
ROLES = ("engineer", "approver", "auditor", "administrator")


def pages_of(house: factories.House) -> list[str]:
    """Every address that shows something, over a world in which each shows something."""
    candidate = house.evaluated(masked=1)
    run, case = EvalRun.objects.first(), Case.objects.first()
    rollout = Rollout.objects.filter(answer__isnull=False).first()
    assert run and case and rollout
    name, suite = house.track.name, house.suite
    return [
        reverse("promotion:home"),
        reverse("promotion:tracks"),
        reverse("promotion:track", args=[name]),
        reverse("promotion:policy", args=[name, 1]),
        reverse("promotion:candidate", args=[candidate.pk]),
        reverse("promotion:evidence", args=[candidate.pk, factories.digest_of(candidate)]),
        reverse("promotion:registry"),
        reverse("promotion:entry", args=[name, 1]),
        reverse("promotion:export", args=[Export.objects.get().pk]),
        reverse("promotion:audit"),
        reverse("rollouts:runs"),
        reverse("rollouts:run", args=[run.pk]),
        reverse("rollouts:rollouts", args=[run.pk]),
        reverse("rollouts:rollout", args=[rollout.pk]),
        reverse("rollouts:answer", args=[rollout.pk]),
        reverse("rollouts:suites"),
        reverse("rollouts:suite", args=[suite.name, suite.version]),
        reverse("rollouts:case", args=[case.pk]),
        reverse("rollouts:case-json", args=[case.pk]),
        reverse("rollouts:backends"),
        reverse("rollouts:backend", args=[house.backend.name]),
        reverse("rollouts:bases"),
    ]


def test_every_role_reads_every_page(house: factories.House) -> None:
    addresses = pages_of(house)
    for role in ROLES:
        client = signed_in(getattr(house, role))
        assert {address: status_of(client, address) for address in addresses} == dict.fromkeys(addresses, 200)


def status_of(client: Client, address: str) -> int:
    response = client.get(address)
    if response.streaming:
        b"".join(response)  # the file is closed at its end
    return int(response.status_code)


def test_strangers_are_sent_to_sign_in(house: factories.House) -> None:
    for address in pages_of(house):
        response = Client().get(address)
        assert response.status_code == 302
        assert response["Location"] == f"{reverse('account_login')}?next={address}"


def test_without_a_role_nothing_is_shown_and_the_page_says_whom_to_ask(house: factories.House) -> None:
    addresses, client = pages_of(house), signed_in(factories.person("nobody"))
    for address in addresses:
        response = client.get(address)
        assert response.status_code == 403, address
        assert "Ask an administrator" in html(response)


def test_pages_only_answer_to_reading(house: factories.House) -> None:
    client = signed_in(house.engineer)
    for address in pages_of(house):
        assert client.post(address).status_code == 405, address


@pytest.mark.parametrize(
    "address",
    [
        "/candidates/999/",
        "/candidates/99999999999999999999999999/",
        "/tracks/none/",
        "/tracks/none/submit/",
        "/tracks/toolcaller/policies/9/",
        "/registry/toolcaller/9/",
        "/exports/999/",
        "/runs/999/",
        "/runs/999/rollouts/",
        "/rollouts/999/",
        "/rollouts/999/answer.txt",
        "/calls/999/request.txt",
        "/calls/999/response.txt",
        "/suites/none/1/",
        "/cases/999/",
        "/backends/none/",
        f"/candidates/1/evidence/{'0' * 64}.json",
    ],
)
def test_unknown_things_are_not_found(house: factories.House, address: str) -> None:
    response = signed_in(house.engineer).get(address)
    assert response.status_code == 404
    assert "Not found" in html(response)


# verb -> who may; each is pressed on a fresh candidate in the state that the verb is for
VERBS = {
    "judge": {"engineer", "approver"},
    "evaluate": {"engineer"},
    "retry-build": {"engineer", "administrator"},
    "retry-publish": {"engineer", "administrator"},
    "withdraw-now": {"engineer", "administrator"},
    "sign": {"approver"},
    "cancel": {"engineer"},
    "again": {"engineer"},
    "rescore": {"engineer"},
    "start-run": {"engineer"},
    "submit-files": {"engineer"},
}


def press(house: factories.House, verb: str, client: Client) -> Any:
    candidate = house.evaluated(masked=1)
    if verb == "start-run":
        return client.post(reverse("rollouts:start-run"))
    if verb in ("cancel", "again", "rescore"):
        run = EvalRun.objects.filter(label=candidate.name).get()
        if verb == "cancel":
            run.rollouts.filter(state="masked").update(state="queued", failure_kind="")
            EvalRun.objects.filter(pk=run.pk).update(state="running", finished_at=None)
        return client.post(reverse(f"rollouts:{verb}", args=[run.pk]))
    states = {"retry-build": "build_failed", "retry-publish": "publish_failed", "evaluate": "blocked"}
    type(candidate).objects.filter(pk=candidate.pk).update(state=states.get(verb, "in_review"))
    data = {
        "evaluate": {"backend": house.backend.pk},
        "withdraw-now": {"reason": "Wrong data."},
        "sign": {
            "evidence_digest": factories.digest_of(candidate),
            "decision": "approve",
            "meaning": "reviewed",
            "password": factories.PASSWORD,
        },
    }.get(verb, {})
    where = [house.track.name] if verb == "submit-files" else [candidate.pk]
    return client.post(reverse(f"promotion:{verb}", args=where), data)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("role", ROLES)
def test_a_verb_is_for_its_roles_only(house: factories.House, verb: str, role: str) -> None:
    response = press(house, verb, signed_in(getattr(house, role)))
    refused = response.status_code == 403
    assert refused is (role not in VERBS[verb]), (verb, role, response.status_code)
    if not refused:
        # an empty form gets as far as its fields
        assert response.status_code == (422 if verb in ("submit-files", "start-run") else 302)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_refused_to_strangers(house: factories.House, verb: str) -> None:
    response = press(house, verb, Client())
    assert response.status_code == 302
    assert response["Location"].startswith(reverse("account_login"))


@pytest.mark.parametrize(
    "verb", ["judge", "evaluate", "retry-build", "retry-publish", "sign", "withdraw-now"]
)
def test_a_verb_is_no_address_to_visit(house: factories.House, verb: str) -> None:
    candidate = house.evaluated()
    response = signed_in(house.engineer).get(reverse(f"promotion:{verb}", args=[candidate.pk]))
    assert response.status_code == 405


def test_another_engineer_may_not_withdraw(house: factories.House) -> None:
    candidate = house.evaluated()
    other = signed_in(factories.person("other", "engineer"))
    assert other.get(reverse("promotion:withdraw", args=[candidate.pk])).status_code == 403
    assert "Withdraw this candidate" not in html(
        other.get(reverse("promotion:candidate", args=[candidate.pk]))
    )


def test_without_the_token_a_form_is_refused_and_changes_nothing(house: factories.House) -> None:
    candidate = house.evaluated()
    client = Client(enforce_csrf_checks=True)
    client.force_login(house.engineer, backend="django.contrib.auth.backends.ModelBackend")
    response = client.post(reverse("promotion:withdraw-now", args=[candidate.pk]), {"reason": "x"})
    assert response.status_code == 403
    assert "could not be trusted" in html(response)
    candidate.refresh_from_db()
    assert candidate.state == "in_review"


@pytest.mark.parametrize(
    "address",
    [
        "signup/",
        "email/",
        "confirm-email/",
        "password/set/",
        "password/reset/",
        "login/code/confirm/",
        "signup",
    ],
)
def test_pages_that_are_not_offered_are_not_found(client: Client, db: None, address: str) -> None:
    assert client.get(f"/accounts/{address}", follow=True).status_code == 404


def test_sign_in_and_out(client: Client, house: factories.House) -> None:
    page = html(client.get(reverse("account_login")))
    assert 'name="password"' in page
    assert "Sign Up" not in page
    wrong = client.post(reverse("account_login"), {"login": "engineer", "password": "wrong"})
    assert 'role="alert"' in html(wrong)
    right = client.post(reverse("account_login"), {"login": "engineer", "password": factories.PASSWORD})
    assert right["Location"] == "/"
    assert client.get("/").status_code == 200
    client.post(reverse("account_logout"))
    assert client.get("/").status_code == 302


def test_the_password_can_be_changed(house: factories.House) -> None:
    client, address = signed_in(house.engineer), reverse("account_change_password")
    assert 'autocomplete="new-password"' in html(client.get(address))
    new = {
        "oldpassword": factories.PASSWORD,
        "password1": "another longer phrase",
        "password2": "another longer phrase",
    }
    assert client.post(address, new).status_code == 302
    house.engineer.refresh_from_db()
    assert house.engineer.check_password("another longer phrase")


def test_the_scheme_is_a_cookie_and_leads_nowhere_else(client: Client, db: None) -> None:
    response = client.post(reverse("promotion:theme"), {"theme": "dark", "next": "https://evil.example/"})
    assert response["Location"] == "/"
    assert response.cookies["theme"].value == "dark"
    assert 'data-theme="dark"' in html(client.get(reverse("account_login")))
    assert (
        client.post(reverse("promotion:theme"), {"theme": "x", "next": "//evil.example"})["Location"] == "/"
    )
    client.cookies["theme"] = '"><script>'
    assert "<script>" not in html(client.get(reverse("account_login")))
