"""How much a page takes, and in which charset: Django parses a form before any view can ask who sent it."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

FORM_BYTES = 1 << 20
UPLOADS = "/submit/files/"
UTF_8 = ("utf-8", "utf8")


class BodyLimitMiddleware:
    """Refuses large bodies by their announced length, before the form is read. The API has its own limits.

    Texts come as UTF-8: in the other charsets that Python knows are lone surrogates, and codecs that read no text at all.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if (request.encoding or UTF_8[0]).lower() not in UTF_8:
            return HttpResponse("Send the form as UTF-8.", status=415, content_type="text/plain")
        if not request.path.startswith("/api/"):
            uploads = request.path.endswith(UPLOADS) and request.user.is_authenticated
            limit = settings.MAX_UPLOAD_BYTES if uploads else FORM_BYTES
            length = request.META.get("CONTENT_LENGTH") or "0"
            if not length.isascii() or not length.isdigit() or len(length) > 15 or int(length) > limit:
                return HttpResponse(
                    f"The form is larger than {limit >> 20} MiB.", status=413, content_type="text/plain"
                )
        return self.get_response(request)
