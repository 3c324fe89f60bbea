"""The page at `/`: the name and the state, for everybody. It contains nothing about hosts, versions or errors."""

from starlette.responses import HTMLResponse

STATES = {
    "ok": "It works.",
    "degraded": "It runs, and cannot reach everything that it needs.",
    "dead": "Its control loop has stopped.",
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>GPU orchestrator: {status}</title>
</head>
<body>
<h1>GPU orchestrator</h1>
<p>State: <strong>{status}</strong>. {sentence}</p>
</body>
</html>
"""


def root_page(status: str, headers: dict[str, str]) -> HTMLResponse:
    """Return the page for a status of the health report (a key of STATES)."""
    return HTMLResponse(PAGE.format(status=status, sentence=STATES[status]), headers=HEADERS | headers)
