"""PROVIDER_FOLDER=… python -m tests.auth.provider.run PORT CALLBACK. It prints "ready" once it answers."""

from __future__ import annotations

import os
import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from tests.auth.provider import CLIENT_ID, PASSWORD, SECRET


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def fill(callback: str) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from oauth2_provider.models import Application

    call_command("migrate", verbosity=0)
    for name in ("ada", "eve"):
        User.objects.create_user(name, f"{name}@example.com", PASSWORD)
    Application.objects.create(
        name="Assay",
        client_id=CLIENT_ID,
        client_secret=SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=callback,
        algorithm=Application.RS256_ALGORITHM,
        skip_authorization=True,
    )


def main(port: int, callback: str) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.auth.provider.settings"
    from django.core.wsgi import get_wsgi_application

    application = get_wsgi_application()
    fill(callback)
    server = make_server("127.0.0.1", port, application, handler_class=Quiet)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
