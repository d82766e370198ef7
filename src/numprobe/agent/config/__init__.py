"""The user's settings: flags over environment variables over a file, and where keys of providers come from.

::

    from numprobe.agent.config.secrets import api_key
    from numprobe.agent.config.settings import load_settings

    settings = load_settings({"default_llm": "my-model"})   # of --llm my-model; None where it is not given
    chosen = settings.llm()                                  # (alias, Llm), or None: no LLM is to be asked
    key = api_key(*chosen)                                   # None where a server of one's own needs none
"""
