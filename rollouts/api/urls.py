"""The addresses of the execution app; `promotion.api.urls` adds its own to the same router."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter

from rollouts.api import resources
from rollouts.api.datasets import DatasetViewSet


def register(router: SimpleRouter) -> None:
    router.register("backends", resources.BackendViewSet, "api-backend")
    router.register("transcripts", resources.TranscriptViewSet, "api-transcript")
    router.register("datasets", DatasetViewSet, "api-dataset")
    router.register("suites", resources.SuiteViewSet, "api-suite")
    router.register("rollouts", resources.RolloutViewSet, "api-rollout")
    router.register("calls", resources.CallViewSet, "api-call")
    router.register("audit", resources.AuditViewSet, "api-audit")
