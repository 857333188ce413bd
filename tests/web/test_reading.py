"""What a run's numbers say: flags, agreement of repeats, amounts in words."""

from __future__ import annotations

import pytest

from rollouts.reading import Flag, milestone, pace, repeats_of, run_flags, time_left, usd


def codes(**numbers: object) -> dict[str, int]:
    plain = {"planned": 100, "masked": 0, "unscored": 0, "samples": 1, "independence": "independent"}
    return {flag.code: flag.n for flag in run_flags(**{**plain, **numbers})}  # type: ignore[arg-type]


def test_a_run_without_trouble_has_no_flag() -> None:
    assert codes() == {}
    assert codes(samples=8) == {}


@pytest.mark.parametrize(
    ("planned", "masked", "unscored", "flagged"),
    [
        (100, 5, 0, False),
        (100, 6, 0, True),
        (100, 3, 3, True),
        (100, 0, 6, True),
        (20, 1, 0, False),
        (19, 1, 0, True),
    ],
)
def test_more_than_five_percent_without_a_score_are_flagged(
    planned: int, masked: int, unscored: int, flagged: bool
) -> None:
    found = codes(planned=planned, masked=masked, unscored=unscored)
    assert found == ({"many_masked": masked + unscored} if flagged else {})


def test_the_flag_says_how_many_and_what_to_do() -> None:
    [flag] = run_flags(planned=1500, masked=100, unscored=50, samples=1, independence="independent")
    assert flag == Flag(
        "many_masked",
        "150 of 1,500 rollouts have no score (10.0 %). Run again what failed; gates bracket them.",
        150,
    )


@pytest.mark.parametrize("independence", ["unknown", "ignored"])
def test_repeats_that_are_not_draws_of_their_own_are_flagged_where_there_are_repeats(
    independence: str,
) -> None:
    assert codes(independence=independence) == {}
    assert codes(independence=independence, samples=4) == {f"independence_{independence}": 4}


def test_reused_lost_and_skipped_rollouts_are_flagged_in_words() -> None:
    flags = run_flags(
        planned=100,
        masked=0,
        unscored=3,
        samples=1,
        independence="independent",
        reused=12,
        avoided_microusd=1500,
        poisoned=1,
        skipped=2,
    )
    assert [(flag.code, flag.n) for flag in flags] == [("reused", 12), ("poisoned", 1), ("budget", 2)]
    assert "That avoided 0.0015 USD." in flags[0].text
    assert flags[1].text.startswith("1 rollout was given up")
    assert flags[2].text.startswith("2 rollouts were skipped")


def test_what_was_avoided_is_unknown_without_prices_and_never_zero() -> None:
    [flag] = run_flags(
        planned=9,
        masked=0,
        unscored=0,
        samples=1,
        independence="independent",
        reused=1,
        avoided_microusd=None,
    )
    assert "not known" in flag.text
    assert "0.00" not in flag.text


def test_repeats_are_counted_by_case() -> None:
    """Four samples a case: 2 cases all right, 1 all wrong, 1 half right, 1 with one scored sample, 1 with none."""
    cases = {(4, 4): 2, (0, 4): 1, (2, 4): 1, (1, 1): 1, (0, 0): 1}
    found = repeats_of(cases, samples=4, answers=17, distinct_answers=9)
    assert (found.agree, found.disagree, found.undecided) == (3, 1, 2)
    assert found.mean_rate == pytest.approx((1 + 1 + 0 + 0.5 + 1) / 5)
    assert (found.answers, found.distinct_answers) == (17, 9)
    at_1, at_2, at_4 = found.pass_at
    assert (at_1.k, at_1.value, at_1.n, at_1.skipped) == (1, pytest.approx(3.5 / 5), 5, 1)
    # 1 - C(2, 2) / C(4, 2) of the half right case is 5/6
    assert (at_2.k, at_2.value, at_2.n, at_2.skipped) == (2, pytest.approx((2 + 5 / 6) / 4), 4, 2)
    assert (at_4.k, at_4.value, at_4.n, at_4.skipped) == (4, pytest.approx(3 / 4), 4, 2)


def test_without_a_scored_sample_nothing_is_a_rate_of_zero() -> None:
    found = repeats_of({(0, 0): 3}, samples=2, answers=0, distinct_answers=0)
    assert (found.mean_rate, found.undecided) == (None, 3)
    assert [(row.value, row.n, row.skipped) for row in found.pass_at] == [(None, 0, 3)] * 2


@pytest.mark.parametrize(
    ("samples", "sizes"), [(2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 10])]
)
def test_pass_at_k_is_given_for_powers_of_two_and_for_all_samples(samples: int, sizes: list[int]) -> None:
    found = repeats_of({(1, samples): 1}, samples=samples, answers=1, distinct_answers=1)
    assert [row.k for row in found.pass_at] == sizes


@pytest.mark.parametrize(
    ("microusd", "shown"),
    [
        (0, "0.00 USD"),
        (1, "0.000001 USD"),
        (1_500, "0.0015 USD"),
        (1_250_000, "1.25 USD"),
        (3_000_000, "3.00 USD"),
        (1_234_567_890_123, "1,234,567.890123 USD"),
    ],
)
def test_micro_dollars_are_shown_exactly(microusd: int, shown: str) -> None:
    assert usd(microusd) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "less than a minute"),
        (59.9, "less than a minute"),
        (60, "about 1 minute"),
        (200, "about 3 minutes"),
        (3599, "about 1 hour"),
        (3600 * 2 + 600, "about 2 hours 10 minutes"),
        (86400 * 3, "about 3 days"),
    ],
)
def test_the_time_left_is_said_in_words(seconds: float, said: str) -> None:
    assert time_left(seconds) == said


@pytest.mark.parametrize(
    ("rate_per_s", "said"), [(12.34, "12.3 a second"), (0.5, "30.0 a minute"), (0.001, "3.6 an hour")]
)
def test_a_rate_is_said_in_a_unit_that_can_be_read(rate_per_s: float, said: str) -> None:
    assert pace(rate_per_s) == said


def test_what_is_said_aloud_changes_at_every_tenth_only() -> None:
    said = {milestone(state="running", done=done, planned=1000) for done in range(1000)}
    assert len(said) == 10
    assert milestone(state="running", done=419, planned=1000) == "40 percent of 1,000 rollouts have ended."
    assert milestone(state="queued", done=0, planned=10) == "The run waits for a worker."
    assert milestone(state="scored", done=10, planned=10) == "The run is scored."
