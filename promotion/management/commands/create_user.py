from __future__ import annotations

import getpass
import os
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.permissions import ROLES
from promotion.services import people


class Command(BaseCommand):
    help = (
        "Create a person with a role, or give an existing person another one. The password is asked for, but with --sso: "
        "then the person signs in at the single sign-on provider only."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", choices=ROLES, action="append", required=True, dest="roles")
        parser.add_argument("--full-name", default="", help="printed on signatures")
        parser.add_argument(
            "--sso",
            default="",
            metavar="E-MAIL",
            help="the address that the provider has verified for this person; it binds the account at their first sign-in",
        )

    def handle(self, *, name: str, roles: list[str], full_name: str, sso: str, **_: Any) -> None:
        user = User.objects.filter(username=name).first()
        try:
            if user is None:
                user = _with_password(name) if not sso else User(username=name)
            if sso:
                _by_sso(user, sso)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        if full_name:
            user.first_name, _, user.last_name = full_name.partition(" ")
        people.grant(user=user, roles=roles, actor="system:create_user")
        self.stdout.write(f"{name} is {', '.join(sorted(user.groups.values_list('name', flat=True)))}.")


def _with_password(name: str) -> User:
    password = os.environ.get("ASSAY_NEW_PASSWORD") or getpass.getpass(f"Password for {name}: ")
    user = User(username=name)
    user.full_clean(exclude=["password"])
    validate_password(password, user)
    user.set_password(password)
    return user


def _by_sso(user: User, email: str) -> None:
    """A new account gets no password; one that has a password keeps it."""
    if User.objects.filter(email__iexact=email).exclude(pk=user.pk).exists():
        raise CommandError(f"--sso: another account has {email} already. One address means one person.")
    user.email = email
    if user.pk is None:
        user.set_unusable_password()
    user.full_clean(exclude=["password"])
