"""What a request body may be: strict JSON, JSON lines, or a form with files that are streamed to disk."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from rest_framework.parsers import BaseParser, DataAndFiles, MultiPartParser

from rollouts.api.errors import TooLarge
from rollouts.api.strict_json import parse_json
from rollouts.suite_format import MAX_SUITE_BYTES

MAX_JSON_BYTES = 4 << 20
# a form's boundaries, headers and text fields, beside its files
FORM_OVERHEAD_BYTES = 1 << 20


def _require_size(parser_context: Any, most: int) -> None:
    declared = int(parser_context["request"].META.get("CONTENT_LENGTH") or 0)
    if declared > most:
        raise TooLarge(f"The body is {declared} bytes; at most {most} are taken.", limit_bytes=most)


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        _require_size(parser_context, MAX_JSON_BYTES)
        return parse_json(stream.read())


class JSONLinesParser(BaseParser):
    """The raw bytes; `rollouts.suite_format` reads them and names line and field of what is wrong."""

    media_type = "application/x-ndjson"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> bytes:
        _require_size(parser_context, min(MAX_SUITE_BYTES, settings.MAX_UPLOAD_BYTES))
        data: bytes = stream.read()
        return data


class UploadParser(MultiPartParser):
    """Files go to disk as they come in, so a large upload costs no memory."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> DataAndFiles:
        _require_size(parser_context, settings.MAX_UPLOAD_BYTES + FORM_OVERHEAD_BYTES)
        request = parser_context["request"]._request
        request.upload_handlers = [TemporaryFileUploadHandler(request)]
        parsed: DataAndFiles = super().parse(stream, media_type, parser_context)
        return parsed
