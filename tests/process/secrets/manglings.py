"""What happens to an SSH key between a file and a program: a table of what was seen, and what must come of it."""

import base64
import html
import json
import quopri
import re
import shlex
import urllib.parse
from collections.abc import Callable

Mangle = Callable[[str], str]


def lines(pem: str) -> list[str]:
    return pem.strip().split("\n")


def body(pem: str) -> str:
    return "\n".join(lines(pem)[1:-1])


def smart(pem: str) -> str:
    return pem.replace("-----", "\u2014\u2014-").replace("\u2014-", "\u2013\u2010", 1)


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
    "escaped four times": lambda pem: pem.replace("\n", "\\\\\\\\n"),
    "escaped and real newlines": lambda pem: pem.replace("\n", "\\n\n"),
    "escaped as hexadecimal": lambda pem: pem.replace("\n", "\\x0a"),
    "escaped as octal": lambda pem: pem.replace("\n", "\\012"),
    "JSON string": json.dumps,
    "JSON string in a JSON string": lambda pem: json.dumps(json.dumps(pem)),
    "JSON with every sign escaped": lambda pem: re.sub(r"[+/=\n]", lambda found: f"\\u{ord(found[0]):04x}", pem),
    "JSON with escaped slashes": lambda pem: json.dumps(pem).replace("/", "\\/"),
    "JSON list of lines": lambda pem: json.dumps(lines(pem)),
    "Python's adjacent strings": lambda pem: "\n".join(repr(line + "\n") for line in lines(pem)),
    "double quotes": lambda pem: f'"{pem}"',
    "single quotes": lambda pem: f"'{pem}'",
    "one quote left over": lambda pem: f'{pem.rstrip()}"',
    "backquotes": lambda pem: f"```\n{pem}```",
    "typographic quotes": lambda pem: f"\u201c{pem}\u201d",
    "quotes in quotes": lambda pem: f"\"'{pem}'\"",
    "blanks for newlines": lambda pem: " ".join(lines(pem)),
    "tabs for newlines": lambda pem: "\t".join(lines(pem)),
    "one line without anything": lambda pem: "".join(lines(pem)),
    "all blanks gone": lambda pem: "".join(pem.split()),
    "the letter n for newlines": lambda pem: pem.replace("\n", "n"),
    "indented": lambda pem: "".join(f"    {line}\n" for line in lines(pem)),
    "indented by tabs": lambda pem: "".join(f"\t{line}\n" for line in lines(pem)),
    "blanks at line ends": lambda pem: "".join(f"{line}  \n" for line in lines(pem)),
    "empty lines between": lambda pem: "\n\n".join(lines(pem)),
    "wrapped at 40": lambda pem: "\n".join(
        [lines(pem)[0], *re.findall(".{1,40}", "".join(lines(pem)[1:-1])), lines(pem)[-1]]
    ),
    "a YAML block": lambda pem: "|-\n" + "".join(f"  {line}\n" for line in lines(pem)),
    "quoted as in mail": lambda pem: "".join(f"> {line}\n" for line in lines(pem)),
    "quoted-printable": lambda pem: quopri.encodestring(pem.encode(), quotetabs=True).decode(),
    "byte order mark": lambda pem: f"\ufeff{pem}",
    "byte order mark, read as Latin-1": lambda pem: f"ï»¿{pem}",
    "zero-width and no-break blanks": lambda pem: pem.replace("\n", "\u200b\n\u00a0"),
    "soft hyphens": lambda pem: pem.replace("\n", "\u00ad\n"),
    "typographic dashes": smart,
    "fewer dashes": lambda pem: pem.replace("-----", "--"),
    "more dashes": lambda pem: pem.replace("-----", "-------"),
    "no header": lambda pem: "\n".join(lines(pem)[1:]),
    "no footer": lambda pem: "\n".join(lines(pem)[:-1]),
    "neither header nor footer": body,
    "neither, in one line": lambda pem: body(pem).replace("\n", ""),
    "header twice": lambda pem: "\n".join([lines(pem)[0], *lines(pem)]),
    "footer twice": lambda pem: "\n".join([*lines(pem), lines(pem)[-1]]),
    "the whole twice": lambda pem: pem + pem,
    "another key's header": lambda pem: re.sub(
        r"(BEGIN|END) [A-Z ]*PRIVATE", r"\1 ANY PRIVATE".replace("ANY ", ""), pem
    ),
    "text after it": lambda pem: f"{pem}user@host:~$ \n",
    "text before it": lambda pem: f"$ cat ~/.ssh/id_ed25519\n{pem}",
    "the public key after it": lambda pem: f"{pem}ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI user@host\n",
    "its name before it": lambda pem: f"RUNPOD_SSH_PRIVATE_KEY={pem}",
    "export and quotes": lambda pem: f'export RUNPOD_SSH_PRIVATE_KEY="{pem}"',
    "its name in YAML": lambda pem: f"RUNPOD_SSH_PRIVATE_KEY: {json.dumps(pem)}",
    "a heredoc": lambda pem: f"<<'EOF'\n{pem}EOF\n",
    "cat and a heredoc": lambda pem: f"$(cat <<KEY\n{pem}KEY\n)",
    "shell's $'' quotes": lambda pem: "$'" + pem.replace("\n", "\\n") + "'",
    "shell-quoted": shlex.quote,
    "signs escaped for a shell": lambda pem: re.sub(r"([+/= ])", r"\\\1", pem).replace("\n", "\\n"),
    "continued lines": lambda pem: pem.replace("\n", "\\\n"),
    "base64 of the whole": lambda pem: base64.b64encode(pem.encode()).decode(),
    "base64 of the whole, wrapped": lambda pem: base64.encodebytes(pem.encode()).decode(),
    "base64 of the whole, URL-safe and unpadded": lambda pem: (
        base64.urlsafe_b64encode(pem.encode()).decode().rstrip("=")
    ),
    "base64 twice": lambda pem: base64.b64encode(base64.b64encode(pem.encode())).decode(),
    "base64 with its name": lambda pem: f"KEY={base64.b64encode(pem.encode()).decode()}",
    "base64 of UTF-16": lambda pem: base64.b64encode(pem.encode("utf-16")).decode(),
    "hexadecimal of the whole": lambda pem: pem.encode().hex(),
    "URL-encoded": urllib.parse.quote,
    "URL-encoded, all of it": lambda pem: urllib.parse.quote(pem, safe=""),
    "a form's encoding": urllib.parse.quote_plus,
    "a form's blanks for plus signs": lambda pem: pem.replace("+", " "),
    "HTML entities": lambda pem: html.escape(pem).replace("\n", "&#10;").replace("+", "&#43;").replace("=", "&#x3D;"),
    "HTML line breaks": lambda pem: f"<pre>{pem.strip()}</pre>".replace("\n", "<br/>"),
    "the body URL-safe": lambda pem: "\n".join(
        [lines(pem)[0], body(pem).replace("+", "-").replace("/", "_"), lines(pem)[-1]]
    ),
    "the body unpadded": lambda pem: pem.replace("=", ""),
    "CR LF, indented, in quotes, with its name": lambda pem: (
        'KEY="' + "\r\n".join(f"  {line}" for line in lines(pem)) + '"'
    ),
}


def cut(pem: str) -> str:
    return "\n".join([*lines(pem)[:-2], lines(pem)[-1]])


# Something is lost, or it is something else: mangling -> (what is done, what the refusal must say).
LOST: dict[str, tuple[Mangle, str]] = {
    "the last line is missing": (cut, "cut off|nothing between"),
    "the end is missing, footer and all": (lambda pem: pem[: len(pem) * 2 // 3], "cut off"),
    "only the first line came": (lambda pem: lines(pem)[0], "nothing between"),
    "a line twice": (
        lambda pem: "\n".join([*lines(pem)[:2], lines(pem)[1], *lines(pem)[2:]]),
        "too many|changed|no private key",
    ),
    "a letter lost": (lambda pem: pem[:60] + pem[61:], "cut off|characters"),
    "lower case": (str.lower, "case"),
    "upper case": (str.upper, "cut off|changed|no private key|characters|too many|case"),
    "accents for letters": (lambda pem: pem.replace("A", "\u00c4"), "characters that no key has"),
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
