"""Tools of a case: their names on the wire, and what a simulated one answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollouts.scoring.decision import json_equal


class Simulated(NamedTuple):
    """What the model is sent for a call. `failed`: the text tells of an error."""

    text: str
    failed: bool


def wire_name(name: str) -> str:
    """A tool's name as providers take it: they refuse the dots of `math.factorial`."""
    return name.replace(".", "_")


def simulated_result(
    content: Mapping[str, Any], name: str, arguments: Mapping[str, Any] | None, nth: int
) -> Simulated:
    """What the case's script has the tool answer. `arguments` is None where the model's were no JSON object.

    An entry of the script fits when its `when` is among the arguments; one without `when` always fits. Of several
    that fit, call 0 of the tool (`nth`) takes the first, call 1 the second, and the last one repeats. A tool without
    script answers {"status": "ok"}. A result that is a text is sent as it is, any other as JSON.
    """
    wire = wire_name(name)
    if wire not in {wire_name(tool["name"]) for tool in content.get("tools") or ()}:
        return _error(f"There is no tool named {name}.")
    if arguments is None:
        return _error("The arguments are not one JSON object.")
    scripts: dict[str, Sequence[Mapping[str, Any]]] = {
        wire_name(tool): script for tool, script in (content.get("tool_results") or {}).items()
    }
    script = scripts.get(wire)
    if script is None:
        return Simulated('{"status": "ok"}', False)
    fitting = [entry for entry in script if _holds(entry.get("when", {}), arguments)]
    if not fitting:
        return _error("There is no result for these arguments.")
    entry = fitting[min(nth, len(fitting) - 1)]
    if "error" in entry:
        return _error(entry["error"])
    result = entry["result"]
    return Simulated(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False), False)


def _holds(when: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return all(key in arguments and json_equal(value, arguments[key]) for key, value in when.items())


def _error(text: str) -> Simulated:
    return Simulated(json.dumps({"error": text}, ensure_ascii=False), True)
