"""The e-mail about a broken glass: each is told, whatever another's address is, and nothing in it passes for our words."""

from __future__ import annotations

import logging
import smtplib
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.core.mail.backends.smtp import EmailBackend
from django.utils import timezone

from promotion.models import BrokenGlass, Evidence
from promotion.services import glass
from rollouts.text import plain
from tests import factories

pytestmark = pytest.mark.django_db
FORGED = "Badly broken.\r\n\r\nEvidence: deadbeef\nAn approver has looked at this already.\x1b[2K\u202e done"


@pytest.fixture
def broken(sent: list[Any]) -> BrokenGlass:
    house, now = factories.house(champion=True), timezone.now()
    for person in User.objects.all():
        User.objects.filter(pk=person.pk).update(email=f"{person.username}@example.org")
    candidate = house.evaluated()
    evidence = Evidence.objects.get(digest=factories.digest_of(candidate))
    return BrokenGlass.objects.create(
        candidate=candidate,
        evidence=evidence,
        evidence_digest=evidence.digest,
        broken_by=house.administrator,
        printed_name="Ann\nEvidence: forged\u202e",
        reason=FORGED,
        method="password",
        authenticated_at=now,
        broken_at=now,
        review_due_at=now,
    )


TOLD = {f"{name}@example.org" for name in ("approver", "approver-2", "administrator", "auditor")}


def told() -> set[str]:
    return {address for letter in mail.outbox for address in letter.to}


def test_what_was_written_cannot_pass_for_a_line_of_ours(broken: BrokenGlass) -> None:
    glass._alarm(broken)

    lines = mail.outbox[0].body.splitlines()
    assert [line for line in lines if line.startswith("Evidence:")] == [f"Evidence: {broken.evidence_digest}"]
    assert lines[0].startswith("Ann Evidence: forged⟦U+202E⟧ (administrator) promoted ")
    assert "  > Evidence: deadbeef" in lines
    assert "  > An approver has looked at this already.⟦ESC⟧[2K⟦U+202E⟧ done" in lines
    assert plain(mail.outbox[0].body) == mail.outbox[0].body, "nothing unseen is left"


@pytest.mark.parametrize("address", ["x@example.org\nBcc: all@example.org", "x\r@example.org"])
def test_an_address_that_is_none_keeps_the_letter_from_nobody_else(
    broken: BrokenGlass, address: str, caplog: Any
) -> None:
    User.objects.filter(username="approver").update(email=address)

    with caplog.at_level(logging.ERROR):
        glass._alarm(broken)

    assert told() == TOLD - {"approver@example.org"}
    assert [record.getMessage() for record in caplog.records if "'approver'" in record.getMessage()]


class Server:
    """An SMTP server that refuses one recipient and hangs up on another."""

    told: ClassVar[list[str]] = []
    opened = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Server.opened += 1
        self.gone = False

    def sendmail(self, sender: str, to: list[str], message: bytes) -> None:
        if self.gone or to == ["approver-2@example.org"]:
            self.gone = True
            raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")
        if to == ["approver@example.org"]:
            raise smtplib.SMTPRecipientsRefused({to[0]: (550, b"no such mailbox")})
        Server.told += to

    def quit(self) -> None:
        if self.gone:
            raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")

    def close(self) -> None:
        pass


@pytest.fixture
def server(settings: Any, monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    settings.EMAIL_BACKEND, settings.EMAIL_HOST = "django.core.mail.backends.smtp.EmailBackend", "127.0.0.1"
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    monkeypatch.setattr(EmailBackend, "connection_class", Server)
    Server.told, Server.opened = [], 0
    return Server


def test_a_server_that_refuses_one_and_hangs_up_on_another_is_given_the_others(
    broken: BrokenGlass, server: type[Server], caplog: Any
) -> None:
    with caplog.at_level(logging.ERROR):
        glass._alarm(broken)

    assert set(server.told) == {"administrator@example.org", "auditor@example.org"}
    said = [record.getMessage() for record in caplog.records]
    assert any("'approver'" in line and "no such mailbox" in line for line in said)
    assert any("'approver-2'" in line and "unexpectedly closed" in line for line in said)


@pytest.mark.parametrize("address", ["ü@", "a@b@c"])
def test_a_malformed_address_on_a_real_server_is_the_others_not_to_pay(
    broken: BrokenGlass, server: type[Server], address: str
) -> None:
    User.objects.filter(username="administrator").update(email=address)

    glass._alarm(broken)

    assert "auditor@example.org" in server.told


def test_a_server_that_is_gone_is_asked_once_and_all_who_were_not_told_are_named(
    broken: BrokenGlass, server: type[Server], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked = []

    def away(*_: Any, **__: Any) -> Server:
        asked.append(1)
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr(EmailBackend, "connection_class", staticmethod(away))
    with caplog.at_level(logging.ERROR):
        glass._alarm(broken)

    lines = [record.getMessage() for record in caplog.records if "was not sent" in record.getMessage()]
    assert len(asked) == 1 and len(lines) == len(TOLD)
