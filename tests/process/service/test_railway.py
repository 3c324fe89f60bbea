"""What a platform is told: one thing in three places, each in words that the platform knows."""

import re
import tomllib
from pathlib import Path
from typing import Any

from orchestrator.config.setting import settings_of
from orchestrator.config.settings import Settings
from tests.proofs.docker_image import build, ignored, instructions

ROOT = Path(__file__).resolve().parents[3]
# https://railway.com/railway.schema.json, as far as this project may need it: name -> types
BUILD = {"builder": str, "dockerfilePath": str, "buildCommand": str, "watchPatterns": list}
DEPLOY = {
    "startCommand": str,
    "preDeployCommand": list,
    "preDeployTimeoutSeconds": int,
    "numReplicas": int,
    "healthcheckPath": str,
    "healthcheckTimeout": int,
    "restartPolicyType": str,
    "restartPolicyMaxRetries": int,
    "overlapSeconds": int,
    "drainingSeconds": int,
    "region": str,
}


def railway_toml() -> dict[str, Any]:
    return tomllib.loads((ROOT / "railway.toml").read_text())


def test_the_configuration_file_says_what_railway_knows() -> None:
    """Names, types and enumerations of its schema."""
    said = railway_toml()
    assert said.keys() == {"build", "deploy"}
    for section, known in (("build", BUILD), ("deploy", DEPLOY)):
        for name, value in said[section].items():
            assert isinstance(value, known[name]), name
    assert said["build"]["builder"] in {"DOCKERFILE", "RAILPACK"}
    assert said["deploy"]["restartPolicyType"] in {"ON_FAILURE", "ALWAYS", "NEVER"}


def test_the_newer_configuration_says_the_same() -> None:
    """Whichever file a service is under, it is the same service."""
    said, text = railway_toml(), (ROOT / ".railway" / "railway.ts").read_text()
    pairs = dict(re.findall(r'(\w+): ("[^"]*"|\[[^\]]*\]|\d+)', text))
    names = {"start": "startCommand", "preDeploy": "preDeployCommand", "healthcheck": "healthcheckPath"}
    names |= {"replicas": "numReplicas"}
    for name, value in {**said["build"], **said["deploy"]}.items():
        written = pairs[{v: k for k, v in names.items()}.get(name, name)]
        assert written.strip('[]"') == (value[0] if isinstance(value, list) else str(value)), name


def test_the_newer_configuration_keeps_every_variable() -> None:
    """One that it did not name, under whichever of its names it is set, would be deleted when it is applied."""
    text = (ROOT / ".railway" / "railway.ts").read_text()
    kept = set(re.findall(r'"([A-Z][A-Z0-9_]+)"', text.partition("];")[0]))
    ours = {name for one in settings_of(Settings) for name in one.variables}
    assert {"SUPABASE_ANON_KEY", "AWS_DEFAULT_REGION"} < ours
    assert kept == {name for name in ours if name not in {"HOST", "PORT"} and not name.startswith("RAILWAY_")}


def test_the_image_starts_what_railway_starts_and_nothing_in_between() -> None:
    """In exec form: a shell as first process would keep the signal to itself."""
    steps = dict(instructions((ROOT / "Dockerfile").read_text()))
    assert steps["CMD"].startswith("[")
    assert railway_toml()["deploy"]["startCommand"].split() == ["python", "-m", "orchestrator", "run"]
    assert steps["CMD"] == '["python", "-m", "orchestrator", "run"]'
    assert "-slim@sha256:" in steps["FROM"]
    assert steps["USER"] not in {"root", "0"}
    assert "--require-hashes" in (ROOT / "Dockerfile").read_text()


def test_the_images_files_are_all_that_it_needs(tmp_path: Path) -> None:
    """Every COPY finds its source; neither testbed, demo nor tests enter the build, and so no layer has them."""
    image = build(tmp_path, run=False)
    assert (image.directory / "orchestrator" / "__main__.py").is_file()
    assert sorted(p.name for p in (image.directory / "migrations").glob("*.sql"))
    assert (image.directory / "requirements.txt").is_file()
    copied = {
        name
        for word, rest in instructions((ROOT / "Dockerfile").read_text())
        if word == "COPY"
        for name in rest.split()[:-1]
    }
    assert {path.name for path in ROOT.iterdir() if not ignored(path.name)} == copied
    assert not copied & {"testbed", "demo", "tests", "bench", ".env", ".git"}
    assert image.environment["PYTHONPATH"] == str(image.directory)
    assert image.user == "orchestrator"
