"""The screen of `orchestrator top`.

screen.py     the widgets, the keys, and the loop that asks the database one question at a time
questions.py  the questions, and what the database last answered to each
actions.py    what can be changed: commands of this program
cells.py      the rows of the two tables; rows.py keeps the cursor on its row
detail.py     the screens on top: an explanation, the output of a command, a confirmation
"""
