"""What happens to an SSH key between a file and a program: a table of what was seen, and what must come of it."""

import base64
import json
import re
import urllib.parse
from collections.abc import Callable

Mangle = Callable[[str], str]


def lines(pem: str) -> list[str]:
    return pem.strip().split("\n")


# Nothing is lost: the key must come out as it was.
LOSSLESS: dict[str, Mangle] = {
    "untouched": lambda pem: pem,
    "no final newline": lambda pem: pem.rstrip("\n"),
    "several final newlines": lambda pem: pem + "\n\n\n",
    "CR LF": lambda pem: pem.replace("\n", "\r\n"),
    "CR alone": lambda pem: pem.replace("\n", "\r"),
    "escaped newlines": lambda pem: pem.replace("\n", "\\n"),
    "escaped CR LF": lambda pem: pem.replace("\n", "\\r\\n"),
    "escaped twice": lambda pem: pem.replace("\n", "\\\\n"),
    "escaped and real newlines": lambda pem: pem.replace("\n", "\\n\n"),
    "JSON string": json.dumps,
    "double quotes": lambda pem: f'"{pem}"',
    "single quotes": lambda pem: f"'{pem}'",
    "one quote left over": lambda pem: f'{pem.rstrip()}"',
    "quotes in quotes": lambda pem: f"\"'{pem}'\"",
    "blanks for newlines": lambda pem: " ".join(lines(pem)),
    "tabs for newlines": lambda pem: "\t".join(lines(pem)),
    "one line without anything": lambda pem: "".join(lines(pem)),
    "indented": lambda pem: "".join(f"    {line}\n" for line in lines(pem)),
    "blanks at line ends": lambda pem: "".join(f"{line}  \n" for line in lines(pem)),
    "empty lines between": lambda pem: "\n\n".join(lines(pem)),
    "byte order mark": lambda pem: f"\ufeff{pem}",
    "text after it": lambda pem: f"{pem}user@host:~$ \n",
    "text before it": lambda pem: f"$ cat ~/.ssh/id_ed25519\n{pem}",
    "its name before it": lambda pem: f"RUNPOD_SSH_PRIVATE_KEY={pem}",
    "base64 of the whole": lambda pem: base64.b64encode(pem.encode()).decode(),
    "base64 of the whole, wrapped": lambda pem: base64.encodebytes(pem.encode()).decode(),
    "base64 of one line": lambda pem: base64.b64encode(pem.replace("\n", "\\n").encode()).decode(),
    "base64 without padding": lambda pem: base64.b64encode(pem.encode()).decode().rstrip("="),
}


def cut(pem: str) -> str:
    return "\n".join([*lines(pem)[:-2], lines(pem)[-1]])


# Something is lost, or it is something else: mangling -> (what is done, what the refusal must say).
LOST: dict[str, tuple[Mangle, str]] = {
    "the last line is missing": (cut, "cut off"),
    "the end is missing, footer and all": (lambda pem: pem[: len(pem) * 2 // 3], "cut off"),
    "only the first line came": (lambda pem: lines(pem)[0], "cut off"),
    "no header": (lambda pem: "\n".join(lines(pem)[1:]), "cut off"),
    "no footer": (lambda pem: "\n".join(lines(pem)[:-1]), "cut off"),
    "neither header nor footer": (lambda pem: "\n".join(lines(pem)[1:-1]), "no BEGIN line"),
    "a line twice": (lambda pem: "\n".join([*lines(pem)[:2], lines(pem)[1], *lines(pem)[2:]]), "changed"),
    "a letter lost": (lambda pem: pem[:60] + pem[61:], "changed"),
    "quoted as in mail": (lambda pem: "".join(f"> {line}\n" for line in lines(pem)), "changed"),
    "URL-encoded": (lambda pem: urllib.parse.quote(pem, safe=""), "no BEGIN line"),
    "lower case": (str.lower, "no BEGIN line"),
    "upper case": (str.upper, "changed"),
    "accents for letters": (lambda pem: re.sub("[a-z]", "\u00e4", pem), "changed"),
    "masked": (lambda pem: f"{lines(pem)[0]}\n********\n{lines(pem)[-1]}", "masked"),
    "all masked": (lambda _: "*******", "masked"),
    "shortened by a display": (lambda pem: f"{pem[:80]}…", "masked or shortened"),
    "a path": (lambda _: "~/.ssh/id_ed25519", "path"),
    "a path with dots": (lambda _: "/home/somebody/.ssh/id_rsa.pem", "path"),
    "a command that no shell ran": (lambda _: "$(cat ~/.ssh/id_ed25519)", "shell expression"),
    "a variable that no shell read": (lambda _: "${SSH_KEY}", "shell expression"),
    "a public key": (lambda _: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIC user@host", "public key"),
    "PuTTY's format": (lambda _: "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n", "PuTTY"),
    "words": (lambda _: "no key", "no private key"),
}
