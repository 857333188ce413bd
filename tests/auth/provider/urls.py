"""Its pages. At /careless/ a browser makes it one that answers prompt=login from the session it has, an hour old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import include, path
from django.utils import timezone
from oauth2_provider.oauth2_validators import OAuth2Validator
from oauth2_provider.views import AuthorizationView

FORM = """<!doctype html><html lang="en"><title>Provider</title><h1>Sign in at the provider</h1>
<form method="post">{% csrf_token %}{{ form.as_p }}<button>Sign in</button></form>"""


class Validator(OAuth2Validator):
    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        person = request.user
        return {"email": person.email, "email_verified": True, "preferred_username": person.username}


class Login(LoginView):
    def render_to_response(self, context: Any, **_: Any) -> HttpResponse:
        return HttpResponse(engines["django"].from_string(FORM).render(context, self.request))


class Authorization(AuthorizationView):
    def handle_prompt_login(self) -> HttpResponse:
        if not self.request.session.get("careless"):
            return super().handle_prompt_login()
        query = self.request.GET.copy()
        del query["prompt"]
        self.request.GET = query
        return self.get(self.request)


def careless(request: HttpRequest) -> HttpResponse:
    request.session["careless"] = True
    people = get_user_model().objects.filter(pk=request.user.pk)
    people.update(last_login=timezone.now() - timedelta(hours=1))
    return HttpResponse("careless from now on")


urlpatterns = [
    path("login/", Login.as_view()),
    path("careless/", careless),
    path("o/authorize/", Authorization.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]
