"""Every page that there is, read from the URL configuration, and every page of an error: axe finds nothing on any of them.

A new page needs nothing here unless its address has parameters of a new kind, or nobody of the scene may see it: then
the test fails with its name, and the scene has to say what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from allauth.account.internal.flows.login import record_authentication
from django.conf import settings as project
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.cache import cache
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.urls import Resolver404, URLPattern, URLResolver, get_resolver, resolve

from promotion.models import Candidate, Method
from promotion.services.proofs import Act
from promotion.web import breaking, pages, proving, signing
from rollouts.models import EvalRun
from tests import factories
from tests.auth.conftest import give_passkey
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.test_look import OVERFLOW
from tests.rule.worlds import REASON, breakable, breaker
from tests.web import test_permission_table, world

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
# where the sign-in provider leads back to: it shows nothing of its own, and without a provider it is not there
COMES_BACK = {"accounts/oidc/any/login/callback/"}
# pages that only an act on its way, or few people, come to
HIDDEN_AWAY = (
    "accounts/2fa/webauthn/add/",
    "candidates/<int:pk>/sign/passkey/",
    "candidates/<int:pk>/break-glass/passkey/",
    "datasets/new/",
)
LOOKS = pytest.mark.parametrize(
    ("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["desk", "phone"]
)


# addresses


@dataclass(frozen=True, slots=True)
class Address:
    """A route with the values that the scene has for its parameters."""

    route: str
    name: str
    path: str


def routes(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """All but the API's, which answers no browser."""
    for pattern in (resolver or get_resolver()).url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, route)
        elif not route.startswith("api/"):
            yield route, pattern


def addresses(known: dict[str, dict[str, Any]]) -> Iterator[Address]:
    """`known` are values of parameters: under `name:` and the route's name, else under the first part of its address."""
    for route, pattern in routes():
        if pattern.callback is pages.not_offered:
            continue
        values = {**known.get(route.split("/")[0], {}), **known.get(f"name:{pattern.name}", {})}
        path = _filled(route, values)
        if path in COMES_BACK or _answered_by_another(path, pattern):
            continue
        yield Address(route, pattern.name or "", f"/{path}")


def _filled(route: str, values: dict[str, Any]) -> str:
    """The groups of regular expressions, all of them django-allauth's, take any word."""
    path = re.sub(r"\(\?P<\w+>(?:\[[^\]]*\]|\.)\+\)", "any", route.replace("^accounts", "accounts"))
    path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(values.get(found[1], f"no-{found[1]}")), path)
    return path.replace("/^", "/").removesuffix("$")


def _answered_by_another(path: str, pattern: URLPattern) -> bool:
    """Whether a route that comes first takes the address: what is not offered, and what Assay answers itself."""
    try:
        return resolve(f"/{path}").func is not pattern.callback
    except Resolver404:
        return False


# what there is to see


@dataclass(slots=True)
class Scene:
    known: dict[str, dict[str, Any]]
    people: dict[str, User | None]
    acts: dict[str, Act]  # by the route's name: what has to wait in the session for the page to be there


@pytest.fixture
def scene(transactional_db: None, tmp_path: Path) -> Scene:
    house, breaks = breakable(calls=20, declines=20, champion=True), breaker("glazier")
    signed = house.evaluated("signed")
    factories.sign(signed, house.approver)
    known = test_permission_table._known(house, tmp_path)
    run = EvalRun.objects.get(label="cand")
    rollout = run.rollouts.order_by("pk")[0]
    known["rollouts"] = {"pk": rollout.pk}
    known["calls"] = {"pk": world.add_call(rollout, request=b"{}", response=b"{}").pk}
    waits = house.evaluated("waits", wrong=1)
    for person in (house.approver, breaks):
        give_passkey(person)
    key = house.approver.authenticator_set.get()
    known |= {
        "name:break-glass": {"pk": waits.pk},
        "name:break-glass-passkey": {"pk": waits.pk},
        "name:sign-passkey": {"pk": waits.pk},
        "name:withdraw-signature": {"pk": signed.pk},
        "accounts": {"pk": key.pk},
    }
    people = {role: getattr(house, role) for role in ("engineer", "approver", "administrator", "auditor")}
    return Scene(known, {**people, "glazier": breaks, "nobody": None}, _acts(waits, house.approver, breaks))


def _acts(candidate: Candidate, signer: User, breaks: User) -> dict[str, Act]:
    digest = factories.digest_of(candidate)
    words = {"evidence_digest": digest, "decision": "approve", "meaning": "authorises", "comment": "Fit."}
    broken = {"evidence_digest": digest, "reason": REASON}
    return {
        "sign-passkey": Act(signing.PURPOSE, signer.pk, Method.PASSKEY, words, candidate.pk),
        "break-glass-passkey": Act(breaking.PURPOSE, breaks.pk, Method.PASSKEY, broken, candidate.pk),
    }


# looking


def prove_anew(view: Tab, person: User, act: Act | None) -> None:
    """As after a confirmation of this minute; with `act` as on the way to a passkey."""
    (key,) = [found["value"] for found in view.page.context.cookies() if found["name"] == "sessionid"]
    request = HttpRequest()
    request.session = SessionStore(key)
    record_authentication(request, person, "password", reauthenticated=True)
    if act is not None and act.person == person.pk:
        request.session[proving.PENDING] = act.as_json()
    request.session.save()


