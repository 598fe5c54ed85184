"""An MCP server with one function, which has no description: python mcp_server.py"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

TOOL: Final = {"name": "rain", "inputSchema": {"type": "object"}}
PROOF: Final = "it rains cats and dogs"


def result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "weather", "version": "1"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": PROOF}]}
    return {}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            answer = result(request["method"], request.get("params", {}))
            reply = {"jsonrpc": "2.0", "id": request["id"], "result": answer}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
