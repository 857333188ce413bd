"""The pages of the governance app."""

from django.urls import path, re_path, register_converter

from promotion.web import candidates, pages
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
    path("tracks/<slug:name>/policies/<int:version>/", pages.policy, name="policy"),
    path("candidates/<int:pk>/", candidates.candidate, name="candidate"),
    path("candidates/<int:pk>/sign/", candidates.sign, name="sign"),
    path("candidates/<int:pk>/judge/", candidates.judge, name="judge"),
    path("candidates/<int:pk>/evaluate/", candidates.evaluate, name="evaluate"),
    path("candidates/<int:pk>/retry-build/", candidates.retry_build, name="retry-build"),
    path("candidates/<int:pk>/retry-publish/", candidates.retry_publish, name="retry-publish"),
    path("candidates/<int:pk>/withdraw/", candidates.withdraw_page, name="withdraw"),
    path("candidates/<int:pk>/withdraw/now/", candidates.withdraw, name="withdraw-now"),
    path("candidates/<int:pk>/evidence/<digest:digest>.json", candidates.evidence, name="evidence"),
    path("registry/", pages.registry, name="registry"),
    path("registry/<slug:name>/<int:number>/", pages.entry, name="entry"),
    path("exports/<int:pk>/", pages.export, name="export"),
    path("audit/", pages.audit, name="audit"),
]
