"""Errors that a client gets, in OpenAI's form."""

from __future__ import annotations

from starlette.responses import JSONResponse

from kvcache_ops._errors import KvCacheError

OVERLOADED, SHUTTING_DOWN = "overloaded", "shutting_down"
_OF_THE_ENGINE = ("answer_failed", "step_failed", "engine_ended", "engine_forked")
OF_THE_SERVER = (OVERLOADED, SHUTTING_DOWN, "grammar_process", *_OF_THE_ENGINE)
"""Kinds of errors that are not the client's."""


class Refusal(Exception):
    """An error with its HTTP status, the parameter that it is about, and a stable code."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.param = param if param is None or param.isprintable() else None

    def content(self) -> dict[str, object]:
        """The error in the form that OpenAI's clients read."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response; a client may retry what has no room now."""
        headers = {"Retry-After": "1"} if self.status == 503 else None
        return JSONResponse(self.content(), self.status, headers)


def unsupported(name: str) -> Refusal:
    """A parameter that is unknown, or would change the answer."""
    return Refusal(400, f"{name!r} is not supported here, or not with this value", "unsupported_parameter", name)


def wrong(name: str, got: object, expected: str) -> Refusal:
    """A parameter with a value out of its range or type."""
    text = repr(got)
    short = text if len(text) <= 80 else f"{text[:80]}..."
    return Refusal(400, f"{name} is {short}, expected {expected}", "parameter_invalid", name)


def of_prompt(error: KvCacheError, param: str) -> Refusal:
    """The refusal of a prompt."""
    code = "context_length_exceeded" if error.kind == "prompt_too_long" else error.kind
    return Refusal(400, str(error), code, param)


def of_answer(error: KvCacheError) -> Refusal:
    """Why an answer ended too early."""
    return Refusal(503 if error.kind in (OVERLOADED, SHUTTING_DOWN) else 500, str(error), error.kind)
