"""The account's calls: what the reply headers say is left, and who may use it."""

import pytest

from orchestrator.core.call_budget import HOLDS_S, CallBudget, Priority, retry_after_s, windows

POLICY = '"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400'
LIST_S = 2.0  # the loop's own least pause


def headers(minute: int = 60, hour: int = 3000, day: int = 50_000, *, t: int = 30) -> dict[str, str]:
    """As RunPod sends them."""
    left = f'"minute";r={minute};t={t}, "hour";r={hour};t=1800, "day";r={day};t=43200'
    return {"RateLimit-Policy": POLICY, "RateLimit": left}


def told(**left: int) -> CallBudget:
    """A budget that has learnt from one reply at second 0."""
    budget = CallBudget()
    budget.take(Priority.LIST, 0)
    budget.answered(200, headers(**left), 0)
    return budget


def test_nothing_is_held_back_before_the_first_reply() -> None:
    """An exempt account sends no headers at all."""
    budget = CallBudget()
    for _ in range(1000):
        budget.take(Priority.OTHER, 0)
    assert (budget.wait_s(Priority.OTHER, 0), budget.pace_s(0)) == (0, 0)


@pytest.mark.parametrize(
    ("left", "held"),
    [(60, ""), (24, "OTHER"), (9, "OTHER CREATE"), (3, "OTHER CREATE DELETE"), (0, "OTHER CREATE DELETE LIST")],
)
def test_the_rest_of_a_window_is_for_the_most_urgent_call(left: int, held: str) -> None:
    """Lists before deletes, deletes before creates, and those before the rest; all of them go on when it resets."""
    budget = told(minute=left)
    assert {one.name for one in Priority if budget.wait_s(one, 0) == 30} == set(held.split())
    assert all(budget.wait_s(one, 30) == 0 for one in Priority)


def test_calls_in_flight_count_before_they_are_answered() -> None:
    """Eight creates that go out together must not each see room for eight."""
    budget = told(minute=12)
    for _ in range(3):
        assert budget.wait_s(Priority.CREATE, 1) == 0
        budget.take(Priority.CREATE, 1)
    assert budget.wait_s(Priority.CREATE, 1) > 0
    budget.answered(200, headers(minute=11), 1)  # of the first; two are still under way
    assert budget.wait_s(Priority.CREATE, 1) > 0


@pytest.mark.parametrize(("said", "wait_s"), [("12", 12), ("0", 0), ("", 10), ("Wed, 21 Oct 2026 07:28:00 GMT", 10)])
def test_all_calls_wait_after_a_429_for_as_long_as_it_says(said: str, wait_s: float) -> None:
    """A date, or nothing, is taken for ten seconds."""
    budget = CallBudget()
    budget.take(Priority.LIST, 100)
    budget.answered(429, {"Retry-After": said}, 100)
    assert retry_after_s({"Retry-After": said}) == wait_s
    assert [budget.wait_s(one, 100) for one in Priority] == [wait_s] * 4


@pytest.mark.parametrize("said", [(40, 1), (1, 40)])
def test_the_longest_wait_of_several_429s_counts(said: tuple[int, int]) -> None:
    """Calls that were in flight together are refused one after the other."""
    budget = CallBudget()
    for _ in said:
        budget.take(Priority.OTHER, 100)
    for seconds in said:
        budget.answered(429, {"Retry-After": str(seconds)}, 100)
    assert [budget.wait_s(one, 100) for one in Priority] == [40] * 4


ODD_REPLIES = {
    "retry after a day": (429, {"Retry-After": "86400"}),
    "retry after years": (429, {"Retry-After": "9" * 9}),
    "an unknown window": (200, {"RateLimit-Policy": '"odd";q=1;w=86400', "RateLimit": '"odd";r=0;t=86400'}),
}


@pytest.mark.parametrize("odd", ODD_REPLIES)
def test_one_reply_delays_no_call_for_long(odd: str) -> None:
    """Each kind of call may try again within its own bound; a good answer to that ends the wait of all."""
    budget = CallBudget()
    budget.take(Priority.LIST, 100)
    budget.answered(*ODD_REPLIES[odd], 100)
    assert {one: budget.wait_s(one, 100) for one in Priority} == HOLDS_S
    assert HOLDS_S[Priority.DELETE] == 60
    assert budget.pace_s(100) <= HOLDS_S[Priority.LIST]
    budget.take(Priority.DELETE, 160)
    assert budget.wait_s(Priority.DELETE, 160) == 60  # one call tries it
    assert budget.wait_s(Priority.LIST, 160) == 240
    budget.answered(204, headers(), 160.5)
    assert [budget.wait_s(one, 160.5) for one in Priority] == [0] * 4


def test_a_repeated_long_wait_is_obeyed() -> None:
    """One call of each kind tries per bound, for as long as the provider refuses."""
    budget, made = CallBudget(), 0
    for now_s in range(100, 3700):
        if budget.wait_s(Priority.DELETE, now_s) == 0:
            made += 1
            budget.take(Priority.DELETE, now_s)
            budget.answered(429, {"Retry-After": "86400"}, now_s)
    assert made == 60


@pytest.mark.parametrize(
    "said", ["", "minute", '"minute";q=x', '"minute";q=0;w=60', '"m";' * 10_000, '"minute";r=5', "\x00"]
)
def test_unreadable_headers_delay_no_call(said: str) -> None:
    """They come from outside."""
    assert windows({"RateLimit": said, "RateLimit-Policy": said}, 0) == {}


QUOTAS = {"minute": (60, 60), "hour": (600, 3600), "day": (2400, 21_600)}  # a short day, so that the test is short


class Account:
    """What the provider counts."""

    def __init__(self) -> None:
        self._made = dict.fromkeys(QUOTAS, (0.0, 0))
        self.refused = self.taken = 0

    def call(self, now_s: float) -> tuple[int, dict[str, str]]:
        """The status and headers of a reply."""
        for name, (_, length_s) in QUOTAS.items():
            begun_s, count = self._made[name]
            self._made[name] = (now_s, 1) if now_s - begun_s >= length_s else (begun_s, count + 1)
        left = {name: QUOTAS[name][0] - count for name, (_, count) in self._made.items()}
        refused = min(left.values()) < 0
        self.refused, self.taken = self.refused + refused, self.taken + (not refused)
        ends = {name: int(begun_s + QUOTAS[name][1] - now_s) for name, (begun_s, _) in self._made.items()}
        state = ", ".join(f'"{name}";r={max(0, left[name])};t={ends[name]}' for name in QUOTAS)
        policy = ", ".join(f'"{name}";q={quota};w={length_s}' for name, (quota, length_s) in QUOTAS.items())
        return 429 if refused else 200, {"RateLimit": state, "RateLimit-Policy": policy, "Retry-After": "5"}


@pytest.mark.parametrize("environments", [1, 2, 3])
def test_endless_lists_stay_within_the_accounts_windows(environments: int) -> None:
    """As fast as allowed for a whole day, by several environments of one account: each adapts to what is left."""
    account, budgets = Account(), [CallBudget() for _ in range(environments)]
    due = [index * 0.1 for index in range(environments)]
    while (now_s := min(due)) < QUOTAS["day"][1]:
        who = due.index(now_s)
        budgets[who].take(Priority.LIST, now_s)
        status, said = account.call(now_s)
        budgets[who].answered(status, said, now_s)
        due[who] = now_s + max(LIST_S, budgets[who].pace_s(now_s), budgets[who].wait_s(Priority.LIST, now_s))
    assert account.refused <= account.taken / 50 * (environments - 1)
    assert account.taken >= QUOTAS["day"][0] * 0.6
