"""Every address under /api/v1/. None of them signs."""

from __future__ import annotations

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from promotion.api import candidates, disputes, registry, resources, reviews, threads, waivers
from promotion.api.preflight import PreflightViewSet
from promotion.api.schema import SchemaView
from promotion.api.tokens import TokenViewSet
from rollouts.api import urls as rollouts_urls
from rollouts.api.views import ID, KEY

router = SimpleRouter(trailing_slash=False)
rollouts_urls.register(router)
router.register("runs", candidates.CandidateRunViewSet, "api-run")
router.register("bases", resources.BaseViewSet, "api-base")
router.register("tracks", resources.TrackViewSet, "api-track")
router.register("policies", resources.PolicyViewSet, "api-policy")
router.register("gates", resources.GateViewSet, "api-gate")
router.register("candidates", candidates.CandidateViewSet, "api-candidate")
router.register(rf"candidates/(?P<id>{ID})/disputes", disputes.DisputeViewSet, "api-dispute")
router.register(rf"candidates/(?P<id>{ID})/threads", threads.ThreadViewSet, "api-thread")
router.register("preflight", PreflightViewSet, "api-preflight")
router.register("waivers", waivers.WaiverViewSet, "api-waiver")
router.register("evidence", candidates.EvidenceViewSet, "api-evidence")
router.register("registry", registry.EntryViewSet, "api-registry")
router.register("aliases", registry.AliasViewSet, "api-alias")
router.register("alias_moves", registry.AliasMoveViewSet, "api-alias-move")
router.register("exports", registry.ExportViewSet, "api-export")

urlpatterns = [
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("auth/token", TokenViewSet.as_view({"post": "create", "delete": "destroy"}), name="api-token"),
    path("auth/tokens", TokenViewSet.as_view({"get": "list"}), name="api-token-list"),
    re_path(
        rf"^auth/tokens/(?P<key>{KEY})$", TokenViewSet.as_view({"delete": "revoke"}), name="api-token-detail"
    ),
    re_path(
        rf"^candidates/(?P<id>{ID})/checklist$",
        reviews.ChecklistViewSet.as_view({"get": "retrieve"}),
        name="api-checklist",
    ),
    re_path(
        rf"^candidates/(?P<id>{ID})/risk-summary$",
        reviews.RiskSummaryViewSet.as_view({"get": "retrieve", "post": "create"}),
        name="api-risk-summary",
    ),
    path("", include(router.urls)),
]
