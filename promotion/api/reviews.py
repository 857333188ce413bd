"""The checklist and the risk summary of a candidate. Ticking is part of signing, so there is no verb for it here."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import comparing, panels, permissions, risk_summary, selectors
from promotion import evidence as evidence_module
from promotion.checklist import QUESTIONS, REVIEWER
from promotion.models import Candidate, Evidence
from promotion.services import reviews, risk_summaries
from rollouts.api.fields import Digest, StrictSerializer, Text
from rollouts.api.views import ApiViewSet, effect, gives, row_or_404
from rollouts.errors import NotFound


class RiskSummaryInput(StrictSerializer):
    text = Text(max_length=risk_summaries.MAX_CHARS, help_text=f"At most {risk_summary.MOST_WORDS} words.")
    evidence = Digest(help_text="The digest of the evidence that was read.")


class RiskSummaryOutput(serializers.Serializer[Any]):
    """`made` comes from the evidence; `text` is the submitter's, null where they left it at that."""

    evidence = serializers.CharField()
    made = serializers.CharField()
    text = serializers.CharField(allow_null=True)
    written_by = serializers.CharField(allow_null=True)
    written_at = serializers.DateTimeField(allow_null=True)


class ItemOutput(serializers.Serializer[Any]):
    """`answer` is the evidence's, or whether the one who asks ticked it for this evidence."""

    key = serializers.CharField()
    text = serializers.CharField()
    answered_by = serializers.ChoiceField(choices=[REVIEWER, *QUESTIONS])
    answer = serializers.BooleanField()
    note = serializers.CharField(help_text="Why a no of the evidence is accepted, or empty.")


class ChecklistOutput(serializers.Serializer[Any]):
    """The policy's checklist, as the evidence and the one who asks have answered it."""

    evidence = serializers.CharField()
    items = ItemOutput(many=True)


class ChecklistViewSet(ApiViewSet):
    @gives(ChecklistOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """The policy's checklist for the newest evidence of a candidate. People tick on the page."""
        candidate, evidence, document = _evidence(id, request.user)
        answers = reviews.answers_of(candidate, evidence.digest, request.user)
        items = reviews.checklist_of(document, answers)
        return Response(ChecklistOutput({"evidence": evidence.digest, "items": items}).data)


class RiskSummaryViewSet(ApiViewSet):
    may = {"create": permissions.require_can_comment}

    @gives(RiskSummaryOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """What remains risky: as it is made from the evidence, and in the submitter's own words."""
        return _summary(id, request.user)

    @effect(RiskSummaryInput, output=RiskSummaryOutput, problems=(412,))
    def create(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Write the summary anew, as its submitter. Other words are other evidence; the same change nothing."""
        risk_summaries.write(
            candidate_id=int(id), text=data["text"], digest=data["evidence"], by=request.user
        )
        return _summary(id, request.user)


def _evidence(id: str, person: User) -> tuple[Candidate, Evidence, dict[str, Any]]:
    candidate = row_or_404(Candidate.objects.visible_to(person), pk=id)
    evidence = selectors.latest_evidence(candidate)
    if evidence is None:
        raise NotFound("Nothing is judged of this candidate yet.")
    return candidate, evidence, evidence_module.document_of(evidence)


def _summary(id: str, person: User) -> Response:
    candidate, evidence, document = _evidence(id, person)
    written = candidate.risk_summaries.select_related("written_by").first()
    shown = {
        "evidence": evidence.digest,
        "made": risk_summary.summary(document, panels.safety_turns(comparing.comparisons_of(document))),
        "text": written and written.text,
        "written_by": written and written.written_by.get_username(),
        "written_at": written and written.written_at,
    }
    return Response(RiskSummaryOutput(shown).data)
