"""Every address of pages and API x somebody who may not see the track: 404, as if there were no such thing.

The addresses are read from the routers. What a new one shows must be said here: something of the track, or something
that everybody shares. Otherwise its test fails.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse

import promotion.web.urls
import rollouts.web.urls
from promotion.models import Dispute, Evidence, Export, RegistryEntry, Waiver
from rollouts.api.schema import document
from rollouts.models import AuditEvent
from rollouts.web.http import thing_about
from tests import factories
from tests.api.conftest import Api, token_of
from tests.visibility.conftest import Hidden

pytestmark = pytest.mark.django_db

# the first part of addresses with parameters that are about what all tracks share
SHARED_PAGES = {"suites", "datasets", "cases", "backends", "imports", "passkeys", "oidc"}
SHARED_API = {"auth", "bases", "backends", "suites", "datasets", "transcripts"}
# what verbs take that take something, by the end of their address; the first that fits
BODIES: dict[str, dict[str, Any]] = {
    "disputes/[0-9]+/withdraw": {},
    "withdraw": {"reason": "r"},
    "withdraw-signature": {"reason": "r"},
    "end": {"reason": "r"},
    "evaluate": {"backend": "local"},
    "accept": {"resolution": "r"},
    "risk-summary": {"text": "t", "evidence": "0" * 64},
    "threads": {"anchor": "page", "text": "t"},
    "reply": {"text": "t"},
    "decline": {"resolution": "r"},
    "disputes": {"suite": "0" * 64, "case": "k", "evidence": "0" * 64, "expected": {}, "reason": "r"},
}
NOBODY = 999_999  # no row's number, no track's name


# pages


def test_every_page_about_a_track_that_one_may_not_see_is_not_there(hidden: Hidden) -> None:
    known, missing = hidden.known, _missing()
    hidden.restrict()
    inside, outside = hidden.clients("inside"), hidden.clients("outside")
    walked = 0
    for pattern in _pages():
        there, nowhere = _address(pattern, known), _address(pattern, missing)
        method = "POST" if _answer(inside["engineer"], "GET", there)[0] == 405 else "GET"
        for role, stranger in outside.items():
            seen = _answer(inside[role], method, there)[0]
            assert seen != 404, (
                method,
                there,
                role,
                "insiders must get past the lookup, or nothing is proven",
            )
            found = _answer(stranger, method, there)
            assert found == _answer(stranger, method, nowhere), (
                method,
                there,
                "must read like what is not there",
            )
            walked += _refused(found[0], seen, (method, there, role))
    assert walked > 30


def _pages() -> list[URLPattern]:
    patterns = [*promotion.web.urls.urlpatterns, *rollouts.web.urls.urlpatterns]
    return [
        pattern
        for pattern in patterns
        if pattern.name and pattern.pattern.converters and _first(str(pattern.pattern)) not in SHARED_PAGES
    ]


def _first(address: str) -> str:
    return address.split("/")[0]


def _missing() -> dict[str, dict[str, Any]]:
    """The same places, with nothing there."""
    nothing = dict.fromkeys(("pk", "number", "version", "case_pk"), NOBODY) | {
        "name": "nobody",
        "digest": "f" * 64,
    }
    return dict.fromkeys((_first(str(pattern.pattern)) for pattern in _pages()), nothing)


def _address(pattern: URLPattern, values: dict[str, dict[str, Any]]) -> str:
    space = "rollouts" if pattern in rollouts.web.urls.urlpatterns else "promotion"
    first = _first(str(pattern.pattern))
    assert first in values, (
        f"say in tests/web/test_permission_table.py what of a hidden track /{pattern.pattern} shows, or that it is shared"
    )
    kind = values[first]
    wanted = {key: kind.get(key, NOBODY) for key in pattern.pattern.converters}
    return reverse(f"{space}:{pattern.name}", kwargs=wanted)


def _answer(client: Client, method: str, address: str) -> tuple[int, str]:
    data = {"reason": "r", "decision": "approve", "meaning": "reviewed", "password": factories.PASSWORD}
    data |= {"evidence_digest": "0" * 64}
    with transaction.atomic():  # nothing that a request does is left for the next one
        response = client.get(address) if method == "GET" else client.post(address, data)
        body = b"".join(response) if response.streaming else response.content
        transaction.set_rollback(True)
    assert response.status_code < 500, (method, address)
    text = body.decode(errors="replace").replace(address, "-")
    if way_back := thing_about(address):  # read from the address that was asked, whatever there is
        text = text.replace(way_back[0], "-")
    return response.status_code, re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", text)


def _refused(status: int, seen: int, about: tuple[str, ...]) -> bool:
    """True for a 404. A role that may not do it, whatever it is about, is told that first."""
    assert status != 400, (
        *about,
        "the body is refused before anything is looked up: say in BODIES what it takes",
    )
    assert status == 404 or (status == seen == 403), (*about, status)
    return status == 404


# API


def test_every_verb_about_a_track_that_one_may_not_see_finds_nothing(hidden: Hidden) -> None:
    known = _things(hidden)
    hidden.restrict()
    inside = {role: Api(token_of(getattr(hidden.house, role))) for role in hidden.outsiders}
    outside = {role: Api(token_of(person)) for role, person in hidden.outsiders.items()}
    walked = 0
    for path, verbs in sorted(document()["paths"].items()):
        kind = path.removeprefix("/api/v1/").split("/")[0]
        if "{" not in path or kind in SHARED_API:
            continue
        assert kind in known, f"say in _things what of a hidden track {path} shows, or that it is shared"
        for method in sorted(verbs):
            there = path.format(**known[kind])
            nowhere = path.format(id=NOBODY, number=NOBODY, name="nobody", digest="f" * 64)
            for role, api in outside.items():
                seen = _sent(inside[role], method, there)[0]
                assert seen != 404, (method, path, role, "insiders must get past the lookup")
                found = _sent(api, method, there)
                assert found == _sent(api, method, nowhere), (
                    method,
                    path,
                    "must read like what is not there",
                )
                walked += _refused(found[0], seen, (method, path, role))
    assert walked > 30


def _things(hidden: Hidden) -> dict[str, dict[str, Any]]:
    house, candidate = hidden.house, hidden.candidate
    event = AuditEvent.objects.filter(subject_type="promotion.Candidate", subject_id=str(candidate.pk))[0]
    evidence = Evidence.objects.filter(candidate=candidate)[0]
    return {
        "tracks": {"name": house.track.name},
        "policies": {"id": house.policy.pk},
        "candidates": {"id": candidate.pk, "number": Dispute.objects.get().pk},
        "waivers": {"id": Waiver.objects.get().pk},
        "evidence": {"digest": evidence.digest},
        "registry": {"id": RegistryEntry.objects.get().pk},
        "exports": {"id": Export.objects.get().pk},
        "runs": {"id": hidden.run.pk},
        "rollouts": {"id": hidden.rollout.pk},
        "calls": {"id": hidden.call.pk},
        "audit": {"id": event.pk},
    }


def _sent(api: Api, method: str, path: str, body: Any = None) -> tuple[int, str]:
    if body is None and method == "post":
        body = next((body for end, body in BODIES.items() if re.search(end + "$", path)), {})
    with transaction.atomic():
        response = api.send(method.upper(), path, body)
        content = b"".join(response) if response.streaming else response.content
        transaction.set_rollback(True)
    assert response.status_code < 500, (method, path)
    return response.status_code, content.decode(errors="replace")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/api/v1/evidence?candidate={candidate}", None),
        ("get", "/api/v1/rollouts?run={run}", None),
        ("get", "/api/v1/calls?run={run}", None),
        ("get", "/api/v1/calls?rollout={rollout}", None),
        ("post", "/api/v1/policies", {"track": "{track}", "document": {}}),
        ("post", "/api/v1/preflight", {"track": "{track}"}),
        ("post", "/api/v1/waivers", {"candidate": "{candidate}", "gate": "g", "reason": "r", "days": 1}),
        ("post", "/api/v1/runs", {"candidate": "{candidate}", "backend": "local", "suite": "{suite}"}),
    ],
)
def test_a_query_or_body_that_names_what_one_may_not_see_is_answered_like_one_that_names_nothing(
    hidden: Hidden, method: str, path: str, body: dict[str, Any] | None
) -> None:
    hidden.restrict()
    names: dict[str, Any] = {
        "candidate": hidden.candidate.pk,
        "run": hidden.run.pk,
        "rollout": hidden.rollout.pk,
        "track": hidden.house.track.name,
    }
    nothing: dict[str, Any] = dict.fromkeys(names, NOBODY) | {"track": "nobody"}
    for person in hidden.outsiders.values():
        api = Api(token_of(person))
        found, expected = (
            _sent(
                api,
                method,
                path.format(**values),
                _filled(body, values | {"suite": hidden.house.suite.digest}),
            )
            for values in (names, nothing)
        )
        assert found == expected
        assert found[0] in (400, 403, 404)


def _filled(body: dict[str, Any] | None, values: dict[str, Any]) -> Any:
    """The body with what stands in braces as the value itself, so that numbers stay numbers."""
    if body is None:
        return None
    text = json.dumps(body)
    for name, value in values.items():
        text = text.replace(json.dumps(f"{{{name}}}"), json.dumps(value))
    return json.loads(text)
