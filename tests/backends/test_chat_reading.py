"""Reading chat completions, whole and streamed: everything is typed and bounded, and only `CallFailed` comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollouts.backends.base import Completion, RequestedCall
from rollouts.backends.chat_reading import read_chat_completion
from rollouts.failures import CallFailed
from tests.backends.asking import answer


def document(message: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **more}).encode()


def tool_call(name: Any = "read", arguments: Any = '{"path": "a"}', **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def failure(body: bytes, *, streamed: bool = False) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        read_chat_completion(body, streamed=streamed)
    return failed.value


# whole answers


def test_an_answer_is_its_text_its_end_and_its_usage() -> None:
    assert read_chat_completion(answer("Hello")) == Completion(
        text="Hello",
        finish_reason="stop",
        response_id="r1",
        prompt_tokens=11,
        completion_tokens=5,
        message={"role": "assistant", "content": "Hello"},
    )


def test_no_text_is_not_an_empty_text() -> None:
    assert read_chat_completion(answer(None)).text is None
    assert read_chat_completion(answer("")).text == ""


def test_text_parts_are_joined_and_parts_of_other_types_left_out() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "b"},
    ]

    assert read_chat_completion(document({"content": parts})).text == "ab"
    assert read_chat_completion(document({"content": parts[1:2]})).text is None


def test_a_refusal_in_words_is_what_the_model_said() -> None:
    assert read_chat_completion(document({"content": None, "refusal": "I will not."})).text == "I will not."


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thinking_is_kept_apart_from_the_text(key: str) -> None:
    done = read_chat_completion(document({"content": "4", key: "2 + 2"}))

    assert (done.text, done.reasoning) == ("4", "2 + 2")
    assert done.message == {"role": "assistant", "content": "4"}


@pytest.mark.parametrize("thinking", ["", None, {"effort": "high"}, ["x"]])
def test_thinking_that_is_no_text_is_none(thinking: Any) -> None:
    assert read_chat_completion(document({"content": "4", "reasoning": thinking})).reasoning is None


def test_tool_calls_come_without_text_and_are_repeated_as_they_came() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [tool_call()]}
    done = read_chat_completion(document(message))

    assert done.text is None
    assert done.tool_calls == (RequestedCall("c1", "read", '{"path": "a"}'),)
    assert done.message == message


def test_arguments_stay_the_text_the_model_wrote() -> None:
    done = read_chat_completion(document({"content": "", "tool_calls": [tool_call(arguments='{"path": ')]}))

    assert done.tool_calls[0].arguments == '{"path": '


def test_a_call_without_id_gets_one_that_its_result_can_name() -> None:
    calls = [tool_call(id=None), tool_call(id=""), tool_call(arguments=None)]
    done = read_chat_completion(document({"content": None, "tool_calls": calls}))

    assert [call.call_id for call in done.tool_calls] == ["call_0", "call_1", "c1"]
    assert [call["id"] for call in done.message["tool_calls"]] == ["call_0", "call_1", "c1"]
    assert done.tool_calls[2].arguments == ""


@pytest.mark.parametrize(
    "calls",
    [
        "read",
        {"name": "read"},
        [None],
        ["read"],
        [{}],
        [{"function": None}],
        [{"function": {"arguments": "{}"}}],
        [tool_call(name=None)],
        [tool_call(name="")],
        [tool_call(name=["read"])],
        [tool_call(arguments={"path": "a"})],
        [tool_call(arguments=7)],
        [tool_call(type="custom")],
        [tool_call(), 1],
    ],
)
def test_a_malformed_tool_call_is_the_provider_s_fault_and_not_asked_again(calls: Any) -> None:
    failed = failure(document({"content": None, "tool_calls": calls}))

    assert (failed.kind, failed.retryable) == ("protocol", False)
    assert "tool call" in failed.message


@pytest.mark.parametrize("number", [1.0, 2.5, -1, 2**31, 10**30, True, "7", None, [7]])
def test_a_number_of_tokens_that_cannot_be_one_is_unknown(number: Any) -> None:
    done = read_chat_completion(
        document({"content": "x"}, usage={"prompt_tokens": number, "completion_tokens": 0})
    )

    assert (done.prompt_tokens, done.completion_tokens) == (None, 0)


@pytest.mark.parametrize("usage", [None, [], "many", 7])
def test_usage_that_is_no_object_is_unknown(usage: Any) -> None:
    assert read_chat_completion(document({"content": "x"}, usage=usage)).prompt_tokens is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"<html>502 Bad Gateway</html>", "is not JSON; it begins '<html>502"),
        (b'{"choices": [', "is not JSON"),
        (b"[]", "not an object: list"),
        (b"null", "not an object"),
        (b"{}", "no choices"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": {}}', "no choices"),
        (b'{"choices": [7]}', "no choices"),
        (b'{"choices": [{}]}', "no message"),
        (b'{"choices": [{"message": "hi"}]}', "no message"),
        (document({"content": 7}), "content is int"),
        (document({"content": {"text": "x"}}), "content is dict"),
        (document({"content": ["x"]}), "has no type"),
        (document({"content": [{"type": "text", "text": 7}]}), "no text where it should"),
        (b'{"error": {"message": "overloaded"}, "choices": []}', "A 200 that holds an error: overloaded"),
        (b'{"error": "overloaded"}', "A 200 that holds an error"),
        (b"\xff\xfe{}", "is not JSON"),
        (b'{"a":' * 5000, "is not JSON"),
        (b"9" * 5000, "is not JSON"),
    ],
)
def test_what_is_no_chat_completion_is_a_protocol_failure_that_says_what_came(body: bytes, said: str) -> None:
    failed = failure(body)

    assert failed.kind == "protocol"
    assert said in failed.message
    assert len(failed.message) < 500


# streams


def chunk(delta: Any = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "r1", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def stream(*events: Any, end: str = "\n") -> bytes:
    """An event stream; texts are sent as they stand, everything else as the JSON of an event."""
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return "".join(line + end + end for line in lines).encode()


USAGE = {"id": "r1", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}
HELLO = [chunk({"role": "assistant", "content": None}), chunk({"content": "Hel"}), chunk({"content": "lo"})]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_is_put_together_whatever_its_line_ends(end: str) -> None:
    body = stream(*HELLO, chunk(finish="stop"), USAGE, "data: [DONE]", end=end)

    assert read_chat_completion(body) == read_chat_completion(answer("Hello"))


def test_comments_and_keep_alives_and_empty_events_are_passed_over() -> None:
    between = [
        ": keep-alive",
        "event: ping\ndata: {}",
        "id: 7",
        "retry: 3000",
        "",
        "data:",
        {"choices": None},
    ]

    body = stream(between[0], *HELLO[:2], *between, HELLO[2], chunk(finish="stop"), "data: [DONE]")

    assert read_chat_completion(body).text == "Hello"


def test_data_over_several_lines_is_one_event() -> None:
    pretty = json.dumps(chunk({"content": "Hello"}, finish="stop"), indent=1)

    assert read_chat_completion(stream("data: " + pretty.replace("\n", "\ndata: "))).text == "Hello"


@pytest.mark.parametrize("last", [chunk(finish="stop"), "data: [DONE]"])
def test_a_finish_reason_or_done_ends_a_stream(last: Any) -> None:
    assert read_chat_completion(stream(*HELLO, last)).text == "Hello"
    assert read_chat_completion(stream(*HELLO, last).rstrip(b"\n")).text == "Hello"


def test_every_place_at_which_a_stream_can_break_off_is_seen() -> None:
    whole = stream(*HELLO, "data: [DONE]")

    for length in range(len(whole) - len("data: [DONE]\n\n")):
        failed = failure(whole[:length], streamed=True)
        assert (failed.kind, failed.retryable) == ("truncated_stream", True), whole[:length]


def test_what_is_lost_after_the_finish_reason_is_only_the_usage() -> None:
    done = read_chat_completion(stream(*HELLO, chunk(finish="stop"), USAGE)[:-30])

    assert (done.text, done.prompt_tokens) == ("Hello", None)


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "overloaded", "code": 529}},
        {"error": "overloaded"},
        'event: error\ndata: {"message": "overloaded"}',
        "event: error\ndata: overloaded",
    ],
)
def test_an_error_in_a_stream_is_the_server_s_and_worth_another_try(event: Any) -> None:
    failed = failure(stream(*HELLO, event))

    assert (failed.kind, failed.retryable) == ("server", True)
    assert "overloaded" in failed.message


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("data: {broken", "is not JSON"),
        ("<html>", "no event: '<html>'"),
        ("datum: {}", "no event"),
        ("data: []", "not an object"),
        ({"choices": {}}, "not a list"),
        ({"choices": [7]}, "not an object"),
        ({"choices": [{"delta": "x"}]}, "delta in the stream is str"),
        (chunk({"content": 7}), "content is int"),
        (chunk({"tool_calls": "x"}), "tool_calls is str"),
        (chunk({"tool_calls": ["x"]}), "part of a tool call"),
        (chunk({"tool_calls": [{"index": "0"}]}), "index"),
        (chunk({"tool_calls": [{"index": 0, "function": "f"}]}), "function is str"),
        (chunk({"tool_calls": [{"index": 0, "function": {"name": 7}}]}), "name is int"),
    ],
)
def test_garbage_in_a_stream_is_a_protocol_failure(event: Any, said: str) -> None:
    failed = failure(stream(HELLO[0], event, chunk(finish="stop")))

    assert failed.kind == "protocol"
    assert said in failed.message


def test_a_stream_without_choices_is_a_protocol_failure() -> None:
    assert failure(stream(USAGE, "data: [DONE]")).kind == "protocol"


def test_tool_calls_are_put_together_from_their_pieces() -> None:
    pieces = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"path": '}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
        {"index": 0, "function": {"name": "read", "arguments": '"a"}'}},
    ]
    body = stream(*(chunk({"tool_calls": [piece]}) for piece in pieces), chunk(finish="tool_calls"))
    done = read_chat_completion(body)

    assert done.tool_calls == (
        RequestedCall("c1", "read", '{"path": "a"}'),
        RequestedCall("c2", "stop", "{}"),
    )
    assert (done.text, done.finish_reason) == (None, "tool_calls")
    assert done.message["tool_calls"][0] == tool_call()


def test_tool_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    pieces = [
        {"id": "c1", "function": {"name": "read", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "c2", "function": {"name": "stop", "arguments": "{}"}},
    ]
    done = read_chat_completion(stream(chunk({"tool_calls": pieces}, finish="tool_calls")))

    assert [(call.call_id, call.arguments) for call in done.tool_calls] == [("c1", "{}"), ("c2", "{}")]


def test_a_call_that_never_got_its_name_is_malformed() -> None:
    body = stream(
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"arguments": "{}"}}]}, finish="stop")
    )

    assert "names no function" in failure(body).message


def test_thinking_is_streamed_apart_and_repeated_with_tool_calls() -> None:
    body = stream(
        chunk({"reasoning": "2 "}),
        chunk({"reasoning": "+ 2"}),
        chunk({"content": "", "tool_calls": [tool_call(index=0)]}, finish="tool_calls"),
    )
    done = read_chat_completion(body)

    assert (done.text, done.reasoning) == ("", "2 + 2")
    assert done.message["reasoning"] == "2 + 2"


def test_only_the_first_of_several_choices_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}

    assert read_chat_completion(stream(*HELLO, other, chunk(finish="stop"))).text == "Hello"


def test_a_whole_answer_to_a_wish_for_a_stream_is_read_and_the_other_way_round() -> None:
    assert read_chat_completion(answer("Hello"), streamed=True).text == "Hello"
    assert read_chat_completion(stream(*HELLO, "data: [DONE]"), streamed=False).text == "Hello"
    assert failure(b"<html>no</html>", streamed=True).kind == "protocol"
    assert failure(b"{}", streamed=True).kind == "protocol"


# whatever bytes come

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id",
         "type", "text", "usage", "prompt_tokens", "error", "finish_reason", "reasoning", "refusal"]
    ), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip
calls = st.lists(st.fixed_dictionaries({"index": json_values, "function": json_values}), max_size=2)
deltas = st.fixed_dictionaries({}, optional={"content": json_values, "tool_calls": calls | json_values})
choices = st.fixed_dictionaries(
    {"index": st.sampled_from([0, None, 1]) | json_values},
    optional={"message": deltas | json_values, "delta": deltas | json_values, "finish_reason": json_values},
)
documents = st.fixed_dictionaries({"choices": st.lists(choices, max_size=2) | json_values}) | json_values
bodies = documents.map(lambda value: json.dumps(value).encode())
events = st.one_of(
    bodies.map(lambda body: b"data: " + body),
    st.sampled_from(
        [b"data: [DONE]", b": ping", b"event: error", b"event: x", b"data:", b"da", b"", b"\xff"]
    ),
    st.binary(max_size=20),
)
streams = st.builds(
    lambda parts, end: end.join(parts), st.lists(events), st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n"])
)


@settings(max_examples=400, deadline=None)
@given(body=st.binary() | bodies | streams, streamed=st.booleans(), cut=st.integers(0, 40))
@example(body=b'{"error": ' + b"[" * 990 + b"]" * 990 + b"}", streamed=False, cut=0)
@example(body=b'{"choices":[{"message":{"content":"\\ud800"}}]}', streamed=False, cut=0)
@example(body=b"data: " + b"[" * 100_000, streamed=True, cut=0)
@example(body=b"\n" * 100_000, streamed=True, cut=0)
def test_no_bytes_raise_anything_but_a_typed_failure(body: bytes, streamed: bool, cut: int) -> None:
    try:
        done = read_chat_completion(body[: len(body) - cut], streamed=streamed)
    except CallFailed as failed:
        assert failed.kind in {"protocol", "server", "truncated_stream"}
        assert len(failed.message) < 1000
    else:
        assert isinstance(done.text, str | None)
        assert all(isinstance(call.arguments, str) and call.name for call in done.tool_calls)
        json.dumps(done.message)
