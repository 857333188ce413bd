"""Runs in Inspect's virtualenv, not in Assay's: evaluates a data set on a provider and prints what it took as JSON.

    python inspect_script.py URL DATASET CONCURRENCY SETTINGS

DATASET has a JSON list of messages a line; SETTINGS is JSON, further arguments of `inspect_ai.eval`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import match
from inspect_ai.solver import generate

KINDS = {"system": ChatMessageSystem, "user": ChatMessageUser}
WARM_UP = 128


def task(rows: list[list[dict[str, str]]]) -> Task:
    samples = [
        Sample(id=number, input=chat(messages), target='{"decision":"no_tool"}')
        for number, messages in enumerate(rows, 1)
    ]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match())


def chat(messages: list[dict[str, str]]) -> list[ChatMessage]:
    return [KINDS[message["role"]](content=message["content"]) for message in messages]


def evaluate(
    url: str, rows: list[list[dict[str, str]]], concurrency: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """The log goes to a folder of its own. Raises `SystemExit` where not every sample was scored as right."""
    tasks = task(rows)
    with tempfile.TemporaryDirectory(prefix="inspect-log-") as folder:
        start = time.perf_counter()
        [log] = eval(
            tasks,
            model="openai-api/scripted/scripted",
            model_base_url=url,
            max_connections=concurrency,
            temperature=0,
            max_tokens=80,
            fail_on_error=False,
            display="none",
            log_dir=folder,
            **settings,
        )
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    right = log.results.scores[0].metrics["accuracy"].value if log.results else None
    if log.status != "success" or log.results.completed_samples != len(rows) or right != 1.0:
        raise SystemExit(f"Inspect's evaluation is not whole: {log.status}, accuracy {right}.")
    return {"rate": len(rows) / seconds, "log_bytes": size / len(rows), "version": version("inspect-ai")}


def main(url: str, dataset: str, concurrency: str, settings: str) -> None:
    os.environ["SCRIPTED_API_KEY"] = "none"
    with open(dataset) as file:
        rows = [json.loads(line) for line in file]
    # what is imported or built at the first evaluation only is not counted against it
    evaluate(url, rows[:WARM_UP], int(concurrency), json.loads(settings))
    print(json.dumps(evaluate(url, rows, int(concurrency), json.loads(settings))))


if __name__ == "__main__":
    main(*sys.argv[1:])
