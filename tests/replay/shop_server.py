"""`python -m tests.replay.shop_server PORT CLUSTER`: a shop (`shop.py`) as a target that is started."""

from __future__ import annotations

import asyncio
import sys

from tests.replay.shop import Connection, Shop


async def _serve(port: int, cluster: str) -> None:
    shop = Shop("127.0.0.1", cluster, port, empty=True)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(shop), "127.0.0.1", port)
    print(f"{cluster} listens", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
