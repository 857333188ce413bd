"""A person's own passkeys: django-allauth's pages, each change with its event in one transaction."""

from __future__ import annotations

from typing import Any

from allauth.mfa.adapter import get_adapter
from allauth.mfa.webauthn.forms import AddWebAuthnForm
from allauth.mfa.webauthn.views import AddWebAuthnView, RemoveWebAuthnView
from django.db import transaction
from django.http import HttpResponse
from django.urls import reverse

from promotion.services.proofs import UNREADABLE

MAX_NAME = 60


class AddPasskeyForm(AddWebAuthnForm):
    """What the browser answered. A wrong answer is a wrong field, whatever somebody wrote into it."""

    def clean_name(self) -> str:
        return super().clean_name()[:MAX_NAME]

    def clean(self) -> dict[str, Any]:
        try:
            return super().clean()
        except UNREADABLE as error:
            raise get_adapter().validation_error("incorrect_code") from error


class Add(AddWebAuthnView):
    form_class = AddPasskeyForm

    def get_success_url(self) -> str:
        return reverse("mfa_list_webauthn")

    @transaction.atomic
    def form_valid(self, form: AddPasskeyForm) -> HttpResponse:
        return super().form_valid(form)


class Remove(RemoveWebAuthnView):
    @transaction.atomic
    def form_valid(self, form: Any) -> HttpResponse:
        return super().form_valid(form)


add = Add.as_view()
remove = Remove.as_view()
