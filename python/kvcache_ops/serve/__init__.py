"""The OpenAI HTTP interface over an engine.

    app = application(Engine("smollm2"))

`application` is an ASGI application, `serve` runs it until a signal ends it. Needs the extra `serve`.
"""

from kvcache_ops._optional import require

for _package in ("starlette", "uvicorn", "prometheus_client"):
    require(_package, "serve")

from kvcache_ops.serve._application import application  # noqa: E402
from kvcache_ops.serve._server import serve  # noqa: E402

__all__ = ["application", "serve"]
