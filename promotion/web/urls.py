"""The pages of the governance app."""

from django.urls import path, re_path, register_converter

from promotion.web import candidates, imports, pages, policies, preflight, waivers, whatif
from promotion.web.health import healthz

app_name = "promotion"


class DigestConverter:
    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


register_converter(DigestConverter, "digest")

_UNUSED = "signup|email|confirm-email|password/set|password/reset|login/code|reauthenticate/code"
NOT_OFFERED = rf"^accounts/(?:{_UNUSED})(?:/.*)?$"

urlpatterns = [
    path("", pages.home, name="home"),
    path("theme/", pages.theme, name="theme"),
    path("healthz", healthz, name="healthz"),
    # before the include of django-allauth, which would answer them
    re_path(NOT_OFFERED, pages.not_offered),
    path("tracks/", pages.tracks, name="tracks"),
    path("tracks/<slug:name>/", pages.track, name="track"),
    path("tracks/<slug:name>/submit/", candidates.submit_page, name="submit"),
    path("tracks/<slug:name>/submit/files/", candidates.submit, name="submit-files"),
    path("tracks/<slug:name>/policies/draft/", policies.policy_edit, name="policy-edit"),
    path("tracks/<slug:name>/policies/draft/change/", policies.policy_change, name="policy-change"),
    path("tracks/<slug:name>/policies/<int:version>/", policies.policy, name="policy"),
    path("tracks/<slug:name>/policies/<int:version>/diff/", policies.policy_diff, name="policy-diff"),
    path("tracks/<slug:name>/policies/<int:version>/lock/", policies.lock, name="policy-lock"),
    path("tracks/<slug:name>/what-if/", whatif.what_if, name="what-if"),
    path("tracks/<slug:name>/what-if/try/", whatif.try_document, name="what-if-try"),
    path("candidates/<int:pk>/", candidates.candidate, name="candidate"),
    path("candidates/<int:pk>/sign/", candidates.sign, name="sign"),
    path("candidates/<int:pk>/judge/", candidates.judge, name="judge"),
    path("candidates/<int:pk>/evaluate/", candidates.evaluate, name="evaluate"),
    path("candidates/<int:pk>/retry-build/", candidates.retry_build, name="retry-build"),
    path("candidates/<int:pk>/retry-publish/", candidates.retry_publish, name="retry-publish"),
    path("candidates/<int:pk>/withdraw/", candidates.withdraw_page, name="withdraw"),
    path("candidates/<int:pk>/withdraw/now/", candidates.withdraw, name="withdraw-now"),
    path("candidates/<int:pk>/waivers/ask/", waivers.ask, name="waiver-ask"),
    path("candidates/<int:pk>/waivers/request/", waivers.request_waiver, name="waiver-request"),
    path("candidates/<int:pk>/waivers/<int:number>/", waivers.waiver, name="waiver"),
    path("candidates/<int:pk>/waivers/<int:number>/grant/", waivers.grant, name="waiver-grant"),
    path("candidates/<int:pk>/waivers/<int:number>/end/", waivers.end, name="waiver-end"),
    path("candidates/<int:pk>/datasets/", candidates.datasets_page, name="candidate-datasets"),
    path("candidates/<int:pk>/datasets/attach/", candidates.attach_datasets, name="attach-datasets"),
    path("candidates/<int:pk>/evidence/<digest:digest>.json", candidates.evidence, name="evidence"),
    path("preflight/", preflight.preflight, name="preflight"),
    path("preflight/check/", preflight.check, name="preflight-check"),
    path("registry/", pages.registry, name="registry"),
    path("registry/<slug:name>/<int:number>/", pages.entry, name="entry"),
    path("exports/<int:pk>/", pages.export, name="export"),
    path("audit/", pages.audit, name="audit"),
    path("imports/", imports.imports, name="imports"),
    path("imports/<digest:digest>/", imports.imported, name="import"),
]