def is_a_page(answer: Any) -> bool | None:
    """None where this person gets nothing to see; False for files, parts of pages, and what takes only a POST."""
    if answer.status == 405:
        return False
    if not answer.ok:
        return None
    html = answer.headers.get("content-type", "").startswith("text/html")
    return html and answer.text().lstrip().lower().startswith("<!doctype html")


def who_sees(address: Address, views: dict[str, Tab], scene: Scene) -> tuple[str, bool | None]:
    """The first person who gets an answer, and whether that is a page. Some parts of pages are given to htmx alone."""
    for who, view in views.items():
        person = scene.people[who]
        if person is not None:
            prove_anew(view, person, scene.acts.get(address.name))
        for headers in ({}, {"HX-Request": "true"}):
            asked = view.page.context.request
            found = is_a_page(asked.get(view.base + address.path, max_redirects=0, headers=headers))
            if found is not None:
                return who, found
    return "", None


def problems_of(view: Tab) -> list[str]:
    view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
    problems = [*view.axe(), *view.page.evaluate("window.__violations")]
    if view.page.evaluate(OVERFLOW) > 0:
        problems.append("the page scrolls sideways")
    return problems


@LOOKS
def test_axe_has_nothing_to_say_of_any_page_that_there_is(
    scene: Scene, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    views = {who: tab(person, scheme=scheme, size=size) for who, person in scene.people.items()}
    found: dict[str, list[str]] = {}
    walked: list[str] = []
    unseen: list[str] = []
    for address in addresses(scene.known):
        who, page = who_sees(address, views, scene)
        if page is None:
            unseen.append(f"{address.route} (asked for {address.path})")
        if not page:
            continue
        view = views[who]
        view.go(address.path)
        walked.append(address.route)
        assert view.page.url == view.base + address.path, (address.route, who, view.page.url)
        if problems := problems_of(view):
            found[f"{address.route} as {who}"] = problems

    assert not unseen, f"nobody of the scene sees {'; '.join(unseen)}: say in it what that shows, and to whom"
    assert found == {}
    assert set(HIDDEN_AWAY) <= set(walked) and len(walked) > 40, "or nothing is proven"
    for view in views.values():
        assert view.complaints == []


# errors


def fails(error: Exception) -> Callable[[Tab, Any], None]:
    """The first page breaks in this way."""

    def cause(view: Tab, patch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> None:
            raise error

        patch.setattr(pages, "home_of", broken)
        view.go("/")

    return cause


def sign_in_wrongly(view: Tab) -> None:
    view.page.fill("#id_login", "somebody")
    view.page.fill("#id_password", "wrong")
    with view.page.expect_navigation():
        view.page.keyboard.press("Enter")


def asks_too_often(view: Tab, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(project, "ACCOUNT_RATE_LIMITS", {"login": "1/h/ip"}, raising=False)
    cache.clear()
    view.page.context.clear_cookies(name="sessionid")
    for _ in range(2):
        view.go("/accounts/login/")
        sign_in_wrongly(view)
    cache.clear()


def sends_without_a_token(view: Tab, patch: pytest.MonkeyPatch) -> None:
    view.page.context.clear_cookies(name="sessionid")
    view.go("/accounts/login/")
    view.page.evaluate("document.querySelectorAll('[name=csrfmiddlewaretoken]').forEach(i => i.remove())")
    sign_in_wrongly(view)


def is_refused(view: Tab, patch: pytest.MonkeyPatch) -> None:
    """By a service, in its own words."""
    view.go("/tracks/toolcaller/policies/draft/")


ERRORS: dict[str, tuple[Callable[[Tab, pytest.MonkeyPatch], None], str]] = {
    "400.html": (fails(SuspiciousOperation("s")), "That request makes no sense"),
    "403.html": (fails(PermissionDenied()), "You may not do this"),
    "403_csrf.html": (sends_without_a_token, "This form could not be trusted"),
    "404.html": (fails(Http404()), "Not found"),
    "429.html": (asks_too_often, "Too many attempts"),
    "500.html": (fails(RuntimeError("r")), "Assay failed"),
    "error.html": (is_refused, "You may not do this"),
}


def test_every_page_of_an_error_is_among_those_that_are_looked_at() -> None:
    folder = Path(project.BASE_DIR) / "templates"
    assert {path.name for path in folder.glob("*.html")} - {"base.html"} == set(ERRORS)


@LOOKS
@pytest.mark.parametrize("template", sorted(ERRORS))
def test_axe_has_nothing_to_say_of_the_page_of_an_error(
    transactional_db: None,
    tab: Callable[..., Tab],
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    scheme: str,
    size: tuple[int, int],
) -> None:
    house = factories.house(calls=3, gates=[])
    view = tab(house.engineer, scheme=scheme, size=size)
    cause, heading = ERRORS[template]

    cause(view, monkeypatch)

    assert heading in view.page.inner_text("h1")
    assert problems_of(view) == []
