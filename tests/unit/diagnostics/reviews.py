"""A review of the rules of scaling, as the database keeps it."""

from typing import Any

FIGURES = {"boots": 1, "wait_p50_s": 0, "wait_max_s": 99, "waited_s": 1, "most_on_a_day_usd": 9, "not_run": 0}
REVIEW: dict[str, Any] = {
    "since": "2026-11-14T00:00:00+00:00", "until": "2026-11-21T00:00:00+00:00", "tasks": 1204, "boot_s": 90,
    "wait_price": 1, "usd_per_hour": 0.44, "error_share": -0.041, "in_force": "fixed", "tomorrow": "learned",
    "recorded": FIGURES | {"usd": 61, "wait_p95_s": 70},
    "candidates": {
        "fixed": FIGURES | {"usd": 63, "wait_p95_s": 71, "cost_s": 9},
        "learned": FIGURES | {"usd": 41, "wait_p95_s": 38, "cost_s": 8},
    },
}  # fmt: skip
