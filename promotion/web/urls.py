"""The pages of the governance app."""

from django.urls import path, re_path, register_converter

from promotion.web import (
    breaking,
    candidates,
    case_page,
    disputes,
    entry_page,
    glass,
    imports,
    pages,
    passkeys,
    policies,
    preflight,
    reviewing,
    signatures,
    signing,
    sso,
    waivers,
    whatif,
)
from promotion.web.health import healthz

app_name = "promotion"


class DigestConverter:
    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


register_converter(DigestConverter, "digest")

_UNUSED = (
    "signup|email|confirm-email|password/set|password/reset|login/code|reauthenticate/code|3rdparty|social|"
    r"oidc/[^/]+/login|2fa/(?:authenticate|reauthenticate|webauthn/keys/\d+/edit)"
)
NOT_OFFERED = rf"^accounts/(?:(?:{_UNUSED})(?:/.*)?|2fa/?)$"

urlpatterns = [
    path("", pages.home, name="home"),
    path("theme/", pages.theme, name="theme"),
    path("healthz", healthz, name="healthz"),
    # before the include of django-allauth, which would answer them
    re_path(r"^accounts/oidc/(?P<provider_id>[^/]+)/login/callback/$", sso.callback),
    re_path(NOT_OFFERED, pages.not_offered),
    path("accounts/2fa/webauthn/add/", passkeys.add),
    path("accounts/2fa/webauthn/keys/<int:pk>/remove/", passkeys.remove),
    path("accounts/sso/login/", sso.login, name="sso-login"),
    path("accounts/sso/confirm/", sso.confirm, name="sso-confirm"),
    path("accounts/sso/confirm/start/", sso.confirm_start, name="sso-confirm-start"),
    path("tracks/", pages.tracks, name="tracks"),
    path("tracks/<slug:name>/", pages.track, name="track"),
    path("tracks/<slug:name>/readers/", pages.track_readers, name="track-readers"),
    path("tracks/<slug:name>/submit/", candidates.submit_page, name="submit"),
    path("tracks/<slug:name>/submit/files/", candidates.submit, name="submit-files"),
    path("tracks/<slug:name>/policies/draft/", policies.policy_edit, name="policy-edit"),
    path("tracks/<slug:name>/policies/draft/change/", policies.policy_change, name="policy-change"),
    path("tracks/<slug:name>/policies/<int:version>/", policies.policy, name="policy"),
    path("tracks/<slug:name>/policies/<int:version>/diff/", policies.policy_diff, name="policy-diff"),
    path("tracks/<slug:name>/policies/<int:version>/lock/", policies.lock, name="policy-lock"),
    path("tracks/<slug:name>/what-if/", whatif.what_if, name="what-if"),
    path("tracks/<slug:name>/what-if/try/", whatif.try_document, name="what-if-try"),
    path("candidates/", pages.candidates, name="candidates"),
    path("policies/", pages.policies, name="policies"),
    path("candidates/<int:pk>/", candidates.candidate, name="candidate"),
    path("candidates/<int:pk>/sign/", signing.sign, name="sign"),
    path("candidates/<int:pk>/sign/passkey/", signing.passkey, name="sign-passkey"),
    path("candidates/<int:pk>/sign/passkey/confirm/", signing.passkey_confirm, name="sign-passkey-confirm"),
    path("candidates/<int:pk>/cases/<int:case_pk>/", case_page.case, name="case"),
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
    path("candidates/<int:pk>/withdraw-signature/", signatures.withdraw_page, name="withdraw-signature"),
    path("candidates/<int:pk>/withdraw-signature/now/", signatures.withdraw, name="withdraw-signature-now"),
    path("candidates/<int:pk>/break-glass/", breaking.break_page, name="break-glass"),
    path("candidates/<int:pk>/break-glass/now/", breaking.break_now, name="break-glass-now"),
    path("candidates/<int:pk>/break-glass/passkey/", breaking.passkey, name="break-glass-passkey"),
    path(
        "candidates/<int:pk>/break-glass/passkey/confirm/",
        breaking.passkey_confirm,
        name="break-glass-passkey-confirm",
    ),
    path("glass/<int:pk>/", glass.broken, name="glass"),
    path("glass/<int:pk>/review/", glass.review, name="glass-review"),
    path("candidates/<int:pk>/opened/", reviewing.opened, name="opened"),
    path("candidates/<int:pk>/checklist/", reviewing.checklist, name="checklist"),
    path("candidates/<int:pk>/seen/", reviewing.seen, name="seen"),
    path("candidates/<int:pk>/risk-summary/", reviewing.risk_summary, name="risk-summary"),
    path("candidates/<int:pk>/threads/start/", reviewing.thread_start, name="thread-start"),
    path("candidates/<int:pk>/threads/<int:thread>/reply/", reviewing.thread_reply, name="thread-reply"),
    path(
        "candidates/<int:pk>/threads/<int:thread>/resolve/", reviewing.thread_resolve, name="thread-resolve"
    ),
    path("candidates/<int:pk>/threads/<int:thread>/reopen/", reviewing.thread_reopen, name="thread-reopen"),
    path("candidates/<int:pk>/disputes/new/<int:case_pk>/", disputes.new, name="dispute-new"),
    path("candidates/<int:pk>/disputes/raise/<int:case_pk>/", disputes.raise_dispute, name="dispute-raise"),
    path("candidates/<int:pk>/disputes/<int:number>/", disputes.dispute, name="dispute"),
    path("candidates/<int:pk>/disputes/<int:number>/accept/", disputes.accept, name="dispute-accept"),
    path("candidates/<int:pk>/disputes/<int:number>/decline/", disputes.decline, name="dispute-decline"),
    path("candidates/<int:pk>/disputes/<int:number>/withdraw/", disputes.withdraw, name="dispute-withdraw"),
    path("candidates/<int:pk>/datasets/", candidates.datasets_page, name="candidate-datasets"),
    path("candidates/<int:pk>/datasets/attach/", candidates.attach_datasets, name="attach-datasets"),
    path("candidates/<int:pk>/evidence/<digest:digest>.json", candidates.evidence, name="evidence"),
    path("preflight/", preflight.preflight, name="preflight"),
    path("preflight/check/", preflight.check, name="preflight-check"),
    path("registry/", pages.registry, name="registry"),
    path("registry/<slug:name>/<int:number>/", entry_page.entry, name="entry"),
    path("exports/<int:pk>/", pages.export, name="export"),
    path("audit/", pages.audit, name="audit"),
    path("imports/", imports.imports, name="imports"),
    path("imports/<digest:digest>/", imports.imported, name="import"),
]
