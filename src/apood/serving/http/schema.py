"""What the paths of the service take and return, for its OpenAPI schema."""

from collections.abc import Mapping
from typing import Any

from apood.serving.http.errors import CODES

__all__ = ["EXPLAIN_BODY", "GUARDRAIL_BODY", "SCORE_ANSWER", "SCORE_BODY", "TOKEN_TYPES", "describe_errors"]

TOKEN_TYPES = ("application/vnd.safetensors", "application/octet-stream")
"""The media types of token arrays."""

_JSON = "application/json"


def _describe_body(schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the description of a body that is required, from the schema of each of its media types."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": own} for kind, own in schemas.items()}}}


_TEXT = {"type": "string", "description": "One text."}
SCORE_BODY = _describe_body(
    {
        _JSON: {
            "type": "object",
            "properties": {
                "text": _TEXT,
                "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
            "additionalProperties": False,
        },
        TOKEN_TYPES[0]: {
            "type": "string",
            "format": "binary",
            "description": "A safetensors file with values [tokens, D] and offsets [sequences + 1], as a shard of a "
            "token store, and channel.NAME.values and channel.NAME.offsets for every channel.",
        },
    }
)
EXPLAIN_BODY = _describe_body(
    {_JSON: {"type": "object", "properties": {"text": _TEXT}, "required": ["text"], "additionalProperties": False}}
)
GUARDRAIL_BODY = _describe_body(
    {
        _JSON: {
            "type": "object",
            "properties": {
                "input_type": {"enum": ["request", "response"]},
                "structured_messages": {"type": ["array", "null"], "items": {"type": "object"}},
                "texts": {"type": ["array", "null"], "items": {"type": "string"}},
                "images": {"type": ["array", "null"], "items": {"type": "string"}},
            },
            "required": ["input_type"],
        }
    }
)
_ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": "null"},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_RESULT = {
    "type": "object",
    "properties": {
        "accepted": {"type": "boolean"},
        "decision": {"enum": ["ID", "OOD"]},
        "score": {"type": ["number", "null"]},
        "p_value": {"type": "number"},
        "passes_above": {"type": ["number", "null"]},
        "tokens": {"type": "integer"},
        "windows": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["accepted", "decision", "score", "p_value", "passes_above", "tokens", "windows", "truncated", "note"],
}
SCORE_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "one result per text",
        "content": {
            _JSON: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "detector": {"type": "string"},
                        "shadow": {"type": "boolean"},
                        "accepted": {"type": "boolean"},
                        "problem": {"type": ["string", "null"]},
                        "results": {"type": "array", "items": _RESULT},
                    },
                    "required": ["detector", "shadow", "accepted", "problem", "results"],
                }
            }
        },
    }
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of errors with these statuses."""
    content = {_JSON: {"schema": _ERROR_SCHEMA}}
    return {status: {"description": CODES[status], "content": content} for status in statuses}
