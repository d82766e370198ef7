"""The model of an alias, on a connection that can show what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from numprobe.agent.config.model import Llm
from numprobe.agent.config.secrets import api_key
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

Shown = Callable[[str], None]
NO_KEY = "no-key-needed"  # what a server of one's own gets where no key is set


def model_of(alias: str, llm: Llm, shown: Shown | None = None) -> Model:
    """The model of an alias. ``shown`` is given every request body as it goes out, without the headers that hold the key.

    Raises:
        NumprobeError: E-LLM-001 the packages are not installed; E-SET-010 to 012 there is no key.
    """
    key = api_key(alias, llm) or NO_KEY
    try:
        return _model(llm, key, shown)
    except ImportError as error:
        raise NumprobeError(
            "E-LLM-001",
            "asking a language model needs {package}, which is not installed",
            do="pip install 'numprobe[agent]', or ask without one: --llm none",
            package=str(error.name or "pydantic-ai-slim"),
        ) from None


def _model(llm: Llm, key: str, shown: Shown | None) -> Model:
    settings = _settings(llm)
    base = llm.base_url or None
    if llm.provider == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        claude = AsyncAnthropic(
            api_key=key,
            base_url=base,
            max_retries=llm.retries,
            timeout=llm.timeout_s,
            http_client=_connection(llm, shown),
        )
        return AnthropicModel(llm.model, provider=AnthropicProvider(anthropic_client=claude), settings=settings)
    if llm.provider == "google":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        google = GoogleProvider(api_key=key, base_url=base, http_client=_connection(llm, shown))
        return GoogleModel(llm.model, provider=google, settings=settings)
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(
        api_key=key, base_url=base, max_retries=llm.retries, timeout=llm.timeout_s, http_client=_connection(llm, shown)
    )
    return OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client), settings=settings)


def _settings(llm: Llm) -> ModelSettings:
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(temperature=llm.temperature, timeout=llm.timeout_s)
    if llm.max_tokens:
        settings["max_tokens"] = llm.max_tokens
    return settings


def _connection(llm: Llm, shown: Shown | None) -> httpx2.AsyncClient:
    import httpx2

    async def show(request: httpx2.Request) -> None:
        if shown is not None:
            body = await request.aread()
            shown(f"POST {request.url.host}{request.url.path}\n{_pretty(body)}")

    return httpx2.AsyncClient(timeout=llm.timeout_s, event_hooks={"request": [show]})


def _pretty(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body), ensure_ascii=False, indent=1)
    except ValueError:
        return body.decode("utf-8", "replace")
