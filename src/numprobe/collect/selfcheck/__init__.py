"""``numprobe collect check``: does the recorder leave a script's numbers alone?"""
