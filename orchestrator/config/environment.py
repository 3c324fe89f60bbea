"""Read the environment: the settings that can be used, and every problem with the rest, each with what, why and fix.

A command checks only the settings that it uses: `validation.require` names them.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from orchestrator.config.errors import LIBRARY_WORDS, SettingProblem, SettingsError, shown
from orchestrator.config.setting import settings_of
from orchestrator.config.settings import Settings
from orchestrator.config.validation import contradictions
from orchestrator.observability.redaction import hide

PREFIXES = (
    "RUNPOD_",
    "WORKER_",
    "SUPABASE_",
    "S3_",
)  # a variable that begins so is probably one of our settings, misspelt
SIMILAR, SIMILAR_WITH_PREFIX, MISSPELT = 0.85, 0.75, 0.92  # ratios of difflib
FOREIGN = re.compile(
    r"AWS_|PG|POSTGRES|RAILWAY_|SUPABASE_(?:ACCESS_TOKEN|AUTH|DB|JWT|PROJECT)"
    r"|RUNPOD_(?:AI|CPU|DC_ID|GPU_COUNT|GPU_NAME|MEM|POD|PUBLIC_IP|TCP_PORT|VOLUME_ID)"
)  # other programs read these; RunPod sets the last ones on its pods


class Unread(NamedTuple):
    """A variable that no setting reads, although its name suggests one."""

    name: str
    similar: str | None  # the setting that is most similar
    is_misspelt: bool  # almost certainly this setting is intended, so the start is refused

    @property
    def problem(self) -> SettingProblem:
        """Return the problem with its fix."""
        what = f"{self.name} is not a setting"
        if self.similar is None:
            return SettingProblem(
                what, "no setting has a similar name", "remove it; docs/settings.md lists all settings"
            )
        if self.is_misspelt:
            return SettingProblem(what, f"it looks like {self.similar}, which is not set", f"rename it {self.similar}")
        return SettingProblem(
            what, f"{self.similar} is similar, and nothing reads {self.name}", f"rename it {self.similar}, or remove it"
        )


def load() -> Settings:
    """The environment as Settings. Raises SettingsError with every problem."""
    settings, problems = usable()
    if problems:
        raise SettingsError(problems)
    return settings


def usable() -> tuple[Settings, list[SettingProblem]]:
    """Return the settings that can be used, with defaults in place of the others, and every problem."""
    unreadable = {name.upper() for name, value in os.environ.items() if not _is_utf8(value)}
    refused = {variable for one in settings_of(Settings) for variable in one.variables if variable in unreadable}
    problems = [_not_utf8(name) for name in sorted(refused)]
    try:
        settings = Settings()  # type: ignore[call-arg, unused-ignore]
    except ValidationError as error:
        named = [(_name(item), item) for item in map(dict, error.errors())]
        problems += [_problem(item) for name, item in named if name not in refused]
        refused |= {name for name, _ in named}
    if refused:
        bad = [one for one in settings_of(Settings) if refused.intersection(one.variables)]
        settings = Settings(
            **{one.variables[0] if one.field.validation_alias else one.name: one.field.default for one in bad}
        )
    problems += [_not_utf8(name) for name, value in settings.handler_env.items() if not _is_utf8(value)]
    hide(filter(_is_utf8, settings.secrets()))
    problems += contradictions(settings)
    return settings, [*(one.problem for one in unread(settings) if one.is_misspelt), *problems]


def _is_utf8(value: str) -> bool:
    """Whether the bytes of a variable were UTF-8: Python keeps other bytes as lone surrogates."""
    return value.isascii() or value.encode("utf-8", "replace").decode() == value


def _not_utf8(name: str) -> SettingProblem:
    return SettingProblem(
        f"{name} cannot be used", "its value has bytes that are not UTF-8", f"set {name} again, as text"
    )


def _name(item: Mapping[str, Any]) -> str:
    return str(item["loc"][0]).upper() if item["loc"] else ""


MAY_HOLD_A_SECRET = frozenset({"KEY", "SECRET", "URL", "TOKEN", "DSN", "HEADERS", "ENDPOINT", "ENV"})  # words of a name


def _problem(item: Mapping[str, Any]) -> SettingProblem:
    name = _name(item) or "settings"
    secret = not MAY_HOLD_A_SECRET.isdisjoint(name.split("_"))
    given = "its value" if secret else f"{shown(item.get('input'))} from the environment"
    return SettingProblem(
        f"{name} cannot be used",
        f"{given}: {item['msg'].removeprefix(LIBRARY_WORDS)}",
        f"set {name} as described in .env.example",
    )


def unread(settings: Settings) -> Iterator[Unread]:
    """Yield the variables that look like settings, but that neither a setting nor WORKER_ENV names."""
    known = {name for one in settings_of(Settings) for name in one.variables}
    given = {name.upper(): name for name in os.environ}
    others = given.keys() - known - {one.upper() for one in settings.worker_env}
    for name in sorted(one for one in others if not FOREIGN.match(one)):
        is_ours = name.startswith(PREFIXES)
        cutoff = SIMILAR_WITH_PREFIX if is_ours else SIMILAR
        near = difflib.get_close_matches(name, known - {"HOST", "PORT"}, 1, cutoff)
        if near:
            ratio = difflib.SequenceMatcher(None, near[0], name).ratio()
            yield Unread(given[name], near[0], ratio >= MISSPELT and near[0] not in given)
        elif is_ours:
            yield Unread(given[name], None, is_misspelt=False)


def as_given() -> dict[str, str]:
    """Return the unparsed environment, for the report that says which settings are missing or mangled."""
    return dict(os.environ)
