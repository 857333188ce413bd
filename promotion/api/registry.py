"""The registry: entries, aliases, their history, and the published exports."""

from __future__ import annotations

from django.db.models import Prefetch
from django.http import FileResponse, HttpResponse
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from promotion.api.inputs import ExportQuery, MoveQuery, TrackQuery
from promotion.api.outputs import GLASS_PEOPLE, AliasMoveOutput, AliasOutput, EntryOutput, ExportOutput
from promotion.models import Alias, AliasMove, BrokenGlass, Export, RegistryEntry
from rollouts.api.files import OctetStream, file_response
from rollouts.api.pagination import page_of
from rollouts.api.views import ID, ApiViewSet, etag_of, gives, not_modified, row_or_404


class EntryViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": TrackQuery}
    rows = RegistryEntry.objects.select_related("track", "candidate", "evidence").prefetch_related(
        "aliases", Prefetch("candidate__broken_glass", BrokenGlass.objects.select_related(*GLASS_PEOPLE))
    )

    @gives(page_of(EntryOutput))
    def list(self, request: Request) -> Response:
        """Registry entries, newest first."""
        wanted = {"track__name": self.query["track"]} if "track" in self.query else {}
        return self.paged(self.rows.visible_to(request.user).filter(**wanted), EntryOutput)

    @gives(EntryOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """A registry entry, with what was known when it was made."""
        return Response(EntryOutput(row_or_404(self.rows.visible_to(request.user), pk=id)).data)


class AliasViewSet(ApiViewSet):
    queries = {"list": MoveQuery}

    @gives(page_of(AliasOutput))
    def list(self, request: Request) -> Response:
        """Where each alias points now."""
        rows = Alias.objects.visible_to(request.user).select_related("track", "entry__candidate")
        return self.paged(rows.filter(**_wanted(self.query)), AliasOutput)


class AliasMoveViewSet(ApiViewSet):
    queries = {"list": MoveQuery}

    @gives(page_of(AliasMoveOutput))
    def list(self, request: Request) -> Response:
        """The history of the aliases, newest first."""
        rows = AliasMove.objects.visible_to(request.user).select_related(
            "track", "old__candidate", "new__candidate"
        )
        return self.paged(rows.filter(**_wanted(self.query)), AliasMoveOutput)


class ExportViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": ExportQuery}
    rows = Export.objects.select_related("artifact", "entry__candidate")

    def get_renderers(self) -> list[object]:
        found: list[object] = [JSONRenderer()]
        return [*found, OctetStream()] if getattr(self, "action", "") == "file" else found

    @gives(page_of(ExportOutput))
    def list(self, request: Request) -> Response:
        """Published exports, newest first."""
        names = {"track": "entry__track__name", "entry": "entry"}
        wanted = {path: self.query[name] for name, path in names.items() if name in self.query}
        return self.paged(self.rows.visible_to(request.user).filter(**wanted), ExportOutput)

    @gives(ExportOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """A published export with its manifest."""
        return Response(ExportOutput(row_or_404(self.rows.visible_to(request.user), pk=id)).data)

    @gives({"type": "string", "format": "binary"}, problems=(409,), cached=True)
    @action(detail=True)
    def file(self, request: Request, id: str) -> HttpResponse | FileResponse:
        """The published bytes, checked against their digest (the ETag) before the first is sent."""
        export = row_or_404(self.rows.visible_to(request.user), pk=id)
        if not_modified(request, etag_of(export.artifact_id)):
            return HttpResponse(status=304, headers={"ETag": etag_of(export.artifact_id)})
        return file_response(export.artifact, export.name)


def _wanted(query: dict[str, object]) -> dict[str, object]:
    names = {"track": "track__name", "name": "name"}
    return {path: query[name] for name, path in names.items() if name in query}
