"""The dashboard: pages that show what `explain`, `list`, `cost`, `timeline` and `diagnose` know.

routes.py has the table of pages, pages/ one file for each; a page is a function from the shared reads to facts, and a
template. stream.py keeps an open page live. sessions.py signs people in, actions.py does what they ask for.
"""
