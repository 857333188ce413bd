"""Datasets: registered once, by digest, and compared with the suites that judge what was trained on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from rollouts import audit, permissions, store
from rollouts.dataset_format import DatasetRow, Digest, read_rows
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.hashing import CHUNK_BYTES, canonical_bytes, sha256_bytes
from rollouts.leakage import Asked, asked, normalised, overlap_report, plain_tool, schema_sha256, user_text
from rollouts.models import Case, Dataset, Overlap, Suite
from rollouts.races import settled
from rollouts.scoring.decision import NotStrictJson, parse_strict_json
from rollouts.services.names import require_slug
from rollouts.suite_format.lines import Line, check_storable

MAX_SIDECAR_BYTES = 4 << 20
HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
# what a sidecar may say of the bytes it describes; the first that is given counts where none is the file's
DECLARED_KEYS = ("sha256", "train_sha256", "eval_sha256", "holdout_sha256")


@dataclass(slots=True)
class _Counted:
    """What is kept of the rows of a file."""

    digest: Digest = field(default_factory=Digest)
    rows: int = 0
    texts: set[bytes] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    without_id: int = 0
    repeated_ids: int = 0
    tools: dict[bytes, Any] = field(default_factory=dict)

    def add(self, row: DatasetRow, canonical: bytes) -> None:
        self.digest.add(canonical)
        self.rows += 1
        self.texts.add(bytes.fromhex(sha256_bytes(normalised(row.text).encode())))
        self.without_id += row.id is None
        if row.id is not None:
            self.repeated_ids += row.id in self.ids
            self.ids.add(row.id)
        for tool in row.tools:
            self.tools.setdefault(canonical_bytes(plain_tool(tool)), tool)


def register(
    *, name: str, data: bytes, by: User, sidecar: Mapping[str, Any] | None = None, source: str = ""
) -> Dataset:
    """Register a JSONL file as the next version of a dataset; the same rows again give the dataset there is.

    `sidecar` is what came with the file; what it declares is kept beside what the file is. A file without rows is
    taken, so that whoever trained on nothing has to say so. Raises `InvalidInput` with line and field.
    """
    permissions.require_can_register(by)
    require_slug("name", name)
    declared = _declared(sidecar, sha256_bytes(data))
    counted = _Counted()
    for row, canonical in read_rows(data, source or name):
        counted.add(row, canonical)
    artifact = store.put(data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    new = Dataset(
        name=name,
        artifact=artifact,
        digest=counted.digest.hexdigest(),
        declared_sha256=declared,
        sidecar=sidecar,
        row_count=counted.rows,
        text_count=len(counted.texts),
        without_id=counted.without_id,
        repeated_ids=counted.repeated_ids,
        schema_sha256=schema_sha256(counted.tools.values()),
        source=source[:200],
        registered_by=by,
    )
    return settled(lambda: _keep(new, by))


def sidecar_of(data: bytes) -> Any:
    """The JSON of a sidecar's file. Raises `InvalidInput`."""
    try:
        return parse_strict_json(data.decode().strip())
    except UnicodeDecodeError as error:
        raise InvalidInput("sidecar", f"is not UTF-8 at byte {error.start}.") from error
    except NotStrictJson as error:
        raise InvalidInput("sidecar", f"is not strict JSON ({error}).") from error


def _declared(sidecar: Any, actual: str) -> str:
    """The digest that a sidecar gives for a file's bytes, "" where it gives none. Raises `InvalidInput`."""
    if sidecar is None:
        return ""
    if not isinstance(sidecar, Mapping):
        raise InvalidInput("sidecar", "must be a JSON object.")
    try:
        check_storable(Line("sidecar", 1), dict(sidecar))
    except InvalidInput as error:
        raise InvalidInput("sidecar", error.message.removeprefix("line 1: ")) from error
    if len(canonical_bytes(sidecar)) > MAX_SIDECAR_BYTES:
        raise InvalidInput("sidecar", f"is larger than {MAX_SIDECAR_BYTES} bytes; leave out lists of rows.")
    given = {key: sidecar[key] for key in DECLARED_KEYS if sidecar.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, str) or not HEX_DIGEST.fullmatch(value):
            raise InvalidInput(
                f"sidecar.{key}", "must be a SHA-256 in 64 hexadecimal digits, lower case, or null."
            )
    return actual if actual in given.values() else next(iter(given.values()), "")


def _keep(new: Dataset, by: User) -> Dataset:
    same = Dataset.objects.select_related("registered_by").filter(digest=new.digest).first()
    if same is not None:
        return _completed(same, new, by)
    last = Dataset.objects.filter(name=new.name).aggregate(Max("version"))["version__max"]
    # a further try must not write the row of the first
    new.pk, new.version, new.registered_at = None, (last or 0) + 1, timezone.now()
    new._state.adding = True
    new.save(force_insert=True)
    audit.record(
        "dataset.registered",
        subject=new,
        actor=by,
        digest=new.digest,
        file=new.artifact_id,
        rows=new.row_count,
    )
    return new


