"""The dashboard: pages that show what `explain`, `list`, `cost`, `timeline` and `diagnose` know.

pages/ has one file for each page, and their table. A page is a function from the shared reads to facts, and a template.
routes.py serves the pages, stream.py keeps an open page live. sessions.py and sign_in.py sign people in, actions.py
does what they ask for.
"""
