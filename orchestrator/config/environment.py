"""Read the environment: the settings that can be used, and every problem with the rest, each with what, why and fix.

A command checks only the settings that it uses: `validation.require` names them.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.config.errors import Problem, SettingsError, shown
from orchestrator.config.settings import Settings
from orchestrator.config.validation import contradictions
from orchestrator.observability.redaction import hide


def load() -> Settings:
    """The environment as Settings. Raises SettingsError with every problem."""
    settings, problems = usable()
    if problems:
        raise SettingsError(problems)
    return settings


def usable() -> tuple[Settings, list[Problem]]:
    """What of the environment can be used, defaults in place of the rest, and every problem with it."""
    problems = list(_misspelt(os.environ))
    try:
        settings = Settings()  # type: ignore[call-arg, unused-ignore]
    except ValidationError as error:
        problems += [_problem(dict(item)) for item in error.errors()]
        bad = {name for name in Settings.model_fields if name in {_field(item["loc"]) for item in error.errors()}}
        settings = Settings(**{_alias(name): Settings.model_fields[name].default for name in bad})
    hide(settings.secrets())
    problems += contradictions(settings)
    return settings, problems


def _field(loc: tuple[int | str, ...]) -> str:
    """The field that an error is about: aliases are spelled like variables."""
    name = str(loc[0]).lower() if loc else ""
    return "aws_region" if name == "aws_default_region" else name


def _alias(name: str) -> str:
    return "AWS_REGION" if name == "aws_region" else name


def _problem(item: Mapping[str, Any]) -> Problem:
    name = str(item["loc"][0]).upper() if item["loc"] else "settings"
    secret = any(word in name for word in ("KEY", "SECRET", "URL", "TOKEN"))
    given = "its value" if secret else f"{shown(item.get('input'))} from the environment"
    return Problem(f"{name} cannot be used", f"{given}: {item['msg']}", f"set {name} as described in .env.example")


def _misspelt(environ: Mapping[str, str]) -> Iterable[Problem]:
    known = {name.upper() for name in Settings.model_fields} - {"HOST", "PORT"}
    for name in sorted(set(environ) - known - {"AWS_REGION", "AWS_DEFAULT_REGION"}):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.92)
        if near and near[0] not in environ:
            yield Problem(
                f"{name} is not a setting", f"it looks like {near[0]}, which is not set", f"rename it {near[0]}"
            )


def as_given() -> dict[str, str]:
    """The environment as it is, for the report that says which of it is missing or mangled."""
    return dict(os.environ)
