"""Waivers: asked for, granted by a second person, ended. A token acts as its person; signing takes the browser.

Who may is for the service to say, which keeps what it refused in the audit history.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import evidence as evidence_module
from promotion import selectors
from promotion.api.inputs import WaiverEndInput, WaiverInput, WaiverQuery
from promotion.api.outputs import WaiverDetail, WaiverOutput
from promotion.models import Candidate, Waiver
from promotion.services import waivers
from rollouts.api.pagination import page_of
from rollouts.api.resources import created, named
from rollouts.api.views import ID, ApiViewSet, effect, etag_of, gives, require_match, row_or_404
from rollouts.errors import AssayError
from rollouts.roles import Person


class WaiverViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": WaiverQuery}
    about: Candidate | None = None

    @gives(page_of(WaiverOutput))
    def list(self, request: Request) -> Response:
        """Waivers, newest first."""
        rows = waiver_rows(request.user)
        if "candidate" in self.query:
            rows = rows.filter(candidate_id=self.query["candidate"])
        if "state" in self.query:
            rows = waivers.in_state(rows, self.query["state"], timezone.now())
        return self.paged(rows, WaiverOutput)

    @gives(WaiverDetail)
    def retrieve(self, request: Request, id: str) -> Response:
        """A waiver, and whether it applies to what was judged last. Its ETag changes with its state."""
        return detail(id, request.user)

    @effect(WaiverInput, output=WaiverDetail, status=201)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Ask that one unmet gate of a candidate's present measurements be waived. A second person grants it."""
        candidate = named("candidate", Candidate.objects.visible_to(request.user), pk=data["candidate"])
        self.about = candidate
        made = waivers.request(
            candidate_id=candidate.pk,
            gate=data["gate"],
            suite_digest=data.get("suite", ""),
            reason=data["reason"],
            days=data["days"],
            by=request.user,
        )
        return created(detail(made.pk, request.user).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=WaiverDetail, problems=(412,))
    def grant(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Grant it, and judge the candidate again. `If-Match` grants it only as it was read."""
        self._unchanged(request, id)
        waivers.grant(waiver_id=int(id), by=request.user)
        return detail(id, request.user)

    @action(detail=True, methods=["post"])
    @effect(WaiverEndInput, output=WaiverDetail, problems=(412,))
    def end(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Refuse a request, take it back, or end a waiver. `If-Match` ends it only as it was read."""
        self._unchanged(request, id)
        waivers.end(waiver_id=int(id), by=request.user, reason=data["reason"])
        return detail(id, request.user)

    def _unchanged(self, request: Request, id: str) -> None:
        """No lock of its own: what is asked of a state that is gone is refused by the service too."""
        waiver = row_or_404(Waiver.objects.visible_to(request.user).select_related("candidate__track"), pk=id)
        require_match(request, waiver_etag(waiver))
        self.about = waiver.candidate

    def handle_exception(self, exc: Exception) -> Response:
        """With an `Idempotency-Key` the refusal's record was rolled back along with the effect: it is written here."""
        if (
            isinstance(exc, AssayError)
            and self.about is not None
            and "Idempotency-Key" in self.request.headers
        ):
            waivers.record_refusal(self.about, self.request.user, exc)
        return super().handle_exception(exc)


def waiver_rows(person: Person) -> QuerySet[Waiver]:
    people = ("requested_by", "granted_by", "ended_by")
    return Waiver.objects.visible_to(person).select_related("candidate", *people)


def waiver_etag(waiver: Waiver) -> str:
    return etag_of(waiver.pk, waivers.state_of(waiver))


def detail(waiver_id: int | str, person: Person) -> Response:
    waiver = row_or_404(waiver_rows(person), pk=waiver_id)
    newest = selectors.latest_evidence(waiver.candidate)
    document = evidence_module.document_of(newest) if newest else None
    measured = evidence_module.measurement_digest(document) if document else None
    waiver.applies = waivers.state_of(waiver) == "granted" and waiver.measurement_digest == measured
    return Response(WaiverDetail(waiver).data, headers={"ETag": waiver_etag(waiver)})
