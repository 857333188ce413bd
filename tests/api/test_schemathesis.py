"""A bounded, repeatable Schemathesis run over the OpenAPI document, inside this process.

A person with every writing role sends what fits the document and what does not; half of what fits is pointed
at things that are there, so that answers of success are checked too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

schemathesis = pytest.importorskip("schemathesis")

from django.core.signals import request_finished, request_started  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import close_old_connections  # noqa: E402
from schemathesis.checks import CHECKS, load_all_checks  # noqa: E402

from promotion.models import Export, Policy  # noqa: E402
from rollouts.api.schema import document  # noqa: E402
from rollouts.models import ModelCall  # noqa: E402
from tests import factories  # noqa: E402
from tests.api.conftest import token_of  # noqa: E402

EXAMPLES = int(os.environ.get("ASSAY_FUZZ_EXAMPLES", "15"))
CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]
load_all_checks()


@pytest.fixture(autouse=True)
def one_connection() -> Iterator[None]:
    """As Django's test client: a request must not close the connection that holds the test's transaction."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def scene(house: factories.House) -> dict[str, Any]:
    """What is there, by the names under which paths, queries and bodies ask for it."""
    candidate = house.candidate()
    runs = house.measure(candidate)
    person = factories.person("all", "engineer", "administrator")
    return {
        "token": token_of(person),
        "paths": {
            "candidates": {"id": candidate.pk},
            "runs": {"id": runs[0].pk},
            "rollouts": {"id": runs[0].rollouts.first().pk},
            "calls": {"id": getattr(ModelCall.objects.first(), "pk", 1)},
            "policies": {"id": Policy.objects.first().pk},
            "registry": {"id": house.champion.pk},
            "exports": {"id": Export.objects.first().pk},
            "audit": {"id": 1},
            "suites": {"digest": house.suite.digest},
            "evidence": {"digest": factories.digest_of(candidate)},
            "tracks": {"name": house.track.name},
            "bases": {"name": house.base.name},
            "backends": {"name": house.backend.name},
        },
        "names": {
            "track": house.track.name,
            "base": house.base.name,
            "backend": house.backend.name,
            "suite": house.suite.digest,
            "candidate": candidate.pk,
            "run": runs[0].pk,
            "rollout": runs[0].rollouts.first().pk,
        },
    }


_application = cache(get_wsgi_application)  # made inside a test, where the settings are the test's


def app(environ: Any, start_response: Any) -> list[bytes]:
    """The whole product, read to its end and closed as a server does it."""
    response = _application()(environ, start_response)
    try:
        return list(response)
    finally:
        response.close()


@schemathesis.serializer("application/x-ndjson")
def json_lines(ctx: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


schema = schemathesis.openapi.from_dict(document())
schema.app = app


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_api_keeps_to_its_document(case: Any, scene: dict[str, Any]):
    _point_at_what_is_there(case, scene)
    headers = {"Authorization": f"Token {scene['token']}"}
    case.call_and_validate(headers=headers, checks=[CHECKS.get_one(name) for name in CHECKED])


def _point_at_what_is_there(case: Any, scene: dict[str, Any]) -> None:
    scene["sent"] = scene.get("sent", 0) + 1
    if case.meta is None or case.meta.generation.mode.is_negative or scene["sent"] % 2:
        return
    if any(part.mode.is_negative for part in case.meta.components.values()):
        return
    resource = case.path.split("/")[3]
    for name in case.path_parameters or {}:
        case.path_parameters[name] = scene["paths"].get(resource, {}).get(name, case.path_parameters[name])
    for part in (case.query, case.body):
        if isinstance(part, dict):
            part.update({name: value for name, value in scene["names"].items() if name in part})
    if resource == "runs" and isinstance(case.body, dict) and "base" in case.body:
        case.body = {name: value for name, value in case.body.items() if name not in ("model", "candidate")}
    if case.media_type == "application/x-ndjson":
        case.body = factories.jsonl([factories.call_case("one")]).decode()
