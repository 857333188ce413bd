"""Datasets: registered over REST, and what they share with suites."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from rollouts import permissions
from rollouts.api.inputs import DatasetForm, NewDatasetQuery, SuiteQuery
from rollouts.api.outputs import DatasetDetail, DatasetOutput
from rollouts.api.pagination import page_of
from rollouts.api.parsers import JSONLinesParser, UploadParser
from rollouts.api.resources import created
from rollouts.api.views import DIGEST, ApiViewSet, effect, gives, read, row_or_404
from rollouts.models import Dataset
from rollouts.selectors import datasets, overlaps_of
from rollouts.services import datasets as services


class DatasetViewSet(ApiViewSet):
    lookup_field, lookup_value_regex = "digest", DIGEST
    may = {"create": permissions.require_can_register}
    queries = {"list": SuiteQuery, "create": NewDatasetQuery}
    parsers = {"create": [JSONLinesParser, UploadParser]}

    @gives(page_of(DatasetOutput))
    def list(self, request: Request) -> Response:
        """Registered datasets, newest first."""
        rows = datasets()
        return self.paged(
            rows.filter(name=self.query["name"]) if "name" in self.query else rows, DatasetOutput
        )

    @gives(DatasetDetail)
    def retrieve(self, request: Request, digest: str) -> Response:
        """A dataset by its digest, with its sidecar and all comparisons."""
        return Response(detail(row_or_404(datasets(), digest=digest)))

    @effect(
        {"application/x-ndjson": {"type": "string"}, "multipart/form-data": DatasetForm},
        output=DatasetDetail,
        status=201,
        problems=(507,),
    )
    def create(self, request: Request, data: Any) -> Response:
        """Register the rows of a JSONL body or file as the dataset's next version; equal rows, equal dataset."""
        sidecar = None
        if not isinstance(data, bytes):
            form = read(DatasetForm, data)
            data = form["file"].read()
            sidecar = services.sidecar_of(form["sidecar"].read()) if "sidecar" in form else None
        dataset = services.register(**self.query, data=data, sidecar=sidecar, by=request.user)
        return created(detail(dataset))


def detail(dataset: Dataset) -> Any:
    dataset.overlaps_found = overlaps_of(dataset)
    return DatasetDetail(dataset).data
