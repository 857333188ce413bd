"""Preflight over REST: findings of data and a draft policy, before anything is trained."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from promotion.api.inputs import PreflightForm, PreflightInput
from promotion.api.outputs import PreflightOutput
from promotion.models import Track
from promotion.preflight import ERROR
from promotion.services import preflights
from rollouts.api.files import bytes_of
from rollouts.api.parsers import StrictJSONParser, UploadParser
from rollouts.api.resources import named
from rollouts.api.views import ApiViewSet, effect, read
from rollouts.errors import InvalidInput
from rollouts.selectors import datasets

DOCUMENTS = ("policy", "sidecar", "config", "tool_schema")
MAX_DOCUMENT_BYTES = 4 << 20


class PreflightViewSet(ApiViewSet):
    parsers = {"create": [StrictJSONParser, UploadParser]}

    @effect(
        {"application/json": PreflightInput, "multipart/form-data": PreflightForm}, output=PreflightOutput
    )
    def create(self, request: Request, data: Any) -> Response:
        """Check training data, its sidecar and a draft policy. Faults are findings; nothing is written."""
        multipart = (request.content_type or "").startswith("multipart/")
        values = read(PreflightForm, data) if multipart else read(PreflightInput, data)
        tracks = Track.objects.visible_to(request.user)
        found = preflights.run(
            by=request.user,
            train=_data("train", values, multipart),
            evaluation=_data("eval", values, multipart),
            track=named("track", tracks, name=values["track"]) if "track" in values else None,
            most_bytes=preflights.MAX_REQUEST_BYTES,
            **{name: _document(name, values, multipart) for name in DOCUMENTS},
        )
        go = all(finding.severity != ERROR for finding in found)
        return Response(
            PreflightOutput({"go": go, "findings": [finding._asdict() for finding in found]}).data
        )


def _data(role: str, values: dict[str, Any], multipart: bool) -> preflights.Data:
    key = f"{role}_digest" if multipart else role
    if multipart and role in values:
        if key in values:
            raise InvalidInput(key, f"is given beside the file {role}. Give one.")
        return bytes_of(role, values[role], preflights.MAX_REQUEST_BYTES)
    return named(key, datasets(), digest=values[key]) if key in values else None


def _document(name: str, values: dict[str, Any], multipart: bool) -> Any:
    if not multipart:
        return values.get(name)
    return bytes_of(name, values.get(name), MAX_DOCUMENT_BYTES)
