"""What of WORKER_CODE_DIR is sent to pods: one list for the archive, for the check of the handlers and for `doctor`.

Never sent: private keys and other credentials, by name and by content; `.env*`; version control, installed packages
and caches; links that leave the directory; what is no file; and what `.orchestratorignore` names. A file that contains
a configured secret is an error, because the handler may need the file.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from orchestrator.config.errors import PATH_CHARS, SettingProblem, SettingsError, shown
from orchestrator.config.private_keys import kind_of_key
from worker.redaction import KnownSecrets

MAX_CODE_BYTES = 50 << 20  # of all files together
MAX_FILES = 20_000
MAX_ENTRIES = 200_000  # files and directories that are looked at, sent or not
MAX_DEPTH = 64  # of directories
IGNORE_FILE = ".orchestratorignore"
MAX_IGNORE_BYTES, MAX_PATTERNS, MAX_PATTERN_CHARS = 64 << 10, 200, 200
SURE_CHARS = 16  # of a secret; a shorter one may be an ordinary word of the code, unless it has letters and digits
SHORTEST_CHARS = 8
SMALLER = "keep models and data out of WORKER_CODE_DIR, and fetch them in the handler or the set-up command"
IGNORE = f"name what pods do not need in {IGNORE_FILE}"

# By the name of a file or directory, in small letters.
NEVER_SENT: Mapping[str, str] = {
    pattern: why
    for why, patterns in {
        "settings and secrets": ".env* *.env *.env.* *.env~ .flaskenv *.tfstate *.tfstate.backup *.tfvars secrets.json"
        " secrets.toml secrets.yaml secrets.yml .vault_pass*",
        "a private key": "id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk *.ppk *.p12 *.pfx *.jks"
        " *.keystore *.kdbx",
        "credentials": ".netrc* _netrc .pgpass* .pg_service.conf .git-credentials .pypirc .npmrc .yarnrc* .htpasswd"
        " .dockercfg .boto .s3cfg .my.cnf .vault-token .terraformrc kubeconfig *.kubeconfig credentials.json"
        " client_secret*.json application_default_credentials.json kaggle.json rclone.conf",
        "what somebody typed": ".*_history",
        "version control": ".git .hg .svn",
        "installed packages": ".venv venv node_modules .tox .nox",
        "a cache": "__pycache__ *.pyc *.pyo .cache .*_cache .ipynb_checkpoints .hypothesis .ds_store thumbs.db",
        "the list of what is not sent": IGNORE_FILE,
    }.items()
    for pattern in patterns.split()
}


class BadCode(SettingsError):
    """The directory WORKER_CODE_DIR cannot be sent."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__([SettingProblem("WORKER_CODE_DIR cannot be used", why, fix)])


class CodeFile(NamedTuple):
    """A file that is sent. `name` is relative to the directory, with `/`."""

    name: str
    content: bytes
    is_executable: bool


@dataclass(frozen=True, slots=True)
class Code:
    """The files that are sent, by name, and why others are not. The name of a directory ends with `/`."""

    files: Mapping[str, CodeFile]
    left_out: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(len(file.content) for file in self.files.values())

    def why_not(self, name: str) -> str | None:
        """Return why a file of the directory is not sent; None if nothing is known of it."""
        parts = name.split("/")
        above = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
        found = next((one for one in (name, *above) if one in self.left_out), None)
        return f"{found} is not sent: {self.left_out[found]}" if found else None


def code_files(root: Path, secrets: Iterable[str] = ()) -> Code:
    """Return what of a directory is sent. Raises BadCode: too much of it, unreadable, or a secret in a file."""
    if not root.is_dir():
        raise BadCode(f"{root} is not a directory", "give the directory that holds the handlers")
    known = KnownSecrets(secret for secret in secrets if _is_sure(secret))
    ignored, left_out = _ignored(root), dict[str, str]()
    files: dict[str, CodeFile] = {}
    left_bytes = MAX_CODE_BYTES
    for name, why_not in _entries(root, ignored):
        if why_not is not None:
            left_out[name] = why_not
            continue
        content, is_executable = _read(root, name, left_bytes + 1)
        left_bytes -= len(content)
        if left_bytes < 0:
            most = f"{MAX_CODE_BYTES >> 20} MB (counted up to {shown(name)[1:-1]})"
            raise BadCode(f"the code in {root} is larger than {most}", f"{SMALLER}; {IGNORE}")
        key = kind_of_key(content)
        if key is not None:
            left_out[name] = key
            continue
        _check_no_secret(root, name, content, known)
        files[name] = CodeFile(name, content, is_executable)
        if len(files) > MAX_FILES:
            raise BadCode(f"the code in {root} has more than {MAX_FILES} files", IGNORE)
    return Code(dict(sorted(files.items())), dict(sorted(left_out.items())))


