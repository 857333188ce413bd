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
    help = "Create a person with a role, or give an existing person another one. The password is asked for."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", choices=ROLES, action="append", required=True, dest="roles")
        parser.add_argument("--full-name", default="", help="printed on signatures")

    def handle(self, *, name: str, roles: list[str], full_name: str, **_: Any) -> None:
        user = User.objects.filter(username=name).first()
        if user is None:
            password = os.environ.get("ASSAY_NEW_PASSWORD") or getpass.getpass(f"Password for {name}: ")
            user = User(username=name)
            try:
                user.full_clean(exclude=["password"])
                validate_password(password, user)
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error
            user.set_password(password)
        if full_name:
            user.first_name, _, user.last_name = full_name.partition(" ")
        people.grant(user=user, roles=roles, actor="system:create_user")
        self.stdout.write(f"{name} is {', '.join(sorted(user.groups.values_list('name', flat=True)))}.")
