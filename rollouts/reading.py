"""What a run's numbers say to a reader: flags, how far repeats agree, amounts in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from rollouts.statistics import pass_at_k

# more rollouts without a score than this share of the plan, in percent, are said before any score
MANY_MASKED_PERCENT = 5


# what a case may want, by the scorer that reads it
WANTED = {
    "expected": "Expected",
    "expected_calls": "Expected calls",
    "checks": "Checks",
    "rubric": "Rubric",
    "reference": "An answer known to be right",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that must be known before the scores are read. `code` is stable, `n` is what the text counts."""

    code: str
    text: str
    n: int


def run_flags(
    *,
    planned: int,
    masked: int,
    unscored: int,
    samples: int,
    independence: str,
    reused: int = 0,
    avoided_microusd: int | None = None,
    poisoned: int = 0,
    skipped: int = 0,
) -> list[Flag]:
    """The flags of a run, in the order they are read in.

    `reused` answers were taken from other rollouts, `poisoned` rollouts were given up after lost workers, `skipped`
    ones found the budget spent.
    """
    flags: list[Flag] = []
    without = masked + unscored
    if 100 * without > MANY_MASKED_PERCENT * planned:
        share = Decimal(100 * without) / planned
        flags.append(
            Flag(
                "many_masked",
                f"{without:,} of {planned:,} rollouts have no score ({share:.1f} %). Run again what failed; gates "
                "bracket them.",
                without,
            )
        )
    if samples > 1 and independence != "independent":
        flags.append(
            Flag(
                f"independence_{independence}",
                "Repeats are not proven to be draws of their own: no spread is shown, n stays cases.",
                samples,
            )
        )
    if reused:
        saved = (
            "What that saved is not known: their backend has no prices."
            if avoided_microusd is None
            else f"That avoided {usd(avoided_microusd)}."
        )
        was = "answer was" if reused == 1 else "answers were"
        flags.append(
            Flag("reused", f"{reused:,} {was} taken from earlier attempts, without a call. {saved}", reused)
        )
    if poisoned:
        was = "rollout was" if poisoned == 1 else "rollouts were"
        text = f"{poisoned:,} {was} given up: three workers were lost on each."
        flags.append(Flag("poisoned", text, poisoned))
    if skipped:
        was = "rollout was" if skipped == 1 else "rollouts were"
        flags.append(
            Flag(
                "budget",
                f"{skipped:,} {was} skipped: the run's budget was spent. Running again allows it once more.",
                skipped,
            )
        )
    return flags


# repeats


@dataclass(frozen=True, slots=True)
class PassAt:
    """Mean pass@k over `n` cases, None where no case has `k` scored samples; `skipped` cases have fewer."""

    k: int
    value: float | None
    n: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """How far samples of one case agree, on `exact`. Samples without a score are left out, never counted wrong.

    Cases agree or disagree where two or more of their samples have a score; with fewer they are `undecided`.
    `mean_rate` is the mean of each case's share of right samples, None where no sample has a score.
    """

    agree: int
    disagree: int
    undecided: int
    mean_rate: float | None
    answers: int
    distinct_answers: int
    pass_at: list[PassAt]


def repeats_of(
    cases: Mapping[tuple[int, int], int], *, samples: int, answers: int, distinct_answers: int
) -> Repeats:
    """`cases` maps (samples right, samples scored) to the number of cases with them.

    pass@k is given for the powers of two up to `samples`, and for all `samples`.
    """
    scored = {counts: n for counts, n in cases.items() if counts[1]}
    decided = {counts: n for counts, n in scored.items() if counts[1] > 1}
    agree = sum(n for (right, of), n in decided.items() if right in (0, of))
    rates = sum(n * right / of for (right, of), n in scored.items())
    return Repeats(
        agree=agree,
        disagree=sum(decided.values()) - agree,
        undecided=sum(cases.values()) - sum(decided.values()),
        mean_rate=rates / sum(scored.values()) if scored else None,
        answers=answers,
        distinct_answers=distinct_answers,
        pass_at=[_pass_at(cases, k) for k in _sizes(samples)],
    )


def _sizes(samples: int) -> list[int]:
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return powers if powers[-1] == samples else [*powers, samples]


def _pass_at(cases: Mapping[tuple[int, int], int], k: int) -> PassAt:
    """Each kind of case is estimated once and weighed by how many there are: a suite may hold 100,000."""
    enough = {counts: n for counts, n in cases.items() if counts[1] >= k}
    n, skipped = sum(enough.values()), sum(cases.values()) - sum(enough.values())
    if not n:
        return PassAt(k, None, 0, skipped)
    value = sum(number * pass_at_k([counts], k).value for counts, number in enough.items()) / n
    return PassAt(k, value, n, skipped)


# amounts in words


def usd(microusd: int) -> str:
    """Micro-dollars exactly, with two decimals or as many more as it takes: 1500 is 0.0015 USD."""
    whole, rest = divmod(microusd, 1_000_000)
    decimals = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{whole:,}.{decimals} USD"


def time_left(seconds: float) -> str:
    """A rough time in words: nobody can say how long the next answer takes."""
    if seconds < 60:
        return "less than a minute"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {_counted(minutes, 'minute')}"
    if minutes < 48 * 60:
        hours, minutes = divmod(minutes, 60)
        return f"about {_counted(hours, 'hour')}" + (f" {_counted(minutes, 'minute')}" if minutes else "")
    return f"about {_counted(round(minutes / (24 * 60)), 'day')}"


def _counted(n: int, unit: str) -> str:
    return f"{n} {unit}" if n == 1 else f"{n} {unit}s"


def pace(rate_per_s: float) -> str:
    """Rollouts a second, a minute or an hour, whichever gives a number that can be read."""
    for seconds, unit in ((1, "second"), (60, "minute")):
        if rate_per_s * seconds >= 1:
            return f"{rate_per_s * seconds:,.1f} a {unit}"
    return f"{rate_per_s * 3600:,.1f} an hour"


def milestone(*, state: str, done: int, planned: int) -> str:
    """What is said aloud of a run at work. It changes at every tenth only, so that it does not chatter."""
    if state == "queued":
        return "The run waits for a worker."
    if state == "running":
        return f"{10 * done // planned * 10} percent of {planned:,} rollouts have ended."
    return f"The run is {state}."
