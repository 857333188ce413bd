"""A real browser: a passkey on a virtual authenticator, and a real OpenID Connect provider in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion.models import Approval, Candidate
from promotion.services import people
from rollouts.models import AuditEvent
from tests import factories
from tests.auth import scripted_provider
from tests.auth.conftest import CALLBACK, REASON
from tests.auth.provider import CLIENT_ID, PASSWORD, SECRET
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.conftest import _database_beside_a_loop as _database_beside_a_loop
from tests.e2e.conftest import _nothing_is_sent as _nothing_is_sent
from tests.e2e.conftest import _static_folder as _static_folder
from tests.e2e.conftest import chromium as chromium
from tests.e2e.conftest import tab as tab
from tests.factories import House

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
ROOT = Path(__file__).resolve().parents[2]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def authenticator(view: Tab) -> tuple[Any, str]:
    """A virtual one with a finger on it; the session to change it by, and its id."""
    cdp = view.page.context.new_cdp_session(view.page)
    cdp.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    made = cdp.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    return cdp, made["authenticatorId"]


def decide(view: Tab, method: str = "") -> None:
    """Fill the sign-off box and press Sign."""
    view.page.get_by_label("I authorise the release").check()
    view.page.locator("#id_comment").fill("Fit for use.")
    why = view.page.locator("#id_unopened_reason")
    if why.count():
        if not why.is_visible():
            view.page.locator("#unopened > summary").click()
        why.fill(REASON)
    if method:
        view.page.get_by_label(method).check()
    view.page.locator("button[value=approve]").click()


def looks_right(view: Tab) -> None:
    assert view.axe() == []
    assert view.page.evaluate(OVERFLOW) <= 0
    view.check()


def add_passkey(view: Tab) -> None:
    page = view.page
    view.go("/accounts/2fa/webauthn/")
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Name").fill("Laptop")
    looks_right(view)
    page.get_by_role("button", name="Add").click()
    page.get_by_text("The passkey was added.").wait_for()
    assert page.get_by_role("listitem").filter(has_text="Laptop").is_visible()
    looks_right(view)


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["desk", "phone"])
def test_a_passkey_is_added_and_signs(
    house: House, candidate: Candidate, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    view = tab(house.approver, scheme=scheme, size=size)
    page, (cdp, key) = view.page, authenticator(view)
    add_passkey(view)
    view.go(f"/candidates/{candidate.pk}/")
    decide(view, "with a passkey")
    digest = factories.digest_of(candidate)
    assert page.get_by_text(f"{digest[:4]} {digest[4:8]}").first.is_visible()
    looks_right(view)

    cdp.send("WebAuthn.setUserVerified", {"authenticatorId": key, "isUserVerified": False})
    page.get_by_role("button", name="Confirm with your passkey").click()
    page.get_by_text("Nothing was confirmed").wait_for()
    assert not Approval.objects.filter(candidate=candidate).exists()
    cdp.send("WebAuthn.setUserVerified", {"authenticatorId": key, "isUserVerified": True})
    page.get_by_role("button", name="Confirm with your passkey").click()

    page.get_by_text("Recorded: you signed").wait_for()
    assert page.get_by_text("confirmed by passkey").is_visible()
    approval = Approval.objects.get(candidate=candidate)
    assert (approval.approver, approval.method, approval.comment) == (
        house.approver,
        "passkey",
        "Fit for use.",
    )
    view.check()


@pytest.fixture(scope="module")
def oidc(live_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The issuer's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("provider")
    module = ["-W", "ignore", "-m", "tests.auth.provider.run"]
    process = subprocess.Popen(
        [sys.executable, *module, str(port), f"{live_server.url}{CALLBACK}"],
        cwd=ROOT,
        env={**os.environ, "PROVIDER_FOLDER": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


@pytest.fixture
def ada(house: House, oidc: str, settings: Any) -> User:
    """An approver who has nothing but single sign-on."""
    settings.SOCIALACCOUNT_PROVIDERS = scripted_provider.app(f"{oidc}/o")
    app = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]
    app["client_id"], app["secret"] = CLIENT_ID, SECRET
    person = User(username="ada", email="ada@example.com", first_name="Ada")
    person.set_unusable_password()
    people.grant(user=person, roles=["approver"], actor="system:test")
    return person


def sign_in_there(view: Tab, name: str = "ada") -> None:
    view.page.get_by_role("heading", name="Sign in at the provider").wait_for()
    view.page.get_by_label("Username").fill(name)
    view.page.get_by_label("Password").fill(PASSWORD)
    view.page.get_by_role("button", name="Sign in").click()


def arrive(view: Tab, candidate: Candidate) -> None:
    """From nothing to the review page, by single sign-on."""
    view.go(f"/candidates/{candidate.pk}/")
    view.page.get_by_role("button", name="Sign in with Acme").click()
    sign_in_there(view)
    view.page.get_by_role("heading", name="Sign off").wait_for()
    assert view.page.url.endswith(f"/candidates/{candidate.pk}/")


def test_who_has_only_sso_signs_in_signs_and_is_asked_again_for_it(
    ada: User, candidate: Candidate, tab: Callable[..., Tab]
) -> None:
    view = tab()
    arrive(view, candidate)
    assert view.page.locator("input[type=password]").count() == 0
    decide(view)
    assert not Approval.objects.filter(candidate=candidate).exists()
    sign_in_there(view)

    view.page.get_by_text("Recorded: you signed").wait_for()
    assert view.page.get_by_text("confirmed by single sign-on").is_visible()
    approval = Approval.objects.get(candidate=candidate)
    assert (approval.approver, approval.method, approval.printed_name) == (ada, "oidc", "Ada")
    assert 0 <= (approval.signed_at - approval.authenticated_at).total_seconds() < 20
    looks_right(view)


def test_a_provider_that_does_not_ask_again_signs_nothing(
    ada: User, candidate: Candidate, oidc: str, tab: Callable[..., Tab]
) -> None:
    view = tab()
    arrive(view, candidate)
    view.page.goto(f"{oidc}/careless/")
    view.go(f"/candidates/{candidate.pk}/")
    decide(view)

    view.page.get_by_text("The provider let you through on an earlier sign-in.").first.wait_for()
    assert view.page.locator("#id_comment").input_value() == "Fit for use."
    assert not Approval.objects.filter(candidate=candidate).exists()
    assert AuditEvent.objects.filter(action="candidate.signature_refused", actor="user:ada").count() == 1
    looks_right(view)


def test_somebody_else_at_the_provider_signs_nothing_and_is_not_signed_in(
    ada: User, candidate: Candidate, tab: Callable[..., Tab]
) -> None:
    view = tab()
    arrive(view, candidate)
    decide(view)
    sign_in_there(view, "eve")

    view.page.get_by_text("as somebody else than ada").first.wait_for()
    assert not Approval.objects.filter(candidate=candidate).exists()
    assert view.page.locator("details.me summary").inner_text().startswith("ada")
    view.check()
