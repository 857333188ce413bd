"""Threads about rows of a candidate's evidence. A token acts as its person."""

from __future__ import annotations

from typing import Any

from django.db.models import Prefetch, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from promotion import anchors, permissions, selectors
from promotion import evidence as evidence_module
from promotion.models import Candidate, Comment, Thread
from promotion.services import threads
from rollouts.api.fields import FormTrueFalse, StrictSerializer, Text
from rollouts.api.outputs import Person, address
from rollouts.api.pagination import PageQuery, page, page_of
from rollouts.api.resources import created
from rollouts.api.views import ID, ApiViewSet, effect, gives, row_or_404


class ThreadInput(StrictSerializer):
    """A comment on a row of the newest evidence."""

    anchor = Text(
        help_text="page, gate:<position>, suite:<digest>, family:<digest>:<name>, case:<id> or dataset:<digest>."
    )
    text = Text(max_length=threads.MAX_TEXT)


class CommentInput(StrictSerializer):
    text = Text(max_length=threads.MAX_TEXT)


class ThreadQuery(PageQuery):
    resolved = FormTrueFalse(required=False)


class CommentOutput(serializers.ModelSerializer[Comment]):
    written_by = Person()

    class Meta:
        model = Comment
        fields = ["text", "written_by", "written_at"]


class ThreadOutput(serializers.ModelSerializer[Thread]):
    """A discussion of one row of the evidence. `outdated`: the row says something else by now, or is gone."""

    url = serializers.SerializerMethodField()
    candidate = serializers.IntegerField(source="candidate_id")
    outdated = serializers.BooleanField()
    started_by, resolved_by = Person(), Person()
    comments = CommentOutput(many=True)

    class Meta:
        model = Thread
        fields = [
            "id", "url", "candidate", "anchor", "anchor_label", "evidence_digest", "outdated", "started_by",
            "started_at", "resolved_by", "resolved_at", "comments",
        ]  # fmt: skip

    def get_url(self, thread: Thread) -> str:
        return address("api-thread-detail", id=thread.candidate_id, number=thread.pk)


class ThreadViewSet(ApiViewSet):
    lookup_url_kwarg, lookup_value_regex = "number", ID
    may = dict.fromkeys(("create", "reply", "resolve", "reopen"), permissions.require_can_comment)
    queries = {"list": ThreadQuery}

    @gives(page_of(ThreadOutput), problems=(404,))
    def list(self, request: Request, id: str) -> Response:
        """The threads of a candidate, newest first. An unresolved one blocks approval."""
        candidate = _candidate(request, id)
        rows = thread_rows(candidate)
        if "resolved" in self.query:
            rows = rows.filter(resolved_at__isnull=not self.query["resolved"])
        found, following = page(rows, self.query, request)
        return Response(
            {"next": following, "results": ThreadOutput(_marked(candidate, found), many=True).data}
        )

    @gives(ThreadOutput)
    def retrieve(self, request: Request, id: str, number: str) -> Response:
        """A thread with its comments, oldest first."""
        return self._detail(request, id, number)

    @effect(ThreadInput, output=ThreadOutput, status=201)
    def create(self, request: Request, id: str, data: dict[str, Any]) -> Response:
        """Comment on a row of the candidate's newest evidence."""
        made = threads.start(candidate_id=_candidate(request, id).pk, by=request.user, **data)
        return created(self._detail(request, id, made.pk).data)

    @action(detail=True, methods=["post"])
    @effect(CommentInput, output=ThreadOutput)
    def reply(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Answer in a thread."""
        threads.reply(
            candidate_id=_candidate(request, id).pk, thread_id=int(number), text=data["text"], by=request.user
        )
        return self._detail(request, id, number)

    @action(detail=True, methods=["post"])
    @effect(None, output=ThreadOutput)
    def resolve(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Say that it is answered: whoever started it may, or an approver who did not submit the candidate."""
        threads.resolve(candidate_id=_candidate(request, id).pk, thread_id=int(number), by=request.user)
        return self._detail(request, id, number)

    @action(detail=True, methods=["post"])
    @effect(None, output=ThreadOutput)
    def reopen(self, request: Request, id: str, number: str, data: dict[str, Any]) -> Response:
        """Open a resolved thread again."""
        threads.reopen(candidate_id=_candidate(request, id).pk, thread_id=int(number), by=request.user)
        return self._detail(request, id, number)

    @staticmethod
    def _detail(request: Request, id: str, number: str | int) -> Response:
        candidate = _candidate(request, id)
        thread = row_or_404(thread_rows(candidate), pk=number)
        return Response(ThreadOutput(_marked(candidate, [thread])[0]).data)


def _candidate(request: Request, id: str) -> Candidate:
    """Looked up before anything is written: what one may not see, one does not comment on."""
    return row_or_404(Candidate.objects.visible_to(request.user), pk=id)


def thread_rows(candidate: Candidate) -> QuerySet[Thread]:
    comments = Comment.objects.select_related("written_by").order_by("id")
    found = Thread.objects.filter(candidate=candidate).select_related("started_by", "resolved_by")
    return found.prefetch_related(Prefetch("comments", queryset=comments))


def _marked(candidate: Candidate, found: list[Any]) -> list[Any]:
    """Each with `outdated`. The number of queries does not depend on how many there are."""
    evidence = selectors.latest_evidence(candidate) if found else None
    rows: dict[str, anchors.Row] = {}
    if evidence is not None:
        document = evidence_module.document_of(evidence)
        rows = anchors.rows_of(evidence, document, [thread.anchor for thread in found])
    for thread in found:
        row = rows.get(thread.anchor)
        thread.outdated = row is None or row.digest != thread.anchor_digest
    return found
