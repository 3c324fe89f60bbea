"""The main job on this machine, with real parts: what `./run demo` does, and what the end-to-end tests stand on.

    stack.py     Postgres, S3, the RunPod emulator, and `python -m orchestrator run` beside them, as child processes
    processes.py children that end with their parent
    pictures.py  a sample set of images
    work.py      images -> S3 -> one task per pair, and one that joins
    story.py     what happens, told line by line from the database
    mischief.py  the pod that dies half-way
    tally.py     what came out, counted three ways: database, provider's ledger, bytes on disk against bytes in S3
    film.py      the video, fetched and measured
    play.py      the order of it all
    summary.py   the closing table
    main.py      the command line
    soak.py      the same again and again

Only this package and the tests may import `orchestrator.emulator`.
"""
