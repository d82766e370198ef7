"""Keys of providers: where they may come from, and that they stand nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import parse_qsl, urlsplit

from numprobe.agent.config.model import KEY_VARIABLES, Llm
from numprobe.record.errors import NumprobeError

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_PREFIX = re.compile(r"(?:sk|pk|rk|xai|gsk|hf|ghp|glpat|nvapi)[-_]\S{8}|AIza\S{8}|Bearer\s", re.IGNORECASE)
_NO_SECRETS = ("max_tokens", "api_key_env", "keyring")
_BETWEEN = re.compile(r"[-_./:@ ]")  # the words of a name are shorter than a key
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def names_a_secret(field: str) -> bool:
    """Whether a field of this name would hold a key."""
    return field not in _NO_SECRETS and _SECRET_NAME.search(field) is not None


def looks_like_a_key(text: str) -> bool:
    """Whether a text is rather a key than the name of something."""
    if _PREFIX.match(text):
        return True
    return any(len(run) >= 16 and any(c.isdigit() for c in run) for run in _BETWEEN.split(text))


def url_holds_a_secret(url: str) -> bool:
    """Whether a URL has a password, or a key among its parameters."""
    parts = urlsplit(url)
    return "@" in parts.netloc or any(names_a_secret(name) or looks_like_a_key(v) for name, v in parse_qsl(parts.query))


@dataclass(frozen=True)
class KeySource:
    """Where an alias has its key from. ``kind``: environment, keyring, or none where a server of one's own needs none."""

    kind: str
    name: str = ""


def key_source(llm: Llm) -> KeySource:
    """The variable of the provider counts for the provider's own address alone: no key goes to another server unless the settings
    say so."""
    if llm.api_key_env:
        return KeySource("environment", llm.api_key_env)
    if llm.keyring:
        return KeySource("keyring", llm.keyring)
    return KeySource("none") if llm.base_url else KeySource("environment", KEY_VARIABLES[llm.provider])


def is_set(llm: Llm, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a key; a keyring that cannot be asked has none."""
    try:
        return api_key("", llm, environ) is not None
    except NumprobeError:
        return False


def api_key(alias: str, llm: Llm, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key itself, never to be shown; None where none is needed.

    Raises:
        NumprobeError: E-SET-010 the variable is not set, E-SET-011 the keyring has no such entry or cannot be asked, E-SET-012
            the package keyring is not installed.
    """
    source = key_source(llm)
    if source.kind == "none":
        return None
    if source.kind == "environment":
        key = environ.get(source.name, "").strip()
        if not key:
            raise NumprobeError(
                "E-SET-010",
                "there is no key for {alias}: the environment variable {variable} is not set",
                do="set it in your shell, or name another one: numprobe config set llm.{alias}.api_key_env NAME",
                alias=alias,
                variable=source.name,
            )
        return key
    service, _, user = source.name.partition("/")
    try:
        found = import_module("keyring").get_password(service, user)
    except ImportError:
        raise NumprobeError(
            "E-SET-012",
            "the key of {alias} is in the keyring, and the package keyring is not installed",
            do="pip install 'numprobe[keyring]'",
            alias=alias,
        ) from None
    except Exception as error:  # each backend has errors of its own
        raise NumprobeError(
            "E-SET-011",
            "the keyring cannot be asked for the key of {alias}: {reason}",
            do="use an environment variable instead: numprobe config set llm.{alias}.api_key_env NAME",
            alias=alias,
            reason=type(error).__name__,
        ) from None
    if not found:
        raise NumprobeError(
            "E-SET-011",
            "the keyring has no key for {alias}",
            do="keyring set {service} {user}",
            alias=alias,
            service=service,
            user=user,
        )
    return str(found)
