"""What of WORKER_CODE_DIR is sent to pods, with sizes, and what is not sent."""

import asyncio
from itertools import groupby

from orchestrator.config.code_files import Code, code_files
from orchestrator.config.settings import Settings
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.doctor.findings import Section

MAX_SHOWN = 20  # files, the largest first; and names of what is left out for one reason
NAME_CHARS = 54


async def code(settings: Settings, section: Section) -> None:
    """Show the list that the orchestrator sends, or the reason why it sends none."""
    if settings.worker_code_dir is None:
        section.ok("no code is sent to pods", "WORKER_CODE_DIR is not set")
        return
    found = await asyncio.to_thread(code_files, settings.worker_code_dir, settings.secrets())
    files = sorted(found.files.values(), key=lambda file: (-len(file.content), file.name))
    count, size = counted(len(files), "file"), _size(found.size_bytes)
    left_out = f"; {len(found.left_out)} not sent" if found.left_out else ""
    section.ok(f"{count} of {settings.worker_code_dir} are sent to each pod", f"{size} in {count}{left_out}")
    for file in files[:MAX_SHOWN]:
        section.ok(f"{_shown(file.name)}: {_size(len(file.content))}")
    rest = files[MAX_SHOWN:]
    if rest:
        section.ok(f"{counted(len(rest), 'smaller file')}: {_size(sum(len(file.content) for file in rest))}")
    _left_out(found, section)


def _left_out(found: Code, section: Section) -> None:
    by_reason = sorted((why, name) for name, why in found.left_out.items())
    for why, entries in groupby(by_reason, key=lambda one: one[0]):
        names = [_shown(name) for _, name in entries]
        more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        section.ok(f"not sent ({why}):", f"{', '.join(names[:MAX_SHOWN])}{more}")


def _size(count: int) -> str:
    return f"{count} B" if count < 1 << 10 else f"{count / (1 << 10):,.1f} KiB"


def _shown(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"…{name[-NAME_CHARS + 1 :]}"
