"""Bases, tracks, policies and gates."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import permissions, whatif
from promotion.api.inputs import (
    BaseForm,
    PolicyDiffQuery,
    PolicyInput,
    PolicyQuery,
    ReadersInput,
    TrackInput,
    WhatIfInput,
)
from promotion.api.outputs import (
    BaseOutput,
    GateOutput,
    PolicyDiffOutput,
    PolicyOutput,
    TrackOutput,
    WhatIfOutput,
)
from promotion.gates.base import GATES
from promotion.models import Alias, Policy, Track
from promotion.services import bases, policies, tracks
from promotion.services.registry import CHAMPION
from rollouts.api.files import path_on_disk
from rollouts.api.pagination import PageQuery, page_of
from rollouts.api.parsers import UploadParser
from rollouts.api.resources import created, named
from rollouts.api.views import ID, NAME, ApiViewSet, effect, etag_of, gives, require_match, row_or_404
from rollouts.errors import InvalidInput
from rollouts.models import BaseModel
from rollouts.roles import Person


class BaseViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "name", NAME
    may = {"create": permissions.require_can_register}
    queries = {"list": PageQuery}
    parsers = {"create": [UploadParser]}

    @gives(page_of(BaseOutput))
    def list(self, request: Request) -> Response:
        """Registered base models, newest first."""
        return self.paged(BaseModel.objects.select_related("artifact", "created_by"), BaseOutput)

    @gives(BaseOutput)
    def retrieve(self, request: Request, name: str) -> Response:
        """A base model with what its header says."""
        return Response(
            BaseOutput(row_or_404(BaseModel.objects.select_related("artifact", "created_by"), name=name)).data
        )

    @effect(BaseForm, output=BaseOutput, status=201, problems=(507,))
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Register a GGUF. The same file under the same name gives the base model there is."""
        base = bases.register(name=data["name"], file=path_on_disk(data["file"]), by=request.user)
        return created(BaseOutput(base).data)


class TrackViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "name", NAME
    may = {
        "create": permissions.require_can_create_track,
        "readers": permissions.require_can_set_readers,
    }
    queries = {"list": PageQuery}

    @gives(page_of(TrackOutput))
    def list(self, request: Request) -> Response:
        """Tracks with their champions, newest first."""
        return self.paged(track_rows(request.user), TrackOutput)

    @gives(TrackOutput)
    def retrieve(self, request: Request, name: str) -> Response:
        """A track with its champion."""
        return Response(TrackOutput(row_or_404(track_rows(request.user), name=name)).data)

    @effect(TrackInput, output=TrackOutput, status=201)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Create a track."""
        track = tracks.create(**data, by=request.user)
        return created(TrackOutput(row_or_404(track_rows(request.user), pk=track.pk)).data)

    @action(detail=True, methods=["post"])
    @effect(ReadersInput, output=TrackOutput)
    def readers(self, request: Request, name: str, data: dict[str, Any]) -> Response:
        """Say who may see the track and all of it, its eval runs included."""
        track = row_or_404(Track.objects.visible_to(request.user), name=name)
        tracks.set_readers(track=track, groups=data["readers"], by=request.user)
        return Response(TrackOutput(row_or_404(track_rows(request.user), name=name)).data)

    @action(detail=True, methods=["post"], url_path="what-if")
    @effect(WhatIfInput, output=WhatIfOutput)
    def what_if(self, request: Request, name: str, data: dict[str, Any]) -> Response:
        """What another policy would have said of past candidates, by their stored evidence. Changes nothing."""
        track = row_or_404(Track.objects.visible_to(request.user), name=name)
        if "policy" in data and "document" in data:
            raise InvalidInput("document", "give a policy's version or a document, not both.")
        if "document" in data:
            replay = whatif.replay(track, data["document"])
        else:
            replay = whatif.replay_policy(track, data.get("policy"))
        return Response(WhatIfOutput(replay).data)


class PolicyViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    may = {"create": permissions.require_can_edit_policy, "lock": permissions.require_can_lock_policy}
    queries = {"list": PolicyQuery, "diff": PolicyDiffQuery}

    @gives(page_of(PolicyOutput))
    def list(self, request: Request) -> Response:
        """Versions of policies, newest first."""
        wanted: dict[str, Any] = {"track__name": self.query["track"]} if "track" in self.query else {}
        if "locked" in self.query:
            wanted["locked_at__isnull"] = not self.query["locked"]
        return self.paged(policy_rows(request.user).filter(**wanted), PolicyOutput)

    @gives(PolicyOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """A version of a policy. Its ETag is its digest."""
        return policy_response(row_or_404(policy_rows(request.user), pk=id))

    @effect(PolicyInput, output=PolicyOutput, status=201)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Save the track's draft: the one there is gets this document."""
        track = named("track", Track.objects.visible_to(request.user), name=data["track"])
        policy = policies.draft(track=track, document=data["document"], by=request.user)
        return created(PolicyOutput(row_or_404(policy_rows(request.user), pk=policy.pk)).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=PolicyOutput, problems=(412,))
    def lock(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Lock a draft: it is the track's policy from now on. `If-Match` locks exactly what was read."""
        with transaction.atomic():
            policy = row_or_404(
                Policy.objects.visible_to(request.user).select_for_update(no_key=True, of=("self",)), pk=id
            )
            require_match(request, etag_of(policy.digest))
            policies.lock(policy_id=policy.pk, by=request.user)
        return policy_response(row_or_404(policy_rows(request.user), pk=id))

    @gives(PolicyDiffOutput)
    @action(detail=True)
    def diff(self, request: Request, id: str) -> Response:
        """What a version changes of another, and which of that could let more pass."""
        policy = row_or_404(policy_rows(request.user), pk=id)
        against = policies.previous(policy)
        if "against" in self.query:
            versions = Policy.objects.filter(track=policy.track)
            against = row_or_404(versions, version=self.query["against"])
        changes = policies.diff(against.document, policy.document) if against else []
        found = {
            "version": policy.version,
            "against": against.version if against else None,
            "loosens": any(change.loosens for change in changes),
            "changes": changes,
        }
        return Response(PolicyDiffOutput(found).data)


class GateViewSet(ApiViewSet):
    @gives(page_of(GateOutput))
    def list(self, request: Request) -> Response:
        """The closed list of gates, with the JSON schema of each one's entry in a policy."""
        return Response({"next": None, "results": [_gate(name) for name in sorted(GATES)]})


def _gate(name: str) -> dict[str, Any]:
    gate = GATES[name]
    return {
        "gate": name,
        "summary": gate.summary,
        "description": (gate.check.__doc__ or "").strip(),
        "parameters": gate.params.model_json_schema(mode="serialization"),
    }


def track_rows(person: Person) -> QuerySet[Track]:
    champion = Alias.objects.filter(name=CHAMPION).select_related("entry__candidate")
    return (
        Track.objects.visible_to(person)
        .select_related("created_by")
        .prefetch_related(Prefetch("aliases", queryset=champion, to_attr="champions"), "readers")
    )


def policy_rows(person: Person) -> QuerySet[Policy]:
    return Policy.objects.visible_to(person).select_related("track", "created_by", "locked_by")


def policy_response(policy: Policy) -> Response:
    return Response(PolicyOutput(policy).data, headers={"ETag": etag_of(policy.digest)})
