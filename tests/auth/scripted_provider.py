"""A sign-in provider that says what a test tells it to: the wrong answers that a real one should not give."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import jwt

CLIENT_ID, SECRET = "assay", "a secret between the two of them, long enough"


class ScriptedProvider:
    """`claims` go into each id_token on top of the usual; None takes one out. `asked` are the token requests."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.asked: list[dict[str, str]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.startswith("/.well-known/")
                self._say(
                    provider.discovery if known else {"sub": provider.claims["sub"], **provider.userinfo}
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.asked.append({key: values[0] for key, values in parse_qs(body).items()})
                self._say({"access_token": "t", "token_type": "Bearer", "id_token": provider.id_token})

            def _say(self, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    @property
    def id_token(self) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 60, "auth_time": now}
        claims = {key: value for key, value in (usual | self.claims).items() if value is not None}
        return jwt.encode(claims, SECRET, algorithm="HS256")


def app(url: str, name: str = "Acme") -> dict[str, Any]:
    """The setting that names this provider."""
    configured = {
        "provider_id": "sso",
        "name": name,
        "client_id": CLIENT_ID,
        "secret": SECRET,
        "settings": {"server_url": url},
    }
    return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [configured]}}
