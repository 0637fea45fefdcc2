"""Model servers in a thread of this process: each answers by the documented contract of one dialect."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from apood import TextEncoder
from apood.encoders.text.encoder import PreparedTexts
from apood.tokens.batch import Ragged


class ModelServer:
    """What a server says, from the tokens of an encoder in this process. Attributes change its behaviour.

    Attributes:
        requests: the path and the headers of every request.
        busy: the number of requests that are answered with 503 first.
        limit: the largest number of tokens of a text.
        change: a function that the states of a text go through.
    """

    def __init__(self, encoder: TextEncoder, dialect: str) -> None:
        self.encoder, self.dialect = encoder, dialect
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.busy, self.limit, self.change = 0, 32, lambda rows: rows
        self.key: str | None = None

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        return getattr(self, f"_answer_{self.dialect}")(path, body)

    def tokenise(self, text: str, special: bool) -> list[int]:
        ids = self.encoder._tokeniser._tokenizer.encode(text, add_special_tokens=special)
        return [int(token) for token in ids]

    def embed(self, rows: list[list[int]]) -> list[Any]:
        ids = Ragged.from_lengths(torch.tensor([i for row in rows for i in row]).int(), [len(row) for row in rows])
        batch = self.encoder.run(PreparedTexts([""] * len(rows), ids, [], None, frozenset(), None))
        return [self.change(batch.sequence(index)).tolist() for index in range(len(rows))]

    def _answer_llama(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "/models/tiny.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 32}}]}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenise(body["content"], body["add_special"])}
        if path == "/embeddings":
            if (longest := max(map(len, body["input"]))) > self.limit:
                return 500, {"error": {"code": 500, "message": f"input ({longest} tokens) is too large to process"}}
            found = [{"index": n, "embedding": rows} for n, rows in enumerate(self.embed(body["input"]))]
            return 200, found[::-1]
        return 404, {"error": {"message": "File Not Found"}}

    def _answer_vllm(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 32}]}
        if path == "/tokenize":
            tokens = self.tokenise(body["prompt"], body["add_special_tokens"])
            return 200, {"count": len(tokens), "max_model_len": 32, "tokens": tokens}
        if path == "/pooling":
            assert body["model"] == "tiny" and body["task"] == "token_embed"
            found = self.embed(body["input"])
            if body["use_activation"] is not False:  # vLLM normalises unless told otherwise
                found = [torch.nn.functional.normalize(torch.tensor(rows), dim=1).tolist() for rows in found]
            return 200, {"data": [{"index": n, "object": "pooling", "data": rows} for n, rows in enumerate(found)]}
        return 404, {"detail": "Not Found"}

    def _answer_tei(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/info":
            return 200, {"model_id": "org/tiny", "max_input_length": 32, "max_client_batch_size": 3}
        if path == "/tokenize":
            assert len(body["inputs"]) <= 3
            rows = [self.tokenise(text, body["add_special_tokens"]) for text in body["inputs"]]
            return 200, [[{"id": token, "text": "", "special": False} for token in row] for row in rows]
        if path == "/embed_all":
            if len(body["inputs"]) > 3:
                return 422, {"error": "batch size 4 > maximum allowed batch size 3", "error_type": "Validation"}
            return 200, self.embed(body["inputs"])
        return 404, None


@contextmanager
def serve_model(server: ModelServer) -> Iterator[str]:
    """Serve on a free port until the block ends; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer in one piece: a client waits for the second one

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Any) -> None:
            server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            if server.busy > 0:
                server.busy -= 1
                status, content = 503, {"error": "busy"}
            elif server.key is not None and self.headers.get("authorization") != f"Bearer {server.key}":
                status, content = 401, {"error": "unauthorized"}
            else:
                status, content = server.answer(self.path, body)
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join(10)
