"""The limits in the documentation are those of the code."""

import re
from pathlib import Path

from gpu_orchestrator_client.protocol import LOG_BYTES

from orchestrator.config.names import MAX_PREFIX_BYTES
from orchestrator.web import request_bodies
from orchestrator.web.api.models import LogQuery
from orchestrator.worker_logs.budget import LOG_BYTES_PER_HOUR
from worker import folders, handler_errors, journal, protocol, result_lines, rules, runner
from worker import task as task_module
from worker.texts import shortened

DOCS = Path(__file__).parents[3] / "docs"


def size(count: int) -> str:
    """A number of bytes as the documentation writes it."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count:,} bytes"


OUTPUTS = {
    "`result_data`: its JSON in UTF-8, as PostgreSQL writes it": size(rules.RESULT_BYTES),
    "`result_data`: levels of lists and objects": str(rules.RESULT_DEPTH),
    "`result_data`: keys and values": f"{rules.RESULT_VALUES:,}",
    "`result_data`: digits of a number": f"{rules.NUMBER_CHARS:,}",
    f"`result_data`: numbers of more than {rules.LONG_NUMBER_CHARS} digits": str(rules.LONG_NUMBERS),
    "`result_data`: numbers with exponents of three digits": f"{rules.WIDE_NUMBERS:,}",
    "the object that a command prints, with its escapes and indents": size(result_lines.MAX_PRINTED_BYTES),
    "`output_location`": f"{rules.LOCATION_BYTES:,} bytes",
    "the list of outputs in `result_data`": f"{task_module.MAX_LISTED:,} outputs, {size(task_module.LIST_BYTES)}",
    "the name of an output, in UTF-8": size(rules.NAME_BYTES),
    "a part of a name between slashes": size(rules.NAME_PART_BYTES),
    "parts of a name": str(rules.NAME_PARTS),
    "files of a folder": f"{folders.MAX_FILES:,}",
    "files of a folder that are stored one by one": f"{folders.MAX_SINGLE:,}",
    "one file": size(protocol.MAX_OBJECT_BYTES),
}
CUTS = {
    "message of an exception": f"{handler_errors.MESSAGE_CHARS:,} characters",
    "traceback": f"{handler_errors.TRACEBACK_CHARS:,} characters",
    "message of `task.progress()`, or of a line `progress:`": f"{task_module.MESSAGE_CHARS:,} characters",
    "log of a worker, per hour": size(LOG_BYTES_PER_HOUR),
    "part of a log, from the API": size(
        next(one.le for one in LogQuery.model_fields["limit"].metadata if hasattr(one, "le"))
    ),
    "log, from `Task.log()` of the Python client": size(LOG_BYTES),
}
BODY = request_bodies.MAX_BYTES
GATEWAY = {
    "JSON: levels": str(request_bodies.MAX_DEPTH),
    "JSON: keys and values": f"{request_bodies.MAX_NODES:,}",
    "numbers in JSON: length": (
        f"{rules.NUMBER_CHARS:,} characters each; at most {rules.LONG_NUMBERS} numbers above "
        f"{rules.LONG_NUMBER_CHARS} characters"
    ),
    "numbers in JSON: exponents": f"at most {rules.WIDE_NUMBERS:,} numbers with exponents of three digits",
    "body of a completion": f"{size(rules.RESULT_BYTES)} and {size(request_bodies.ENVELOPE_BYTES)}",
    "body of a heartbeat": size(BODY[protocol.HEARTBEAT]),
    "body of a failure, or of a request for URLs": size(BODY[protocol.FAIL]),
    "body of a registration": size(BODY[protocol.REGISTER]),
    "body of a release": size(BODY[protocol.RELEASE]),
    "body of a claim or a renewal": size(BODY[protocol.CLAIM]),
}


def rows(page: str, heading: str) -> dict[str, str]:
    """The first two columns of the first table under a heading."""
    text = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1]
    found = re.findall(r"^\|(.+?)\|(.+?)\|.*\|$", text.split("\n## ")[0], re.MULTILINE)
    return {name.strip(): value.strip() for name, value in found[2:]}


def test_the_limits_of_outputs_are_those_of_the_code() -> None:
    """Each of them, and no other."""
    assert rows("outputs.md", "Limits") == OUTPUTS


def test_the_limits_of_texts_are_those_of_the_code() -> None:
    """Each of them, and no other."""
    assert rows("handlers.md", "What is cut") == CUTS
    assert (
        handler_errors.MESSAGE_CHARS + handler_errors.TYPE_CHARS + len(shortened("x" * 10**6, 1)) <= journal.MAX_TEXT
    )  # cut once
    assert len(shortened("x" * 10**6, task_module.MESSAGE_CHARS)) <= runner.PROGRESS_CHARS


def test_the_limits_of_the_gateway_are_those_of_the_code() -> None:
    """Those of bodies."""
    assert GATEWAY.items() <= rows("gateway.md", "Limits of a request").items()
    assert {BODY[name] for name in (protocol.FAIL, protocol.GRANTS)} == {BODY[protocol.FAIL]}


def test_the_longest_key_of_an_output_is_one_that_the_database_grants() -> None:
    """And there is room for the prefix of a bucket."""
    prefix = f"outputs/{'x' * 36}/{2**31 - 1}-{'f' * 32}/"
    assert len(prefix) + rules.NAME_BYTES <= 900
    assert 900 + len("/") + MAX_PREFIX_BYTES <= 1_024
    assert f"`S3_PREFIX` may have {MAX_PREFIX_BYTES}." in (DOCS / "outputs.md").read_text()
