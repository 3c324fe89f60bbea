"""Values that nobody has filled in: references that nothing expanded, and placeholders of documentation."""

import re

# ${NAME} of a shell or Compose, ${{Service.NAME}} of Railway, ${{ secrets.NAME }} of GitHub Actions, $NAME, $(NAME) of
# Kubernetes, %NAME% of Windows, #{NAME} of Azure Pipelines, and the addresses of secrets in a store of secrets.
REFERENCE = re.compile(
    r"\$?\$\{\{?[^{}\n]{0,200}\}\}?|\$?\$[A-Za-z_]\w{0,99}|\$\([A-Za-z_]\w{0,99}\)|%[A-Za-z_]\w{0,99}%|#\{[^{}\n]{1,200}\}#?"
    r"|(?:op|sm|vault|secret|ref\+\w{1,30}|gcp-secret-manager)://\S{1,400}|(?:vault|secretref|kv):\S{1,400}"
    r"|arn:aws[\w-]{0,20}:(?:secretsmanager|ssm):\S{1,400}|projects/[\w-]{1,100}/secrets/\S{1,200}"
    r"|@Microsoft\.KeyVault\([^()\n]{1,400}\)"
)
EMBEDDED = re.compile(r"\$\{\{?[^{}\n]{0,200}\}\}?")  # within a value, where a plain $ means itself
IN_A_COMMAND = re.compile(r"\$\{\{[^{}\n]{0,200}\}\}")  # what no shell expands either
# <key>, [YOUR-PASSWORD], {{ key }}, your-key, rpa_…, changeme, xxxxxxxx, null, and a value that a page shows masked
PLACEHOLDER = re.compile(
    r"<[^<>\n]{1,100}>|\[[A-Za-z][\w .-]{0,99}\]|\{\{[^{}\n]{1,100}\}\}|(?i:your[-_ ][\w .-]{1,100})"
    r"|\S{0,100}(?:…|\.\.\.)|(?i:change[-_ ]?me|replace[-_ ]?me|todo|tbd|null|none|undefined|nil)"
    r"|(?i:(?:\w{1,10}_)?x{6,100})"
    r"|(?i:(?:\w{1,10}_|(?:enter|paste|insert|put)[-_ ])your[-_ ][\w .-]{1,100})"
    r"|[\w-]{0,40}[*\u2022\u25cf]{4,100}[\w-]{0,40}"
)
IN_A_NAME = re.compile(
    r"<[^<>\n]{1,100}>|\[[A-Za-z][\w -]{0,99}\]|\{[^{}\n]{0,100}\}"
    r"|(?i:\byour[-_](?!objectstorage\.com)[\w-]{1,60})"  # without Hetzner's <location>.your-objectstorage.com
)
PASSWORD = re.compile(
    rf"{PLACEHOLDER.pattern}|(?i:\[?your[-_ ]?(?:db[-_ ]?)?password\]?)|\{{[\w -]{{1,100}}\}}|(?i:x{{4,100}})"
)
# Of a line of a file or of a shell, what precedes the value.
LINE = r"(?:(?:export|set|setx|env|-)\s+|\$env:)?{name}(?:\s*=|:\s)"
COMMENT = re.compile(r"\s#[^'\"]*\Z")
INVISIBLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
SHOWN_CHARS = 60


def refuse_reference(value: str) -> None:
    """Raise ValueError for a value that is a reference to another variable, or has one within."""
    if found := REFERENCE.fullmatch(value) or EMBEDDED.search(value):
        raise ValueError(f"{found[0][:SHOWN_CHARS]} is a reference that nothing has expanded: write the value itself")


def refuse_reference_in_command(value: str) -> None:
    """Raise ValueError for a reference that the shell of the pod could not expand either."""
    if found := IN_A_COMMAND.search(value):
        raise ValueError(f"{found[0][:SHOWN_CHARS]} is a reference that nothing has expanded: write the value itself")


def refuse_own_name(name: str, value: str) -> None:
    """Raise ValueError for a line of a file or of a shell in place of the value: NAME=value, export NAME=value."""
    if re.match(LINE.format(name=re.escape(name)), value, re.IGNORECASE):
        raise ValueError(f"it begins with its own name, {name.upper()}=: give only what follows")


def refuse_comment(value: str) -> None:
    """Raise ValueError for a comment after the value: docker --env-file and systemd make it a part of the value."""
    if COMMENT.search(value):
        raise ValueError("it ends with a comment that begins with ' #', which is a part of the value: remove it")


def refuse_invisible(value: str) -> None:
    """Raise ValueError for a character that nobody sees, and that another page or an editor has left in the value."""
    if found := INVISIBLE.search(value):
        raise ValueError(f"it contains an invisible character, U+{ord(found[0]):04X}: write the value again")


def refuse_placeholder(value: str) -> None:
    """Raise ValueError for a value that stands for one of the user's own."""
    if PLACEHOLDER.fullmatch(value):
        raise ValueError("it is a placeholder: write your own value in its place")


def refuse_names(value: str) -> None:
    """Raise ValueError for a host name with a placeholder, such as <account-id>."""
    if found := IN_A_NAME.search(value):
        raise ValueError(f"{found[0][:SHOWN_CHARS]} is a placeholder: write your own value in its place")