def _completed(same: Dataset, new: Dataset, by: User) -> Dataset:
    """The dataset that has these rows. Whoever registered it may still add the sidecar, or the bytes it declares."""
    if same.name != new.name:
        raise Conflict(f"These rows are registered already as {same}. Use that dataset.", dataset=str(same))
    if new.sidecar is None or (new.sidecar == same.sidecar and new.artifact_id == same.artifact_id):
        return same
    better = new.declared_sha256 == new.artifact_id and same.declared_sha256 != same.artifact_id
    if same.sidecar is not None and not better:
        raise Conflict(
            f"{same} was registered with another sidecar or other bytes. What describes a dataset stays; "
            "register changed rows as a new version.",
            dataset=str(same),
        )
    if same.registered_by_id != by.pk:
        who = same.registered_by.get_username() if same.registered_by else "nobody who is known"
        raise Conflict(f"{same} was registered by {who}, who alone may add its sidecar.", dataset=str(same))
    same.sidecar, same.declared_sha256, same.artifact = new.sidecar, new.declared_sha256, new.artifact
    same.save(update_fields=["sidecar", "declared_sha256", "artifact"])
    audit.record(
        "dataset.described", subject=same, actor=by, file=same.artifact_id, declared=same.declared_sha256
    )
    return same


def named(reference: str) -> Dataset:
    """A dataset by its digest, by `name` (its newest version) or by `name:version`. Raises `NotFound`."""
    rows = Dataset.objects.select_related("artifact", "registered_by")
    name, _, version = reference.partition(":")
    if HEX_DIGEST.fullmatch(reference):
        found = rows.filter(digest=reference).first()
    elif version:
        found = rows.filter(name=name, version=int(version)).first() if version.isdecimal() else None
    else:
        found = rows.filter(name=name).order_by("-version").first()
    if found is None:
        raise NotFound(
            f"No dataset is registered as {reference[:100]}. Give its digest, name or name:version."
        )
    return found


def data_of(dataset: Dataset) -> bytes:
    """The registered bytes. Raises where the stored file is gone or holds others."""
    data = store.path_of(dataset.artifact_id).read_bytes()
    if sha256_bytes(data) != dataset.artifact_id:
        raise Conflict(f"The stored file of {dataset} holds other bytes than its digest says.")
    return data


# comparing


def rows_of(dataset: Dataset) -> list[Asked]:
    """What each row asks, in the file's order."""
    return asked_rows(row for row, _ in read_rows(data_of(dataset), str(dataset)))


def asked_rows(rows: Iterable[DatasetRow]) -> list[Asked]:
    return [asked(name=row.name, id=row.id, group=row.group, text=row.text) for row in rows]


def cases_of(suite: Suite) -> list[Asked]:
    """What each case asks, in the suite's order."""
    return list(_asked_cases(suite))


def _asked_cases(suite: Suite) -> Iterator[Asked]:
    rows = Case.objects.filter(suite=suite).order_by("position").values_list("key", "group", "content")
    for key, group, content in rows.iterator(chunk_size=2000):
        yield asked(name=key, id=key, group=group or None, text=user_text(content["messages"]))


def compare(dataset: Dataset, *, suite: Suite | None = None, other: Dataset | None = None) -> Overlap:
    """What the dataset shares with a suite or another dataset. Found once: a second call gives what there is."""
    assert (suite is None) is not (other is None), "compare with exactly one thing"
    return compare_with(dataset, suites=[suite] if suite else [], others=[other] if other else [])[0]


def compare_with(
    dataset: Dataset, *, suites: Iterable[Suite] = (), others: Iterable[Dataset] = ()
) -> list[Overlap]:
    """`compare` with several things, reading the dataset's file once at most. Suites come first, in order."""
    present = list(Overlap.objects.filter(dataset=dataset))
    of_suite = {overlap.suite_id: overlap for overlap in present if overlap.suite_id is not None}
    of_other = {overlap.other_id: overlap for overlap in present if overlap.other_id is not None}
    mine: list[Asked] = []
    found = []
    for thing in (*suites, *others):
        is_suite = isinstance(thing, Suite)
        overlap = (of_suite if is_suite else of_other).get(thing.pk)
        if overlap is None:
            mine = mine or rows_of(dataset)
            theirs = cases_of(thing) if isinstance(thing, Suite) else rows_of(thing)
            overlap = _kept(dataset, "suite" if is_suite else "other", thing, overlap_report(mine, theirs))
        found.append(overlap)
    return found


def _kept(dataset: Dataset, kind: str, thing: Suite | Dataset, report: dict[str, Any]) -> Overlap:
    """Stored once. Two workers find the same, so the slower one takes what the faster one wrote."""

    def keep() -> Overlap:
        overlap, _ = Overlap.objects.get_or_create(
            dataset=dataset, **{kind: thing}, defaults={"report": report, "created_at": timezone.now()}
        )
        return overlap

    return settled(keep)
