"""Disputes of a candidate: raised, and accepted or declined by a second person. A token acts as its person.

Who may is for the service to say, which keeps what it refused in the audit history.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import evidence as evidence_module
from promotion import selectors
from promotion.models import Candidate, Dispute, DisputeState
from promotion.services import dispute_effects, disputes
from promotion.services.disputes import MAX_REASON
from rollouts.api.fields import Digest, StrictSerializer, Text
from rollouts.api.outputs import CaseName, Person, address
from rollouts.api.pagination import PageQuery, page_of
from rollouts.api.resources import created
from rollouts.api.views import ID, ApiViewSet, effect, etag_of, gives, require_match, row_or_404
from rollouts.errors import AssayError, InvalidInput
from rollouts.models import Case


@extend_schema_field(
    {"oneOf": [{"type": "object", "additionalProperties": {}}, {"type": "array", "items": {}}]}
)
class Expected(serializers.JSONField):
    """What a case expects, as the suite's scorer reads it in a sealed case: an object, or a list of calls or checks."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict | list):
            raise serializers.ValidationError("must be an object or a list, as in the sealed suite.")
        return data


class DisputeInput(StrictSerializer):
    """A case of the candidate's evidence by its suite and key, and what it should expect."""

    suite = Digest()
    case = Text(max_length=200, help_text="The case's key.")
    evidence = Digest(help_text="The digest of the evidence that was read.")
    expected = Expected()
    reason = Text(max_length=MAX_REASON, help_text="Whoever decides and whoever signs reads this.")


class ResolutionInput(StrictSerializer):
    resolution = Text(max_length=MAX_REASON)


class DisputeQuery(PageQuery):
    state = serializers.ChoiceField(choices=DisputeState.choices, required=False)


class DisputeOutput(serializers.ModelSerializer[Dispute]):
    """That a case expects the wrong thing. Both expectations are kept."""

    url = serializers.SerializerMethodField()
    candidate = serializers.IntegerField(source="candidate_id")
    suite = serializers.CharField(source="case.suite.digest")
    case = CaseName()
    expected_before, expected_after = Expected(), Expected()
    raised_by, resolved_by = Person(), Person()

    class Meta:
        model = Dispute
        fields = [
            "id", "url", "candidate", "suite", "case", "evidence_digest", "expected_before", "expected_after",
            "reason", "state", "raised_by", "raised_at", "resolved_by", "resolved_at", "resolution",
        ]  # fmt: skip

    def get_url(self, dispute: Dispute) -> str:
        return address("api-dispute-detail", id=dispute.candidate_id, number=dispute.pk)


class MetricEffectOutput(serializers.Serializer[Any]):
    """Distinct prompts of the whole suite that are right, of those that the metric applies to."""

    metric = serializers.CharField()
    right_now = serializers.IntegerField()
    of_now = serializers.IntegerField()
    right_then = serializers.IntegerField()
    of_then = serializers.IntegerField()


class SideOutput(serializers.Serializer[Any]):
    """What acceptance would change for the candidate or the champion. `problem`: why that cannot be said."""

    who = serializers.ChoiceField(choices=dispute_effects.SIDES)
    run = serializers.IntegerField(source="run.pk", allow_null=True, default=None)
    metrics = MetricEffectOutput(many=True)
    problem = serializers.CharField()


class DisputeDetail(DisputeOutput):
    """`effects` is computed from captured answers, and written nowhere; empty once it is decided."""

    effects = SideOutput(many=True)

    class Meta(DisputeOutput.Meta):
        fields = [*DisputeOutput.Meta.fields, "effects"]


class DisputeViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "number", ID
    queries = {"list": DisputeQuery}
    about: Candidate | None = None

    @gives(page_of(DisputeOutput), problems=(404,))
    def list(self, request: Request, id: str) -> Response:
        """A candidate's disputes, newest first."""
        rows = disputes.disputes().filter(candidate=self._candidate(request, id))
        if "state" in self.query:
            rows = rows.filter(state=self.query["state"])
        return self.paged(rows, DisputeOutput)

    @gives(DisputeDetail)
    def retrieve(self, request: Request, id: str, number: str) -> Response:
        """A dispute, and what its acceptance would change for both sides. Its ETag changes with its state."""
        return detail(self._dispute(request, id, number))

    @effect(DisputeInput, output=DisputeDetail, status=201, problems=(412,))
    def create(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Say that a case expects the wrong thing. A second person decides; 412 where the evidence is another."""
        self.about = self._candidate(request, id)
        case = Case.objects.filter(suite__digest=data["suite"], key=data["case"]).first()
        if case is None:
            raise InvalidInput("case", "is not the key of a case of this suite.")
        made = disputes.raise_dispute(
            candidate_id=self.about.pk,
            case_id=case.pk,
            evidence_digest=data["evidence"],
            expected=data["expected"],
            reason=data["reason"],
            by=request.user,
        )
        return created(detail(self._dispute(request, id, made.pk)).data)

    @action(detail=True, methods=["post"])
    @effect(ResolutionInput, output=DisputeDetail, problems=(412,))
    def accept(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Amend the case, and score every run's answers to it again. `If-Match` accepts it only as it was read."""
        dispute = self._unchanged(request, id, number)
        disputes.accept(dispute_id=dispute.pk, by=request.user, resolution=data["resolution"])
        return detail(self._dispute(request, id, number))

    @action(detail=True, methods=["post"])
    @effect(ResolutionInput, output=DisputeDetail, problems=(412,))
    def decline(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Leave the case as it is. `If-Match` declines it only as it was read."""
        dispute = self._unchanged(request, id, number)
        disputes.decline(dispute_id=dispute.pk, by=request.user, resolution=data["resolution"])
        return detail(self._dispute(request, id, number))

    @action(detail=True, methods=["post"])
    @effect(None, output=DisputeDetail, problems=(412,))
    def withdraw(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Take one's own dispute back. `If-Match` withdraws it only as it was read."""
        dispute = self._unchanged(request, id, number)
        disputes.withdraw(dispute_id=dispute.pk, by=request.user)
        return detail(self._dispute(request, id, number))

    def _candidate(self, request: Request, id: str) -> Candidate:
        return row_or_404(Candidate.objects.visible_to(request.user).select_related("track"), pk=id)

    def _dispute(self, request: Request, id: str, number: int | str) -> Dispute:
        return row_or_404(disputes.disputes().visible_to(request.user), candidate_id=id, pk=number)

    def _unchanged(self, request: Request, id: str, number: str) -> Dispute:
        """No lock of its own: what is asked of a dispute that is decided is refused by the service too."""
        dispute = self._dispute(request, id, number)
        require_match(request, dispute_etag(dispute))
        self.about = dispute.candidate
        return dispute

    def handle_exception(self, exc: Exception) -> Response:
        """With an `Idempotency-Key` the refusal's record was rolled back along with the effect: it is written here."""
        if (
            isinstance(exc, AssayError)
            and self.about is not None
            and "Idempotency-Key" in self.request.headers
        ):
            disputes.record_refusal(self.about, self.request.user, exc)
        return super().handle_exception(exc)


def dispute_etag(dispute: Dispute) -> str:
    return etag_of(dispute.pk, dispute.state)


def detail(dispute: Dispute) -> Response:
    dispute.effects = _effects(dispute)
    return Response(DisputeDetail(dispute).data, headers={"ETag": dispute_etag(dispute)})


def _effects(dispute: Dispute) -> list[dispute_effects.Side]:
    newest = selectors.latest_evidence(dispute.candidate)
    document = evidence_module.document_of(newest) if newest else {"suites": []}
    counted = [part["digest"] for part in document["suites"]]
    if dispute.state != DisputeState.OPEN or dispute.case.suite.digest not in counted:
        return []
    try:
        read = dispute_effects.proposal(dispute)
    except AssayError:
        return []
    return dispute_effects.sides_of(document, dispute.case, read)
