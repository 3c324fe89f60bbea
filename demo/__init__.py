"""`./run demo`: the main job on this machine, with real parts.

main.py           the command line
app.py            the system with a web app, for `--app`
scenario.py       the steps in order
workload.py       images to S3, one task for each pair, and one that joins the results
sample_images.py  draws the images
kill_pod.py       kills a pod half-way
narrator.py       prints what happens, from the database
video.py          fetches and measures the result
summary.py        the closing table
"""
