"""Entry point of the ``numprobe`` command."""


def run() -> None:
    raise SystemExit(0)
