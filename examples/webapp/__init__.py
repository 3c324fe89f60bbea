"""A small web app on the queue (docs/webapp.md).

app.py       routes and submission
pictures.py  receives and stores the pictures
journeys.py  follows the tasks and passes their progress on
static/      the page
"""
