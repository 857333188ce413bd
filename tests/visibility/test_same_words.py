"""What belongs to a track that one may not see is answered in the words for what never was, wherever one asks for it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from django.urls import reverse

import promotion.web.urls
from promotion.models import Candidate, Dispute, Evidence
from promotion.services import disputes, gating, policies, tracks
from rollouts.api.schema import document
from rollouts.errors import Conflict
from rollouts.models import EvalRun, ModelCall
from tests import factories
from tests.api.conftest import Api, token_of
from tests.visibility.conftest import Hidden
from tests.visibility.test_every_route import _answer, _sent

pytestmark = pytest.mark.django_db
NOTHING = "f" * 64


def digests_of(hidden: Hidden) -> dict[str, str]:
    """Every digest that people of the track may read somewhere."""
    candidate, call = hidden.candidate, ModelCall.objects.get(pk=hidden.call.pk)
    assert candidate.gguf_id and candidate.adapter_config_id and candidate.adapter_weights_id
    return {
        "gguf": candidate.gguf_id,
        "adapter's configuration": candidate.adapter_config_id,
        "adapter's weights": candidate.adapter_weights_id,
        "evidence": Evidence.objects.filter(candidate=candidate)[0].digest,
        "policy": hidden.house.policy.digest,
        "subject": EvalRun.objects.get(pk=hidden.run.pk).subject.digest,
        "request": str(call.request_id),
    }


def test_every_address_of_a_digest_has_one_sentence_for_what_is_hidden_and_what_never_was(
    hidden: Hidden,
) -> None:
    digests = digests_of(hidden)
    hidden.restrict()
    apis = [Api(token_of(person)) for person in hidden.outsiders.values()]
    paths = [path for path in document()["paths"] if "{digest}" in path]
    assert len(paths) >= 5
    for path in paths:
        for verb in document()["paths"][path]:
            for api in apis:
                nowhere = _sent(api, verb, path.format(digest=NOTHING))
                assert nowhere[0] in (403, 404), path
                for what, digest in digests.items():
                    assert _sent(api, verb, path.format(digest=digest)) == nowhere, (path, what)


def test_every_page_of_a_digest_reads_the_same_for_what_is_hidden_and_what_never_was(hidden: Hidden) -> None:
    digests, clients = digests_of(hidden), hidden.clients("outside")
    hidden.restrict()
    patterns = [
        pattern for pattern in promotion.web.urls.urlpatterns if "digest" in pattern.pattern.converters
    ]
    assert {pattern.name for pattern in patterns} == {"evidence", "import"}
    for pattern, client in product(patterns, clients.values()):
        values = dict.fromkeys(pattern.pattern.converters, hidden.candidate.pk)
        addresses = {
            digest: reverse(f"promotion:{pattern.name}", kwargs={**values, "digest": digest})
            for digest in (NOTHING, *digests.values())
        }
        nowhere = _answer(client, "GET", addresses.pop(NOTHING))
        assert nowhere[0] == 404
        for address in addresses.values():
            assert _answer(client, "GET", address) == nowhere, address


SCRIPTED = {"name": "replay", "kind": "scripted", "config": {"transcript_sha256": "{digest}"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("backends", SCRIPTED),
        ("preflight", {"train": "{digest}"}),
        ("preflight", {"eval": "{digest}"}),
        ("runs", {"suite": "{digest}", "backend": "local", "base": "base"}),
    ],
)
def test_a_body_that_names_a_digest_is_answered_alike(
    hidden: Hidden, path: str, body: dict[str, Any]
) -> None:
    digests = digests_of(hidden)
    hidden.restrict()
    api = Api(token_of(hidden.outsiders["engineer"]))

    def asked(digest: str) -> tuple[int, str]:
        return _sent(api, "post", path, json.loads(json.dumps(body).replace("{digest}", digest)))

    nowhere = asked(NOTHING)
    assert nowhere[0] in (400, 404)
    for what, digest in digests.items():
        assert asked(digest) == nowhere, what


def open_sibling(hidden: Hidden) -> Candidate:
    """A judged candidate of a track that everybody sees, on the hidden track's suite."""
    house = hidden.house
    track = tracks.create(name="open", purpose="Another product.", by=house.administrator)
    draft = policies.draft(
        track=track, document=factories.policy_document([house.suite]), by=house.administrator
    )
    policies.lock(policy_id=draft.pk, by=house.approver_2)
    sibling = factories.built_candidate(track, house.base, hidden.outsiders["engineer"], name="sibling")
    gating.start_evaluation(candidate_id=sibling.pk, backend=house.backend, by=hidden.outsiders["engineer"])
    for run in EvalRun.objects.filter(subject__adapter=sibling.gguf).exclude(state="closed"):
        factories.finish_run(run)
    gating.judge_again(candidate_id=sibling.pk, by=hidden.outsiders["engineer"])
    sibling.refresh_from_db()
    return sibling


def test_a_dispute_on_a_hidden_candidate_is_met_without_its_number(hidden: Hidden) -> None:
    hidden.restrict()
    sibling, standing = open_sibling(hidden), Dispute.objects.get()
    asked = {
        "candidate_id": sibling.pk,
        "case_id": standing.case_id,
        "evidence_digest": factories.digest_of(sibling),
        "expected": standing.expected_after,
        "reason": "The request names no file, so none can be read.",
    }

    with pytest.raises(Conflict) as outside:
        disputes.raise_dispute(**asked, by=hidden.outsiders["engineer"])
    assert "on a candidate that you may not see" in outside.value.message
    assert f"dispute {standing.pk}" not in outside.value.message and outside.value.facts == {}

    with pytest.raises(Conflict, match=f"dispute {standing.pk}. Decide that one first") as inside:
        disputes.raise_dispute(**asked, by=hidden.house.approver)
    assert inside.value.facts == {"dispute": standing.pk}
