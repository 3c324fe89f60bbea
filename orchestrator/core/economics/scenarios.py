"""The settings in force beside others, over the same recorded tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.economics import what_if
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.recorded import RecordedPool
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.what_if import FleetFigures, PoolReplayed

Settings = Mapping[str, ScalingSettings]
CURVE_W = (0.1, 0.2, 0.35, 0.6, 1.0, 1.8, 3.0, 5.5, 10.0)  # wait prices


@dataclass(frozen=True, slots=True)
class ReplayedScenario:
    """A fleet under some settings."""

    name: str
    settings: Settings
    pools: Sequence[PoolReplayed]
    figures: FleetFigures


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The learned rule with one wait price."""

    wait_price: float
    usd: float
    wait_p95_s: float | None


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """The pools that are replayed, between two moments in seconds since 1970."""

    histories: Sequence[RecordedPool]
    since: float
    until: float
    longer_than_s: float

    def replayed(self, name: str, settings: Settings) -> ReplayedScenario:
        """Replay the pools that have settings."""
        pools = what_if.replayed_fleet(self.histories, settings, self.since, self.until)
        return ReplayedScenario(name, settings, pools, what_if.figures(pools, self.longer_than_s))

    def recorded(self) -> FleetFigures:
        """Return what really happened."""
        return what_if.recorded(self.histories, self.longer_than_s)

    def curve(self, settings: Settings, on_point: Callable[[], object] = lambda: None) -> list[CurvePoint]:
        """Return what the learned rule costs and how long tasks wait, with each wait price of CURVE_W."""
        points = []
        for wait_price in CURVE_W:
            changed = {"scaling_policy": ScalingPolicy.LEARNED, "wait_price": wait_price}
            found = self.replayed("", with_changes(settings, changed)).figures
            points.append(CurvePoint(wait_price, found.usd, found.waits.p95_s))
            on_point()
        return points


def with_changes(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """Return the settings with the same changes in each pool."""
    return {pool: replace(one, **changes) for pool, one in settings.items()}  # type: ignore[arg-type]
