"""What a skill takes and gives, as JSON schema."""

from __future__ import annotations

from typing import Any

import msgspec

from numprobe.agent.skills.skill import Skill

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(skill: Skill) -> dict[str, Any]:
    """An object with the members ``inputs``, ``options`` and ``result``; ``version`` is that of the skill."""
    (options, result), definitions = msgspec.json.schema_components(
        [skill.options, skill.result], ref_template="#/$defs/{name}"
    )
    inputs = {one.name: {"type": "string", "description": one.about} for one in skill.inputs}
    return {
        "$schema": DIALECT,
        "title": skill.name,
        "version": skill.version,
        "type": "object",
        "properties": {
            "inputs": {
                "type": "object",
                "properties": inputs,
                "required": list(inputs),
                "additionalProperties": False,
            },
            "options": options,
            "result": result,
        },
        "required": ["inputs"],
        "$defs": definitions,
    }
