"""Backends, suites, runs, rollouts, calls and the audit history."""

from __future__ import annotations

from typing import Any

from django.db.models import Prefetch, Q, QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from rollouts import permissions
from rollouts.api.inputs import (
    DEFAULT_SAMPLING,
    AuditQuery,
    BackendInput,
    BackendQuery,
    CallQuery,
    NewSuiteQuery,
    RolloutQuery,
    RunInput,
    RunQuery,
    SuiteForm,
    SuiteQuery,
    TranscriptForm,
    microseconds,
)
from rollouts.api.outputs import (
    AuditEventOutput,
    BackendOutput,
    CallDetail,
    CallOutput,
    CaseOutput,
    RolloutDetail,
    RolloutOutput,
    RunDetail,
    RunOutput,
    SuiteOutput,
    TranscriptOutput,
)
from rollouts.api.pagination import PageQuery, page_of
from rollouts.api.parsers import JSONLinesParser, UploadParser
from rollouts.api.views import DIGEST, ID, NAME, ApiViewSet, effect, gives, read, row_or_404
from rollouts.errors import InvalidInput
from rollouts.models import (
    AuditEvent,
    Backend,
    BaseModel,
    Case,
    EvalRun,
    Invocation,
    ModelCall,
    Rollout,
    Subject,
    Suite,
)
from rollouts.roles import Person
from rollouts.selectors import backends_in_use
from rollouts.services import backends, runs, subjects, suites, transcripts


class BackendViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "name", NAME
    may = {"create": permissions.require_can_register}
    queries = {"list": BackendQuery}

    @gives(page_of(BackendOutput))
    def list(self, request: Request) -> Response:
        """The newest revision of each backend."""
        rows = backends_in_use()
        return self.paged(
            rows.filter(kind=self.query["kind"]) if "kind" in self.query else rows, BackendOutput
        )

    @gives(BackendOutput)
    def retrieve(self, request: Request, name: str) -> Response:
        """The newest revision."""
        return Response(BackendOutput(newest_backend(name)).data)

    @effect(BackendInput, output=BackendOutput, status=201)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Save a revision. Where nothing changed, the present one is given again."""
        saved = backends.save(**data, by=request.user)
        return created(BackendOutput(saved).data)


class TranscriptViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "digest", DIGEST
    may = {"create": permissions.require_can_register}
    parsers = {"create": [JSONLinesParser, UploadParser]}

    @gives(TranscriptOutput)
    def retrieve(self, request: Request, digest: str) -> Response:
        """A stored transcript by its digest."""
        return Response(TranscriptOutput(transcripts.read(digest)).data)

    @effect(
        {"application/x-ndjson": {"type": "string"}, "multipart/form-data": TranscriptForm},
        output=TranscriptOutput,
        status=201,
    )
    def create(self, request: Request, data: Any) -> Response:
        """Store a recorded transcript, a JSONL body or file, for backends of kind `scripted`."""
        if not isinstance(data, bytes):
            data = read(TranscriptForm, data)["file"].read()
        return created(TranscriptOutput(transcripts.save(data=data, by=request.user)).data)


class SuiteViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "digest", DIGEST
    may = {"create": permissions.require_can_register}
    queries = {"list": SuiteQuery, "create": NewSuiteQuery, "cases": PageQuery}
    parsers = {"create": [JSONLinesParser, UploadParser]}

    @gives(page_of(SuiteOutput))
    def list(self, request: Request) -> Response:
        """Sealed suites, newest first."""
        rows = Suite.objects.select_related("sealed_by")
        return self.paged(rows.filter(name=self.query["name"]) if "name" in self.query else rows, SuiteOutput)

    @gives(SuiteOutput)
    def retrieve(self, request: Request, digest: str) -> Response:
        """A suite by its digest."""
        return Response(
            SuiteOutput(row_or_404(Suite.objects.select_related("sealed_by"), digest=digest)).data
        )

    @effect(
        {"application/x-ndjson": {"type": "string"}, "multipart/form-data": SuiteForm},
        output=SuiteOutput,
        status=201,
    )
    def create(self, request: Request, data: Any) -> Response:
        """Seal the cases of a JSONL body or file as the suite's next version; equal cases, equal suite."""
        wanted = dict(self.query)
        if not isinstance(data, bytes):
            form = read(SuiteForm, data)
            data = form.pop("file").read()
            if "scorer" in form and wanted.get("scorer", form["scorer"]) != form["scorer"]:
                raise InvalidInput("scorer", "is another in the form than in the query. Give it once.")
            wanted |= form
        return created(SuiteOutput(suites.seal(**wanted, data=data, by=request.user)).data)

    @gives(page_of(CaseOutput))
    @action(detail=True)
    def cases(self, request: Request, digest: str) -> Response:
        """The cases in their order."""
        suite = row_or_404(Suite.objects.all(), digest=digest)
        return self.paged(Case.objects.filter(suite=suite), CaseOutput, ascending=True)


class RunViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    may = dict.fromkeys(("create", "cancel", "run_again", "rescore"), permissions.require_can_run)
    queries = {"list": RunQuery}

    @gives(page_of(RunOutput))
    def list(self, request: Request) -> Response:
        """Eval runs, newest first."""
        names = {
            "state": "state",
            "suite": "suite__digest",
            "backend": "backend__name",
            "subject": "subject__digest",
        }
        wanted = {path: self.query[name] for name, path in names.items() if name in self.query}
        return self.paged(run_rows(request.user).filter(**wanted), RunOutput)

    @gives(RunDetail)
    def retrieve(self, request: Request, id: str) -> Response:
        """A run with its progress of this moment: the status address of a run."""
        return Response(RunDetail(row_or_404(run_rows(self.request.user), pk=id)).data)

    @effect(RunInput, output=RunDetail, status=202)
    def create(self, request: Request, data: dict[str, Any]) -> Response:
        """Plan a run and send it to the workers."""
        backend, suite = backend_and_suite(data)
        return self.planned(data, self.subject(data, backend), backend, suite)

    def subject(self, data: dict[str, Any], backend: Backend) -> Subject:
        """What the input names as the model under test."""
        sampling = data.get("sampling", DEFAULT_SAMPLING)
        if ("base" in data) == ("model" in data):
            raise InvalidInput("model", "give exactly one model under test.")
        if "model" in data:
            return subjects.remote_subject(model=data["model"], backend_name=backend.name, sampling=sampling)
        base = named("base", BaseModel.objects.all(), name=data["base"])
        return subjects.local_subject(base=base, adapter=None, adapter_source_sha256="", sampling=sampling)

    def planned(self, data: dict[str, Any], subject: Subject, backend: Backend, suite: Suite) -> Response:
        run = runs.plan(
            subject=subject,
            suite=suite,
            backend=backend,
            by=self.request.user,
            samples=data["samples"],
            label=data["label"],
            reuse=data["reuse"],
            judge=judge_of(data),
            budget=data.get("budget"),
        )
        return accepted(RunDetail(row_or_404(run_rows(self.request.user), pk=run.pk)).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=RunDetail)
    def cancel(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Cancel what is queued. What is in flight may still come in, and is kept and not scored."""
        run = row_or_404(run_rows(self.request.user), pk=id)
        runs.cancel(run_id=run.pk, by=request.user)
        return Response(RunDetail(row_or_404(run_rows(self.request.user), pk=id)).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=RunDetail, status=202)
    def run_again(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Run the masked and unscored rollouts again. Scored ones are never touched."""
        run = row_or_404(run_rows(self.request.user), pk=id)
        runs.run_again(run_id=run.pk, by=request.user)
        return accepted(RunDetail(row_or_404(run_rows(self.request.user), pk=id)).data)

    @action(detail=True, methods=["post"])
    @effect(None, output=RunDetail)
    def rescore(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Score the captured answers of a closed run again, without a call. Not for suites that a judge scores."""
        run = row_or_404(run_rows(self.request.user), pk=id)
        runs.rescore(run_id=run.pk, by=request.user)
        return Response(RunDetail(row_or_404(run_rows(self.request.user), pk=id)).data)


class RolloutViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": RolloutQuery}

    @gives(page_of(RolloutOutput), problems=(404,))
    def list(self, request: Request) -> Response:
        """The rollouts of a run, in the order of its plan."""
        query = self.query
        run = row_or_404(EvalRun.objects.visible_to(request.user), pk=query["run"])
        rows = run.rollouts.select_related("case", "answered_by")
        wanted = {
            path: query[name]
            for name, path in (("state", "state"), ("family", "case__family"))
            if name in query
        }
        if "metric" in query:
            wanted |= (
                {query["metric"]: query["value"]}
                if "value" in query
                else {f"{query['metric']}__isnull": False}
            )
        return self.paged(rows.filter(**wanted), RolloutOutput, ascending=True)

    @gives(RolloutDetail)
    def retrieve(self, request: Request, id: str) -> Response:
        """A rollout with its answer, its scores and its invocations."""
        invocations = Prefetch(
            "invocations", queryset=Invocation.objects.select_related("claim").order_by("id")
        )
        rows = (
            Rollout.objects.visible_to(request.user)
            .select_related("case", "answered_by")
            .prefetch_related(invocations)
        )
        return Response(RolloutDetail(row_or_404(rows, pk=id)).data)


class CallViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": CallQuery}

    @gives(page_of(CallOutput), problems=(404,))
    def list(self, request: Request) -> Response:
        """The model calls of a run or of a rollout, oldest first."""
        query = self.query
        if "run" in query:
            owner = Q(
                invocation__rollout__run=row_or_404(EvalRun.objects.visible_to(request.user), pk=query["run"])
            )
        else:
            owner = Q(
                invocation__rollout=row_or_404(Rollout.objects.visible_to(request.user), pk=query["rollout"])
            )
        rows = ModelCall.objects.filter(owner).select_related("invocation")
        return self.paged(
            rows.filter(state=query["state"]) if "state" in query else rows, CallOutput, ascending=True
        )

    @gives(CallDetail)
    def retrieve(self, request: Request, id: str) -> Response:
        """A model call with its request and response bodies."""
        rows = ModelCall.objects.visible_to(request.user)
        rows = rows.select_related("invocation", "request", "response")
        return Response(CallDetail(row_or_404(rows, pk=id)).data)


class AuditViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "id", ID
    queries = {"list": AuditQuery}

    @gives(page_of(AuditEventOutput))
    def list(self, request: Request) -> Response:
        """The audit history, newest first."""
        query = self.query
        exact = ("action", "actor", "subject_type", "subject_id")
        wanted: dict[str, Any] = {name: query[name] for name in exact if name in query}
        if "from" in query:
            wanted["at_us__gte"] = microseconds(query["from"])
        if "to" in query:
            wanted["at_us__lt"] = microseconds(query["to"])
        return self.paged(AuditEvent.objects.visible_to(request.user).filter(**wanted), AuditEventOutput)

    @gives(AuditEventOutput)
    def retrieve(self, request: Request, id: str) -> Response:
        """An event by its sequence number."""
        return Response(AuditEventOutput(row_or_404(AuditEvent.objects.visible_to(request.user), pk=id)).data)


def run_rows(person: Person) -> QuerySet[EvalRun]:
    rows = EvalRun.objects.visible_to(person)
    return rows.select_related("suite", "backend", "subject__base", "created_by", "judge_backend")


def newest_backend(name: str) -> Backend:
    return row_or_404(backends_in_use(), name=name)


def backend_and_suite(data: dict[str, Any]) -> tuple[Backend, Suite]:
    """What a body names. An unknown name in a body is wrong input; an unknown address is a 404."""
    backend = named("backend", backends_in_use(), name=data["backend"])
    return backend, named("suite", Suite.objects.all(), digest=data["suite"])


def judge_of(data: dict[str, Any]) -> runs.Judge | None:
    if "judge" not in data:
        return None
    backend = named("judge.backend", backends_in_use(), name=data["judge"]["backend"])
    return runs.Judge(backend, data["judge"]["model"])


def named(field: str, rows: QuerySet[Any], **lookup: Any) -> Any:
    row = rows.filter(**lookup).first()
    if row is None:
        raise InvalidInput(
            field, f"there is no {rows.model._meta.verbose_name} with this {next(iter(lookup))}."
        )
    return row


def created(data: Any) -> Response:
    return Response(data, 201, headers={"Location": data["url"]})


def accepted(data: Any) -> Response:
    """202: workers go on with it; `Location` is where to ask how far they are."""
    return Response(data, 202, headers={"Location": data["url"]})