def _entries(root: Path, ignored: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each file, and why it is not sent; also each directory that is not looked into."""
    real_root = os.path.realpath(root)
    folders, seen = [""], 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(root, folder or ".", error) from None
        seen += len(entries)
        if seen > MAX_ENTRIES or folder.count("/") > MAX_DEPTH:
            most = f"{MAX_ENTRIES} entries" if seen > MAX_ENTRIES else f"{MAX_DEPTH} directories in each other"
            raise BadCode(f"{root} has more than {most}", IGNORE)
        for entry in entries:
            name = folder + entry.name
            if not _is_text(name):
                raise BadCode(f"the name of {shown(ascii(name)[1:-1])} is not UTF-8", "rename it")
            is_folder = entry.is_dir(follow_symlinks=False)
            why = _why_not(name, is_folder=is_folder, ignored=ignored)
            if why is None and is_folder and os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):  # noqa: PTH110, PTH118
                why = "installed packages"
            if why is None and not is_folder:
                why = _why_no_file(entry, real_root, ignored)
            if is_folder and why is None:
                folders.append(f"{name}/")
            else:
                yield f"{name}/" if is_folder else name, why


def _why_not(name: str, *, is_folder: bool, ignored: tuple[str, ...]) -> str | None:
    """Return why this name is not sent."""
    own = name.rpartition("/")[2]
    for pattern, why in NEVER_SENT.items():
        if fnmatchcase(own.lower(), pattern):
            return why
    if is_folder and own.startswith("."):
        return "a hidden directory"
    for pattern in ignored:
        if pattern.endswith("/") and not is_folder:
            continue
        wanted = pattern.strip("/")
        if fnmatchcase(name if "/" in pattern.rstrip("/") else own, wanted):
            return f"{IGNORE_FILE} names it"
    return None


def _why_no_file(entry: os.DirEntry[str], real_root: str, ignored: tuple[str, ...]) -> str | None:
    """Return why an entry that is no directory cannot be sent as a file. What a link points to counts."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if not target.startswith(real_root + os.sep):
            return "a link that leaves the directory"
        if not os.path.isfile(target):  # noqa: PTH113
            return "a link to no file"
        parts = Path(os.path.relpath(target, real_root)).parts
        for depth in range(1, len(parts) + 1):
            why = _why_not("/".join(parts[:depth]), is_folder=depth < len(parts), ignored=ignored)
            if why is not None:
                return f"a link to {'/'.join(parts)}: {why}"
        return None
    return None if entry.is_file(follow_symlinks=False) else "no regular file"


def _read(root: Path, name: str, most_bytes: int) -> tuple[bytes, bool]:
    """Return the content, cut after `most_bytes`, and whether it is executable. Raises BadCode."""
    try:
        file = os.open(os.path.realpath(root / name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(file, "rb") as source:
            mode = os.fstat(file).st_mode
            if not stat.S_ISREG(mode):  # it was replaced meanwhile
                raise BadCode(f"{shown(name)[1:-1]} is no file any more", "try again")
            return source.read(most_bytes), bool(mode & 0o111)
    except OSError as error:
        raise _unreadable(root, name, error) from None


def _check_no_secret(root: Path, name: str, content: bytes, known: KnownSecrets) -> None:
    at = known.find(content)
    if at is not None:
        line = content.count(b"\n", 0, at) + 1
        place = f"{shown(str(root / name), PATH_CHARS)[1:-1]} line {line}"
        why = f"{place} contains the value of a secret setting or variable"
        fix = f"remove it from the file (WORKER_ENV gives variables to handlers), or name the file in {IGNORE_FILE}"
        raise BadCode(why, fix)


def _is_sure(secret: str) -> bool:
    """Whether a secret in a file is no coincidence."""
    text = secret.strip()
    mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
    return len(text) >= SURE_CHARS or (len(text) >= SHORTEST_CHARS and mixed)


def _ignored(root: Path) -> tuple[str, ...]:
    """Return the patterns of .orchestratorignore. Raises BadCode for what would not do what it seems to."""
    path = root / IGNORE_FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_IGNORE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadCode(f"{path} cannot be read: {why}", "write one pattern in each line") from None
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    patterns = tuple(line.removeprefix(".") if line.startswith("./") else line for line in lines)
    if len(content) > MAX_IGNORE_BYTES or len(patterns) > MAX_PATTERNS:
        raise BadCode(f"{path} has more than {MAX_PATTERNS} patterns or {MAX_IGNORE_BYTES >> 10} KiB", "use wildcards")
    for pattern in patterns:
        if pattern.startswith("!") or "**" in pattern or "\\" in pattern or len(pattern) > MAX_PATTERN_CHARS:
            why = f"{path}: {shown(pattern)} is no pattern: !, ** and \\ are not supported"
            raise BadCode(why, "use names and paths with *, ? and [abc]; a * also stands for /")
    return patterns


def _unreadable(root: Path, name: str, error: OSError) -> BadCode:
    why = f"{shown(str(root / name), PATH_CHARS)[1:-1]} cannot be read: {error.strerror}"
    return BadCode(why, f"make it readable, or name it in {IGNORE_FILE}")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
