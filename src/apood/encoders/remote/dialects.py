"""The protocols of model servers: how each one is recognised, tokenises a text, and gives the states of its tokens."""

from collections.abc import Sequence
from typing import Any, Protocol

from apood.encoders.remote.client import Client, RefusedError
from apood.support.errors import ServerError

__all__ = ["Dialect", "find_dialect"]


class Dialect(Protocol):
    """What a server is asked.

    Attributes:
        model: the name of the model that it serves.
        context: the largest number of tokens of a text, as far as it says so; None if it does not.
        most: the largest number of texts per request.
        advice: how to start it so that it gives the states of all tokens.
    """

    model: str
    context: int | None
    most: int
    advice: str

    def tokenise(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return the token ids of texts, with or without the special tokens that the model expects."""

    def embed(self, rows: list[list[int]]) -> list[Any]:
        """Return the states of each row of token ids, as lists of lists."""


class LlamaCpp:
    """A server of llama.cpp, started with `--embeddings --pooling none`."""

    most = 16
    advice = "start llama-server with --embeddings --pooling none, and with --ubatch-size as large as the longest text"

    def __init__(self, client: Client, facts: dict[str, Any]) -> None:
        self._client = client
        self.model = str(facts["id"])
        meta = facts.get("meta")
        self.context = _read_limit(meta, "n_ctx") if isinstance(meta, dict) else None

    def tokenise(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return token ids, one request per text."""
        return [self._client.post("/tokenize", {"content": text, "add_special": special})["tokens"] for text in texts]

    def embed(self, rows: list[list[int]]) -> list[Any]:
        """Return states, which are not normalised."""
        found = self._client.post("/embeddings", {"input": rows})
        return [item["embedding"] for item in sorted(found, key=lambda item: int(item["index"]))]


class Vllm:
    """A server of vLLM, started with `--runner pooling --pooler-config.task token_embed`."""

    most = 16
    advice = "start vLLM with --runner pooling --pooler-config.task token_embed"

    def __init__(self, client: Client, facts: dict[str, Any]) -> None:
        self._client = client
        self.model = str(facts["id"])
        self.context = _read_limit(facts, "max_model_len")

    def tokenise(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return token ids, one request per text."""
        asked = ({"model": self.model, "prompt": text, "add_special_tokens": special} for text in texts)
        return [self._client.post("/tokenize", body)["tokens"] for body in asked]

    def embed(self, rows: list[list[int]]) -> list[Any]:
        """Return states. Without `use_activation` they would be normalised."""
        body = {"model": self.model, "input": rows, "task": "token_embed", "use_activation": False}
        found = self._client.post("/pooling", body | {"encoding_format": "float"})["data"]
        return [item["data"] for item in sorted(found, key=lambda item: int(item["index"]))]


class TextEmbeddingsInference:
    """A server of text-embeddings-inference."""

    advice = "start it with a model whose tokens it can give at /embed_all"

    def __init__(self, client: Client, facts: dict[str, Any]) -> None:
        self._client = client
        self.model = str(facts["model_id"])
        self.context = _read_limit(facts, "max_input_length")
        self.most = _read_limit(facts, "max_client_batch_size") or 1

    def tokenise(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return token ids."""
        rows: list[list[int]] = []
        for start in range(0, len(texts), self.most):
            body = {"inputs": [*texts[start : start + self.most]], "add_special_tokens": special}
            rows += [[token["id"] for token in found] for found in self._client.post("/tokenize", body)]
        return rows

    def embed(self, rows: list[list[int]]) -> list[Any]:
        """Return states, which are not normalised."""
        found: list[Any] = self._client.post("/embed_all", {"inputs": rows, "truncate": False})
        return found


def _read_limit(facts: dict[str, Any], name: str) -> int | None:
    """Return a limit that a server states; None if it states none."""
    found = facts.get(name)
    return found if isinstance(found, int) and found > 0 else None


def find_dialect(client: Client) -> Dialect:
    """Return the protocol of the server. Raise ServerError if it is none of those that are known."""
    for path, choose in (("/v1/models", _read_models), ("/info", _read_info)):
        try:
            content = client.get(path)
        except RefusedError as error:
            if error.status not in (404, 405):
                raise
            continue
        if (found := choose(client, content)) is not None:
            return found
    raise ServerError(
        f"The server {client.address} is none of those that give tokens: llama.cpp, vLLM and text-embeddings-inference."
    )


def _read_models(client: Client, content: Any) -> Dialect | None:
    models = content.get("data") if isinstance(content, dict) else None
    if not (isinstance(models, list) and models and isinstance(models[0], dict) and "id" in models[0]):
        return None
    owner = models[0].get("owned_by")
    if owner == "llamacpp":
        return LlamaCpp(client, models[0])
    return Vllm(client, models[0]) if owner == "vllm" else None


def _read_info(client: Client, content: Any) -> Dialect | None:
    known = isinstance(content, dict) and {"model_id", "max_client_batch_size"} <= content.keys()
    return TextEmbeddingsInference(client, content) if known else None
