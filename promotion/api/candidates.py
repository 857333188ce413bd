"""Candidates, their evidence, and eval runs of them."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import permissions
from promotion.api.inputs import (
    CandidateForm,
    CandidateQuery,
    CandidateRunInput,
    DatasetsInput,
    EvaluateInput,
    EvidenceQuery,
    WithdrawInput,
)
from promotion.api.outputs import (
    CandidateDetail,
    CandidateOutput,
    EvidenceOutput,
    JudgedOutput,
    StartedOutput,
)
from promotion.evidence import current_policy, document_of
from promotion.models import Approval, Candidate, CandidateDataset, Evidence, Track
from promotion.services import candidates, gating, registry, signatures, tracks
from promotion.services.candidate_datasets import MAX_SCHEMA_BYTES, attach_datasets, one_schema_digest
from rollouts.api.files import bytes_of, path_on_disk
from rollouts.api.outputs import RunDetail
from rollouts.api.pagination import page_of
from rollouts.api.parsers import UploadParser
from rollouts.api.resources import RunViewSet, accepted, backend_and_suite, named, run_rows
from rollouts.api.views import (
    DIGEST,
    ID,
    ApiViewSet,
    effect,
    etag_of,
    gives,
    not_modified,
    require_match,
    row_or_404,
)
from rollouts.errors import Conflict, InvalidInput
from rollouts.models import Backend, BaseModel, Subject
from rollouts.roles import Person
from rollouts.selectors import backends_in_use
from rollouts.services import subjects


class CandidateViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    may = {
        "create": permissions.require_can_submit,
        "datasets": permissions.require_can_submit,
        "evaluate": permissions.require_can_evaluate,
        "judge": permissions.require_can_judge,
        "retry_build": permissions.require_can_retry,
        "retry_publish": permissions.require_can_retry,
    }
    queries = {"list": CandidateQuery}
    parsers = {"create": [UploadParser]}

    @gives(page_of(CandidateOutput))
    def list(self, request: Request) -> Response:
        """Candidates, newest first."""
        names = {"track": "track__name", "state": "state", "name": "name", "base": "base__name"}
        wanted = {path: self.query[name] for name, path in names.items() if name in self.query}
        return self.paged(candidate_rows(request.user).filter(**wanted), CandidateOutput)

    @gives(CandidateDetail)
    def retrieve(self, request: Request, id: str) -> Response:
        """A candidate, what blocks it, and its signatures: the status address of workers' work on it."""
        return detail(id, request.user)

    @effect(CandidateForm, output=CandidateDetail, status=202, problems=(507,))
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Submit an adapter. It is checked against its base now; its GGUF is built by a worker."""
        candidate = candidates.submit(
            track=named("track", Track.objects.visible_to(request.user), name=data["track"]),
            name=data["name"],
            base=named("base", BaseModel.objects.all(), name=data["base"]),
            adapter_config=path_on_disk(data["adapter_config"]),
            adapter_weights=path_on_disk(data["adapter_model"]),
            by=request.user,
            outtype=data["outtype"],
            baseline=data["baseline"],
            datasets=data.get("datasets", ()),
            tool_schema_sha256=one_schema_digest(
                data=bytes_of("tool_schema", data.get("tool_schema"), MAX_SCHEMA_BYTES),
                sha256=data.get("tool_schema_sha256", ""),
            ),
        )
        return accepted(detail(candidate.pk, request.user).data)

    @action(detail=True, methods=["post"])
    @effect(DatasetsInput, output=CandidateDetail)
    def datasets(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Say what a candidate was made from, until it is judged. Only whoever submitted it may."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        attach_datasets(
            candidate_id=candidate.pk,
            by=request.user,
            datasets=data.get("datasets", ()),
            tool_schema_sha256=one_schema_digest(
                document=data.get("tool_schema"), sha256=data.get("tool_schema_sha256", "")
            ),
        )
        return detail(id, request.user)

    @action(detail=True, methods=["post"])
    @effect(EvaluateInput, output=StartedOutput, status=202)
    def evaluate(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Plan the runs that the policy asks for and that are missing, the champion's included."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        backend = named("backend", backends_in_use(), name=data["backend"])
        started = gating.start_evaluation(candidate_id=candidate.pk, backend=backend, by=request.user)
        found = row_or_404(candidate_rows(request.user), pk=id)
        found.runs = run_rows(request.user).filter(pk__in=[run.pk for run in started]).order_by("pk")
        return accepted(StartedOutput(found).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=CandidateDetail)
    def judge(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Freeze the evidence as it stands now and let the gates judge it again."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        gating.judge_again(candidate_id=candidate.pk, by=request.user)
        return detail(id, request.user)

    @action(detail=True, methods=["post"])
    @effect(None, output=CandidateDetail, status=202)
    def retry_build(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Build again what could not be built."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        candidates.retry_build(candidate_id=candidate.pk, by=request.user)
        return accepted(detail(id, request.user).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=CandidateDetail, status=202)
    def retry_publish(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Publish again what could not be published. The signatures are checked again too."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        registry.retry_publish(candidate_id=candidate.pk, by=request.user)
        return accepted(detail(id, request.user).data)

    @action(detail=True, methods=["post"])
    @effect(WithdrawInput, output=CandidateDetail, problems=(412,))
    def withdraw(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Take an unfinished candidate back. `If-Match` withdraws it only as it was read."""
        with transaction.atomic():
            candidate = row_or_404(
                Candidate.objects.visible_to(request.user).select_for_update(no_key=True, of=("self",)), pk=id
            )
            require_match(request, candidate_etag(candidate))
            candidates.withdraw(candidate_id=candidate.pk, by=request.user, reason=data["reason"])
        return detail(id, request.user)

    @action(detail=True, methods=["post"], url_path="withdraw-signature")
    @effect(WithdrawInput, output=CandidateDetail)
    def withdraw_signature(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Take one's own signature back, before anything is published on it. Whoever gave it may, and nobody else."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        signatures.withdraw_signature(candidate_id=candidate.pk, by=request.user, reason=data["reason"])
        return detail(id, request.user)

    @gives(JudgedOutput)
    @action(detail=True)
    def gates(self, request: Request, id: str) -> Response:
        """What the gates say of the candidate's newest evidence now; of one that has ended, what they said."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=id)
        newest = newest_evidence(candidate)
        results = gating.results_of(candidate, newest) if newest else []
        return Response(
            JudgedOutput({"evidence": newest.digest if newest else None, "results": results}).data
        )


class EvidenceViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "digest", DIGEST
    queries = {"list": EvidenceQuery}

    @gives(page_of(EvidenceOutput), problems=(404,))
    def list(self, request: Request) -> Response:
        """The evidence of a candidate, newest first."""
        candidate = row_or_404(Candidate.objects.visible_to(request.user), pk=self.query["candidate"])
        rows = Evidence.objects.filter(candidate=candidate).select_related("policy").defer("document")
        return self.paged(rows, EvidenceOutput)

    @gives({"type": "object", "additionalProperties": {}}, problems=(409,), cached=True)
    def retrieve(self, request: Request, digest: str) -> HttpResponse:
        """The frozen document, byte for byte: its SHA-256 is the digest, which is the ETag too."""
        evidence = row_or_404(Evidence.objects.visible_to(request.user), digest=digest)
        if not_modified(request, etag_of(digest)):
            return HttpResponse(status=304, headers={"ETag": etag_of(digest)})
        document_of(evidence)  # raises where the stored bytes are others
        headers = {"ETag": etag_of(digest)}
        return HttpResponse(bytes(evidence.document), content_type="application/json", headers=headers)


class CandidateRunViewSet(RunViewSet):
    """Runs, of candidates too."""

    @effect(CandidateRunInput, output=RunDetail, status=202)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Plan a run and send it to the workers. `Location` is its status address."""
        backend, suite = backend_and_suite(data)
        with transaction.atomic():
            subject = self.subject(data, backend)
            answer = self.planned(data, subject, backend, suite)
            tracks.share_runs([subject.adapter_id])
        return answer

    def subject(self, data: dict[str, Any], backend: Backend) -> Subject:
        if "candidate" not in data:
            return super().subject(data, backend)
        if "base" in data or "model" in data:
            raise InvalidInput("candidate", "give exactly one model under test.")
        # who sets the track's readers meanwhile waits until the run has them
        visible = Candidate.objects.visible_to(self.request.user).select_for_update(no_key=True, of=("self",))
        candidate = named("candidate", visible.select_related("base", "gguf"), pk=data["candidate"])
        if candidate.gguf is None:
            raise Conflict(f"{candidate.name} is {candidate.state.replace('_', ' ')}; its GGUF is not built.")
        policy = current_policy(candidate.track_id)
        if "sampling" not in data and policy is None:
            raise InvalidInput(
                "sampling", "is needed: the candidate's track has no locked policy that gives it."
            )
        return subjects.local_subject(
            base=candidate.base,
            adapter=candidate.gguf,
            adapter_source_sha256=candidate.adapter_source_sha256,
            sampling=data["sampling"] if "sampling" in data else policy.document["sampling"],
        )


def candidate_rows(person: Person) -> QuerySet[Candidate]:
    return Candidate.objects.visible_to(person).select_related("track", "base", "submitted_by")


def candidate_etag(candidate: Candidate) -> str:
    return etag_of(candidate.revision, candidate.state)


def newest_evidence(candidate: Candidate) -> Evidence | None:
    rows = Evidence.objects.filter(candidate=candidate)
    return rows.prefetch_related("gate_results").order_by("-id").first()


def detail(candidate_id: int | str, person: Person) -> Response:
    signatures = Prefetch("approvals", queryset=Approval.objects.select_related("approver").order_by("id"))
    uses = Prefetch("dataset_uses", queryset=CandidateDataset.objects.select_related("dataset"))
    rows = candidate_rows(person).select_related("backend").prefetch_related(signatures, uses)
    candidate = row_or_404(rows, pk=candidate_id)
    candidate.newest_evidence = newest_evidence(candidate)
    return Response(CandidateDetail(candidate).data, headers={"ETag": candidate_etag(candidate)})
